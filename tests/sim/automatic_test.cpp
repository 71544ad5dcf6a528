#include <heddle/schedule/generate/automatic.hpp>
#include <heddle/schedule/lower/lower.hpp>
#include <heddle/schedule/check/validate.hpp>
#include <heddle/sim/action_table.hpp>

#include "catch.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace sc = heddle::schedule;
namespace sim = heddle::sim;

namespace {

using costs = std::vector<sc::stage_cost>;

double simulated(sc::table_view table, const costs& cost, double link) {
  const auto duration = [&](const sc::action& a) {
    const sc::stage_cost& c = cost[static_cast<std::size_t>(a.stage)];
    switch (a.kind) {
      case sc::action_kind::forward:
        return c.forward;
      case sc::action_kind::backward:
        return c.backward_input + c.backward_weight;
      case sc::action_kind::backward_input:
        return c.backward_input;
      default:
        return c.backward_weight;
    }
  };
  return sim::simulate(table, duration, sim::link_time{link}).makespan;
}

// The most bytes a rank keeps, counted action by action; they grow in forwards only.
double most_bytes(sc::table_view table, int rank, const sc::stage_cost& c) {
  int whole = 0, rest = 0;
  double most = 0;
  for (const sc::action& a : table.list(rank)) {
    if (a.kind == sc::action_kind::forward) most = (std::max)(most, c.held(++whole, rest));
    if (a.kind == sc::action_kind::backward) --whole;
    if (a.kind == sc::action_kind::backward_input) --whole, ++rest;
    if (a.kind == sc::action_kind::backward_weight) --rest;
  }
  return most;
}

// The best of what the scheduler itself finds, without the known schedules beside it.
double planned(const costs& cost, double link, double limit, int m) {
  const std::vector<double> limits(cost.size(), limit);
  std::vector<int> ranks(cost.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  sc::detail::zero_bubble_scheduler scheduler(cost, limits, link, m);
  double best = sc::automatic::unlimited;
  for (int n = 0; n < sc::detail::scheduler_choices::count; ++n) {
    const auto found =
        sc::detail::run_lists(scheduler.lists(sc::detail::scheduler_choices::number(n)), cost, ranks, link, m);
    for (const double bytes : found.peak_bytes) CHECK(bytes <= limit);
    best = (std::min)(best, found.makespan);
  }
  return best;
}

template <class When>
double takes(const When& when, const costs& cost, double link) {
  return simulated(sc::make_table(when, static_cast<int>(cost.size())), cost, link);
}

}  // namespace

TEST_CASE("the automatic schedule is at least as good as ZB-H1 and ZB-H2 in their memory", "[sim]") {
  const double times[][4] = {{1, 1, 1, 0}, {2, 3, 1.5, 0}, {1, 1.2, 0.8, 0.1}, {1, 1, 1, 0.25}, {1, 1.5, 0.75, 0.5}};
  for (const auto& [f, i, w, link] : times)
    for (const int p : {2, 4, 8})
      for (const int m : {p, 2 * p, 4 * p}) {
        CAPTURE(f, i, w, link, p, m);
        const costs cost(static_cast<std::size_t>(p), {f, i, w});
        const sc::automatic like_h1{m, cost, link, static_cast<double>(p)};
        const sc::automatic like_h2{m, cost, link, 2.0 * p - 1};
        const double h1 = takes(sc::zb_h1<>{m}, cost, link);
        CHECK(like_h1.outcome().makespan <= h1 + 1e-9);
        CHECK(planned(cost, link, p, m) <= h1 + 1e-9);
        CHECK(like_h2.outcome().makespan <= like_h1.outcome().makespan + 1e-9);
        if (m < 2 * p - 1) continue;
        const double h2 = takes(sc::zb_h2<>{m}, cost, link);
        CHECK(like_h2.outcome().makespan <= h2 + 1e-9);
        CHECK(planned(cost, link, 2 * p - 1, m) <= h2 * 1.03);
      }
  // The published times for p = 4, m = 8.
  const costs unequal(4, {2, 3, 1.5});
  CHECK(sc::automatic{8, unequal, 0, 4.0}.outcome().makespan == Approx(62.5));
  CHECK(sc::automatic{8, unequal, 0, 7.0}.outcome().makespan == Approx(58));
  CHECK(sc::automatic{8, costs(4, {1, 1, 1})}.outcome().makespan == Approx(27));
  // Less memory than any of the known: still far from one microbatch after the other, which takes 12 m.
  const sc::automatic tight{8, costs(4, {1, 1, 1}), 0, 2.0};
  CHECK(tight.outcome().makespan <= 41);
  CHECK(sc::peak_live(sc::make_table(tight, 4), 0) == 2);
}

TEST_CASE("automatic schedules are valid, keep to the limit and take as long as they say", "[sim][law]") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> time(0.2, 2);
  for (int round = 0; round < 300; ++round) {
    const int p = 1 + static_cast<int>(random() % 8);
    const int m = 1 + static_cast<int>(random() % 24);
    const double link = static_cast<double>(random() % 3) * 0.2;
    costs cost;
    std::vector<double> limits;
    for (int r = 0; r < p; ++r) {
      const double bytes = time(random);
      cost.push_back({time(random), time(random), time(random), bytes, bytes * static_cast<double>(random() % 3) / 3});
      limits.push_back(bytes * (1 + static_cast<double>(random() % 20) / 3));
    }
    CAPTURE(round, p, m, link);
    const sc::automatic when{m, cost, link, limits};
    const auto table = sc::make_table(when, p);
    CAPTURE(sc::to_string(sc::check_table(table)));
    REQUIRE(sc::check_table(table).ok());
    REQUIRE(sc::check_table(sc::lower(table)).ok());
    REQUIRE(simulated(table, cost, link) == Approx(when.outcome().makespan).epsilon(1e-12));
    for (int r = 0; r < p; ++r) {
      const auto k = static_cast<std::size_t>(r);
      REQUIRE(most_bytes(table, r, cost[k]) <= limits[k]);
      REQUIRE(most_bytes(table, r, cost[k]) == when.outcome().peak_bytes[k]);
    }
    // More memory never hurts.
    if (round % 10 == 0) {
      const sc::automatic free{m, cost, link};
      const double best_known = (std::min)(takes(sc::one_f_one_b<>{m}, cost, link), takes(sc::zb_h1<>{m}, cost, link));
      REQUIRE(free.outcome().makespan <= best_known + 1e-9);
    }
  }
}

TEST_CASE("an automatic schedule is a schedule for its own number of ranks", "[sim]") {
  const sc::automatic when{6, costs(3, {1, 1.5, 1})};
  STATIC_REQUIRE(sc::schedule_policy<sc::automatic>);
  CHECK(when.ranks() == 3);
  CHECK_THROWS_AS(sc::make_table(when, 4), heddle::schedule_error);
  CHECK(sc::sends(sc::make_table(when, 3)) == 2 * 2 * 6);
}

namespace {

// Of all stages of a rank together.
double most_bytes(sc::table_view table, int rank, const costs& cost) {
  std::vector<int> whole(cost.size(), 0), rest(cost.size(), 0);
  double most = 0;
  for (const sc::action& a : table.list(rank)) {
    const auto s = static_cast<std::size_t>(a.stage);
    if (a.kind == sc::action_kind::forward) ++whole[s];
    if (a.kind == sc::action_kind::backward) --whole[s];
    if (a.kind == sc::action_kind::backward_input) --whole[s], ++rest[s];
    if (a.kind == sc::action_kind::backward_weight) --rest[s];
    double bytes = 0;
    for (std::size_t k = 0; k < cost.size(); ++k)
      if (table.rank_of(static_cast<int>(k)) == rank) bytes += cost[k].held(whole[k], rest[k]);
    most = (std::max)(most, bytes);
  }
  return most;
}

// Stages in blocks: no map of the library's.
struct blocks {
  int per_rank = 2;
  static constexpr int chains = 1;
  int stages(int ranks) const { return per_rank * ranks; }
  int rank_of(int stage, int) const { return stage / per_rank; }
};

}  // namespace

TEST_CASE("on a V the automatic schedule is at least as good as the known ones in their memory", "[sim]") {
  const double times[][4] = {{1, 1, 1, 0}, {2, 3, 1.5, 0}, {1, 1.2, 0.8, 0.1}, {1, 1.5, 0.75, 0.5}};
  for (const auto& [f, i, w, link] : times)
    for (const int p : {2, 4, 6})
      for (const int m : {p, 2 * p, 3 * p}) {
        CAPTURE(f, i, w, link, p, m);
        const costs cost(2 * static_cast<std::size_t>(p), {f / 2, i / 2, w / 2});
        const auto in_memory_of = [&](const auto& known) {
          const auto table = sc::make_table(known, p);
          int most = 0;
          for (int r = 0; r < p; ++r) most = (std::max)(most, sc::peak_live(table, r));
          const sc::automatic when{m, sc::v_shape{}, cost, link, static_cast<double>(most)};
          CHECK(when.ranks() == p);
          CHECK(when.outcome().makespan <= simulated(table, cost, link) + 1e-9);
          for (int r = 0; r < p; ++r) CHECK(sc::peak_live(sc::make_table(when, p), r) <= most);
        };
        in_memory_of(sc::zb_v<>{m});
        in_memory_of(sc::v_half<>{m});
        in_memory_of(sc::v_min<>{m});
      }
  // p = 4, m = 8 with unequal times, in rank times 2, 3, 1.5: ZB-V takes 56.5 with eight activations, V-Half 63.5 with
  // six, V-Min 83.75 with four. With room nothing is left but the skew of the start: 52 + 3.
  const costs unequal(8, {1, 1.5, 0.75});
  const auto takes_on_v = [&](double limit) {
    return sc::automatic{8, sc::v_shape{}, unequal, 0, limit}.outcome().makespan;
  };
  CHECK(takes_on_v(8) == Approx(56.5));
  CHECK(takes_on_v(6) <= 62.75 + 1e-9);
  CHECK(takes_on_v(4) <= 77.25 + 1e-9);
  CHECK(takes_on_v(sc::automatic::unlimited) == Approx(55));
  // Two stages on a loop: interleaved 1F1B takes 61.75, with split backwards 57.25.
  CHECK(sc::automatic{8, sc::loop<2>{}, unequal, 0, 11.0}.outcome().makespan <= 55 + 1e-9);
}

TEST_CASE("automatic schedules of several stages per rank are valid, keep to the limit and take as long as they say",
          "[sim][law]") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> time(0.2, 2);
  for (int round = 0; round < 60; ++round) {
    const int p = 1 + static_cast<int>(random() % 6);
    const int m = 1 + static_cast<int>(random() % 12);
    const double link = static_cast<double>(random() % 3) * 0.2;
    const auto check = [&](const auto& map) {
      costs cost;
      std::vector<double> limits(static_cast<std::size_t>(p), 0.0);
      for (int s = 0; s < map.stages(p); ++s) {
        const double bytes = time(random);
        cost.push_back(
            {time(random), time(random), time(random), bytes, bytes * static_cast<double>(random() % 3) / 3});
        limits[static_cast<std::size_t>(map.rank_of(s, p))] += bytes;
      }
      for (double& limit : limits) limit *= 1 + static_cast<double>(random() % 12) / 3;
      CAPTURE(round, p, m, link, map.stages(p));
      const sc::automatic when{m, map, cost, link, limits};
      const auto table = sc::make_table(when, p);
      CAPTURE(sc::to_string(sc::check_table(table)));
      REQUIRE(sc::check_table(table).ok());
      REQUIRE(sc::check_table(sc::lower(table)).ok());
      REQUIRE(simulated(table, cost, link) == Approx(when.outcome().makespan).epsilon(1e-12));
      for (int s = 0; s < map.stages(p); ++s) REQUIRE(table.view().rank_of(s) == map.rank_of(s, p));
      for (int r = 0; r < p; ++r) {
        const auto k = static_cast<std::size_t>(r);
        REQUIRE(most_bytes(table, r, cost) <= limits[k]);
        REQUIRE(most_bytes(table, r, cost) == Approx(when.outcome().peak_bytes[k]).epsilon(1e-12));
      }
    };
    check(sc::v_shape{});
    check(sc::loop<2>{});
    check(sc::loop<3>{});
    check(sc::wave<2>{});
    check(blocks{3});
  }
}

TEST_CASE("automatic schedules refuse what makes no sense", "[sim]") {
  using heddle::schedule_error;
  CHECK_THROWS_WITH((sc::automatic{4, {}}), "heddle: automatic schedule: give the cost of at least one stage");
  CHECK_THROWS_WITH((sc::automatic{4, costs(2), 0, std::vector<double>{1}}),
                    "heddle: automatic schedule: 2 ranks, but 1 limits of memory; give one for each, or one for all");
  CHECK_THROWS_WITH((sc::automatic{4, costs(2), -1.0}),
                    "heddle: automatic schedule: the time of a message is negative or no number");
  CHECK_THROWS_WITH((sc::automatic{4, costs{{1, 1, 1}, {1, -1, 1}}}),
                    "heddle: automatic schedule: a time or a number of bytes of stage 1 is negative or no number, or I "
                    "releases more than there is");
  CHECK_THROWS_WITH((sc::automatic{4, costs(2, {1, 1, 1, 3}), 0, std::vector<double>{4, 2}}),
                    "heddle: automatic schedule: one microbatch needs 3 bytes on rank 1, the limit is 2");
  CHECK_THROWS_WITH((sc::automatic{4, sc::v_shape{}, costs(5)}),
                    "heddle: automatic schedule: the map has 6 stages on 3 ranks in 1 chains; give the cost of each of "
                    "them, in one chain: there are 5");
  CHECK_THROWS_WITH((sc::automatic{4, sc::bidirectional{}, costs(4)}),
                    "heddle: automatic schedule: the map has 4 stages on 2 ranks in 2 chains; give the cost of each of "
                    "them, in one chain: there are 4");
  CHECK_THROWS_WITH((sc::automatic{4, sc::v_shape{}, costs(4), 0, 1.5}),
                    "heddle: automatic schedule: one microbatch needs 2 bytes on rank 0, the limit is 1.5");
  CHECK_THROWS_AS((sc::automatic{4, sc::v_shape{}, costs(4), 0, std::vector<double>{8, 8, 8}}), schedule_error);
  CHECK_THROWS_AS((sc::automatic{4, sc::v_shape{}, costs()}), schedule_error);
  CHECK_THROWS_AS((sc::automatic{0, costs(2)}), schedule_error);
  CHECK_THROWS_AS((sc::automatic{4, costs{{1, 1, 1, 2, 3}}}), schedule_error);
}
