// tests/schedule/actor_ranks_test.cpp: actor graphs over ranks against a serial loop, on threads and as processes.
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/actor/actor_ranks.hpp>

#include "catch.hpp"
#include "transport.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace actor_ranks_tests {

namespace hd = heddle;
namespace sc = heddle::schedule;
using Catch::Matchers::Contains;
using pipe = hd::mesh<hd::axis<hd::pp>>;
constexpr std::size_t word = sizeof(std::uint64_t);

std::uint64_t first_value(int r, int slot) {
  return 77u * static_cast<unsigned>(r) + static_cast<unsigned>(slot) + 5u;
}
std::uint64_t begun(int a, int round) {
  return 1000003u * static_cast<std::uint64_t>(a + 1) + static_cast<std::uint64_t>(round);
}

struct random_graph {
  sc::task_graph graph;
  int ranks = 1, actors = 0, rounds = 0;
  std::vector<std::size_t> bytes;
};
// Actors in order, each with a register that later ones read; some earlier ones read it too, from the round before.
random_graph graph_at_random(std::mt19937& random, int most_ranks) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  random_graph g;
  g.ranks = 1 + below(most_ranks);
  g.actors = g.ranks + below(6);
  g.rounds = below(12);
  std::vector<int> registers, feedback;
  for (int a = 0; a < g.actors; ++a) {
    feedback.push_back(a > 0 && below(4) == 0 ? below(a) : -1);
    const bool back = feedback.back() >= 0;
    registers.push_back(
        g.graph.add_register("r" + std::to_string(a), back ? 2 + below(2) : 1 + below(3), back ? 1 : 0));
    g.bytes.push_back(word * static_cast<std::size_t>(1 + below(3)));
  }
  for (int a = 0; a < g.actors; ++a) {
    std::vector<int> in;
    for (int b = 0; b < g.actors; ++b)
      if (feedback[static_cast<std::size_t>(b)] == a ||
          (b < a && feedback[static_cast<std::size_t>(b)] < 0 && below(2) == 0))
        in.push_back(registers[static_cast<std::size_t>(b)]);
    g.graph.add_actor("a" + std::to_string(a), "q" + std::to_string(a < g.ranks ? a : below(g.ranks)), in,
                      {registers[static_cast<std::size_t>(a)]});
  }
  return g;
}
// What each actor writes in each round.
std::vector<std::vector<std::uint64_t>> serial(const sc::actor_graph_view& g, int rounds) {
  std::vector<std::vector<std::uint64_t>> all(static_cast<std::size_t>(g.actors()));
  for (int round = 0; round < rounds; ++round)
    for (int a = 0; a < g.actors(); ++a) {
      std::uint64_t v = begun(a, round);
      for (const int r : g.inputs(a)) {
        const int back = round - g.reg(r).initial;
        v = v * 31 + (back < 0 ? first_value(r, round)
                               : all[static_cast<std::size_t>(g.reg(r).producer)][static_cast<std::size_t>(back)]);
      }
      all[static_cast<std::size_t>(a)].push_back(v);
    }
  return all;
}

TEST_CASE("500 random graphs over ranks give the values of a serial loop", "[schedule][actor_ranks][ranks]") {
  const unsigned seed = 3;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::vector<std::int64_t> wrong(1, 0), kernels(1, 0);
  std::int64_t expected = 0;
  int graphs = 0, fed_back = 0;
  for (int trial = 0; graphs < 500; ++trial) {
    REQUIRE(trial < 2000);
    random_graph made = graph_at_random(random, std::min(8, transport_test::most_ranks()));
    const sc::actor_graph_view g = made.graph.view();
    if (!sc::check_actors(g).ok()) continue;
    ++graphs;
    for (int r = 0; r < g.registers(); ++r) fed_back += g.reg(r).initial;
    expected += 2 * static_cast<std::int64_t>(made.rounds) * g.actors();
    const auto values = serial(g, made.rounds);
    std::vector<std::atomic<int>> done(static_cast<std::size_t>(g.actors()));
    std::atomic<std::int64_t> bad{0}, ran{0};
    transport_test::launch(pipe{made.ranks}, [&](auto& world) {
      auto& comm = world.all();
      // Twice: a message that the first run left would be taken by the second.
      for (int run = 0; run < 2; ++run) {
        std::vector<int> count(static_cast<std::size_t>(g.actors()), 0);
        comm.barrier();
        if (world.rank() == 0)
          for (auto& d : done) d = 0;
        comm.barrier();
        sc::run_actors(
            comm, g, made.rounds, made.bytes,
            [](int r, int slot, std::span<std::byte> to) {
              const std::uint64_t v = first_value(r, slot);
              for (std::size_t i = 0; i < to.size(); i += word) std::memcpy(to.data() + i, &v, word);
            },
            [&](const sc::rank_actor_call& call) {
              const auto a = static_cast<std::size_t>(call.actor);
              ++ran;
              if (call.round != count[a]++ || g.actor(call.actor).queue != world.rank()) ++bad;
              std::uint64_t v = begun(call.actor, call.round);
              for (const auto in : call.inputs) {
                std::uint64_t first = 0, last = 0;
                std::memcpy(&first, in.data(), word);
                std::memcpy(&last, in.data() + in.size() - word, word);
                if (first != last) ++bad;
                v = v * 31 + last;
              }
              if (v != values[a][static_cast<std::size_t>(call.round)]) ++bad;
              for (const auto to : call.outputs)
                for (std::size_t i = 0; i < to.size(); i += word) std::memcpy(to.data() + i, &v, word);
              if (transport_test::on_threads) {  // rounds in flight, as all ranks see them
                const int r = g.outputs(call.actor)[0];
                for (const int reader : g.readers(r))
                  if (g.reg(r).initial + call.round + 1 - done[static_cast<std::size_t>(reader)] > g.reg(r).slots)
                    ++bad;
                ++done[a];
              }
            });
        for (int c = 0; c < g.actors(); ++c)
          if (count[static_cast<std::size_t>(c)] != (g.actor(c).queue == world.rank() ? made.rounds : 0)) ++bad;
      }
    });
    wrong[0] += bad;
    kernels[0] += ran;
  }
  const auto sum = [](std::vector<std::int64_t>& all, std::vector<std::int64_t>&& other) { all[0] += other[0]; };
  transport_test::merge(wrong, sum);
  transport_test::merge(kernels, sum);
  CHECK(wrong[0] == 0);
  CHECK(kernels[0] == expected);
  CHECK(fed_back > 100);
}

TEST_CASE("a kernel that throws ends all ranks and names actor, round and rank", "[schedule][actor_ranks][ranks]") {
  const int ranks = std::min(4, transport_test::most_ranks());
  if (ranks < 2) return;
  sc::task_graph graph;
  std::vector<int> r;
  for (int a = 0; a < ranks; ++a) {
    r.push_back(graph.add_register("r" + std::to_string(a), 2));
    graph.add_actor("stage " + std::to_string(a), "q" + std::to_string(a),
                    a > 0 ? std::vector<int>{r[static_cast<std::size_t>(a) - 1]} : std::vector<int>{},
                    {r[static_cast<std::size_t>(a)]});
  }
  const std::vector<std::size_t> bytes(static_cast<std::size_t>(ranks), 64);
  const auto results = transport_test::on_ranks(pipe{ranks}, [&](auto& world) {
    sc::run_actors(
        world.all(), graph.view(), 100, bytes, [](int, int, std::span<std::byte>) {},
        [](const sc::rank_actor_call& call) {
          if (call.actor == 1 && call.round == 7) throw std::runtime_error("the disk is full");
        });
  });
  CHECK_THAT(results.error, Contains("actor 'stage 1', round 7, rank 1: the disk is full"));
  for (const auto& one : results.by_rank) CHECK_FALSE(one.has_value());
}

TEST_CASE("actors over ranks refuse what cannot be", "[schedule][actor_ranks][threads]") {
  sc::task_graph graph;
  const int r = graph.add_register("r", 1);
  graph.add_actor("a", "q", {}, {r});
  graph.add_actor("b", "other", {r}, {});
  const std::vector<std::size_t> one(1, 8), two(2, 8);
  const auto nothing = [](int, int, std::span<std::byte>) {};
  const auto kernel = [](const sc::rank_actor_call&) {};
  hd::launch<hd::threads>(pipe{1}, [&](auto& world) {
    CHECK_THROWS_WITH(sc::run_actors(world.all(), graph.view(), 1, one, nothing, kernel),
                      Contains("the graph has 2 queues, one for each rank; there are 1 ranks"));
    CHECK_THROWS_WITH(sc::run_actors(world.all(), graph.view(), -1, one, nothing, kernel), Contains("negative"));
    sc::task_graph alone;
    const int s = alone.add_register("s", 1);
    alone.add_actor("a", "q", {}, {s});
    CHECK_THROWS_WITH(sc::run_actors(world.all(), alone.view(), 1, two, nothing, kernel),
                      Contains("1 registers; got the sizes of 2"));
  });
}

}  // namespace actor_ranks_tests
