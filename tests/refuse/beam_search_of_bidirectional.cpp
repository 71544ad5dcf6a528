// refuse: heddle: beam_search: beams share rows of the cache, and a row says the token behind it; take a causal model (next_token) whose layers keep no states (causal_rows)
#include <heddle/infer/beam_search.hpp>
#include <heddle/model/reach.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  using capabilities = inf::capabilities<inf::window_rows, inf::rows_see<heddle::model::everything>>;  // LLaDA
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
void search(runner& r, std::span<const std::int32_t> prompt) {
  static_cast<void>(inf::beam_search(r, prompt, {}));
}
