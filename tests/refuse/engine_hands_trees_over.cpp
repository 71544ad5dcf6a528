// refuse: heddle: engine::hand_over: rows of trees move in the step after the one that accepts them; take one_token, n-grams or a draft model
#include <heddle/infer/engine.hpp>
#include <heddle/infer/medusa_speculation.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  using capabilities = inf::capabilities<inf::truncate, inf::causal_rows, inf::tree_rows, inf::next_token>;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<scalar>) {}
  std::span<const scalar> streams() const { return {}; }
};
struct heads_type {
  using scalar = float;
  std::int64_t heads() const { return 1; }
  std::int64_t vocabulary() const { return 1; }
  void run(std::span<const float>, std::int64_t, std::span<float>) {}
};
void serve(inf::engine<runner, inf::medusa_speculation<heads_type>>& e, const inf::handed_sequence& h) {
  static_cast<void>(e.hand_over(h.id));
}
