#include <heddle/sim/actor_graph.hpp>

#include "catch.hpp"

#include <limits>
#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace sc = heddle::schedule;
namespace sim = heddle::sim;

namespace {

// k actors in a row, each on a queue of its own.
sc::task_graph chain(int k, int slots) {
  sc::task_graph g;
  std::vector<int> before;
  for (int a = 0; a < k; ++a) {
    std::vector<int> after;
    if (a + 1 < k) after.push_back(g.add_register("r" + std::to_string(a), slots));
    g.add_actor("a" + std::to_string(a), "q" + std::to_string(a), before, after);
    before = after;
  }
  return g;
}

struct a;
struct b;
struct c;
struct x;
struct y;
template <int Slots>
using three = sc::actor_graph<sc::actor<a, sc::out<x, Slots>>, sc::actor<b, sc::in<x>, sc::out<y, Slots>>,
                              sc::actor<c, sc::in<y>>>;

// Rounds that are between the start of the producer and the end of the last reader at any time, from the times alone.
int most_in_flight(const sc::actor_graph_view& g, const sim::actor_timeline& line, int r) {
  int most = 0;
  for (int i = 0; i < line.rounds; ++i) {
    const double now = line.start_of(g.reg(r).producer, i);
    int alive = g.reg(r).initial + i + 1;
    int read = line.rounds;
    for (const int reader : g.readers(r)) {
      int done = 0;
      while (done < line.rounds && line.end_of(reader, done) <= now) ++done;
      read = (std::min)(read, done);
    }
    if (!g.readers(r).empty()) most = (std::max)(most, alive - read);
  }
  return most;
}

}  // namespace

TEST_CASE("a chain of actors takes k + 2(n - 1) with one slot and n + k - 1 with two", "[sim][law]") {
  for (int k = 2; k <= 8; ++k)
    for (int n = 1; n <= 12; ++n)
      for (int slots = 1; slots <= 4; ++slots) {
        CAPTURE(k, n, slots);
        auto g = chain(k, slots);
        const auto line = sim::simulate(g.view(), n);
        CHECK(line.makespan == (slots == 1 ? k + 2 * (n - 1) : n + k - 1));
        for (int r = 0; r + 1 < k; ++r) {
          CHECK(line.in_flight[static_cast<std::size_t>(r)] <= slots);
          CHECK(line.in_flight[static_cast<std::size_t>(r)] == most_in_flight(g.view(), line, r));
        }
      }
  auto g = chain(3, 2);
  CHECK(sim::simulate(g.view(), 0).makespan == 0);
  CHECK_THROWS_AS(sim::simulate(g.view(), -1), heddle::schedule_error);
}

TEST_CASE("a static graph runs in the compiler", "[sim][law]") {
  STATIC_REQUIRE(sim::simulate(three<1>::view(), 5).makespan == 3 + 2 * 4);
  STATIC_REQUIRE(sim::simulate(three<2>::view(), 5).makespan == 5 + 2);
  STATIC_REQUIRE(three<2>::view().actors() == 3);
}

TEST_CASE("a slow actor paces the rest, and slots hold what came early", "[sim]") {
  auto g = chain(3, 3);
  const auto line = sim::simulate(g.view(), 10, [](int actor, int) { return actor == 1 ? 4.0 : 1.0; });
  CHECK(line.makespan == 1 + 40 + 1);
  CHECK(line.in_flight == std::vector<int>{3, 2});  // the source runs ahead as far as its slots go
  CHECK(line.start_of(0, 2) == 2);
  CHECK(line.start_of(0, 3) == 5);  // when the slow actor has read its first
  CHECK(line.idle(1) == 2);
}

TEST_CASE("actors of one queue take turns", "[sim]") {
  sc::task_graph g;
  const int r = g.add_register("r");
  g.add_actor("make", "one", {}, {r});
  g.add_actor("use", "one", {r}, {});
  const auto line = sim::simulate(g.view(), 6);
  CHECK(line.makespan == 12);
  CHECK(line.idle(0) == 0);
}

TEST_CASE("a duration that no clock can show is refused", "[sim]") {
  sc::task_graph g;
  const int r = g.add_register("r", 1);
  g.add_actor("a", "q", {}, {r});
  g.add_actor("b", "p", {r}, {});
  for (const double wrong : {-1.0, std::numeric_limits<double>::quiet_NaN()})
    CHECK_THROWS_WITH(sim::simulate(g.view(), 3, [&](int a, int round) { return a == 1 && round == 2 ? wrong : 1.0; }),
                      "heddle: simulate: the duration of actor 'b' in round 2 is negative or not a number");
  CHECK(sim::simulate(g.view(), 3, [](int, int) { return 0.0; }).makespan == 0);
}

TEST_CASE("a feedback register begins with its initial value", "[sim]") {
  // `update` makes the next weight from the last one, which `compute` reads too.
  const auto training = [](int weights, int initial) {
    sc::task_graph g;
    const int gradient = g.add_register("gradient");
    const int weight = g.add_register("weight", weights, initial);
    const int batch = g.add_register("batch", 4);
    g.add_actor("load", "disk", {}, {batch});
    g.add_actor("compute", "gpu", {batch, weight}, {gradient});
    g.add_actor("update", "cpu", {gradient, weight}, {weight});
    return g;
  };
  auto g = training(2, 1);
  const auto line = sim::simulate(g.view(), 5);
  CHECK(line.makespan == 1 + 2 * 5);
  CHECK(line.in_flight == std::vector<int>{1, 2, 3});
  auto in_place = training(1, 1);
  CHECK_THROWS_WITH(
      sim::simulate(in_place.view(), 5),
      "heddle: actor graph: actor 'update': waits for register 'weight' on a circle of actors that wait for "
      "each other; give the feedback register an initial value, or a slot more");
  auto empty = training(2, 0);
  CHECK_THROWS_AS(sim::simulate(empty.view(), 5), heddle::schedule_error);
}

TEST_CASE("random graphs drain, every kernel runs in every round, credits hold", "[sim][law]") {
  const unsigned seed = 20240607;
  std::mt19937 random(seed);
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n + 1)); };
  for (int trial = 0; trial < 200; ++trial) {
    CAPTURE(seed, trial);
    sc::task_graph g;
    const int actors = 1 + upto(9), rounds = upto(7), queues = 1 + upto(4);
    std::vector<int> registers;
    std::vector<std::vector<int>> reads(static_cast<std::size_t>(actors)), writes(static_cast<std::size_t>(actors));
    for (int producer = 0; producer < actors; ++producer)
      for (int o = upto(2); o > 0; --o) {
        const bool feedback = upto(5) == 0;  // may be read by anyone, also by itself, because it begins with a value
        const int r =
            g.add_register("r" + std::to_string(registers.size()), (feedback ? 2 : 1) + upto(2), feedback ? 1 : 0);
        registers.push_back(r);
        writes[static_cast<std::size_t>(producer)].push_back(r);
        for (int reader = feedback ? 0 : producer + 1; reader < actors; ++reader)
          if (upto(2) == 0) reads[static_cast<std::size_t>(reader)].push_back(r);
      }
    for (int a2 = 0; a2 < actors; ++a2)
      g.add_actor("a" + std::to_string(a2), "q" + std::to_string(upto(queues - 1)), reads[static_cast<std::size_t>(a2)],
                  writes[static_cast<std::size_t>(a2)]);
    REQUIRE(sc::to_string(sc::check_actors(g.view())) == "the actor graph is sound");
    std::vector<int> ran(static_cast<std::size_t>(actors));
    const auto line = sim::simulate(g.view(), rounds, [&](int actor, int round) {
      CHECK(ran[static_cast<std::size_t>(actor)]++ == round);
      return static_cast<double>((actor * 7 + round * 3) % 4);
    });
    CHECK(ran == std::vector<int>(static_cast<std::size_t>(actors), rounds));
    for (const int r : registers) CHECK(line.in_flight[static_cast<std::size_t>(r)] <= g.view().reg(r).slots);
    // Nothing is read before it is written.
    for (const int r : registers)
      for (const int reader : g.view().readers(r))
        for (int i = g.view().reg(r).initial; i < rounds; ++i)
          CHECK(line.start_of(reader, i) >= line.end_of(g.view().reg(r).producer, i - g.view().reg(r).initial));
  }
}

TEST_CASE("buffers as OneFlow places them let a pipeline run at full speed", "[sim]") {
  for (int stages = 1; stages <= 6; ++stages)
    for (const int n : {1, 3, 4 * stages}) {
      CAPTURE(stages, n);
      // Forward s -> F(s+1) through a buffer at the reader; each stage's forwards and backwards share its queue.
      sc::task_graph g;
      std::vector<int> kept, up, down;
      for (int s = 0; s < stages; ++s) {
        kept.push_back(g.add_register("kept" + std::to_string(s), sc::formula::saved_slots(stages, s)));
        up.push_back(s + 1 < stages ? g.add_register("up" + std::to_string(s),
                                                     sc::formula::forward_slots(s, s + 1).source +
                                                         sc::formula::forward_slots(s, s + 1).destination)
                                    : -1);
        down.push_back(s > 0 ? g.add_register("down" + std::to_string(s), sc::formula::backward_slots().source +
                                                                              sc::formula::backward_slots().destination)
                             : -1);
      }
      for (int s = 0; s < stages; ++s) {
        const auto at = static_cast<std::size_t>(s);
        const std::string q = "stage" + std::to_string(s);
        std::vector<int> in, out{kept[at]}, back{kept[at]}, behind;
        if (s > 0) in.push_back(up[at - 1]);
        if (s + 1 < stages) out.push_back(up[at]);
        if (s + 1 < stages) back.push_back(down[at + 1]);
        if (s > 0) behind.push_back(down[at]);
        g.add_actor("F" + std::to_string(s), q, in, out);
        g.add_actor("B" + std::to_string(s), q, back, behind);
      }
      const auto line = sim::simulate(g.view(), n);
      CHECK(line.makespan == 2 * (n + stages - 1));  // the bound of every pipeline without interleaving
      for (int s = 0; s < stages; ++s)
        CHECK(line.in_flight[static_cast<std::size_t>(kept[static_cast<std::size_t>(s)])] <=
              sc::formula::saved_slots(stages, s));
    }
}
