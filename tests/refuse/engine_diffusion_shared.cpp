// refuse: heddle: diffusion computes rows of a text again as its masks become tokens: take the cache paged or contiguous, whose blocks no other text has and no step moves
#include <heddle/infer/diffusion.hpp>
#include <heddle/infer/engine.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
using decoding = inf::diffusion<1, inf::threshold, inf::prefix, heddle::model::earlier>;
void serve(inf::engine<runner, decoding, inf::prefix_shared>& e) { e.step(); }
