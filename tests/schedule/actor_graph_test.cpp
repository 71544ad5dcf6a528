#include <heddle/schedule/actor/actor_graph.hpp>
#include <heddle/schedule/actor/actor_threads.hpp>

#include "catch.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace sc = heddle::schedule;

namespace {

// Names.
struct load;
struct multiply;
struct print;
struct disk;
struct batch {
  using value_type = std::vector<int>;
};
struct product {
  using value_type = long;
};
struct go;

using reading = sc::actor<load, sc::on<disk>, sc::out<batch, 3>>;
using working = sc::actor<multiply, sc::in<batch>, sc::out<product, 2>>;
using printing = sc::actor<print, sc::on<disk>, sc::in<product>>;
using graph = sc::actor_graph<reading, working, printing>;

std::string found(sc::task_graph& g) {
  return sc::to_string(sc::check_actors(g.view()));
}

}  // namespace

TEST_CASE("a static graph is constant data", "[schedule][actor]") {
  constexpr auto g = graph::view();
  STATIC_REQUIRE(g.actors() == 3);
  STATIC_REQUIRE(g.registers() == 2);
  STATIC_REQUIRE(g.queues() == 2);
  STATIC_REQUIRE(g.actor(0).name == "load");
  STATIC_REQUIRE(g.actor(2).queue == 0);
  STATIC_REQUIRE(g.queue_name(0) == "disk");
  STATIC_REQUIRE(g.queue_name(1) == "multiply");
  STATIC_REQUIRE(g.reg(0).name == "batch");
  STATIC_REQUIRE(g.reg(0).slots == 3);
  STATIC_REQUIRE(g.reg(1).producer == 1);
  STATIC_REQUIRE(g.readers(1)[0] == 2);
  STATIC_REQUIRE(g.is_source(0));
  STATIC_REQUIRE(!g.is_source(1));
  STATIC_REQUIRE(std::is_same_v<graph::registers, heddle::type_list<batch, product>>);
}

TEST_CASE("a graph made at run time is checked by the same function", "[schedule][actor]") {
  sc::task_graph g;
  const int r = g.add_register("r", 1);
  g.add_actor("a", "q", {}, {r});
  g.add_actor("b", "q", {r}, {});
  CHECK(found(g) == "the actor graph is sound");
  CHECK_NOTHROW(sc::require_actors(g.view()));

  SECTION("an unknown register") {
    g.add_actor("c", "q", {7}, {});
    CHECK(found(g) == "heddle: actor graph: actor 'c': register 7 does not exist");
    CHECK_THROWS_AS(sc::require_actors(g.view()), heddle::schedule_error);
  }
  SECTION("a register without a producer") {
    const int s = g.add_register("s");
    g.add_actor("c", "q", {s}, {});
    CHECK(found(g) == "heddle: actor graph: actor 'c': register 's' is written by no actor");
  }
  SECTION("two producers") {
    g.add_actor("c", "q", {}, {r});
    CHECK(found(g) == "heddle: actor graph: actor 'c': register 'r' is written twice; each register has one producer");
  }
  SECTION("read twice") {
    g.add_actor("c", "q", {r, r}, {});
    CHECK(found(g) == "heddle: actor graph: actor 'c': register 'r' is read twice by this actor; name it once");
  }
  SECTION("one name twice") {
    g.add_actor("a", "q", {}, {});
    CHECK(found(g) == "heddle: actor graph: actor 'a': there are two actors of this name");
  }
  SECTION("no slots") {
    g.add_actor("c", "q", {}, {g.add_register("s", 0)});
    CHECK(found(g) == "heddle: actor graph: actor 'c': register 's' needs at least one slot");
  }
  SECTION("more initial values than slots") {
    g.add_actor("c", "q", {}, {g.add_register("s", 1, 2)});
    CHECK(found(g).find("cannot hold its initial values") != std::string::npos);
  }
  SECTION("a circle without an initial value") {
    const int s = g.add_register("s"), t = g.add_register("t");
    g.add_actor("c", "q", {t}, {s});
    g.add_actor("d", "q", {s}, {t});
    g.add_actor("behind", "q", {}, {});
    CHECK(sc::check_actors(g.view()).what == sc::actor_problem::circular_wait);
  }
  SECTION("a circle is found, not what waits behind it") {
    const int s = g.add_register("s"), t = g.add_register("t"), u = g.add_register("u");
    g.add_actor("behind", "q", {t}, {});
    g.add_actor("c", "q", {u}, {s, t});
    g.add_actor("d", "q", {s}, {u});
    const auto report = sc::check_actors(g.view());
    CHECK(report.what == sc::actor_problem::circular_wait);
    CHECK(g.view().actor(report.actor).name != "behind");
  }
  SECTION("a circle whose values leave no slot to write to") {
    const int s = g.add_register("s", 1, 1);
    g.add_actor("c", "q", {s}, {s});
    CHECK(found(g).find("'c': waits for register 's' on a circle") != std::string::npos);
  }
  SECTION("a circle with a slot more") {
    const int s = g.add_register("s", 2, 1);
    g.add_actor("c", "q", {s}, {s});
    CHECK(found(g) == "the actor graph is sound");
  }
}

TEST_CASE("what the check lets through runs, what it refuses would stop", "[schedule][actor][law]") {
  // Brute force on small graphs: the protocol itself, one message at a time, without queues.
  const unsigned seed = 7;
  std::mt19937 random(seed);
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n + 1)); };
  int sound = 0, stopped = 0;
  for (int trial = 0; trial < 400; ++trial) {
    CAPTURE(seed, trial);
    const int actors = 2 + upto(2);
    sc::task_graph g;
    std::vector<std::vector<int>> reads(4), writes(4);
    for (int r = 0; r < 3; ++r) {
      const int slots = 1 + upto(1);
      g.add_register("r" + std::to_string(r), slots, upto(slots));
      writes[static_cast<std::size_t>(upto(actors - 1))].push_back(r);
      for (int reader = 0; reader < actors; ++reader)
        if (upto(1) == 0) reads[static_cast<std::size_t>(reader)].push_back(r);
    }
    for (int a = 0; a < actors; ++a)
      g.add_actor("a" + std::to_string(a), "q", reads[static_cast<std::size_t>(a)],
                  writes[static_cast<std::size_t>(a)]);
    const auto report = sc::check_actors(g.view());
    REQUIRE((report.ok() || report.what == sc::actor_problem::circular_wait));
    sc::actor_queue queue(g.view(), 0, 3);
    std::vector<sc::actor_message> mail;
    const auto post = [&](const sc::actor_message& m) { mail.push_back(m); };
    std::vector<int> ran(static_cast<std::size_t>(actors));
    queue.start(post);
    for (bool moved = true; moved;) {
      moved = false;
      while (!mail.empty()) {
        const auto m = mail.front();
        mail.erase(mail.begin());
        queue.receive(m, post);
        moved = true;
      }
      if (const int a = queue.next(); a >= 0) {
        ++ran[static_cast<std::size_t>(a)];
        queue.finish(post);
        moved = true;
      }
      REQUIRE(mail.size() <= queue.message_capacity());
    }
    CHECK(queue.done() == report.ok());
    if (report.ok()) CHECK(ran == std::vector<int>(static_cast<std::size_t>(actors), 3));
    ++(report.ok() ? sound : stopped);
  }
  CHECK(sound > 30);
  CHECK(stopped > 50);
}

TEST_CASE("kernels get their slots by reference, allocated once", "[schedule][actor]") {
  sc::actor_threads<graph> actors;
  int prepared = 0;
  actors.each_slot<batch>([&](std::vector<int>& b) {
    b.resize(100);
    ++prepared;
  });
  CHECK(prepared == 3);
  std::vector<const int*> seen;
  std::vector<long> results;
  const int rounds = 50;
  for (int again = 0; again < 2; ++again) {
    results.clear();
    actors.run(
        rounds,
        [](int round, std::vector<int>& b) {
          for (std::size_t i = 0; i < b.size(); ++i) b[i] = round + static_cast<int>(i);
        },
        [&](const std::vector<int>& b, long& p) {
          if (std::find(seen.begin(), seen.end(), b.data()) == seen.end()) seen.push_back(b.data());
          p = std::accumulate(b.begin(), b.end(), 0L);
        },
        [&](int round, const long& p) {
          if (static_cast<int>(results.size()) == round) results.push_back(p);
        });
    REQUIRE(results.size() == static_cast<std::size_t>(rounds));
    for (int i = 0; i < rounds; ++i) CHECK(results[static_cast<std::size_t>(i)] == 100L * i + 4950);
  }
  CHECK(seen.size() == 3);
}

TEST_CASE("an exception in one actor ends all, and says which", "[schedule][actor]") {
  sc::actor_threads<graph> actors;
  for (int bad = 0; bad < 3; ++bad) {
    const auto run = [&] {
      actors.run(
          1000,
          [&](int round, std::vector<int>&) {
            if (bad == 0 && round == 5) throw std::runtime_error("disk full");
          },
          [&](int round, const std::vector<int>&, long&) {
            if (bad == 1 && round == 5) throw std::runtime_error("no");
          },
          [&](int round, const long&) {
            if (bad == 2 && round == 5) throw 7;
          });
    };
    if (bad == 0) CHECK_THROWS_WITH(run(), "heddle: actor 'load', round 5: disk full");
    if (bad == 1) CHECK_THROWS_WITH(run(), "heddle: actor 'multiply', round 5: no");
    if (bad == 2) CHECK_THROWS_WITH(run(), "heddle: actor 'print', round 5: an exception that is not a std::exception");
  }
  try {
    actors.run(
        1, [](std::vector<int>&) { throw std::out_of_range("far"); }, [](const std::vector<int>&, long&) {},
        [](const long&) {});
    FAIL("no exception");
  } catch (const heddle::schedule_error& e) {
    CHECK_THROWS_AS(std::rethrow_if_nested(e), std::out_of_range);
  }
  // The object can be used again.
  int rounds = 0;
  actors.run(4, [](std::vector<int>&) {}, [](const std::vector<int>&, long&) {}, [&](const long&) { ++rounds; });
  CHECK(rounds == 4);
}

TEST_CASE("a graph that would stop is refused before it runs", "[schedule][actor]") {
  sc::task_graph g;
  const int r = g.add_register("r");
  g.add_actor("a", "q", {r}, {r});
  CHECK_THROWS_AS(sc::run_actors(g.view(), 1, [](const sc::actor_call&) {}), heddle::schedule_error);
  sc::task_graph none;
  CHECK_NOTHROW(sc::run_actors(none.view(), 1, [](const sc::actor_call&) {}));
  CHECK_THROWS_AS(sc::run_actors(none.view(), -1, [](const sc::actor_call&) {}), heddle::schedule_error);
}

TEST_CASE("random graphs on threads: every kernel runs in every round on what was written for it",
          "[schedule][actor][law]") {
  const unsigned seed = 99;
  std::mt19937 random(seed);
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n + 1)); };
  for (int trial = 0; trial < 40; ++trial) {
    CAPTURE(seed, trial);
    sc::task_graph g;
    const int actors = 1 + upto(7), rounds = upto(40), queues = 1 + upto(4);
    std::vector<std::vector<int>> reads(static_cast<std::size_t>(actors)), writes(static_cast<std::size_t>(actors));
    std::vector<std::vector<int>> payload;  // the round in which a slot was written
    for (int producer = 0; producer < actors; ++producer)
      for (int o = upto(2); o > 0; --o) {
        const bool feedback = upto(5) == 0;
        const int slots = (feedback ? 2 : 1) + upto(2);
        const int r = g.add_register("r" + std::to_string(payload.size()), slots, feedback ? 1 : 0);
        payload.emplace_back(static_cast<std::size_t>(slots), -1);
        writes[static_cast<std::size_t>(producer)].push_back(r);
        for (int reader = feedback ? 0 : producer + 1; reader < actors; ++reader)
          if (upto(2) == 0) reads[static_cast<std::size_t>(reader)].push_back(r);
      }
    for (int a = 0; a < actors; ++a)
      g.add_actor("a" + std::to_string(a), "q" + std::to_string(upto(queues - 1)), reads[static_cast<std::size_t>(a)],
                  writes[static_cast<std::size_t>(a)]);
    std::vector<int> ran(static_cast<std::size_t>(actors)), wrong(static_cast<std::size_t>(actors));
    const auto view = g.view();
    sc::run_actors(view, rounds, [&](const sc::actor_call& call) {
      const auto a = static_cast<std::size_t>(call.actor);
      if (ran[a]++ != call.round) ++wrong[a];
      for (std::size_t i = 0; i < call.inputs.size(); ++i) {
        const auto r = static_cast<std::size_t>(reads[a][i]);
        if (payload[r][static_cast<std::size_t>(call.inputs[i])] != call.round - view.reg(reads[a][i]).initial)
          ++wrong[a];
      }
      for (std::size_t o = 0; o < call.outputs.size(); ++o)
        payload[static_cast<std::size_t>(writes[a][o])][static_cast<std::size_t>(call.outputs[o])] = call.round;
    });
    CHECK(ran == std::vector<int>(static_cast<std::size_t>(actors), rounds));
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(actors), 0));
  }
}

TEST_CASE("a second run goes on where the first one ended", "[schedule][actor]") {
  using two = sc::actor_graph<sc::actor<multiply, sc::in<product, go>, sc::out<product, 3, 2>>,
                              sc::actor<print, sc::in<product>, sc::out<go, 2, 1>>>;
  const auto all = [](const std::vector<int>& runs) {
    sc::actor_threads<two> actors;
    long first = 1;
    actors.each_slot<product>([&](long& x) { x = first++; });
    std::vector<long> seen;
    for (const int rounds : runs)
      actors.run(
          rounds, [](const long& before, const sc::signal&, long& now) { now = before * 3 + 1; },
          [&](const long& x, sc::signal&) { seen.push_back(x); });
    return seen;
  };
  const std::vector<long> once = all({4});
  CHECK(once == std::vector<long>{1, 2, 4, 7});
  CHECK(all({3, 1}) == once);
  CHECK(all({1, 1, 2}) == once);
  CHECK(all({2, 0, 2}) == once);
  // Values that cannot be moved would be read in the wrong order.
  struct fixed;
  struct still {
    using value_type = std::atomic<long>;
  };
  using one = sc::actor_graph<sc::actor<fixed, sc::in<still>, sc::out<still, 2, 1>>>;
  sc::actor_threads<one> unmoved;
  const auto next = [](const std::atomic<long>& before, std::atomic<long>& now) { now = before + 1; };
  CHECK_NOTHROW(unmoved.run(2, next));
  CHECK_NOTHROW(unmoved.run(3, next));
  CHECK_THROWS_AS(unmoved.run(1, next), heddle::schedule_error);
}

// Compiled alone: longer names take more of clang's steps of evaluation.
namespace {
template <int>
struct place;
template <int>
struct hop;
template <int... I>
auto long_chain(std::integer_sequence<int, I...>)
    -> sc::actor_graph<sc::actor<place<-1>, sc::out<hop<-1>>>,
                       sc::actor<place<I>, sc::in<hop<I - 1>>, sc::out<hop<I>>>...>;
}  // namespace

TEST_CASE("a long static graph is checked within the compilers' limits", "[schedule][actor]") {
  using chain = decltype(long_chain(std::make_integer_sequence<int, 150>{}));
  STATIC_REQUIRE(chain::view().actors() == 151);
  STATIC_REQUIRE(sc::check_actors(chain::view()).ok());
}

TEST_CASE("a register may carry only its turn", "[schedule][actor]") {
  using two = sc::actor_graph<sc::actor<load, sc::out<go, 1>>, sc::actor<print, sc::in<go>>>;
  sc::actor_threads<two> actors;
  std::atomic<int> ahead{0}, most{0};
  actors.run(
      100,
      [&](sc::signal&) {
        const int now = ++ahead;
        if (now > most) most = now;
      },
      [&](const sc::signal&) { --ahead; });
  CHECK(ahead == 0);
  CHECK(most == 1);  // one slot: the producer waits until its reader is done
}

TEST_CASE("slots of pipeline buffers", "[schedule][actor]") {
  STATIC_REQUIRE(sc::formula::saved_slots(4, 0) == 8);
  STATIC_REQUIRE(sc::formula::saved_slots(4, 3) == 1);
  STATIC_REQUIRE(sc::formula::forward_slots(0, 3).source == 1);
  STATIC_REQUIRE(sc::formula::forward_slots(0, 3).destination == 3);
  STATIC_REQUIRE(sc::formula::backward_slots().destination == 1);
}
