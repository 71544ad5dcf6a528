#include <heddle/collective/algorithm/bidirectional_ring.hpp>
#include <heddle/collective/algorithm/bruck.hpp>
#include <heddle/collective/algorithm/pat.hpp>
#include <heddle/collective/algorithm/recursive_doubling.hpp>
#include <heddle/collective/algorithm/recursive_halving.hpp>
#include <heddle/collective/algorithm/ring.hpp>
#include <heddle/collective/algorithm/swing.hpp>
#include <heddle/collective/algorithm/torus.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/sim/network.hpp>

#include "catch.hpp"
#include "collective/plain_rounds.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace hd = heddle;
namespace sim = heddle::sim;
namespace topologies = heddle::topologies;
namespace algo = heddle::algo;

namespace {

// The least time of an all-gather (or reduce-scatter) of `bytes` in all, whatever its rounds: bytes have to leave each set
// of vertices outside of which there is a rank. All sets are tried.
// ForestColl (Zhao et al. 2024, arXiv:2402.06787), theorem on the bottleneck cut.
double cut_bound(const hd::topology& t, double bytes) {
  double worst = 0;
  for (unsigned set = 1; set + 1 < 1u << t.vertices(); ++set) {
    const auto in = [&](int v) { return (set >> v & 1u) != 0; };
    int ranks = 0;
    for (int r = 0; r < t.ranks(); ++r) ranks += in(r) ? 1 : 0;
    if (ranks == 0 || ranks == t.ranks()) continue;
    double exit = 0;
    for (const hd::link& l : t.links())
      if (in(l.from) && !in(l.to)) exit += l.bytes_per_second;
    worst = std::max(worst, ranks / exit);
  }
  return bytes / t.ranks() * worst;
}

// All-gather: everybody sends its block to everybody.
hd::round_table direct_all_gather(int n) {
  hd::round_builder rounds(hd::comm_operation::all_gather, n, 0, n, 1);
  for (int k = 1; k < n; ++k)
    for (int r = 0; r < n; ++r) rounds.send(0, r, (r + k) % n).block(r);
  return rounds.take();
}

// The all-gathers and reduce-scatters that these algorithms have for n ranks.
template <class... Algorithms>
std::vector<hd::round_table> halves_of(int n) {
  std::vector<hd::round_table> tables;
  const auto add = [&]<class A, hd::comm_operation What>() {
    if constexpr (requires { A::template rounds<What>(n, 0); })
      if (A::template offers<What>(n)) tables.push_back(A::template rounds<What>(n, 0));
  };
  (add.template operator()<Algorithms, hd::comm_operation::all_gather>(), ...);
  (add.template operator()<Algorithms, hd::comm_operation::reduce_scatter>(), ...);
  return tables;
}

}  // namespace

TEST_CASE("messages share links fairly, by hand", "[sim][network]") {
  // Links 0 -> 1 of 10 and 1 -> 2 of 4 bytes per second. A: 0 -> 2, B: 0 -> 1, C: 1 -> 2.
  hd::topology line(3);
  line.add_link(0, 1, {0.5, 10, hd::link_kind::other});
  line.add_link(1, 2, {0.25, 4, hd::link_kind::other});
  const hd::route_table a = line.route(0, 2), b = line.route(0, 1), c = line.route(1, 2);
  const std::vector<const hd::route_table*> ways{&a, &b, &c};
  CHECK(sim::fair_rates(line.links(), ways) == std::vector<double>{2, 8, 2});

  hd::round_builder builder(hd::comm_operation::broadcast, 3, 0, 3, 1);
  builder.send(0, 0, 2).block(0);
  builder.send(0, 0, 1).block(1);
  builder.send(0, 1, 2).block(2);
  const hd::round_table rounds = builder.take();
  // 4 bytes each. C flows from 0.25 at 4; B from 0.5 at 10; A from 0.75.
  // At 0.75: C has 2 left, B 1.5. Then A 2, B 8, C 2: B ends at 0.9375, C and A have 1.625 and 3.625 left.
  // C ends at 1.75; A has 2 left and 4 bytes per second: 2.25.
  const auto line_of = sim::simulate(rounds, line, 12, 1);
  CHECK(line_of.end[1] == Approx(0.9375));
  CHECK(line_of.end[2] == Approx(1.75));
  CHECK(line_of.end[0] == Approx(2.25));
  CHECK(line_of.seconds == Approx(2.25));
  CHECK(line_of.finished[1] == Approx(1.75));
  CHECK(line_of.slowest() == Approx(2.25));
}

TEST_CASE("no fair rate can grow without making one that is not larger smaller", "[sim][network][law]") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto upto = [&](int n) { return std::uniform_int_distribution<>(0, n)(random); };
  for (int i = 0; i < 100; ++i) {
    const int n = 2 + upto(7);
    hd::topology t = i % 2 == 0 ? topologies::ring(n) : hd::topology(n);
    if (i % 2 == 1)
      for (int a = 0; a < n; ++a)
        for (int b = 0; b < n; ++b)
          if (a != b && (b == a + 1 || (a == n - 1 && b == 0) || upto(2) == 0))
            t.add_link(a, b, {0, 1.0 + upto(20), hd::link_kind::other});
    std::vector<hd::route_table> ways;
    for (int k = 0; k <= upto(40); ++k) {
      const int a = upto(n - 1), b = upto(n - 1);
      if (a != b) ways.push_back(t.route(a, b, i % 3 == 0 ? hd::routing::single : hd::routing::split));
    }
    std::vector<const hd::route_table*> pointers;
    for (const auto& w : ways) pointers.push_back(&w);
    const std::vector<double> rates = sim::fair_rates(t.links(), pointers);
    std::vector<double> carried(t.links().size(), 0), fastest(t.links().size(), 0);
    for (std::size_t k = 0; k < ways.size(); ++k)
      for (const hd::route_step& s : ways[k].steps) {
        carried[static_cast<std::size_t>(s.link)] += rates[k] * s.share;
        fastest[static_cast<std::size_t>(s.link)] = std::max(fastest[static_cast<std::size_t>(s.link)], rates[k]);
      }
    bool ok = true;
    for (std::size_t l = 0; l < carried.size(); ++l)
      ok = ok && carried[l] <= t.links()[l].bytes_per_second * (1 + 1e-9);
    for (std::size_t k = 0; k < ways.size(); ++k) {
      bool bound = false;  // by a full link on which nobody is faster
      for (const hd::route_step& s : ways[k].steps) {
        const auto l = static_cast<std::size_t>(s.link);
        bound =
            bound || (carried[l] >= t.links()[l].bytes_per_second * (1 - 1e-9) && rates[k] >= fastest[l] * (1 - 1e-9));
      }
      ok = ok && bound;
    }
    REQUIRE(ok);
  }
}

TEST_CASE("collectives in which all ranks do the same take what their rounds take one by one", "[sim][network][law]") {
  const hd::link_class c{2e-6, 1e9, hd::link_kind::other};
  for (const int n : {2, 4, 8, 16}) {
    for (const hd::topology& t :
         {topologies::ring(n, c), topologies::star(n, c), topologies::full(n, c), topologies::torus({2, n / 2}, c)})
      for (const hd::round_table& rounds : {plain_rounds::ring(n, true), plain_rounds::shifts(n),
                                            plain_rounds::halving_doubling(n), plain_rounds::doubling(n)}) {
        const std::int64_t elements = 960 * n;
        CAPTURE(n, rounds.what, rounds.transfers.size());
        // Shifts on a torus of two dimensions load its links unevenly: some ranks are ahead, which can only help.
        const double simulated = sim::simulate(rounds, t, elements, 4).seconds;
        const double by_round = hd::load_map(rounds, t, elements, 4).seconds();
        if (t == topologies::torus({2, n / 2}, c) && n > 4)
          CHECK(simulated <= by_round * (1 + 1e-9));
        else
          CHECK(simulated == Approx(by_round).epsilon(1e-9));
      }
    // By formula, where nothing is in the way: 2 (n - 1) (alpha + M / n beta), log2 n (alpha + M beta).
    const double bytes = 4.0 * 960 * n;
    CHECK(sim::simulate(plain_rounds::ring(n, true), topologies::full(n, c), 960 * n, 4).seconds ==
          Approx(2 * (n - 1) * (2e-6 + bytes / n / 1e9)).epsilon(1e-12));
    int levels = 0;
    while (1 << levels < n) ++levels;
    CHECK(sim::simulate(plain_rounds::doubling(n), topologies::full(n, c), 960 * n, 4).seconds ==
          Approx(levels * (2e-6 + bytes / 1e9)).epsilon(1e-12));
    // And as Hockney's model has it, folding included.
    sim::message_costs costs;
    costs.fold_seconds_per_byte = 5e-10;
    const hd::hockney net{2e-6, 1e-9, 5e-10};
    for (const hd::round_table& rounds : {plain_rounds::ring(n, true), plain_rounds::halving_doubling(n)})
      CHECK(sim::simulate(rounds, topologies::full(n, c), 961 * n + 1, 4, costs).seconds ==
            Approx(hd::seconds(rounds, net, 961 * n + 1, 4)).epsilon(1e-9));
  }
}

TEST_CASE("no rounds beat the bottleneck cut of the topology", "[sim][network][law]") {
  const hd::link_class fast{0, 4e9, hd::link_kind::other}, slow{0, 1e9, hd::link_kind::other};
  for (const int n : {4, 8}) {
    auto tables = halves_of<algo::ring, algo::bidirectional_ring, algo::recursive_doubling, algo::recursive_halving,
                            algo::bruck, algo::pat, algo::swing, algo::torus<2, 4>, algo::swing_torus<2, 4>>(n);
    CHECK(tables.size() == (n == 8 ? 17u : 13u));
    tables.push_back(direct_all_gather(n));
    const std::vector<hd::topology> networks{
        topologies::ring(n, slow), topologies::torus({2, n / 2}, slow), topologies::hypercube(n == 4 ? 2 : 3, slow),
        topologies::full(n, slow), topologies::star(n, slow),           topologies::nodes(2, n / 2, fast, slow)};
    for (std::size_t i = 0; i < networks.size(); ++i) {
      const double bytes = 8.0 * 1000 * n;
      const double bound = cut_bound(networks[i], bytes);
      for (const hd::round_table& rounds : tables)
        for (const auto how : {hd::routing::single, hd::routing::split}) {
          CAPTURE(n, i, rounds.transfers.size());
          CHECK(sim::simulate(rounds, networks[i], 1000 * n, 8, {}, how).seconds >= bound * (1 - 1e-9));
        }
    }
    // Some reach it: the ring on a switch, everybody to everybody where all are linked, doubling between two nodes of two.
    const double bytes = 8.0 * 1000 * n;
    CHECK(sim::simulate(plain_rounds::ring(n, false), networks[4], 1000 * n, 8).seconds ==
          Approx(cut_bound(networks[4], bytes)));
    CHECK(sim::simulate(direct_all_gather(n), networks[3], 1000 * n, 8).seconds ==
          Approx(cut_bound(networks[3], bytes)));
    CHECK(cut_bound(networks[0], bytes) == Approx(bytes / n * (n - 1) / 2e9));
    CHECK(cut_bound(networks[4], bytes) == Approx(bytes / n * (n - 1) / 1e9));
    CHECK(cut_bound(networks[5], bytes) >= bytes / n * (n / 2.0) / 1e9);
  }
}

TEST_CASE("overheads at the ends of messages", "[sim][network]") {
  const hd::topology two = topologies::full(2, {1.0, 10, hd::link_kind::other});
  hd::round_builder builder(hd::comm_operation::reduce, 2, 0, 1, 1);
  builder.send(0, 1, 0, hd::arrival::fold_after).block(0);
  const hd::round_table one = builder.take();
  const auto run = [&](const sim::message_costs& costs) { return sim::simulate(one, two, 20, 1, costs); };
  CHECK(run({}).seconds == Approx(3));
  sim::message_costs costs;
  costs.send_seconds = 0.5;
  costs.receive_seconds = 0.25;
  costs.fold_seconds_per_byte = 0.1;
  CHECK(run(costs).seconds == Approx(0.5 + 1 + 2 + 0.25 + 2));
  CHECK(run(costs).finished[1] == Approx(3.5));
  costs.eager_bytes = 21;
  CHECK(run(costs).finished[1] == Approx(0.5));
  costs = {};
  costs.extra_seconds = 0.5;
  costs.sizes = {{0, 1, 1}, {10, 2, 0.5}, {21, 3, 0.1}};
  CHECK(run(costs).seconds == Approx(2 + 0.5 + 4));
  CHECK(run(costs).start[0] == 0);
  CHECK(sim::simulate(one, two, 0, 1).seconds == Approx(1));
}

TEST_CASE("a rank that is late holds up only those that need it", "[sim][network]") {
  // Round 0: 0 -> 1, long. Round 1: 1 -> 2. Round 2: 2 -> 3, but 2 had nothing to do in round 0.
  hd::round_builder builder(hd::comm_operation::broadcast, 4, 0, 2, 1);
  builder.send(0, 0, 1).block(0);
  builder.send(1, 1, 2).block(1);
  builder.send(1, 3, 2).block(1);
  builder.send(2, 2, 3).block(1);
  const hd::round_table rounds = builder.take();
  const auto line = sim::simulate(rounds, topologies::full(4, {1, 1, hd::link_kind::other}), 20, 1);
  CHECK(line.end == std::vector<double>{11, 22, 11, 33});
  CHECK(line.start == std::vector<double>{0, 11, 0, 22});
  CHECK(line.finished == std::vector<double>{11, 22, 33, 33});
}

TEST_CASE("a table of the library runs, one without ways is refused", "[sim][network]") {
  constexpr auto ring = hd::static_rounds<hd::algo::ring, hd::comm_operation::all_reduce, 4>::view();
  const hd::topology t = topologies::ring(4, {1e-6, 1e9, hd::link_kind::other});
  CHECK(sim::simulate(ring, t, 4000, 4).seconds == Approx(6 * (1e-6 + 4e-6)));
  CHECK_THROWS_WITH(sim::simulate(ring, hd::topology(4), 4000, 4),
                    "heddle: no links lead from a sender of round 0 to its receiver");
  hd::round_builder none(hd::comm_operation::all_reduce, 1, 0, 1, 1);
  const hd::round_table alone = none.take();
  CHECK(sim::simulate(alone, hd::topology(1), 10, 4).seconds == 0);
}

TEST_CASE("a round of a rank ends when its messages and its computation are done", "[sim][network]") {
  // Round 0: 0 -> 1, 12 s. Round 2: 1 -> 2, 6 s. Blocks have sizes of their own.
  hd::round_builder builder(hd::comm_operation::send, 3, 0, 2, 1);
  builder.send(0, 0, 1).block(0);
  builder.send(2, 1, 2).block(1);
  hd::round_table rounds = builder.take();
  rounds.sizes = {11, 5};
  const hd::topology full = topologies::full(3, {1, 1, hd::link_kind::other});
  const std::vector<double> compute{1, 20, 3,    // ranks 0, 1, 2 in round 0
                                    4, 0,  0,    // round 1: no messages
                                    0, 2,  0,    //
                                    0, 0,  10};  // after the last message
  const auto line = sim::simulate(rounds, full, 0, 1, {}, hd::routing::split, compute);
  CHECK(line.end == std::vector<double>{12, 26});
  CHECK(line.round_ends == std::vector<double>{12, 20, 3, 16, 20, 3, 16, 26, 26, 16, 26, 36});
  CHECK(line.finished == std::vector<double>{16, 26, 36});
  CHECK(line.seconds == 36);
  CHECK(sim::simulate(rounds, full, 0, 1).round_ends.empty());
  CHECK(sim::simulate(rounds, full, 0, 1).seconds == 18);
  // Computation alone.
  const hd::round_table none = hd::round_builder(hd::comm_operation::send, 2, 0, 1, 1).take();
  CHECK(sim::simulate(none, topologies::full(2), 0, 1, {}, hd::routing::split, std::vector<double>{1, 2, 3, 4})
            .finished == std::vector<double>{4, 6});
}
