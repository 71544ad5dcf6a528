// A launch as a whole: its status, ranks that cannot be started, ranks that end one by one, and the cores they run on.
#include <heddle/core/cores.hpp>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "support.hpp"

#if defined(__linux__)
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

using namespace comm_test;

#if defined(__linux__)

namespace {

// What is written to stderr meanwhile.
template <class Body>
std::string on_stderr(Body body) {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  std::fflush(stderr);
  const int before = ::dup(2);
  ::dup2(::fileno(file), 2);
  body();
  std::fflush(stderr);
  ::dup2(before, 2);
  ::close(before);
  std::rewind(file);
  std::string text(10'000, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

}  // namespace

TEST_CASE("launch with arguments prints the error of all ranks once and returns 1", "[comm][launch][failure]") {
  const int p = most_ranks();
  std::vector<int> status(static_cast<std::size_t>(p), -1);
  const auto with_status = [&](const auto& body) {
    std::string text = on_stderr([&] {
      const int mine = hd::launch<transport_test::transport>(0, nullptr, line{p}, options_ms(20'000), body);
      status[static_cast<std::size_t>(transport_test::process())] = mine;
    });
    std::vector<std::string> texts(static_cast<std::size_t>(p));
    texts[static_cast<std::size_t>(transport_test::process())] = text;
    share(texts);
    share(status);
    text.clear();
    for (const std::string& t : texts) text += t;
    if (on_threads) status.assign(status.size(), status[0]);
    return text;
  };
  CHECK(with_status([](auto& world) { world.all().barrier(); }).empty());
  CHECK(status == std::vector<int>(status.size(), 0));
  const std::string text = with_status([&](auto& world) {
    if (world.rank() == p - 1) throw std::out_of_range("no such thing");
    world.all().barrier();
  });
  CHECK(text == "rank " + std::to_string(p - 1) + ": no such thing\n");
  CHECK(status == std::vector<int>(status.size(), 1));
  // A mesh of another size, which every process finds by itself.
  hd::launch_options more;
  more.ranks = p + 1;
  std::vector<std::string> texts(static_cast<std::size_t>(p));
  texts[static_cast<std::size_t>(transport_test::process())] =
      on_stderr([&] { CHECK(hd::launch<transport_test::transport>(0, nullptr, line{p}, more, [](auto&) {}) == 1); });
  share(texts);
  for (std::size_t r = 1; r < texts.size(); ++r) CHECK(texts[r].empty());
  CHECK_THAT(texts[0], Catch::Matchers::StartsWith("heddle: "));
  CHECK(std::count(texts[0].begin(), texts[0].end(), '\n') == 1);
}

#if defined(HEDDLE_TEST_MPI)
TEST_CASE("a mesh that is wrong on one process is an error on all, which that one prints", "[comm][launch][failure]") {
  const int p = most_ranks(), me = transport_test::process();
  std::vector<std::string> texts(static_cast<std::size_t>(p));
  const auto with_sizes = [&](int mine) {
    int status = -1;
    texts[static_cast<std::size_t>(me)] =
        on_stderr([&] { status = hd::launch<hd::mpi>(0, nullptr, line{mine}, options_ms(20'000), [](auto&) {}); });
    share(texts);
    CHECK(status == 1);
  };
  with_sizes(me == p - 1 ? p + 7 : p);
  const std::string last = "heddle: the mesh dp=" + std::to_string(p + 7) + " has ";
  for (int r = 0; r < p - 1; ++r) CHECK(texts[static_cast<std::size_t>(r)].empty());
  CHECK_THAT(texts.back(), Catch::Matchers::StartsWith(last));
  if (p > 1) {  // two that are wrong, in two ways
    with_sizes(me == p - 1 ? p + 7 : me == 0 ? p + 8 : p);
    CHECK_THAT(texts[0], Catch::Matchers::StartsWith("heddle: the mesh dp=" + std::to_string(p + 8) + " has "));
    for (int r = 1; r < p - 1; ++r) CHECK(texts[static_cast<std::size_t>(r)].empty());
    CHECK_THAT(texts.back(), Catch::Matchers::StartsWith(last));
    std::string thrown;
    try {
      hd::launch<hd::mpi>(line{me == p - 1 ? p + 7 : p}, [](auto&) {});
    } catch (const hd::mesh_error& e) {
      thrown = e.what();
    }
    CHECK_THAT(thrown, Catch::Matchers::StartsWith(me == p - 1 ? last : "rank " + std::to_string(p - 1) + ": " + last));
  }
  hd::launch<hd::mpi>(line{p}, options_ms(20'000), [](auto& world) { world.all().barrier(); });
}
#endif

TEST_CASE("memory that a rank cannot have is a memory_error on all", "[comm][launch][failure]") {
  const int p = most_ranks();
  CHECK_THROWS_AS(launch(line{p}, options_ms(20'000),
                         [&](auto& world) {
                           if (world.rank() == p - 1) throw hd::memory_error("heddle: no memory");
                           world.all().barrier();
                         }),
                  hd::memory_error);
}

TEST_CASE("launch of a mesh type with arguments gives a status too", "[comm][launch][threads]") {
  using pair = hd::mesh<hd::axis<dp, 2>>;
  const auto fail = [](auto& world) {
    if (world.rank() == 0) throw hd::config_error("heddle: no");
    world.all().barrier();
  };
  int status = -1;
  CHECK(on_stderr([&] { status = hd::launch<hd::threads, pair>(0, nullptr, fail); }) == "rank 0: heddle: no\n");
  CHECK(status == 1);
  CHECK(on_stderr([&] { status = hd::launch<hd::threads, pair>(0, nullptr, [](auto&) {}); }).empty());
  CHECK(status == 0);
  CHECK_THROWS_AS((hd::launch<hd::threads, pair>(fail)), hd::config_error);
}

// Sanitizers reserve more addresses than the test leaves.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEDDLE_TEST_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HEDDLE_TEST_SANITIZED
#endif
#endif
#if !defined(HEDDLE_TEST_SANITIZED)
TEST_CASE("a thread that cannot be started is named, and those that run are ended", "[comm][launch][threads]") {
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const ::pid_t child = ::fork();
  if (child == 0) {  // with room for the stacks of some threads only
    ::rlimit stack{};
    ::getrlimit(RLIMIT_STACK, &stack);
    std::FILE* const statm = std::fopen("/proc/self/statm", "r");
    long pages = 0;
    if (statm == nullptr || std::fscanf(statm, "%ld", &pages) != 1) ::_exit(3);
    ::rlimit room{};
    room.rlim_cur = room.rlim_max = static_cast<::rlim_t>(pages * ::sysconf(_SC_PAGESIZE)) + (::rlim_t{200} << 20);
    ::setrlimit(RLIMIT_AS, &room);
    std::string text = "not thrown";
    try {
      hd::launch<hd::threads>(line{200}, options_ms(60'000), [](auto& world) { world.all().barrier(); });
    } catch (const hd::comm_error& e) {
      text = e.what();
    }
    (void)!::write(pipe[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string text(4096, '\0');
  const ::ssize_t n = ::read(pipe[0], text.data(), text.size());
  ::close(pipe[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  text.resize(static_cast<std::size_t>((std::max)(n, ::ssize_t{0})));
  CHECK_THAT(text, Catch::Matchers::Matches("rank ([0-9]+): heddle: cannot start the thread of rank \\1 of 200: .*"));
}
#endif

TEST_CASE("ranks that end one after the other do not wake those that wait for others", "[comm][launch][threads]") {
  const int p = 300;
  const auto sleeps = [] {
    ::rusage use{};
    ::getrusage(RUSAGE_SELF, &use);
    return use.ru_nvcsw;
  };
  const auto before = sleeps();
  hd::launch<hd::threads>(line{p}, [](auto& world) {  // as a report that rank 0 gathers: everyone waits for it
    auto& all = world.all();
    int x = 0;
    if (all.rank() == 0)
      for (int r = 1; r < all.size(); ++r) {
        all.send(std::span(&x, 1), r);
        all.recv(std::span(&x, 1), r);
      }
    else {
      all.recv(std::span(&x, 1), 0);
      all.send(std::span(&x, 1), 0);
    }
  });
  CHECK(sleeps() - before < 30L * p);  // a wake-up per pair of ranks would be p * p / 2
}

TEST_CASE("a rank that waits for any of several messages hears that a sender is gone", "[comm][launch][threads]") {
  const auto end = run_to_the_end(3, options_ms(20'000), [](auto& world) {
    int x[2] = {};
    if (world.rank() != 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(world.rank() == 1 ? 30 : 60));
      return;
    }
    auto a = world.all().irecv(std::span(&x[0], 1), 1);
    auto b = world.all().irecv(std::span(&x[1], 1), 2);
    hd::threads_request* both[] = {&b, &a};
    hd::threads_request::wait_any(both);
  });
  CHECK(end.seconds < 5.0);
  CHECK_THAT(end.thrown, Catch::Matchers::Contains("for rank 1, whose body has returned"));
}

// ---- cores ----------------------------------------------------------------------------------------------------------

namespace {

using cpus = std::vector<int>;

cpus mine() {
  ::cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof set, &set);
  cpus all;
  for (int c = 0; c < CPU_SETSIZE; ++c)
    if (CPU_ISSET(c, &set)) all.push_back(c);
  return all;
}

std::vector<cpus> of_ranks(int ranks, hd::binding bind, int threads_per_rank = 1) {
  std::vector<cpus> all(static_cast<std::size_t>(ranks));
  hd::launch_options options;
  options.bind = bind;
  options.threads_per_rank = threads_per_rank;
  hd::launch<hd::threads>(line{ranks}, options,
                          [&](auto& world) { all[static_cast<std::size_t>(world.rank())] = mine(); });
  return all;
}

bool apart(const cpus& a, const cpus& b) {
  return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) == a.end();
}

struct without_environment {  // which would decide instead of the default
  without_environment() {
    if (const char* given = std::getenv("HEDDLE_BIND")) before = given;
    ::unsetenv("HEDDLE_BIND");
  }
  ~without_environment() {
    if (!before.empty()) ::setenv("HEDDLE_BIND", before.c_str(), 1);
  }
  std::string before;
};

}  // namespace

TEST_CASE("ranks are bound to cores when they fit, and the caller gets its cores back",
          "[comm][launch][cores][threads]") {
  const without_environment none;
  const cpus all = mine();
  const int cores = static_cast<int>(all.size());
  using enum hd::binding;
  if (cores >= 2) {
    const auto two = of_ranks(2, on);
    CHECK(apart(two[0], two[1]));
    CHECK(two[0].size() + two[1].size() == all.size());
    const int least = static_cast<int>((std::min)(two[0].size(), two[1].size()));
    CHECK(of_ranks(2, automatic) == std::vector<cpus>{all, two[1]});  // the calling thread stays free
    CHECK(of_ranks(2, automatic, least) == std::vector<cpus>{all, two[1]});
    CHECK(of_ranks(2, automatic, least + 1) == std::vector<cpus>(2, all));
  }
  CHECK(mine() == all);
  CHECK(of_ranks(2, off) == std::vector<cpus>(2, all));
  CHECK(of_ranks(1, automatic)[0] == all);
  CHECK(of_ranks(cores + 1, automatic) == std::vector<cpus>(static_cast<std::size_t>(cores + 1), all));
  CHECK(of_ranks(2, automatic, cores) == std::vector<cpus>(2, all));  // more threads than cores
  for (const cpus& c : of_ranks(cores + 1, on)) CHECK(c.size() == 1);
  CHECK(mine() == all);
  CHECK_THROWS_AS(hd::launch<hd::threads>(line{2}, [](auto&) { throw hd::config_error("heddle: no"); }),
                  hd::config_error);
  CHECK(mine() == all);

  ::cpu_set_t one;  // what counts is where this process may run
  CPU_ZERO(&one);
  CPU_SET(all[0], &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(of_ranks(2, automatic) == std::vector<cpus>(2, cpus{all[0]}));
  CHECK(mine() == cpus{all[0]});
  REQUIRE(hd::detail::bind_this_thread(all));
}

TEST_CASE("a thread that rank 0 starts keeps the caller's cores when the launch is over",
          "[comm][launch][cores][threads]") {
  const without_environment none;
  const cpus all = mine();
  std::atomic<bool> over{false};
  cpus of_pool;
  std::thread pool;  // as those of OpenMP and BLAS, which start in the first call and stay
  hd::launch<hd::threads>(line{2}, [&](auto& world) {
    if (world.rank() != 0) return;
    pool = std::thread([&] {
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      of_pool = mine();
    });
  });
  over = true;
  pool.join();
  CHECK(of_pool == all);
}

TEST_CASE("all ranks of a launch count the same cores, inside another launch too", "[comm][launch][cores][threads]") {
  const without_environment none;
  const cpus all = mine();
  if (all.size() < 2) return;
  const auto least =
      static_cast<int>((std::min)(of_ranks(2, hd::binding::on)[0].size(), of_ranks(2, hd::binding::on)[1].size()));
  for (const auto bind : {hd::binding::automatic, hd::binding::on}) {
    hd::launch_options options;
    options.bind = bind;
    std::vector<int> outer(2, -1), after(2, -1), inner(4, -1);
    hd::launch<hd::threads>(line{2}, options, [&](auto& world) {
      const auto r = static_cast<std::size_t>(world.rank());
      outer[r] = hd::detail::cores_of_bound_rank();
      hd::launch<hd::threads>(line{2}, [&](auto& nested) {
        inner[2 * r + static_cast<std::size_t>(nested.rank())] = hd::detail::cores_of_bound_rank();
      });
      after[r] = hd::detail::cores_of_bound_rank();
      world.all().barrier();
    });
    CHECK(outer == std::vector<int>(2, least));
    CHECK(inner == std::vector<int>(4, 0));
    CHECK(after == outer);
    CHECK(hd::detail::cores_of_bound_rank() == 0);
  }
}

TEST_CASE("the environment decides about cores where the program does not", "[comm][launch][cores][threads]") {
  const without_environment none;
  const cpus all = mine();
  ::setenv("HEDDLE_BIND", "off", 1);
  CHECK(of_ranks(2, hd::binding::automatic) == std::vector<cpus>(2, all));
  ::setenv("HEDDLE_BIND", "on", 1);
  for (const cpus& c : of_ranks(static_cast<int>(all.size()) + 1, hd::binding::automatic)) CHECK(c.size() == 1);
  CHECK(of_ranks(2, hd::binding::off) == std::vector<cpus>(2, all));
  ::setenv("HEDDLE_BIND", "perhaps", 1);
  CHECK_THROWS_WITH(of_ranks(2, hd::binding::automatic),
                    "heddle: the environment variable HEDDLE_BIND should be on, off or automatic, it is \"perhaps\"");
  CHECK(of_ranks(2, hd::binding::off) == std::vector<cpus>(2, all));
  ::unsetenv("HEDDLE_BIND");
}

TEST_CASE("one world at a time binds its ranks; one inside another stays on its rank's cores",
          "[comm][launch][cores][threads]") {
  const without_environment none;
  const cpus all = mine();
  if (all.size() < 2) return;
  std::vector<cpus> outer(2), beside;
  std::vector<std::vector<cpus>> inner(2);
  hd::launch<hd::threads>(line{2}, [&](auto& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    outer[r] = mine();
    inner[r] = of_ranks(2, hd::binding::automatic);
    world.all().barrier();
  });
  CHECK(outer[0] == all);
  CHECK(outer[1].size() < all.size());
  for (std::size_t r = 0; r < 2; ++r)
    for (const cpus& c : inner[r]) CHECK(c == outer[r]);

  // Two side by side, started from threads that may run anywhere.
  std::vector<cpus> first(2);
  std::atomic<int> started{0};
  std::atomic<bool> over{false};
  std::thread one([&] {
    hd::launch<hd::threads>(line{2}, [&](auto& world) {
      first[static_cast<std::size_t>(world.rank())] = mine();
      ++started;
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  });
  while (started < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  beside = of_ranks(2, hd::binding::automatic);
  over = true;
  one.join();
  CHECK(first[0] == all);
  CHECK(first[1].size() < all.size());
  CHECK(beside == std::vector<cpus>(2, all));
  CHECK(mine() == all);
}

#endif
