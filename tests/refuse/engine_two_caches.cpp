// refuse: heddle: engine<Runner, ...> got two policies of one kind; keep one of them
#include <heddle/infer/engine.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
void serve(runner& r) { inf::engine<runner, inf::paged, inf::chunked_prefill<64>, inf::contiguous>(r).step(); }
