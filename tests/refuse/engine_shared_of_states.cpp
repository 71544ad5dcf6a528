// refuse: heddle: this cache policy needs a capability that the runner does not offer; prefix_shared needs causal_rows: keys and values that depend on the tokens up to theirs alone, and restore where layers keep states
#include <heddle/infer/engine.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  using capabilities = inf::capabilities<inf::next_token, inf::copy_states>;  // layers that keep states

  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
void serve(runner& r) { inf::engine<runner, inf::prefix_shared>(r).step(); }
