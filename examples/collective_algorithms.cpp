// Collectives by an algorithm of one's choice: the rounds as data, an operator of one's own, and what a mistake looks like.
// run:
// mpi: 12
// prints: ring: 6 messages of rank 0, 48 bytes; recursive doubling: 2 messages, 64 bytes
// prints: sum modulo 7: 0; composed maps: 3x + 6
// prints: algo::pairwise has no rounds for this number of ranks; these have:
// varies: rank [0-2]: heddle
#include <heddle/collective/collectives.hpp>
#include <heddle/collective/round_cost.hpp>
#include <heddle/comm/threads.hpp>

#include <cstdio>
#include <vector>

namespace hd = heddle;
namespace algo = hd::algo;

// [operators]
struct sum_modulo {  // holds state; may be folded in any order
  static constexpr bool commutative = true;
  int modulus;
  int operator()(int a, int b) const { return (a + b) % modulus; }
};

struct line {  // x -> slope * x + offset
  int slope = 1, offset = 0;
};
struct then {  // first a, then b: the order of the ranks matters
  line operator()(const line& a, const line& b) const { return {a.slope * b.slope, b.slope * a.offset + b.offset}; }
};
// [operators]

int main() {
  constexpr auto ring = hd::static_rounds<algo::ring, hd::comm_operation::all_reduce, 4>::view();  // read-only data
  constexpr auto doubling = hd::static_rounds<algo::recursive_doubling, hd::comm_operation::all_reduce, 4>::view();
  static_assert(hd::messages_sent(ring, 0) == 6 && hd::bytes_sent(ring, 0, 8, 4) == 48);
  std::printf("ring: %d messages of rank 0, %lld bytes; recursive doubling: %d messages, %lld bytes\n",
              hd::messages_sent(ring, 0), static_cast<long long>(hd::bytes_sent(ring, 0, 8, 4)),
              hd::messages_sent(doubling, 0), static_cast<long long>(hd::bytes_sent(doubling, 0, 8, 4)));

  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{4}, [](auto& world) {
    auto& comm = world.all();
    // [plans]
    hd::collective_plans plans;  // keeps programs, addresses and scratch memory from call to call
    std::vector<int> x(100);
    for (int step = 0; step < 3; ++step) {
      x.assign(100, comm.rank() + step);
      hd::all_reduce<algo::ring>(comm, x, sum_modulo{7}, plans);
    }
    if (comm.rank() == 0) std::printf("sum modulo 7: %d; ", x[0]);

    line f{comm.rank() == 1 ? 3 : 1, comm.rank()};
    hd::all_reduce<algo::recursive_doubling>(comm, std::span(&f, 1), then{}, plans);  // algo::ring would not compile
    // [plans]
    if (comm.rank() == 0) std::printf("composed maps: %dx + %d\n", f.slope, f.offset);
  });

  try {
    hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{3}, [](auto& world) {
      std::vector<int> x(3), y(3);
      hd::all_to_all<algo::pairwise>(world.all(), x, y);
    });
  } catch (const hd::comm_error& e) {
    std::printf("%s\n", e.what());
  }
}
