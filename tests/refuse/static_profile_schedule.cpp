// refuse: heddle: the schedule cannot run this number of microbatches on this number of pipeline ranks
#include <heddle/schedule/generate/interleaved.hpp>
#include <heddle/train/static_profile.hpp>

#include <cstdint>

namespace hd = heddle;

struct memory {
  constexpr std::int64_t activation_bytes(int /*stage*/) const { return 1; }
};

int main() {
  // Nine microbatches are not groups of four.
  using when = hd::schedule::interleaved<hd::microbatches<9>, 2>;
  using needs = hd::train::static_profile<when, hd::mesh<hd::axis<hd::pp, 4>>, memory>;
  return static_cast<int>(needs::seconds(hd::sim::stage_times{}) + static_cast<double>(needs::bytes));
}
