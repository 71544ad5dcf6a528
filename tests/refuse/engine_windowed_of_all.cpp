// refuse: heddle: this cache policy needs a capability that the runner does not offer; prefix_shared needs causal_rows: keys and values that depend on the tokens up to theirs alone, and restore where layers keep states; windowed needs bounded_reach: rows that see a limited number of tokens
#include <heddle/infer/engine.hpp>
#include <heddle/infer/windowed.hpp>

namespace inf = heddle::infer;
struct runner {  // with layers that see all
  using scalar = float;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
void serve(runner& r) { inf::engine<runner, inf::windowed>(r).step(); }
