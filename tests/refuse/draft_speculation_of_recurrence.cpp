// refuse: heddle: draft_speculation<Draft>: rows of rejected proposals are overwritten in the draft's cache, and it draws the token behind a row; take a causal draft (next_token) whose layers keep no states (truncate)
#include <heddle/infer/draft_speculation.hpp>

namespace inf = heddle::infer;
struct recurrent {
  using scalar = float;
  using capabilities = inf::capabilities<inf::next_token>;
  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
void ended(inf::draft_speculation<recurrent>& d) {
  d.ended(1);
}
