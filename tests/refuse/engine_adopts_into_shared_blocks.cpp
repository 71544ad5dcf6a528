// refuse: heddle: engine::adopt: rows that arrive are written to blocks of their request alone, which stay where they are; take the cache paged or contiguous, no temporal_fusion and no diffusion
#include <heddle/infer/engine.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  using capabilities = inf::capabilities<inf::truncate, inf::causal_rows, inf::next_token>;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
void serve(runner& r, const inf::handed_sequence& h) {
  static_cast<void>(inf::engine<runner, inf::prefix_shared>(r).adopt(h));
}
