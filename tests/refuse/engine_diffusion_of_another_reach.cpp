// refuse: diffusion needs window_rows and rows_see<Reach>: a masked model of that reach
#include <heddle/infer/diffusion.hpp>
#include <heddle/infer/engine.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  using capabilities = inf::capabilities<inf::window_rows, inf::rows_see<heddle::model::everything>>;  // LLaDA
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
using decoding = inf::diffusion<4, inf::threshold, inf::exact, heddle::model::blocks<4>>;  // SDAR's
void serve(inf::engine<runner, decoding>& e) { e.step(); }
