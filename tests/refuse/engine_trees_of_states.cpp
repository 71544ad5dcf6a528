// refuse: heddle: this decoding policy needs a capability that the runner does not offer; speculation needs truncate: rows of rejected tokens that can be overwritten, or states that restore brings back; trees of proposals need tree_rows
#include <heddle/infer/engine.hpp>
#include <heddle/infer/medusa_speculation.hpp>

namespace inf = heddle::infer;
struct runner {
  using scalar = float;
  using capabilities = inf::capabilities<inf::next_token, inf::copy_states>;  // layers that keep states

  inf::step_limits limits() const { return {}; }
  void run(const inf::step&, std::span<float>) {}
};
struct heads_type {
  using scalar = float;
  std::int64_t heads() const { return 1; }
  std::int64_t vocabulary() const { return 1; }
  void run(std::span<const float>, std::int64_t, std::span<float>) {}
};
void serve(inf::engine<runner, inf::medusa_speculation<heads_type>, inf::restore>& e) { e.step(); }
