// refuse: heddle: rl::rollout: a rule of acceptance takes tokens that no distribution drew, so that their log-probabilities cannot be told to a trainer: take another way to decode
#include <heddle/infer/acceptance.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/medusa_speculation.hpp>
#include <heddle/rl/rollout.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  using capabilities = inf::capabilities<inf::truncate, inf::causal_rows, inf::tree_rows, inf::next_token>;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
  std::span<const float> streams() const { return {}; }
};
struct heads_type {
  using scalar = float;
  std::int64_t heads() const { return 1; }
  std::int64_t vocabulary() const { return 1; }
  void run(std::span<const float>, std::int64_t, std::span<float>) {}
};
using engine = inf::engine<runner, inf::medusa_speculation<heads_type, 8, inf::typical_acceptance>>;
void collect(engine& e) { heddle::rl::rollout(e, heddle::rl::wait_all{}).step(); }

int main() {}
