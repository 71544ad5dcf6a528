// refuse: heddle: colocated_weights gives a trainer's weights back while others generate: its stage needs lend_weights(row) and flat_elements()
#include <heddle/rl/colocated_weights.hpp>

namespace hd = heddle;
struct stage {
  using scalar = float;
  std::vector<hd::model::parameter> parameters() const;
  std::span<float> weights();
};
struct trainer {
  using stage_type = stage;
  using scalar = float;
  using space = hd::host_memory;
  static constexpr int zero_stage = 1;
};
void check(const hd::rl::colocated_weights<trainer, stage>& weights) { static_cast<void>(weights.generating()); }
