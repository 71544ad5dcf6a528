// Collectives that are started and waited for later: the definitions again, on both planes, in any order of waiting.
#include "support.hpp"

#include <heddle/rendezvous/control.hpp>
#include <heddle/rendezvous/memory.hpp>
#include <heddle/core/random.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

using namespace comm_test;

namespace {

static_assert(hd::starting_communicator<transport_test::transport::communicator>);
static_assert(hd::starting_communicator<hd::rendezvous_control>);

template <class Request>
void finish(Request& r, bool by_test) {
  if (!by_test) return r.wait();
  while (!r.test()) std::this_thread::yield();
}

// All kinds at once, each with buffers of its own; waited for in an order that differs from rank to rank.
template <class T, class Op>
void all_started(auto& c, std::int64_t n, const Op& op, notes& notes) {
  using started = typename std::remove_reference_t<decltype(c)>::started;
  const int p = c.size(), r = c.rank();
  const auto size = static_cast<std::size_t>(n), own = static_cast<std::size_t>(r);
  const int root = static_cast<int>(n) % p;
  std::vector<std::int64_t> counts;
  std::int64_t offset = 0, total = 0;
  for (int q = 0; q < p; ++q) {
    counts.push_back(q % 3 == 1 ? 0 : n + q);
    if (q < r) offset += counts.back();
    total += counts.back();
  }
  const auto x = buffer<T>(r, n), wide = buffer<T>(r, n * p), uneven = buffer<T>(r, total);
  const auto mine = buffer<T>(r, counts[own]);
  auto in_place = x, told = x, scattered = wide;
  std::vector<T> sum(size), block(size), blocks(size * static_cast<std::size_t>(p)), together = blocks;
  std::copy(x.begin(), x.end(), together.begin() + r * n);
  std::vector<T> some(static_cast<std::size_t>(counts[own])), pieces(static_cast<std::size_t>(total));
  T one = value<T>(r, 7);

  std::vector<started> under_way;
  under_way.push_back(c.start_all_reduce(x, sum, op));
  under_way.push_back(c.start_all_reduce(in_place, op));
  under_way.push_back(c.start_all_reduce(one, op));
  under_way.push_back(c.start_broadcast(told, root));
  under_way.push_back(c.start_reduce_scatter(wide, block, op));
  under_way.push_back(c.start_reduce_scatter(scattered, std::span(scattered).subspan(own * size, size), op));
  {
    const std::vector<std::int64_t> gone = counts;  // counts are copied
    under_way.push_back(c.start_reduce_scatter_v(uneven, some, gone, op));
    under_way.push_back(c.start_all_gather_v(mine, pieces, gone));
  }
  under_way.push_back(c.start_all_gather(x, blocks));
  under_way.push_back(c.start_all_gather(std::span(together).subspan(own * size, size), together));
  std::vector<std::size_t> order(under_way.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const hd::counter_random random(static_cast<std::uint64_t>(17 + n), static_cast<std::uint64_t>(r));
  for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random.integer(i) % (i + 1)]);
  for (const std::size_t i : order) finish(under_way[i], i % 3 == 0);
  for (auto& request : under_way) {
    request.wait();  // empty: at once
    notes.expect(r, request.test(), "an empty request is done");
  }

  const std::string at = " p=" + std::to_string(p) + " n=" + std::to_string(n);
  const auto expected = [&](std::int64_t first, std::int64_t count) {
    std::vector<T> e;
    for (std::int64_t i = 0; i < count; ++i) e.push_back(folded<T>(p, first + i, op));
    return e;
  };
  notes.expect(r, same(sum, expected(0, n)), "all_reduce" + at);
  notes.expect(r, same(in_place, expected(0, n)), "all_reduce in place" + at);
  notes.expect(r, same(std::vector<T>{one}, expected(7, 1)), "all_reduce of one" + at);
  notes.expect(r, told == buffer<T>(root, n), "broadcast" + at);
  notes.expect(r, same(block, expected(r * n, n)), "reduce_scatter" + at);
  notes.expect(r, same(part(scattered, r * n, n), expected(r * n, n)), "reduce_scatter in place" + at);
  notes.expect(r, same(some, expected(offset, counts[own])), "reduce_scatter_v" + at);
  std::vector<T> all, some_of_all;
  for (int q = 0; q < p; ++q) {
    for (const T& e : buffer<T>(q, n)) all.push_back(e);
    for (const T& e : buffer<T>(q, counts[static_cast<std::size_t>(q)])) some_of_all.push_back(e);
  }
  notes.expect(r, blocks == all, "all_gather" + at);
  notes.expect(r, together == all, "all_gather in place" + at);
  notes.expect(r, pieces == some_of_all, "all_gather_v" + at);
}

void every_type(auto& c, notes& notes) {
  for (const std::int64_t n : {0, 1, 4, 33}) {
    all_started<double>(c, n, hd::plus{}, notes);
    all_started<std::int64_t>(c, n, hd::maximum{}, notes);
    all_started<word>(c, n, join{}, notes);
  }
  all_started<matrix2>(c, 3, product2{}, notes);
  all_started<std::uint8_t>(c, 5, right{}, notes);
}

struct throws_late {
  template <class T>
  static T identity() {
    return T{};
  }
  int operator()(int a, int b) const {
    if (a + b > 2) throw std::runtime_error("too large");
    return a + b;
  }
};

// Throws on rank 0, while rank 1 is at work on a piece of its own until rank 0 has asked for the result.
struct throws_on_zero {
  static inline thread_local int rank = -1;
  static inline std::atomic<bool> at_work{false}, asked{false};
  template <class T>
  static T identity() {
    return T{};
  }
  std::int64_t operator()(std::int64_t a, std::int64_t b) const {
    if (rank == 0) throw std::runtime_error("of rank 0's own");
    at_work = true;
    while (!asked) std::this_thread::yield();
    return a + b;
  }
};

}  // namespace

TEST_CASE("started collectives give what their definitions say, in any order of waiting", "[comm][started]") {
  for (const int p : rank_counts({1, 2, 3, 5, 9}))
    for (const hd::checking check : {hd::checking::on, hd::checking::off, hd::checking::poison}) {
      CAPTURE(p, static_cast<int>(check));
      notes data(p), control(p);
      launch(line{p}, options_ms(20'000, check), [&](auto& world) {
        every_type(world.all(), data);
        every_type(world.control(), control);
      });
      data.report();
      control.report();
    }
}

TEST_CASE("results of started collectives that are read too early are no numbers where they are poisoned",
          "[comm][started]") {
  for (const int p : rank_counts({2, 3}))
    for (const hd::checking check : {hd::checking::on, hd::checking::poison}) {
      CAPTURE(p, static_cast<int>(check));
      const bool poisoned = check == hd::checking::poison;
      notes notes(p);
      launch(line{p}, options_ms(20'000, check), [&](auto& world) {
        auto& c = world.all();
        const int r = c.rank();
        const auto n = static_cast<std::size_t>(p), me = static_cast<std::size_t>(r);
        // Rank p - 1 starts before the others, which it tells to go on when it has read its result.
        float go = 0;
        const auto early = [&](const char* what, auto start, std::span<float> result, std::size_t first,
                               std::size_t count, float expected) {
          if (r != p - 1) c.recv(std::span(&go, 1), p - 1);
          auto request = start();
          if (r == p - 1) {
            for (std::size_t i = first; i < first + count; ++i)
              notes.expect(r, std::isnan(result[i]) == poisoned, std::string(what) + " is read too early");
            for (int q = 0; q < p - 1; ++q) c.send(std::span(&go, 1), q);
          }
          request.wait();
          for (std::size_t i = first; i < first + count; ++i)
            notes.expect(r, result[i] == expected, std::string(what) + ": " + std::to_string(result[i]));
        };
        const float sum = static_cast<float>(p);
        std::vector<float> x(n, 1.0f), y(n, 0.0f), z(n, 1.0f), own(1, 1.0f);
        const std::span<float> mine = std::span(z).subspan(me, 1);
        const std::vector<std::int64_t> counts(n, 1);
        early("all_reduce", [&] { return c.start_all_reduce(x, y, hd::plus{}); }, y, 0, n, sum);
        early("all_reduce in place", [&] { return c.start_all_reduce(x, hd::plus{}); }, x, 0, n, sum);
        y.assign(n, r == 0 ? 3.0f : 0.0f);
        early("broadcast", [&] { return c.start_broadcast(y, 0); }, y, 0, n, 3.0f);
        early("reduce_scatter", [&] { return c.start_reduce_scatter(z, own, hd::plus{}); }, own, 0, 1, sum);
        early("reduce_scatter in place", [&] { return c.start_reduce_scatter(z, mine, hd::plus{}); }, z, me, 1, sum);
        z.assign(n, 1.0f);
        early(
            "reduce_scatter_v in place", [&] { return c.start_reduce_scatter_v(z, mine, counts, hd::plus{}); }, z, me,
            1, sum);
        y.assign(n, 0.0f);
        z.assign(n, 2.0f);
        own.assign(1, 2.0f);
        early("all_gather", [&] { return c.start_all_gather(own, y); }, y, 0, n - 1, 2.0f);
        early("all_gather in place", [&] { return c.start_all_gather(mine, z); }, z, 0, n - 1, 2.0f);
        early("all_gather_v in place", [&] { return c.start_all_gather_v(mine, z, counts); }, z, 0, n - 1, 2.0f);
        // Integers have no such value.
        std::vector<int> i(n, 1);
        auto request = c.start_all_reduce(i, hd::plus{});
        request.wait();
        notes.expect(r, i[0] == p, "a sum of integers");
      });
      notes.report();
    }
}

TEST_CASE("large started collectives are shared among those that wait", "[comm][started]") {
  for (const int p : rank_counts({2, 4})) {
    notes notes(p);
    launch(line{p}, options_ms(60'000), [&](auto& world) {
      all_started<float>(world.all(), 70'001, hd::plus{}, notes);
      all_started<std::uint8_t>(world.all(), 90'001, right{}, notes);
    });
    notes.report();
  }
}

TEST_CASE("ranks may differ in whether they start a collective in place", "[comm][started]") {
  const std::int64_t n = 30'000;  // of a size at which MPI takes another algorithm
  for (const int p : rank_counts({2, 3, 4}))
    for (const hd::checking check : {hd::checking::on, hd::checking::off})
      for (int first = 0; first < 2; ++first) {
        CAPTURE(p, check == hd::checking::on, first);
        notes notes(p);
        launch(line{p}, options_ms(20'000, check), [&](auto& world) {
          auto& c = world.all();
          const int r = c.rank();
          const bool in_place = first == 0 ? r == 0 : r != 0;
          std::vector<std::int64_t> counts(static_cast<std::size_t>(p), n), offsets(static_cast<std::size_t>(p) + 1);
          for (int q = 0; q < p; ++q) counts[static_cast<std::size_t>(q)] += q;
          std::inclusive_scan(counts.begin(), counts.end(), offsets.begin() + 1);
          const auto mine = static_cast<std::size_t>(r), size = static_cast<std::size_t>(n);
          const auto x = buffer<std::int64_t>(r, n), uneven = buffer<std::int64_t>(r, n + r);
          std::vector<std::int64_t> sum(size), all(size * static_cast<std::size_t>(p)),
              pieces(static_cast<std::size_t>(offsets.back()));
          const std::span<std::int64_t> own = std::span(all).subspan(mine * size, size);
          const std::span<std::int64_t> piece =
              std::span(pieces).subspan(static_cast<std::size_t>(offsets[mine]), uneven.size());
          if (in_place) {
            sum = x;
            std::copy(x.begin(), x.end(), own.begin());
            std::copy(uneven.begin(), uneven.end(), piece.begin());
          }
          const auto given = [&](const std::vector<std::int64_t>& apart, std::span<const std::int64_t> inside) {
            return in_place ? inside : std::span<const std::int64_t>(apart);
          };
          auto reduced = c.start_all_reduce(given(x, sum), sum, hd::plus{});
          auto gathered = c.start_all_gather(given(x, own), all);
          auto gathered_v = c.start_all_gather_v(given(uneven, piece), pieces, counts);
          gathered_v.wait();
          gathered.wait();
          reduced.wait();
          std::vector<std::int64_t> sums, parts, uneven_parts;
          for (std::int64_t i = 0; i < n; ++i) sums.push_back(folded<std::int64_t>(p, i, hd::plus{}));
          for (int q = 0; q < p; ++q) {
            for (std::int64_t i = 0; i < n; ++i) parts.push_back(value<std::int64_t>(q, i));
            for (std::int64_t i = 0; i < n + q; ++i) uneven_parts.push_back(value<std::int64_t>(q, i));
          }
          notes.expect(r, sum == sums, "all_reduce");
          notes.expect(r, all == parts, "all_gather");
          notes.expect(r, pieces == uneven_parts, "all_gather_v");
        });
        notes.report();
      }
}

TEST_CASE("control planes over a rendezvous start collectives, too", "[comm][started][threads]") {
  for (const int p : {1, 2, 4}) {
    notes notes(p);
    const auto shared = std::make_shared<hd::memory_meeting>();
    std::vector<std::thread> ranks;
    for (int r = 0; r < p; ++r)
      ranks.emplace_back([&, r] {
        std::vector<int> members(static_cast<std::size_t>(p));
        std::iota(members.begin(), members.end(), 0);
        hd::rendezvous_control c(std::make_shared<hd::detail::control_state>(
            std::make_shared<hd::memory_rendezvous>(shared, r, p), "control", members, r, options_ms(10'000)));
        try {
          every_type(c, notes);
        } catch (const std::exception& e) {
          notes.expect(r, false, e.what());
        }
      });
    for (auto& t : ranks) t.join();
    notes.report();
  }
}

TEST_CASE("sums that were started have the bits of those that block", "[comm][started][threads]") {
  std::vector<float> blocked, started;
  for (const int p : {2, 3, 7})
    launch(line{p}, [&](auto& world) {
      auto& c = world.all();
      auto x = buffer<float>(c.rank(), 20'000), y = x;
      auto request = c.start_all_reduce(x, hd::plus{});
      c.all_reduce(y, hd::plus{});  // others may go on meanwhile
      request.wait();
      if (c.rank() == 0) started = x, blocked = y;
    });
  CHECK(started == blocked);
}

TEST_CASE("a rank need not wait for others to get on", "[comm][started]") {
  if (most_ranks() < 3) return;
  notes notes(3);
  launch(line{3}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    const int r = c.rank();
    std::vector<int> x(1'000, r + 1), y(1'000, 10 * (r + 1));
    auto a = c.start_all_reduce(x, hd::plus{});
    auto b = c.start_all_reduce(y, hd::plus{});
    int token = 0;
    if (r == 0) {  // rank 1 sends only when it has both results, rank 2 waits for neither before
      c.recv(std::span(&token, 1), 1);
    } else if (r == 1) {
      b.wait();
      a.wait();
      c.send(std::span(&token, 1), 0);
    }
    c.barrier();
    a.wait();
    b.wait();
    notes.expect(r, x[999] == 6 && y[0] == 60, "sums");
  });
  notes.report();
}

TEST_CASE("a started collective that nobody waits for is waited for by its destructor", "[comm][started]") {
  const int p = (std::min)(3, most_ranks());
  notes notes(p);
  launch(line{p}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    std::vector<int> x(100, 1);
    {
      [[maybe_unused]] auto dropped = c.start_all_reduce(x, hd::plus{});
    }
    notes.expect(c.rank(), x == std::vector<int>(100, p), "sum");
    auto first = c.start_all_reduce(x, hd::plus{});
    first = c.start_all_reduce(std::span<int>{}, hd::plus{});  // the one before ends first
    notes.expect(c.rank(), x == std::vector<int>(100, p * p), "sum");
    first.wait();
    notes.expect(c.rank(), c.counters()[hd::comm_operation::all_reduce].calls == 3, "counted like the others");
  });
  notes.report();
}

TEST_CASE("mistakes with started collectives are named", "[comm][started][threads]") {
  const auto has = [](const std::string& text, const char* part) {
    INFO(text);
    CHECK(contains(text, part));
  };
  SECTION("ranks that start something else") {
    const ending end = run_to_the_end(3, options_ms(5'000), [](auto& world) {
      std::vector<float> x(world.rank() == 2 ? 3 : 2);
      auto r = world.all().start_all_reduce(x, hd::plus{});
      r.wait();
    });
    for (const auto& e : end.ranks)
      has(e,
          "comm: heddle: ranks disagree about started call 1 on communicator (dp): rank 2 entered start_all_reduce of "
          "3 float with plus; rank 0 entered start_all_reduce of 2 float with plus");
  }
  SECTION("another order with calls that block") {
    const ending end = run_to_the_end(2, options_ms(5'000), [](auto& world) {
      auto& c = world.all();
      std::vector<int> x(2);
      if (world.rank() == 0) {
        auto r = c.start_all_reduce(x, hd::plus{});
        c.barrier();
        r.wait();
      } else {
        c.barrier();
        auto r = c.start_all_reduce(x, hd::plus{});
        r.wait();
      }
    });
    has(end.ranks[0],
        "ranks disagree about the order of calls on communicator (dp): rank 1 entered barrier after 0 "
        "started calls; rank 0 after 1");
  }
  SECTION("a rank that does not start it") {
    const ending end = run_to_the_end(3, options_ms(200), [](auto& world) {
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(600));
      if (world.rank() == 1) return;
      std::vector<int> x(2);
      auto r = world.all().start_all_reduce(x, hd::plus{});
      r.wait();
    });
    has(end.thrown, "in start_all_reduce of 2 int with plus, call 1 on communicator (dp)");
    has(end.thrown, "for rank 1");
    CHECK(end.seconds < 5);
  }
  SECTION("a rank that returns without it") {
    const ending end = run_to_the_end(2, options_ms(60'000), [](auto& world) {
      if (world.rank() == 1) return;
      std::vector<int> x(2);
      auto r = world.all().start_all_reduce(x, hd::plus{});
      r.wait();
    });
    has(end.ranks[0],
        "waits in start_all_reduce of 2 int with plus, call 1 on communicator (dp) for rank 1, whose body "
        "has returned");
  }
  SECTION("a rank that throws meanwhile") {
    const ending end = run_to_the_end(3, options_ms(60'000), [](auto& world) {
      std::vector<int> x(2);
      auto r = world.all().start_all_reduce(x, hd::plus{});
      if (world.rank() == 1) throw hd::config_error("heddle: not today");
      r.wait();
      world.all().barrier();
    });
    has(end.thrown, "heddle: not today");
    for (const int r : {0, 2}) has(end.ranks[static_cast<std::size_t>(r)], "aborted: heddle: rank 1 failed");
  }
  SECTION("an operator that throws") {
    const ending end = run_to_the_end(3, options_ms(5'000), [](auto& world) {
      std::vector<int> x(2, 1);
      auto r = world.all().start_all_reduce(x, throws_late{});
      r.wait();
    });
    int thrown = 0, told = 0;
    for (const auto& e : end.ranks) {
      thrown += contains(e, "too large") ? 1 : 0;
      told += contains(e, "failed on rank") ? 1 : 0;
    }
    CHECK(thrown == 3);
    CHECK(told >= 1);
  }
  SECTION("an operator that throws for a rank that tests while another is at work") {
    throws_on_zero::at_work = throws_on_zero::asked = false;
    const ending end = run_to_the_end(2, options_ms(60'000), [](auto& world) {
      throws_on_zero::rank = world.rank();
      std::vector<std::int64_t> x(1 << 18, 1);
      auto r = world.all().start_all_reduce(x, throws_on_zero{});
      if (world.rank() == 1) return r.wait();
      while (!throws_on_zero::at_work) std::this_thread::yield();
      const bool over = r.test();
      throws_on_zero::asked = true;
      if (over) throw hd::config_error("heddle: over while rank 1 was at work");
      while (!r.test()) std::this_thread::yield();
    });
    has(end.ranks[0], "other: of rank 0's own");
    has(end.ranks[1], "failed on rank 0");
  }
  SECTION("one that is dropped while an exception unwinds breaks it for the others") {
    const ending end = run_to_the_end(2, options_ms(60'000), [](auto& world) {
      std::vector<int> x(2);
      if (world.rank() == 0) {
        try {
          auto r = world.all().start_all_reduce(x, hd::plus{});
          throw 1;
        } catch (int) {
        }
        int token = 0;
        world.all().send(std::span(&token, 1), 1);
      } else {
        int token = 0;
        world.all().recv(std::span(&token, 1), 0);
        auto r = world.all().start_all_reduce(x, hd::plus{});
        r.wait();
      }
    });
    has(end.ranks[1],
        "comm: heddle: rank 0 has given up start_all_reduce of 2 int with plus, call 1 on communicator (dp)");
  }
}

TEST_CASE("ranks that start and wait at random times get the same", "[comm][started]") {
  const int p = (std::min)(4, most_ranks());
  notes notes(p);
  const std::uint64_t seed = 20'260;
  CAPTURE(seed);
  launch(line{p}, options_ms(60'000), [&](auto& world) {
    auto& c = world.all();
    using started = typename std::remove_reference_t<decltype(c)>::started;
    const int r = c.rank();
    const hd::counter_random same_random(seed, 1), own_random(seed, 100 + static_cast<std::uint64_t>(r));
    constexpr std::size_t most = 6;
    std::vector<std::vector<std::int64_t>> values(most);
    std::vector<std::optional<started>> under_way(most);
    std::vector<std::int64_t> expected(most);
    const auto end = [&](std::size_t k) {
      if (!under_way[k]) return;
      finish(*under_way[k], own_random.integer(k) % 2 == 0);
      under_way[k].reset();
      for (const auto v : values[k]) notes.expect(r, v == expected[k], "sum");
    };
    for (std::uint64_t turn = 0; turn < 200; ++turn) {
      const std::size_t k = turn % most;
      end(k);
      const auto n = static_cast<std::size_t>(same_random.integer(turn) % 300);
      values[k].assign(n, static_cast<std::int64_t>(turn) + r);
      expected[k] = static_cast<std::int64_t>(turn) * p + p * (p - 1) / 2;
      under_way[k].emplace(c.start_all_reduce(values[k], hd::plus{}));
      if (same_random.integer(1'000 + turn) % 7 == 0) c.barrier();
      if (own_random.integer(5'000 + turn) % 3 == 0) end(own_random.integer(9'000 + turn) % most);
    }
    for (std::size_t k = 0; k < most; ++k) end(k);
  });
  notes.report();
}
