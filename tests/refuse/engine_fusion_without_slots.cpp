// refuse: heddle: this batching policy needs a capability that the cache policy does not offer; temporal_fusion needs slot_window_moves: slots that can be moved together, as those of slotted
#include <heddle/infer/engine.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
void serve(inf::engine<runner, inf::temporal_fusion<8>, inf::paged>& e) {
  e.step();
}
