// refuse: heddle: this decoding policy needs a capability that the runner does not offer; speculation needs truncate: rows of rejected tokens that can be overwritten
#include <heddle/infer/engine.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  using capabilities = inf::capabilities<inf::causal_rows>;  // a state without rows

  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
void serve(runner& r) { inf::engine<runner, inf::ngram_speculation<>>(r).step(); }
