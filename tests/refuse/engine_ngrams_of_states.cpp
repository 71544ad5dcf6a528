// refuse: heddle: this decoding policy needs a capability that the runner does not offer; speculation needs truncate: rows of rejected tokens that can be overwritten, or states that restore brings back
#include <heddle/infer/engine.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  using capabilities = inf::capabilities<inf::next_token, inf::copy_states>;  // layers that keep states

  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
void serve(runner& r) { inf::engine<runner, inf::ngram_speculation<>>(r).step(); }
