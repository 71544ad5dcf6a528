// refuse: heddle: this decoding policy reads residual streams of another element type than the runner's; for those of 16 bits give the engine a widened_runner of the runner, whose streams are of float
#include <heddle/core/half_precision.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/medusa_speculation.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = heddle::bf16;
  using capabilities = inf::capabilities<inf::truncate, inf::causal_rows, inf::tree_rows, inf::next_token>;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<scalar>) {}
  std::span<const scalar> streams() const { return {}; }
};
struct heads_type {
  using scalar = float;
  std::int64_t heads() const { return 1; }
  std::int64_t vocabulary() const { return 1; }
  void run(std::span<const float>, std::int64_t, std::span<float>) {}
};
void serve(inf::engine<runner, inf::medusa_speculation<heads_type>>& e) {
  e.step();
}
