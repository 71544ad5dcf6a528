// refuse: heddle: engine::hand_over: slots of a window move between steps, and a text with masks has rows that change; take no temporal_fusion and no diffusion
#include <heddle/infer/engine.hpp>
#include <heddle/infer/slotted.hpp>
#include <heddle/infer/temporal_fusion.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  using capabilities = inf::capabilities<inf::truncate, inf::causal_rows, inf::next_token>;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
void serve(runner& r) {
  static_cast<void>(inf::engine<runner, inf::slotted, inf::temporal_fusion<4>>(r).hand_over(1));
}
