// refuse: heddle: this decoding policy needs a capability that the runner does not offer; speculation needs truncate: rows of rejected tokens that can be overwritten, or states that restore brings back; trees of proposals need tree_rows; one token behind the other needs next_token: a model whose rows see no later ones
#include <heddle/infer/engine.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  using capabilities = inf::capabilities<inf::window_rows>;  // sees both ways

  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
void serve(runner& r) { inf::engine<runner>(r).step(); }
