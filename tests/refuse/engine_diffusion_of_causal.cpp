// refuse: heddle: this decoding policy needs a capability that the runner does not offer; speculation needs truncate: rows of rejected tokens that can be overwritten, or states that restore brings back; trees of proposals need tree_rows; one token behind the other needs next_token: a model whose rows see no later ones; diffusion needs window_rows and rows_see<Reach>: a masked model of that reach
#include <heddle/infer/diffusion.hpp>
#include <heddle/infer/engine.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
void serve(inf::engine<runner, inf::diffusion<>>& e) { e.step(); }
