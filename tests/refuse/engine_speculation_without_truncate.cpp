// refuse: heddle: this decoding policy needs a capability that the cache policy does not offer; speculation needs truncate: rows at the end of a sequence that can be taken back
#include <heddle/infer/engine.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
struct written_once : inf::paged {
  using capabilities = inf::capabilities<>;
};
void serve(runner& r) { inf::engine<runner, written_once, inf::ngram_speculation<>>(r).step(); }
