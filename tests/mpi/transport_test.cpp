// What only the MPI transport does: counts beyond MPI's, operators of one's own, MPI_Comm in and out, and failures.
#include "../comm/support.hpp"

#include <heddle/comm/mpi.hpp>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <thread>

using namespace comm_test;

namespace {

// How it ended on each rank, and what launch threw there. Every process learns all of it.
struct mpi_ending {
  std::vector<std::string> ranks, thrown;
  double seconds = 0;
};
template <class Body>
mpi_ending to_the_end(int ranks, const hd::launch_options& options, Body body) {
  mpi_ending end;
  end.ranks.resize(static_cast<std::size_t>(ranks));
  end.thrown.resize(static_cast<std::size_t>(ranks));
  const auto start = std::chrono::steady_clock::now();
  try {
    launch(line{ranks}, options, [&](auto& world) {
      try {
        body(world);
      } catch (const std::exception& e) {
        end.ranks[static_cast<std::size_t>(world.rank())] = kind_and_text(e);
        throw;
      }
    });
  } catch (const std::exception& e) {
    const auto here = static_cast<std::size_t>(transport_test::process());
    if (here < end.thrown.size()) end.thrown[here] = kind_and_text(e);
  }
  end.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  share(end.ranks);
  share(end.thrown);
  tell(end.seconds, 0);
  return end;
}

// Adds modulo a number that only the object knows.
struct plus_modulo {
  static constexpr bool commutative = true;
  std::int64_t modulus = 2;
  template <class T>
  static T identity() {
    return T{};
  }
  template <class T>
  T operator()(const T& a, const T& b) const {
    return static_cast<T>((a + b) % modulus);
  }
};
struct throwing {
  template <class T>
  static T identity() {
    return T{};
  }
  int operator()(const int& a, const int& b) const {
    if (a + b > 1000) throw std::domain_error("too much");
    return a + b;
  }
};
// Cannot be copied, which a call that is started learns when its comparison with the other ranks' is under way.
struct breaks_when_copied {
  static constexpr bool commutative = true;
  breaks_when_copied() = default;
  breaks_when_copied(const breaks_when_copied&) { throw std::domain_error("no copy"); }
  template <class T>
  static T identity() {
    return T{};
  }
  int operator()(const int& a, const int& b) const { return a + b; }
};
struct alignas(64) wide {
  std::int64_t value = 0;
  friend bool operator==(const wide& a, const wide& b) { return a.value == b.value; }
};
struct plus_wide {
  static constexpr bool commutative = true;
  template <class T>
  static T identity() {
    return T{};
  }
  wide operator()(const wide& a, const wide& b) const { return {a.value + b.value}; }
};

// All calls with a count each, against their definitions.
template <class T>
void every_call(auto& c, std::int64_t n, notes& notes) {
  const int p = c.size(), r = c.rank();
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  auto x = buffer<T>(r, n);
  c.broadcast(x, p - 1);
  notes.expect(r, x == buffer<T>(p - 1, n), "broadcast");
  x = buffer<T>(r, n);
  std::vector<T> all;
  std::vector<std::int64_t> even, uneven;
  for (int q = 0; q < p; ++q) {
    for (const T& e : buffer<T>(q, n)) all.push_back(e);
    even.push_back(n);
    uneven.push_back(n + q);
  }
  std::vector<T> y(all.size());
  c.all_gather(x, y);
  notes.expect(r, y == all, "all_gather");
  y.assign(all.size(), T{});
  c.all_gather_v(x, y, even);
  notes.expect(r, y == all, "all_gather_v");
  c.gather(x, y, 0);
  c.gather_v(x, y, even, 0);
  if (r == 0) notes.expect(r, y == all, "gather");
  std::vector<T> mine(x.size());
  c.scatter(all, mine, 0);
  notes.expect(r, mine == x, "scatter");
  mine.assign(x.size(), T{});
  c.scatter_v(all, even, mine, p - 1);
  notes.expect(r, mine == x, "scatter_v");
  const auto out = buffer<T>(r, n * p);
  c.all_to_all(out, y);
  for (int q = 0; q < p; ++q) notes.expect(r, part(y, q * n, n) == part(buffer<T>(q, n * p), r * n, n), "all_to_all");
  y.assign(y.size(), T{});
  c.all_to_all_v(out, even, y, even);
  for (int q = 0; q < p; ++q) notes.expect(r, part(y, q * n, n) == part(buffer<T>(q, n * p), r * n, n), "all_to_all_v");
  if (p > 1) {
    const int next = (r + 1) % p, last = (r + p - 1) % p;
    auto sent = c.isend(x, next, 3);
    c.recv(mine, last, 3);
    sent.wait();
    notes.expect(r, mine == buffer<T>(last, n), "message");
  }
  if constexpr (std::is_same_v<T, std::int64_t>) {
    c.all_reduce(x, hd::plus{});
    for (std::int64_t i = 0; i < n; ++i) notes.expect(r, x[at(i)] == folded<T>(p, i, hd::plus{}), "all_reduce");
    c.reduce_scatter(out, mine, hd::maximum{});
    for (std::int64_t i = 0; i < n; ++i)
      notes.expect(r, mine[at(i)] == folded<T>(p, r * n + i, hd::maximum{}), "reduce_scatter");
    mine.assign(mine.size(), T{});
    c.reduce_scatter_v(out, mine, even, right{});
    for (std::int64_t i = 0; i < n; ++i)
      notes.expect(r, mine[at(i)] == folded<T>(p, r * n + i, right{}), "reduce_scatter_v");
  }
}

}  // namespace

TEST_CASE("counts beyond what MPI takes at once give the same", "[mpi][law]") {
  for (const int p : rank_counts(8))
    for (const int limit : {1, 7, 100}) {
      notes notes(p);
      launch(line{p}, options_ms(20'000), [&](auto& world) {
        world.all().count_limit_for_tests(limit);
        for (const std::int64_t n : {0, 1, 7, 64, 150}) {
          every_call<std::int64_t>(world.all(), n, notes);
          every_call<word>(world.all(), n, notes);
        }
      });
      notes.report();
    }
}

TEST_CASE("operators may have a state, throw, and work on over-aligned elements", "[mpi]") {
  for (const int p : rank_counts(8)) {
    notes notes(p);
    launch(line{p}, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      for (const std::int64_t modulus : {7, 11}) {
        std::vector<std::int64_t> x(5, world.rank() + 3);
        c.all_reduce(x, plus_modulo{modulus});
        std::int64_t sum = 3;
        for (int q = 1; q < p; ++q) sum = (sum + q + 3) % modulus;
        notes.expect(c.rank(), x == std::vector<std::int64_t>(5, sum), "modulus " + std::to_string(modulus));
      }
      std::vector<wide> y(3, wide{c.rank() + 1});
      c.all_reduce(y, plus_wide{});
      notes.expect(c.rank(), y == std::vector<wide>(3, wide{p * (p + 1) / 2}), "wide");
      double nan = c.rank() == p - 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
      c.all_reduce(std::span(&nan, 1), hd::maximum{});
      notes.expect(c.rank(), nan != nan, "a maximum keeps a NaN");
      bool any = c.rank() == 0;
      c.all_reduce(std::span(&any, 1), hd::maximum{});
      notes.expect(c.rank(), any, "bool");
    });
    notes.report();
  }
  if (most_ranks() < 2) return;
  const auto end = to_the_end(2, options_ms(10'000), [](auto& world) {
    int x = 900;
    world.all().all_reduce(std::span(&x, 1), throwing{});
  });
  CHECK_THAT(end.thrown[0], Catch::Matchers::Contains("too much"));
}

TEST_CASE("arguments that do not fit are refused where they are given", "[mpi][failure]") {
  launch(line{most_ranks()}, options_ms(20'000), [](auto& world) {
    auto alone = world.all().split(world.rank(), 0);
    refuses_arguments(alone);
  });
}

TEST_CASE("communicators of MPI's come in and go out", "[mpi]") {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  auto mine = hd::mpi_communicator::borrow(MPI_COMM_WORLD, "all");
  CHECK(mine.size() == ranks);
  CHECK(mine.native() == MPI_COMM_WORLD);
  CHECK(mine.name() == "all");
  int x = 1;
  mine.all_reduce(std::span(&x, 1), hd::plus{});
  CHECK(x == ranks);
  auto copy = hd::mpi_communicator::duplicate(MPI_COMM_WORLD);
  int relation = MPI_UNEQUAL;
  MPI_Comm_compare(copy.native(), MPI_COMM_WORLD, &relation);
  CHECK(relation == MPI_CONGRUENT);
  auto part = copy.split(-5, -copy.rank());
  CHECK(part.rank() == ranks - 1 - copy.rank());
  MPI_Comm split = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, 0, &split);
  auto owned = hd::mpi_communicator::adopt(split);
  owned.barrier();
  CHECK(hd::mpi_session::thread_level() >= MPI_THREAD_FUNNELED);
  CHECK_FALSE(hd::mpi_session::library_version().empty());
  CHECK(hd::mpi_datatype<float>() == MPI_FLOAT);
  CHECK(hd::mpi_datatype<word>() == MPI_DATATYPE_NULL);
  // An error of MPI's is an exception with its text.
  CHECK_THROWS_WITH(owned.send(std::span(&x, 1), 0, -7), Catch::Matchers::Contains("heddle: MPI_Send failed: "));
}

TEST_CASE("a communicator and a request may outlive their launch", "[mpi]") {
  for (const auto check : {hd::checking::on, hd::checking::off}) {
    std::optional<hd::mpi_communicator> kept;
    hd::mpi_communicator::request message;
    int x = 0, y = 7;
    launch(line{most_ranks()}, options_ms(20'000, check), [&](auto& world) {
      kept.emplace(world.all().split(0, world.rank()));
      message = kept->irecv(std::span(&x, 1), kept->rank());
    });
    kept->send(std::span(&y, 1), kept->rank());
    message.wait();
    CHECK(x == 7);
    kept->all_reduce(std::span(&x, 1), hd::plus{});
    CHECK(x == 7 * most_ranks());
  }
}

#if defined(__linux__)
TEST_CASE("the thread that watches takes no signals", "[mpi]") {
  if (most_ranks() < 2) return;
  std::vector<std::string> blocked(static_cast<std::size_t>(most_ranks()));
  launch(line{most_ranks()}, options_ms(20'000, hd::checking::off), [&](auto& world) {
    std::string& mine = blocked[static_cast<std::size_t>(world.rank())];
    for (int i = 0; i < 1000 && mine.empty(); ++i) {  // it names itself when it starts
      for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream status(thread.path() / "status");
        std::string line;
        bool watches = false;
        while (std::getline(status, line)) {
          if (line.starts_with("Name:")) watches = line.find("heddle-watchdog") != std::string::npos;
          if (watches && line.starts_with("SigBlk:")) mine = line.substr(line.find_last_of(" \t") + 1);
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  share(blocked);
  for (const auto& mask : blocked) {
    REQUIRE_FALSE(mask.empty());
    CHECK((std::stoull(mask, nullptr, 16) >> (SIGTERM - 1) & 1) == 1);
  }
}
#endif

TEST_CASE("a mesh of another size than the world is refused on every rank", "[mpi][failure]") {
  const int n = most_ranks();
  CHECK_THROWS_AS(hd::launch<hd::mpi>(line{n + 1}, [](auto&) {}), hd::mesh_error);
  CHECK_THROWS_WITH(hd::launch<hd::mpi>(line{n + 1}, [](auto&) {}),
                    Catch::Matchers::Contains("but the world has " + std::to_string(n)));
}

TEST_CASE("a rank that throws ends the others out of what they wait for", "[mpi][failure]") {
  if (most_ranks() < 3) return;
  for (const int way : {0, 1, 2, 3}) {
    const auto end = to_the_end(3, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      std::vector<int> x(5);
      if (world.rank() == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(15));
        throw hd::layout_error("heddle: the ship sinks");
      }
      if (way == 0) c.barrier();
      if (way == 1) c.all_reduce(x, hd::plus{});
      if (way == 2) c.recv(x, 2);
      if (way == 3) {
        auto r = c.irecv(x, 2);
        while (!r.test()) std::this_thread::yield();
      }
    });
    INFO("way " << way);
    CHECK(end.seconds < 2.0);
    for (const auto& thrown : end.thrown) CHECK(thrown == "heddle: rank 2: heddle: the ship sinks");
    for (const std::size_t r : {0u, 1u}) {
      CHECK_THAT(end.ranks[r],
                 Catch::Matchers::StartsWith("aborted: heddle: rank 2 failed while rank " + std::to_string(r)));
      CHECK_THAT(end.ranks[r], Catch::Matchers::Contains("the ship sinks"));
    }
  }
}

TEST_CASE("ranks that disagree about a collective are all told who entered what", "[mpi][failure]") {
  if (most_ranks() < 3) return;
  const auto end = to_the_end(3, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    c.barrier();
    std::vector<float> x(8);
    std::vector<double> y(4), z(12);
    if (world.rank() == 1)
      c.all_reduce(x, hd::plus{});
    else
      c.all_gather(y, z);
  });
  for (const auto& text : end.ranks) {
    CHECK_THAT(text, Catch::Matchers::StartsWith("comm: heddle: ranks disagree about call 2 on communicator (dp): "));
    CHECK_THAT(text, Catch::Matchers::Contains(
                         "rank 1 entered all_reduce of 8 float with plus; rank 0 entered all_gather of 4 double"));
  }
}

TEST_CASE("ranks that start what others wait for, or in another order, are told so", "[mpi][failure]") {
  if (most_ranks() < 2) return;
  const int p = (std::min)(3, most_ranks());
  for (const bool both : {false, true}) {
    CAPTURE(both);
    const auto end = to_the_end(p, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      std::vector<float> x(100, 1), y(100, 1);
      if (world.rank() == 0) {
        auto request = c.start_all_reduce(x, hd::plus{});
        if (both) c.all_reduce(y, hd::plus{});
        request.wait();
      } else {
        c.all_reduce(x, hd::plus{});
        if (!both) return;
        auto request = c.start_all_reduce(y, hd::plus{});
        request.wait();
      }
    });
    CHECK(end.seconds < 10);
    int named = 0;
    for (const auto& text : end.ranks) {  // by itself, or from the rank that learned it first
      CHECK_THAT(text, Catch::Matchers::Contains("heddle: ranks disagree about call 1 on communicator (dp): rank "));
      CHECK_THAT(text, Catch::Matchers::Contains("all_reduce of 100 float with plus, and not all other ranks did"));
      named += text.starts_with("comm: ") ? 1 : 0;
    }
    CHECK(named >= 1);
  }
}

TEST_CASE("a started call that fails on its way leaves MPI what it may still write", "[mpi]") {
  if (most_ranks() < 2) return;
  notes notes(2);
  launch(line{2}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    const int r = c.rank();
    std::vector<int> x(4, 1);
    int token = 0;
    std::vector<std::vector<unsigned char>> later(32);  // of a call's size: in its place, if that has been freed
    if (r == 1) c.recv(std::span(&token, 1), 0);
    bool thrown = false;
    try {
      auto request = c.start_all_reduce(x, breaks_when_copied{});
      request.wait();
    } catch (const std::domain_error&) {
      thrown = true;
    }
    notes.expect(r, thrown, "the operator's exception");
    for (auto& bytes : later) bytes.assign(sizeof(hd::detail::mpi_started_call), 0xa5);
    if (r == 0) c.send(std::span(&token, 1), 1);
    c.barrier();  // behind the comparison
    for (const auto& bytes : later)
      for (const unsigned char b : bytes) notes.expect(r, b == 0xa5, "memory of others is as it was");
    c.all_reduce(x, hd::plus{});
    notes.expect(r, x == std::vector<int>(4, 2), "the communicator goes on");
  });
  notes.report();
}

TEST_CASE("run_on takes a body in place", "[mpi]") {
  int sum = 0;
  hd::mpi::run_on(MPI_COMM_WORLD, line{most_ranks()}, options_ms(20'000), [&](auto& world) {
    int y = 1;
    world.all().all_reduce(std::span(&y, 1), hd::plus{});
    sum = y;
  });
  CHECK(sum == most_ranks());
}

TEST_CASE("ranks agree again after a disagreement that all of them caught", "[mpi][failure]") {
  std::vector<int> agreed(static_cast<std::size_t>(most_ranks())), told = agreed;
  const auto me = static_cast<std::size_t>(transport_test::process());
  hd::mpi::run_on(MPI_COMM_WORLD, line{most_ranks()}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    for (int i = 0; i < 5; ++i) {
      std::vector<int> x(static_cast<std::size_t>(c.rank() == i % c.size() ? 3 : 2));
      try {
        c.all_reduce(x, hd::plus{});
      } catch (const hd::comm_error& e) {
        told[me] += std::string(e.what()).find("entered all_reduce of 3 int") != std::string::npos;
      }
      int y = 1;
      c.all_reduce(std::span(&y, 1), hd::plus{});
      agreed[me] += y;
    }
  });
  transport_test::share(agreed);
  transport_test::share(told);
  CHECK(agreed == std::vector<int>(agreed.size(), 5 * most_ranks()));
  CHECK(told == std::vector<int>(told.size(), most_ranks() > 1 ? 5 : 0));
}

TEST_CASE("a message of another size or type is an error, checked or not", "[mpi][failure]") {
  if (most_ranks() < 2) return;
  auto end = to_the_end(2, options_ms(20'000), [&](auto& world) {
    std::vector<float> x(8);
    std::vector<double> y(4);
    if (world.rank() == 0)
      world.all().send(x, 1, 3);
    else
      world.all().recv(y, 0, 3);
  });
  CHECK_THAT(end.ranks[1], Catch::Matchers::Contains("rank 0 entered send of 8 float to rank 1 (tag 3)"));
  CHECK_THAT(end.ranks[1], Catch::Matchers::Contains("rank 1 entered recv of 4 double from rank 0 (tag 3)"));
  for (const std::size_t length : {7u, 9u}) {
    end = to_the_end(2, options_ms(20'000, hd::checking::off), [&](auto& world) {
      std::vector<float> x(8), y(length);
      if (world.rank() == 0)
        world.all().send(x, 1);
      else
        world.all().recv(y, 0);
    });
    CHECK_THAT(end.ranks[1],
               Catch::Matchers::Contains("disagree about a message on communicator (dp): rank 1 entered recv of"));
  }
}

TEST_CASE("who waits too long is told who waits where", "[mpi][failure]") {
  if (most_ranks() < 3) return;
  auto end = to_the_end(3, options_ms(300), [&](auto& world) {
    int x = 0;
    if (world.rank() == 0) world.all().recv(std::span(&x, 1), 1, 7);
    if (world.rank() == 2) world.all().barrier();
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2000));
  });
  CHECK(end.seconds < 5.0);
  const std::string told = end.ranks[0] + end.ranks[2];
  CHECK_THAT(told, Catch::Matchers::Contains(" has waited 300 ms in "));
  CHECK_THAT(told, Catch::Matchers::Contains("rank 0: in recv of 1 int from rank 1 (tag 7) on communicator (dp)"));
  CHECK_THAT(told, Catch::Matchers::Contains("rank 1: is not waiting for anyone"));

  end = to_the_end(3, options_ms(20'000), [&](auto& world) {
    if (world.rank() != 1) world.all().barrier();
  });
  CHECK(end.seconds < 5.0);
  CHECK_THAT(end.ranks[0] + end.ranks[2], Catch::Matchers::Contains("for rank 1, whose body has returned"));
}

TEST_CASE("after all these failures the world still works", "[mpi][failure]") {
  launch(line{most_ranks()}, [&](auto& world) { world.all().barrier(); });
  SUCCEED();
}
