// What ranks recorded each for itself comes together in one recorder.
#include "catch.hpp"

#include "transport.hpp"

#include <heddle/mesh/mesh.hpp>
#include <heddle/observe/gather.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace hd = heddle;
namespace observe = heddle::observe;
using mesh = hd::mesh<hd::axis<hd::dp>>;

namespace {
struct seen {
  int rank = 0, step = 0, stage = 0, microbatch = 0, peer = 0, kind = 0;
  std::int64_t bytes = 0, begin = 0, end = 0;
  std::uint64_t flow = 0;
  std::string name;
  friend bool operator==(const seen&, const seen&) = default;
};
[[maybe_unused]] auto members(seen& s) {
  return std::tie(s.rank, s.step, s.stage, s.microbatch, s.peer, s.kind, s.bytes, s.begin, s.end, s.flow, s.name);
}
seen of(const hd::event& e) {
  return {e.rank,  e.step,     e.stage,  e.microbatch, e.peer, static_cast<int>(e.kind),
          e.bytes, e.begin_ns, e.end_ns, e.flow,       e.name != nullptr ? e.name : ""};
}
hd::event event_of(int rank, int i) {
  static constexpr const char* names[] = {nullptr, "forward", "a name with, commas\nand lines"};
  return {static_cast<hd::activity>(i % 11), names[(rank + i) % 3], rank,         i, i % 4, i % 5, rank + 1, 8 * i,
          static_cast<std::uint64_t>(i),     1'000'000 * i + rank,  2'000'000 * i};
}
struct found {
  std::vector<seen> events;
  std::int64_t dropped = 0;
};
[[maybe_unused]] auto members(found& f) {
  return std::tie(f.events, f.dropped);
}
}  // namespace

TEST_CASE("events of ranks with a recorder each come together", "[observe][ranks]") {
  for (const int ranks : {1, 3})
    for (const int root : {0, ranks - 1}) {
      CAPTURE(ranks, root);
      if (ranks > transport_test::most_ranks()) continue;
      const auto all = transport_test::on_ranks(mesh{ranks}, [&](auto& world) {
        observe::recorder mine(world.size(), {.events_per_rank = 40, .first_step = 2});
        const int rank = world.rank();
        // The last rank has nothing to tell, and rank 0 more than it can keep.
        const int n = rank == 0 ? 50 : rank == world.size() - 1 ? 0 : 20;
        for (int i = 0; i < n; ++i) mine.record(event_of(rank, i));
        observe::gather(mine, world.all(), root);
        found f{{}, mine.dropped()};
        for (int r = 0; r < world.size(); ++r)
          for (const hd::event& e : mine.events(r)) f.events.push_back(of(e));
        return f;
      });
      REQUIRE(all.error.empty());
      std::vector<seen> expected;
      for (int r = 0; r < ranks; ++r)
        for (int i = 2; i < (r == 0 ? 42 : r == ranks - 1 ? 0 : 20); ++i) expected.push_back(of(event_of(r, i)));
      CHECK(all[root].events == expected);
      CHECK(all[root].dropped == 8);
      for (int r = 1; r < ranks; ++r)
        if (r != root) CHECK(all[r].events.size() == (r == ranks - 1 ? 0 : 18));
    }
}

TEST_CASE("events of another host's clock are moved to this one's", "[observe][ranks]") {
  if (transport_test::most_ranks() < 2) return;
  for (const std::int64_t ahead :
       {std::int64_t{0}, std::int64_t{3'600'000'000'000}, std::int64_t{-7'200'000'000'000}}) {
    CAPTURE(ahead);
    const auto all = transport_test::on_ranks(mesh{2}, [&](auto& world) {
      observe::recorder mine(2);
      const auto clock = [&] { return hd::now_ns() + (world.rank() == 1 ? ahead : 0); };
      std::int64_t token = 0, span[2] = {};
      world.all().barrier();
      const std::int64_t before = clock();
      if (world.rank() == 0) {  // the event is within what rank 0 saw of the exchange
        world.all().send(std::span<const std::int64_t>(&token, 1), 1);
        world.all().recv(std::span(&token, 1), 1);
      } else {
        world.all().recv(std::span(&token, 1), 0);
        hd::event e;
        e.rank = 1;
        e.begin_ns = e.end_ns = clock();
        mine.record(e);
        world.all().send(std::span<const std::int64_t>(&token, 1), 0);
      }
      span[0] = before;
      span[1] = clock();
      std::int64_t fastest = 1'000'000'000;  // of questions and answers: what the difference is known to
      observe::detail::gather(mine, world.all(), 0, 5, clock);
      return world.rank() == 0 ? std::vector<std::int64_t>{span[0], mine.events(1)[0].begin_ns, span[1], fastest}
                               : std::vector<std::int64_t>{};
    });
    REQUIRE(all.error.empty());
    CHECK(all[0][0] - all[0][3] <= all[0][1]);
    CHECK(all[0][1] <= all[0][2] + all[0][3]);
    if (ahead == 0) CHECK((all[0][0] <= all[0][1] && all[0][1] <= all[0][2]));  // one clock: nothing is moved
  }
}

TEST_CASE("the difference of two clocks is bounded by the fastest answer", "[observe]") {
  observe::detail::clock_difference same, ahead, behind;
  same.asked(100, 105, 110);
  same.asked(200, 201, 240);
  CHECK(same.ahead_ns() == 0);
  ahead.asked(100, 1105, 110);  // 995 to 1005
  ahead.asked(200, 1203, 204);  // 999 to 1003
  CHECK(ahead.ahead_ns() == 1001);
  behind.asked(1000, 40, 1100);  // -1060 to -960
  behind.asked(2000, 1000, 2010);
  CHECK(behind.ahead_ns() == -1005);
}
