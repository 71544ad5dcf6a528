// A schedule of one's own: 1F1B with a longer warm-up, which hides the time of the links.
// run:
// prints: 1F1B; 49; bubble 51 %; at most 4, 3, 2, 1 microbatches alive
// prints: eager; 39; bubble 38.5 %; at most 7, 5, 3, 1 microbatches alive
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/stage_map.hpp>
#include <heddle/sim/gantt.hpp>

#include <algorithm>
#include <cstdio>

namespace hd = heddle;
namespace schedule = hd::schedule;

// Rank r of p begins 2 (p - 1 - r) + 1 forwards before its first backward; then one backward, one forward.
template <hd::microbatches_like M = hd::microbatches<>>
struct eager : schedule::one_stage_per_rank<M> {  // stage s on rank s
  using schedule::one_stage_per_rank<M>::one_stage_per_rank;

  template <class Sink>
  constexpr void generate(int rank, int ranks, Sink& emit) const {
    const int m = this->microbatch_count();
    const int warm_up = std::min(2 * (ranks - 1 - rank) + 1, m);
    for (int k = 0; k < m + warm_up; ++k) {
      if (k >= warm_up) emit(schedule::action_kind::backward, rank, k - warm_up);
      if (k < m) emit(schedule::action_kind::forward, rank, k);
    }
  }
};

using mesh = hd::mesh<hd::axis<hd::pp, 4>>;
using when = eager<hd::microbatches<8>>;
static_assert(schedule::valid<when, mesh> && schedule::deadlock_free<when, mesh>);  // the compiler has checked it
static_assert(schedule::peak_live(schedule::table_of<when, 4>, 0) == 7);            // 1F1B: 4

int main() {
  const hd::sim::stage_times times{1, 1, 1};  // F = 1, B = 2
  const hd::sim::link_time link{1};           // a message takes as long as a forward
  const auto usual = schedule::make_table(schedule::one_f_one_b<>{8}, 4);
  const auto table = schedule::make_table<when>(4);
  std::printf("%s\n", hd::sim::schedule_text(usual, hd::sim::simulate(usual, times, link), "1F1B", 100).c_str());
  std::printf("%s", hd::sim::schedule_text(table, hd::sim::simulate(table, times, link), "eager", 100).c_str());
}
