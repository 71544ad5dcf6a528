// Decisions between algorithms on described networks: fitted by simulation, and by thresholds with a hint.
#include <heddle/collective/algorithms.hpp>
#include <heddle/collective/measured_decisions.hpp>
#include <heddle/collective/round_load.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/sim/network.hpp>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <vector>

#include "catch.hpp"

namespace {
namespace hd = heddle;
namespace sim = heddle::sim;
namespace topologies = heddle::topologies;
using enum hd::comm_operation;
using algorithms = hd::known_algorithms;

constexpr hd::link_class inside{1e-6, 100e9, hd::link_kind::nvlink}, between{2e-6, 12.5e9, hd::link_kind::infiniband};

// The seconds of algorithms on a topology, whose ways are looked up once.
class simulated {
 public:
  simulated(const std::vector<hd::algorithm_rounds>& ways, const hd::topology& network) {
    for (const auto& way : ways) routes_.emplace(way.name, hd::round_routes(way.rounds, network));
    costs_.send_seconds = costs_.receive_seconds = 1e-6;
    costs_.fold_seconds_per_byte = 2e-11;
  }
  double operator()(hd::algorithm_name name, std::int64_t bytes) const {
    const auto at = routes_.find(name);
    return at == routes_.end() ? 1e9 : sim::simulate(at->second, bytes, 1, costs_).seconds;
  }
  double operator()(const hd::algorithm_rounds& way, std::int64_t bytes) const { return (*this)(way.name, bytes); }

 private:
  std::map<hd::algorithm_name, hd::round_routes> routes_;
  sim::message_costs costs_;
};

struct ratios {
  double fitted = 1;      // the worst of decisions fitted to this network to the best
  double thresholds = 1;  // ... of the table's decisions
};

ratios worst_on(const hd::topology& network, const hd::network_hint& hint,
                std::initializer_list<hd::comm_operation> choices) {
  ratios worst;
  const int p = network.ranks();
  for (const auto what : choices) {
    hd::collective_question q{what, p, 0, true, true, true, hint};
    const auto ways = hd::algorithms_for(algorithms{}, q);
    const simulated cost(ways, network);
    hd::measured_decisions fitted;
    hd::add_decisions(fitted, algorithms{}, what, p, true, cost, std::int64_t{1} << 25);
    for (q.bytes = 100; q.bytes < 1 << 25; q.bytes *= 3) {
      const double best = hd::cheapest(ways, cost, q.bytes).seconds;
      worst.fitted = (std::max)(worst.fitted, cost(fitted.choose(q), q.bytes) / best);
      worst.thresholds = (std::max)(worst.thresholds, cost(choose(q), q.bytes) / best);
    }
  }
  return worst;
}

void check(const hd::topology& network, const hd::network_hint& hint,
           std::initializer_list<hd::comm_operation> choices = {broadcast, all_reduce, reduce, reduce_scatter,
                                                                all_gather, all_to_all}) {
  const ratios worst = worst_on(network, hint, choices);
  CHECK(worst.fitted <= 1.1);
  CHECK(worst.thresholds <= 2);
}
}  // namespace

TEST_CASE("decisions fitted by simulation are within 10 % of the best", "[sim][decision]") {
  check(topologies::star(5, between), {}, {broadcast, reduce, all_to_all});
  check(topologies::ring(6, between), {1, true}, {all_reduce});
  check(topologies::nodes(3, 2, inside, between), {2, false}, {all_reduce, all_gather});
}

TEST_CASE("decisions fitted by simulation are within 10 % of the best, larger networks", "[sim][decision][slow]") {
  check(topologies::star(6, between), {});
  check(topologies::star(12, between), {});
  check(topologies::ring(8, between), {1, true});
  check(topologies::star(16, between), {});
  check(topologies::ring(12, between), {1, true});
  check(topologies::ring(16, between), {1, true});
  check(topologies::torus({4, 4}, between), {1, true});
  check(topologies::nodes(2, 4, inside, between), {4, false});
  check(topologies::nodes(4, 4, inside, between), {4, false});
  check(topologies::nodes(3, 4, inside, between), {4, false});
}
