// Measured networks and decisions: the fit is exact on exact times, and all ranks decide alike.
#include <heddle/collective/collectives.hpp>
#include <heddle/collective/tune.hpp>

#include "comm/support.hpp"

using namespace comm_test;
using hd::comm_operation;

TEST_CASE("messages are fitted by a line", "[comm][tune]") {
  std::vector<hd::message_time> times;
  for (std::int64_t bytes : {8, 1'000, 100'000, 10'000'000})
    times.push_back({bytes, 2e-6 + 1e-10 * static_cast<double>(bytes)});
  const hd::hockney net = hd::fit_messages(times);
  CHECK(net.alpha == Approx(2e-6));
  CHECK(net.beta == Approx(1e-10));
  // Neither gets negative, and too few times give what they can.
  const std::vector<hd::message_time> falling{{8, 5e-6}, {1'000'000, 1e-6}};
  CHECK(hd::fit_messages(falling).beta == 0);
  const std::vector<hd::message_time> steep{{1'000, 1e-9}, {1'000'000, 1e-3}};
  CHECK(hd::fit_messages(steep).alpha == 0);
  CHECK(hd::fit_messages(std::span(times).first(1)).alpha == Approx(times[0].seconds));
  CHECK(hd::fit_messages({}).alpha == 0);
}

TEST_CASE("the fastest keeps the order where it matters, and the own call where little is gained", "[comm][tune]") {
  using enum hd::algorithm_name;
  const std::vector<hd::algorithm_time> times{{built_in, hd::fold_order::none, 1.0},
                                              {ring, hd::fold_order::any, 0.5},
                                              {recursive_doubling, hd::fold_order::rank, 0.96}};
  CHECK(hd::fastest(times, true).name == ring);
  CHECK(hd::fastest(times, false).name == built_in);
  CHECK(hd::fastest({}, true).name == built_in);
}

TEST_CASE("times that were disturbed do not count", "[comm][tune]") {
  CHECK(hd::detail::typical_of({9.0, 1.0, 3.0, 100.0, 2.0}) == 1.5);
  CHECK(hd::detail::typical_of({5.0, 1.0}) == 1.0);
  CHECK(hd::detail::typical_of({7.0}) == 7.0);
  CHECK(hd::detail::typical_of({}) == 0.0);
}

TEST_CASE("a measured network is the same on every rank", "[comm][tune]") {
  for (const int p : rank_counts({1, 3})) {
    std::vector<hd::hockney> nets(static_cast<std::size_t>(p));
    launch(line{p}, options_ms(20'000),
           [&](auto& world) { nets[static_cast<std::size_t>(world.rank())] = hd::measure_links(world.all()); });
    share(nets);
    for (const hd::hockney& net : nets) {
      CHECK(net.alpha == nets[0].alpha);
      CHECK(net.beta == nets[0].beta);
      CHECK(net.gamma == nets[0].gamma);
      CHECK(net.alpha >= 0);
      CHECK(net.gamma > 0);
      CHECK((p > 1) == (net.alpha + net.beta > 0));
    }
  }
}

TEST_CASE("tuned decisions are the same on every rank, and can be used", "[comm][tune]") {
  const int p = 3;
  if (most_ranks() < p) return;
  std::vector<std::vector<hd::size_decision>> decisions(3);
  notes found(p);
  launch(line{p}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    const std::vector<std::int64_t> sizes{4'096, 8};  // in any order; fewer than an element for each rank too
    const hd::measured_decisions tuned = hd::tune(c, sizes, 1);
    decisions[static_cast<std::size_t>(c.rank())] = tuned.all();
    hd::collective_plans plans;
    plans.decide_by(tuned);
    for (std::size_t n : {1u, 10u, 1'000u, 5'000u}) {
      std::vector<int> x(n, 1);
      hd::all_reduce(c, x, hd::plus{}, plans);
      found.expect(c.rank(), x == std::vector<int>(n, p), "a tuned sum");
    }
  });
  found.report();
  share(decisions);
  for (const auto& d : decisions) CHECK(d == decisions[0]);
  // At least one decision for each of six collectives, three of them also without commutativity.
  CHECK(decisions[0].size() >= 9);
  for (const hd::size_decision& d : decisions[0])
    CHECK((d.ranks == p && (d.from_bytes == 0 || (d.from_bytes > 8 && d.from_bytes < 4'096))));
}
