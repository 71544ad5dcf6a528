// What happens when ranks disagree, fail, leave early or never come: everyone is told, nobody hangs, nothing dangles.
#include "support.hpp"

#include <heddle/core/random.hpp>

#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>

using namespace comm_test;

namespace {

// Every call that can wait, on a buffer that dies with the call, so that a late access to it shows in AddressSanitizer.
using comm = hd::threads_communicator;
struct waiting_call {
  std::string name;
  std::function<void(comm&)> call;
};

std::vector<waiting_call> waiting_calls() {
  const auto vec = [](std::size_t n) { return std::vector<double>(n, 1.0); };
  const auto ones = [](comm& c) { return std::vector<std::int64_t>(static_cast<std::size_t>(c.size()), 1); };
  const auto all = [](comm& c) { return std::vector<double>(static_cast<std::size_t>(c.size()), 2.0); };
  // The blocking messages go to a rank that does not answer: the last one.
  return {
      {"barrier", [](comm& c) { c.barrier(); }},
      {"broadcast", [=](comm& c) { c.broadcast(vec(5), 0); }},
      {"all_reduce", [=](comm& c) { c.all_reduce(vec(5), hd::plus{}); }},
      {"reduce", [=](comm& c) { c.reduce(vec(5), vec(5), hd::plus{}, 0); }},
      {"reduce_scatter", [=](comm& c) { c.reduce_scatter(all(c), vec(1), hd::plus{}); }},
      {"reduce_scatter_v", [=](comm& c) { c.reduce_scatter_v(all(c), vec(1), ones(c), hd::plus{}); }},
      {"all_gather", [=](comm& c) { c.all_gather(vec(1), all(c)); }},
      {"all_gather_v", [=](comm& c) { c.all_gather_v(vec(1), all(c), ones(c)); }},
      {"all_to_all", [=](comm& c) { c.all_to_all(all(c), all(c)); }},
      {"all_to_all_v", [=](comm& c) { c.all_to_all_v(all(c), ones(c), all(c), ones(c)); }},
      {"gather", [=](comm& c) { c.gather(vec(1), all(c), 0); }},
      {"gather_v", [=](comm& c) { c.gather_v(vec(1), all(c), ones(c), 0); }},
      {"scatter", [=](comm& c) { c.scatter(all(c), vec(1), 0); }},
      {"scatter_v", [=](comm& c) { c.scatter_v(all(c), ones(c), vec(1), 0); }},
      {"split", [](comm& c) { (void)c.split(0, 0); }},
      {"send", [=](comm& c) { c.send(vec(3), c.size() - 1, 4); }},
      {"recv", [=](comm& c) { c.recv(vec(3), c.size() - 1, 4); }},
      {"request of send",
       [=](comm& c) {
         const auto x = vec(3);
         c.isend(x, c.size() - 1).wait();
       }},
      {"request of recv",
       [=](comm& c) {
         auto x = vec(3);
         auto r = c.irecv(x, c.size() - 1);
         r.wait();
       }},
      {"polled request",
       [=](comm& c) {
         auto x = vec(3);
         auto r = c.irecv(x, c.size() - 1);
         while (!r.test()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
       }},
  };
}

struct my_error : hd::layout_error {
  using hd::layout_error::layout_error;
};

}  // namespace

TEST_CASE("a rank that throws ends every other rank out of whatever it waits for", "[comm][failure]") {
  for (const auto& call : waiting_calls()) {
    INFO(call.name);
    const auto end = run_to_the_end(3, options_ms(20'000), [&](auto& world) {
      if (world.rank() == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(15));
        throw my_error("heddle: the ship sinks");
      }
      call.call(world.all());
    });
    CHECK(end.seconds < 1.0);
    CHECK(end.thrown == "heddle: rank 2: heddle: the ship sinks");
    for (const std::size_t r : {0u, 1u}) {
      CHECK_THAT(end.ranks[r],
                 Catch::Matchers::StartsWith("aborted: heddle: rank 2 failed while rank " + std::to_string(r)));
      CHECK_THAT(end.ranks[r], Catch::Matchers::Contains("the ship sinks"));
    }
  }
}

TEST_CASE("after a failure the next call fails as well", "[comm][failure]") {
  const auto end = run_to_the_end(3, options_ms(20'000), [&](auto& world) {
    if (world.rank() == 0) throw std::out_of_range("no such thing");
    try {
      world.all().barrier();
    } catch (const hd::aborted_error&) {
    }
    int x = 0;
    world.all().all_reduce(std::span(&x, 1), hd::plus{});
  });
  CHECK(end.thrown == "heddle: rank 0: no such thing");
  CHECK_THAT(end.ranks[1], Catch::Matchers::StartsWith(
                               "aborted: heddle: rank 0 failed while rank 1 was in all_reduce of 1 int with plus"));
}

TEST_CASE("launch keeps the family of the error and nests the original", "[comm][failure]") {
  const auto launch_throwing = [](auto problem) {
    hd::launch<hd::threads>(line{2}, [&](auto& world) {
      if (world.rank() == 1) throw problem;
      world.all().barrier();
    });
  };
  CHECK_THROWS_AS(launch_throwing(hd::mesh_error("m")), hd::mesh_error);
  CHECK_THROWS_AS(launch_throwing(hd::comm_error("m")), hd::comm_error);
  CHECK_THROWS_AS(launch_throwing(hd::schedule_error("m")), hd::schedule_error);
  CHECK_THROWS_AS(launch_throwing(hd::config_error("m")), hd::config_error);
  CHECK_THROWS_AS(launch_throwing(hd::numeric_error("m")), hd::numeric_error);
  CHECK_THROWS_AS(launch_throwing(hd::memory_error("m")), hd::memory_error);
  CHECK_THROWS_AS(launch_throwing(hd::io_error("m")), hd::io_error);
  CHECK_THROWS_AS(launch_throwing(std::bad_alloc()), hd::error);
  CHECK_THROWS_WITH(launch_throwing(5), "rank 1: an exception that is not a std::exception");
  try {
    launch_throwing(my_error("text"));
    CHECK(false);
  } catch (const hd::layout_error& e) {
    CHECK(std::string(e.what()) == "rank 1: text");
    CHECK_THROWS_AS(std::rethrow_if_nested(e), my_error);
  }
}

TEST_CASE("ranks that disagree about a collective are all told who entered what", "[comm][failure]") {
  struct pair_of_calls {
    std::function<void(comm&)> first, second;  // rank 0 and 2; rank 1
    std::string of_first, of_second;
  };
  const auto vec = [](std::size_t n) { return std::vector<float>(n); };
  const auto dvec = [](std::size_t n) { return std::vector<double>(n); };
  const std::vector<pair_of_calls> pairs{
      {[=](comm& c) { c.all_gather(dvec(4), dvec(12)); }, [=](comm& c) { c.all_reduce(vec(8), hd::plus{}); },
       "all_gather of 4 double", "all_reduce of 8 float with plus"},
      {[=](comm& c) { c.all_reduce(vec(8), hd::plus{}); }, [=](comm& c) { c.all_reduce(vec(7), hd::plus{}); },
       "all_reduce of 8 float with plus", "all_reduce of 7 float with plus"},
      {[=](comm& c) { c.all_reduce(vec(8), hd::plus{}); }, [=](comm& c) { c.all_reduce(vec(8), hd::maximum{}); },
       "all_reduce of 8 float with plus", "all_reduce of 8 float with maximum"},
      {[=](comm& c) { c.all_reduce(vec(8), hd::plus{}); }, [=](comm& c) { c.all_reduce(dvec(8), hd::plus{}); },
       "all_reduce of 8 float with plus", "all_reduce of 8 double with plus"},
      {[=](comm& c) { c.broadcast(vec(2), 0); }, [=](comm& c) { c.broadcast(vec(2), 1); },
       "broadcast of 2 float with root 0", "broadcast of 2 float with root 1"},
      {[=](comm& c) { c.barrier(); }, [=](comm& c) { c.reduce(vec(3), vec(3), hd::plus{}, 1); }, "barrier",
       "reduce of 3 float with plus with root 1"},
      {[=](comm& c) { c.scatter(vec(6), vec(2), 0); }, [=](comm& c) { c.gather(vec(2), vec(6), 0); },
       "scatter of 2 float with root 0", "gather of 2 float with root 0"},
      {[=](comm& c) { c.all_to_all(vec(6), vec(6)); }, [=](comm& c) { (void)c.split(0, 0); }, "all_to_all of 2 float",
       "split"},
  };
  for (const auto& pair : pairs) {
    INFO(pair.of_first << " / " << pair.of_second);
    const auto end = run_to_the_end(3, options_ms(20'000),
                                    [&](auto& world) { (world.rank() == 1 ? pair.second : pair.first)(world.all()); });
    for (const auto& text : end.ranks) {
      CHECK_THAT(text, Catch::Matchers::StartsWith("comm: heddle: ranks disagree about call 1 on communicator (dp): "));
      CHECK_THAT(text,
                 Catch::Matchers::Contains("rank 1 entered " + pair.of_second + "; rank 0 entered " + pair.of_first));
    }
    CHECK(end.seconds < 1.0);
    CHECK_THAT(end.thrown, Catch::Matchers::Contains("comm: rank ") && Catch::Matchers::Contains("ranks disagree"));
  }
}

TEST_CASE("uneven counts that do not match are named", "[comm][failure]") {
  using counts = std::vector<std::int64_t>;
  const auto check = [](auto call, const std::string& expected) {
    const auto end = run_to_the_end(3, options_ms(20'000), [&](auto& world) { call(world.all()); });
    for (const auto& text : end.ranks) {
      CHECK_THAT(text, Catch::Matchers::StartsWith("comm: heddle: "));
      CHECK_THAT(text, Catch::Matchers::Contains(expected));
    }
  };
  const auto ints = [](std::size_t n) { return std::vector<int>(n); };
  check(
      [=](comm& c) {
        const counts mine = c.rank() == 2 ? counts{1, 1, 2} : counts{1, 2, 1};
        c.all_gather_v(ints(static_cast<std::size_t>(mine[static_cast<std::size_t>(c.rank())])), ints(4), mine);
      },
      "rank 2 entered all_gather_v of 4 int; rank 0 entered all_gather_v of 4 int with other counts per rank");
  check(
      [=](comm& c) {
        const counts mine = c.rank() == 1 ? counts{1, 1, 2} : counts{1, 2, 1};
        c.reduce_scatter_v(ints(4), ints(1), mine, hd::plus{});
      },
      "rank 1 entered reduce_scatter_v of 4 int with plus");
  check(
      [=](comm& c) {
        const counts send = c.rank() == 1 ? counts{1, 1, 3} : counts{1, 1, 1};
        c.all_to_all_v(ints(c.rank() == 1 ? 5 : 3), send, ints(3), counts{1, 1, 1});
      },
      "rank 1 sends 3 elements to rank 2, which expects 1");
  check([=](comm& c) { c.gather_v(ints(2), ints(c.rank() == 0 ? 5 : 0), counts{2, 1, 2}, 0); },
        "rank 1 gives 2 elements, the root expects 1");
  check([=](comm& c) { c.scatter_v(ints(c.rank() == 0 ? 5 : 0), counts{2, 1, 2}, ints(2), 0); },
        "the root gives rank 1 1 elements, which expects 2");
}

TEST_CASE("arguments that do not fit are refused where they are given", "[comm][failure]") {
  hd::launch<hd::threads>(line{1}, [](auto& world) {
    auto& c = world.all();
    refuses_arguments(c);
    c.barrier();
  });
}

TEST_CASE("a mistake of arguments on one rank ends the others", "[comm][failure]") {
  const auto end = run_to_the_end(2, options_ms(20'000), [](auto& world) {
    std::vector<int> x(2), y(world.rank() == 0 ? 4u : 3u);
    world.all().all_gather(x, y);
  });
  CHECK_THAT(end.thrown,
             Catch::Matchers::Contains(
                 "rank 1: heddle: rank 1 on communicator (dp): all_gather: out has 3 elements, expected 4"));
  CHECK_THAT(end.ranks[0], Catch::Matchers::StartsWith("aborted: "));
}

TEST_CASE("ranks agree again after a disagreement that all of them caught", "[comm][failure]") {
  std::vector<int> sums(4);
  hd::launch<hd::threads>(line{4}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    for (int i = 0; i < 20; ++i) {
      std::vector<int> x(static_cast<std::size_t>(c.rank() == i % 4 ? 3 : 2));
      try {
        c.all_reduce(x, hd::plus{});
      } catch (const hd::comm_error&) {
        sums[static_cast<std::size_t>(c.rank())] += 1;
      }
      int y = 1;
      c.all_reduce(std::span(&y, 1), hd::plus{});
      sums[static_cast<std::size_t>(c.rank())] += y;
    }
  });
  CHECK(sums == std::vector<int>(4, 100));
}

TEST_CASE("a rank that does not come is reported after the timeout, with who waits where", "[comm][failure]") {
  using grid = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  std::string text;
  const auto start = std::chrono::steady_clock::now();
  try {
    hd::launch<hd::threads, grid>(options_ms(400), [](auto& world) {
      std::vector<float> x(8);
      world.all().barrier();
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(700));
      if (world.rank() == 2) world.template along<tp>().recv(std::span(x).first(4), 1, 6);
      if (world.rank() == 3) world.template along<dp>().broadcast(x, 1);
      if (world.rank() == 0) world.all().all_reduce(x, hd::plus{});
    });
  } catch (const hd::comm_error& e) {
    text = e.what();
  }
  INFO(text);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  CHECK(seconds < 2.0);
  CHECK_THAT(text, Catch::Matchers::Contains("has waited 400 ms in "));
  CHECK_THAT(text, Catch::Matchers::Contains(
                       "\n  rank 0: in all_reduce of 8 float with plus, call 2 on communicator (dp,tp), for 0."));
  CHECK_THAT(text, Catch::Matchers::Contains("\n  rank 1: is not waiting for anyone"));
  CHECK_THAT(text, Catch::Matchers::Contains(
                       "\n  rank 2: in recv of 4 float from rank 3 (tag 6) on communicator (tp), for 0."));
  CHECK_THAT(text, Catch::Matchers::Contains(
                       "\n  rank 3: in broadcast of 8 float with root 1, call 1 on communicator (dp), for 0."));
}

TEST_CASE("ranks that wait for each other on crossed communicators are named in a circle", "[comm][failure]") {
  const auto end = run_to_the_end(3, options_ms(300), [](auto& world) {
    auto& all = world.all();
    auto other = all.split(0, all.rank());
    if (world.rank() == 0) all.barrier();
    if (world.rank() == 1) other.barrier();
    std::vector<int> x(2);
    if (world.rank() == 2) all.recv(x, 1, 4);
  });
  CHECK_THAT(end.thrown, Catch::Matchers::Contains("\n  these wait for each other: rank 0 in barrier, call "));
  CHECK_THAT(end.thrown, Catch::Matchers::Contains(" on communicator (dp) for rank 1; rank 1 in barrier, call 1 on "
                                                   "communicator (dp/"));
  CHECK_THAT(end.thrown, Catch::Matchers::Contains(" for rank 0\n  rank 0: in barrier"));
  const auto late = run_to_the_end(3, options_ms(300), [](auto& world) {
    std::vector<int> x(2);
    if (world.rank() == 0) world.all().recv(x, 1);
    if (world.rank() == 1) world.all().recv(x, 2);
    if (world.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
  });
  CHECK_THAT(late.thrown, !Catch::Matchers::Contains("wait for each other"));
}

TEST_CASE("a timeout names who has not come", "[comm][failure]") {
  const auto end = run_to_the_end(4, options_ms(300), [](auto& world) {
    if (world.rank() % 2 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    world.all().barrier();
  });
  CHECK_THAT(end.thrown, Catch::Matchers::Contains(
                             "has waited 300 ms in barrier, call 1 on communicator (dp) for rank 1, rank 3\n"));
}

TEST_CASE("a rank that returns while others wait for it is reported at once", "[comm][failure]") {
  for (const auto& call : waiting_calls()) {
    if (call.name == "polled request") continue;  // polling knows no end but an abort
    INFO(call.name);
    const auto end = run_to_the_end(3, options_ms(20'000), [&](auto& world) {
      if (world.rank() == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(15));
        return;
      }
      call.call(world.all());
    });
    CHECK(end.seconds < 1.0);
    CHECK_THAT(end.thrown, Catch::Matchers::StartsWith("comm: rank ") &&
                               Catch::Matchers::Contains(" for rank 2, whose body has returned") &&
                               Catch::Matchers::Contains("\n  rank 2: its body has returned"));
  }
}

TEST_CASE("a rank may return while others go on without it", "[comm][failure]") {
  int sum = 0;
  hd::launch<hd::threads>(line{3}, options_ms(20'000), [&](auto& world) {
    auto part = world.all().split(world.rank() == 0, 0);
    if (world.rank() == 0) return;
    for (int i = 0; i < 100; ++i) {
      int x = 1;
      part.all_reduce(std::span(&x, 1), hd::plus{});
      if (world.rank() == 1) sum += x;
    }
  });
  CHECK(sum == 200);
}

namespace {
struct throws_at_seven {
  template <class T>
  static T identity() {
    return 0;
  }
  int operator()(const int& a, const int& b) const {
    if (b == 7) throw std::domain_error("seven");
    return a + b;
  }
};
}  // namespace

TEST_CASE("an operator that throws fails the call on every rank", "[comm][failure]") {
  for (const std::size_t n : {10u, 200'000u}) {
    const auto end = run_to_the_end(4, options_ms(20'000), [&](auto& world) {
      std::vector<int> x(n, world.rank());
      if (world.rank() == 2) x[n / 2] = 7;
      world.all().all_reduce(x, throws_at_seven{});
    });
    int originals = 0, told = 0;
    for (const auto& text : end.ranks) {
      if (text == "other: seven") ++originals;
      if (contains(text, "failed on rank ") && contains(text, ": seven")) ++told;
    }
    CHECK(originals >= 1);
    CHECK(originals + told == 4);
    CHECK_THAT(end.thrown, Catch::Matchers::Contains("seven"));
  }
}

TEST_CASE("failures at random moments never hang and never touch dead buffers", "[comm][failure]") {
  const unsigned seed = 20'26;
  CAPTURE(seed);
  for (unsigned round = 0; round < 60; ++round) {
    const int p = 2 + static_cast<int>(round % 7);
    const auto end = run_to_the_end(p, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      const hd::counter_random shared(seed, round), mine(seed + 1, round * 16 + static_cast<unsigned>(world.rank()));
      for (unsigned step = 0;; ++step) {
        const std::size_t n = step % 5 == 4 ? 40'000 : shared.integer(2 * step) % 50;
        if (mine.uniform(step) < 0.05) throw std::runtime_error("random failure");
        auto x = std::make_unique<std::vector<float>>(n, 1.0f);  // dies at once when this rank unwinds
        switch (shared.integer(2 * step + 1) % 5) {
          case 0:
            c.all_reduce(*x, hd::plus{});
            break;
          case 1:
            c.broadcast(*x, static_cast<int>(step) % p);
            break;
          case 2:
            c.barrier();
            break;
          case 3: {
            std::vector<float> all(n * static_cast<std::size_t>(p));
            c.all_gather(*x, all);
            break;
          }
          default: {
            std::vector<float> y(n);
            auto r = c.irecv(y, (c.rank() + p - 1) % p);
            auto s = c.isend(*x, (c.rank() + 1) % p);
            s.wait();
            r.wait();
          }
        }
      }
    });
    CHECK(end.seconds < 2.0);
    CHECK_THAT(end.thrown, Catch::Matchers::Contains("random failure"));
    for (const auto& text : end.ranks) CHECK((contains(text, "aborted: ") || contains(text, "other: random failure")));
  }
}
