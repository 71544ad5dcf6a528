// refuse: heddle: engine<Runner, ...> does not know this policy; it takes a batching policy (static_batching<N>, continuous_batching, chunked_prefill<Budget>, temporal_fusion<Slots>), a cache (contiguous, paged, prefix_shared, slotted, windowed) and a way to decode (one_token, ngram_speculation<...>, draft_speculation<Draft>, medusa_speculation<Heads>, falcon_speculation<Drafter>, diffusion<...>) and restore, or types with the same members
#include <heddle/infer/engine.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
struct fast {};
void serve(runner& r) { inf::engine<runner, inf::paged, fast>(r).step(); }
