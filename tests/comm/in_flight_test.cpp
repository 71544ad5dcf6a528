// tests/comm/in_flight_test.cpp: started collectives that own their buffer give it back with the result.
#include "catch.hpp"
#include "transport.hpp"

#include <heddle/comm/awaited.hpp>
#include <heddle/comm/in_flight.hpp>
#include <heddle/core/error.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/sharded.hpp>

#include <cstddef>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace hd = heddle;

namespace {
using in_flight_ranks = hd::mesh<hd::axis<hd::dp>>;
hd::buffer<int> filled_with(int rank, std::int64_t size) {
  hd::buffer<int> b(size);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = rank + static_cast<int>(i);
  return b;
}
// Whether it is the sum of what `filled_with` gives on all ranks.
bool is_sum(const hd::buffer<int>& b, int ranks, std::size_t size) {
  bool ok = b.size() == size;
  for (std::size_t i = 0; i < b.size(); ++i) ok = ok && b[i] == ranks * (ranks - 1) / 2 + ranks * static_cast<int>(i);
  return ok;
}
}  // namespace

TEST_CASE("a started collective owns its buffer and gives it back", "[comm][started]") {
  for (const int ranks : transport_test::rank_counts({1, 2, 3})) {
    std::vector<int> right(static_cast<std::size_t>(ranks), 0);
    transport_test::launch(in_flight_ranks{ranks}, [&](auto& world) {
      auto& all = world.all();
      const int me = world.rank();
      auto sum = all.start_all_reduce(filled_with(me, 5), hd::plus{});
      auto other = all.start_all_reduce(filled_with(me, 0), hd::plus{});
      auto moved = std::move(sum);
      bool ok = is_sum(std::move(other).wait(), ranks, 0);
      const hd::buffer<int> first = std::move(moved).wait();
      ok = ok && is_sum(first, ranks, 5);

      hd::buffer<int> b = hd::meanwhile(all.start_all_reduce(filled_with(me, 7), hd::plus{}), [] {});
      ok = ok && is_sum(b, ranks, 7);
      int unowned = me;
      auto [c, d, n] =
          hd::meanwhile(all.start_all_reduce(filled_with(me, 1), hd::plus{}), all.start_all_reduce(unowned, hd::plus{}),
                        all.start_all_reduce(filled_with(me, 2), hd::plus{}), [] { return 3; });
      ok = ok && is_sum(c, ranks, 1) && is_sum(d, ranks, 2) && n == 3 && unowned == ranks * (ranks - 1) / 2;

      using layout = hd::layout<in_flight_ranks, hd::partial<hd::plus, hd::dp>>;
      hd::sharded<int, 1, layout> x(layout{world.mesh()}, hd::dynamic_shape<1>{4}, me, filled_with(me, 4));
      auto adding = all.start_all_reduce(std::move(x), hd::plus{});
      while (!adding.test()) {
      }
      x = std::move(adding).wait();
      ok = ok && x.elements()[3] == ranks * (ranks - 1) / 2 + 3 * ranks;
      right[static_cast<std::size_t>(me)] = ok ? 1 : 0;
    });
    transport_test::share(right);
    CHECK(right == std::vector<int>(static_cast<std::size_t>(ranks), 1));
  }
}

TEST_CASE("work that throws meanwhile ends what was started", "[comm][started][threads]") {
  CHECK_THROWS_AS(transport_test::launch(in_flight_ranks{2},
                                         [&](auto& world) {
                                           hd::meanwhile(
                                               world.all().start_all_reduce(filled_with(world.rank(), 3), hd::plus{}),
                                               [] { throw std::runtime_error("of the work"); });
                                         }),
                  std::runtime_error);
}

TEST_CASE("messages are awaited by name", "[comm][started]") {
  for (const int ranks : transport_test::rank_counts({1, 2, 3})) {
    std::vector<int> right(static_cast<std::size_t>(ranks), 0);
    transport_test::launch(in_flight_ranks{ranks}, [&](auto& world) {
      auto& all = world.all();
      const int me = world.rank(), next = (me + 1) % ranks, before = (me + ranks - 1) % ranks;
      const std::vector<int> mine{10 + me};
      std::vector<int> theirs{0};
      hd::awaited arriving(all.irecv(theirs, before, 3));
      hd::awaited leaving(all.isend(mine, next, 3));
      while (!leaving.test()) {
      }
      leaving.wait();
      arriving.wait();
      right[static_cast<std::size_t>(me)] = theirs.front() == 10 + before ? 1 : 0;
    });
    transport_test::share(right);
    CHECK(right == std::vector<int>(static_cast<std::size_t>(ranks), 1));
  }
}
