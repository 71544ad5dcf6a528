// refuse: heddle: this decoding policy reads the residual stream of the model, which the runner does not keep: it needs a member streams() (stream_runner)
#include <heddle/infer/engine.hpp>
#include <heddle/infer/medusa_speculation.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  using capabilities = inf::capabilities<inf::truncate, inf::causal_rows, inf::tree_rows, inf::next_token>;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
struct heads_type {
  using scalar = float;
  std::int64_t heads() const { return 1; }
  std::int64_t vocabulary() const { return 1; }
  void run(std::span<const float>, std::int64_t, std::span<float>) {}
};
void serve(inf::engine<runner, inf::medusa_speculation<heads_type>>& e) { e.step(); }
