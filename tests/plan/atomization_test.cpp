#include <heddle/core/random.hpp>
#include <heddle/plan/atomization/broker.hpp>
#include <heddle/plan/atomization/mig.hpp>
#include <heddle/plan/atomization/stagger.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace hd = heddle;
namespace sja = heddle::plan::sja;

static_assert(sja::atomizable_job<sja::profiled_job<>>);
static_assert(sja::atomizable_job<sja::profiled_job<sja::certain_safety>>);

namespace {

sja::resource_profile seconds_profile(double unit_sd = 0) {
  sja::resource_profile p;
  p.set_up = p.finish = 5;
  p.unit_sd = unit_sd;
  return p;
}
sja::window slice_window(double start, double end, double bytes = 0, int slice = 0) {
  return {-1, {slice}, start, end, bytes, 0};
}

// A stream of random numbers.
class draws {
 public:
  explicit draws(std::uint64_t seed) : random_(seed, 7) {}
  double uniform(double low, double high) { return low + (high - low) * random_.uniform(next_++); }
  double normal() { return random_.normal(next_++); }
  int below(int n) { return static_cast<int>(random_.integer(next_++) % static_cast<std::uint64_t>(n)); }

 private:
  hd::counter_random random_;
  std::uint64_t next_ = 0;
};

}  // namespace

TEST_CASE("quantiles of the normal distribution", "[plan][sja]") {
  CHECK(sja::normal_quantile(0.99) == Approx(2.3263478740408408).epsilon(1e-12));
  CHECK(sja::normal_quantile(0.95) == Approx(1.6448536269514722).epsilon(1e-12));
  CHECK(std::fabs(sja::normal_quantile(0.5)) < 1e-12);
  for (const double p : {0.001, 0.2, 0.7, 0.9999}) CHECK(sja::normal_probability(sja::normal_quantile(p)) == Approx(p));
  CHECK_THROWS_AS(sja::normal_quantile(1), hd::config_error);
  CHECK_THROWS_AS(sja::normal_safety(0.5), hd::config_error);
  // Small chances of an overrun: 1 - theta is not what it was, or 1.
  sja::resource_profile p;
  p.unit_sd = 1;
  CHECK(sja::normal_safety(1e-15).seconds(p, 1) == Approx(1 + 7.941345326170998).epsilon(1e-9));
  CHECK(sja::normal_safety(1e-20).seconds(p, 1) == Approx(1 + 9.262340089798408).epsilon(1e-9));
}

TEST_CASE("the worked example: 90 units fit a window of 100 s, and 87 if their times vary", "[plan][sja]") {
  const sja::window w = slice_window(0, 100);
  const sja::profiled_job<> exact(0, seconds_profile(), {.units = 160});
  const auto whole = exact.interest(w);
  REQUIRE(whole);
  CHECK(whole->units == 90);
  CHECK(whole->end == 100);
  CHECK(exact.profile().efficiency(90) == 0.9);

  const sja::profiled_job<> varying(0, seconds_profile(0.1), {.units = 160}, sja::normal_safety(0.01));
  const auto fewer = varying.interest(w);
  REQUIRE(fewer);
  CHECK(fewer->units == 87);
  CHECK(fewer->end == Approx(99.17).margin(0.005));
  CHECK(sja::normal_safety(0.01).seconds(varying.profile(), 88) == Approx(100.18).margin(0.005));
}

TEST_CASE("the worked example through the protocol ends at 280, not at 370", "[plan][sja]") {
  // A reservation holds the only slice in [100, 200).
  std::vector<sja::profiled_job<>> jobs{{0, seconds_profile(), {.units = 160}}};
  sja::broker<> broker;
  double now = 0, useful = 0;
  for (const sja::window& w : {slice_window(0, 100), slice_window(200, 1000)}) {
    const auto pieces = broker.open(std::span<const sja::window>(&w, 1), jobs, w.start);
    REQUIRE(pieces.size() == 1);
    const auto units = static_cast<double>(pieces[0].units);
    now = w.start + 5 + units + 5;
    useful += units;
    CHECK(pieces[0].end == now);
    broker.close(jobs[0], {pieces[0].window, 0, pieces[0].units, units, 0, false}, now);
  }
  CHECK(now == 280);
  CHECK(jobs[0].finished());
  CHECK((useful + 100) / now == Approx(260.0 / 280));
  const double rigid = 200 + 5 + 160 + 5;
  CHECK(rigid == 370);
  CHECK(1 - now / rigid == Approx(0.24).margin(0.005));
  // One announcement, one reply of the job, one grant, one report.
  for (const int id : {0, 1}) {
    const auto n = sja::count_messages(broker.log(), id);
    CHECK(n.announcements == 1);
    CHECK(n.bids == 1);
    CHECK(n.grants == 1);
    CHECK(n.reports == 1);
    CHECK(n.withdrawals + n.declines == 0);
  }
}

TEST_CASE("memory that does not fit shortens a piece to the border of a phase", "[plan][sja]") {
  sja::resource_profile p = seconds_profile();
  p.phases = {{0, 30, 4e9, 0.1e9}, {30, 60, 6e9, 0.2e9}, {60, 160, 18e9, 0.2e9}};
  const sja::profiled_job<> job(0, p, {.units = 160, .least_units = 10, .least_efficiency = 0.7});
  CHECK(job.interest(slice_window(0, 100, 20e9))->units == 90);
  CHECK(job.interest(slice_window(0, 100, 18e9))->units == 60);   // the third phase exceeds its mean half the time
  CHECK(job.interest(slice_window(0, 100, 6.2e9))->units == 30);  // one deviation above the mean is not enough
  CHECK(!job.interest(slice_window(0, 100, 4e9)));
  CHECK(job.interest(slice_window(0, 100, 4e9 + 0.1e9 * sja::normal_quantile(0.99) + 1))->units == 30);
  CHECK(!job.interest(slice_window(0, 100, 4e9 + 0.1e9 * sja::normal_quantile(0.99) - 1e3)));
  // Two phases that would just fit alone do not both fit with the same probability.
  sja::resource_profile two = seconds_profile();
  two.phases = {{0, 50, 4e9, 0.1e9}, {50, 160, 4e9, 0.1e9}};
  const double just = 4e9 + 0.1e9 * sja::normal_quantile(0.99) + 1;
  CHECK(sja::profiled_job<>(0, two, {.units = 160}).interest(slice_window(0, 100, just))->units == 50);
}

TEST_CASE("a job is not interested in what is not worth it, but its rest is always worth it", "[plan][sja]") {
  const sja::profiled_job<> job(0, seconds_profile(), {.units = 160});
  CHECK(!job.interest(slice_window(0, 10)));  // no unit
  CHECK(!job.interest(slice_window(0, 49)));  // 39 of 49: less than e_min
  CHECK(job.interest(slice_window(0, 50))->units == 40);
  CHECK(!sja::profiled_job<>(0, seconds_profile(), {.units = 160, .least_units = 50}).interest(slice_window(0, 59)));
  const sja::profiled_job<> rest(0, seconds_profile(), {.units = 3, .least_units = 50});
  CHECK(rest.interest(slice_window(0, 59))->units == 3);
  CHECK(!rest.interest(slice_window(0, 12)));
  CHECK(!sja::profiled_job<>(0, seconds_profile(), {.units = 3, .width = 2}).interest(slice_window(0, 59)));
}

TEST_CASE("what is not a profile or a job is refused", "[plan][sja]") {
  using Catch::Matchers::Contains;
  sja::resource_profile gap = seconds_profile();
  gap.phases = {{0, 10, 1, 0}, {12, 20, 1, 0}};
  CHECK_THROWS_WITH(sja::profiled_job<>(0, gap, {.units = 20}), Contains("one begins at 12, not at 10"));
  sja::resource_profile none = seconds_profile();
  none.unit = 0;
  CHECK_THROWS_WITH(sja::profiled_job<>(0, none, {.units = 20}), Contains("a unit must take time"));
  sja::resource_profile partial = seconds_profile();
  partial.phases = {{0, 10, 1, 0}};
  CHECK_THROWS_WITH(sja::profiled_job<>(0, partial, {.units = 20}), Contains("end at unit 10 of 20"));
  CHECK_THROWS_AS(sja::profiled_job<>(0, seconds_profile(), {.units = 0}), hd::config_error);
}

TEST_CASE("a profile, a job's terms and a report are numbers that can be", "[plan][sja]") {
  using Catch::Matchers::Contains;
  const double infinity = std::numeric_limits<double>::infinity(), none = std::nan("");
  sja::resource_profile endless = seconds_profile();
  endless.set_up = infinity;
  CHECK_THROWS_WITH(sja::profiled_job<>(0, endless, {.units = 20}), Contains("must be finite"));
  CHECK_THROWS_WITH(sja::profiled_job<>(0, seconds_profile(), {.units = 20, .least_efficiency = none}),
                    Contains("least_efficiency must be in [0, 1]"));
  CHECK_THROWS_AS(sja::profiled_job<>(0, seconds_profile(), {.units = 20, .least_efficiency = 2}), hd::config_error);
  CHECK_THROWS_AS(sja::profiled_job<>(0, seconds_profile(), {.units = 20, .deadline = none}), hd::config_error);
  CHECK_THROWS_AS(sja::profiled_job<>(0, seconds_profile(), {.units = 20, .arrival = infinity}), hd::config_error);

  sja::profiled_job<> job(0, seconds_profile(), {.units = 20});
  const sja::window w = slice_window(0, 100);
  sja::broker<> broker;
  REQUIRE(broker.open(std::span<const sja::window>(&w, 1), std::span<sja::profiled_job<>>(&job, 1), 0).size() == 1);
  for (const double wrong : {none, infinity, -5.0}) {
    CHECK_THROWS_WITH(broker.close(job, {0, 0, 10, wrong, 0, false}, 10), Contains("which cannot be"));
    CHECK_THROWS_WITH(broker.close(job, {0, 0, 10, 10, wrong, false}, 10), Contains("which cannot be"));
  }
  CHECK_THROWS_WITH(broker.close(job, {0, 0, 10, 10, 0, false, none}, 10), Contains("which cannot be"));
  CHECK(job.profile().unit == 1);
  CHECK(broker.running().size() == 1);  // it may still report
  broker.close(job, {0, 0, 20, 20, 0, false}, 30);
  CHECK(job.finished());
}

TEST_CASE("a window may have no end", "[plan][sja]") {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto check = [&](auto broker) {
    std::vector<sja::profiled_job<>> jobs{{0, seconds_profile(), {.units = 20}}};
    const sja::window w = slice_window(10, infinity);
    const auto pieces = broker.open(std::span<const sja::window>(&w, 1), jobs, 0);
    REQUIRE(pieces.size() == 1);
    CHECK(pieces[0].start == 10);
    CHECK(pieces[0].end == 10 + 5 + 20 + 5);
    CHECK(pieces[0].units == 20);
    CHECK(sja::broken_rule(broker.log(), false) == "");
  };
  check(sja::broker<>{});
  check(sja::broker{sja::interval_clearing{}});
  check(sja::broker{sja::response_ratio{}, sja::interval_clearing{}});
}

TEST_CASE("what an overrun has left of a window may be nothing", "[plan][sja]") {
  std::vector<sja::profiled_job<>> jobs{{0, seconds_profile(), {.units = 20}}};
  const sja::window w = slice_window(100, 90);
  sja::broker broker{sja::interval_clearing{}};
  CHECK(broker.open(std::span<const sja::window>(&w, 1), jobs, 0).empty());
  CHECK(sja::broken_rule(broker.log()) == "");
}

TEST_CASE("no offer leaves its window by a rounding error", "[plan][sja]") {
  draws random(31);
  for (int k = 0; k < 2000; ++k) {
    const double start = random.uniform(0, 10), end = start + random.uniform(0.1, 3);
    sja::resource_profile p;
    p.unit = random.uniform(0.01, 0.2);
    p.unit_sd = p.unit / 7;
    const sja::window w = slice_window(start, end);
    for (const sja::offer& o : sja::profiled_job<>(0, p, {.units = 200}).offers(w, 7))
      REQUIRE((o.start >= start && o.start <= o.end && o.end <= end));
    // Exactly filled by units without deviation.
    p.unit = (end - start) / 8;
    p.unit_sd = 0;
    for (const sja::offer& o : sja::profiled_job<>(0, p, {.units = 8}).offers(w, 7))
      REQUIRE((o.start >= start && o.start <= o.end && o.end <= end));
  }
}

TEST_CASE("windows and bids that break the rules are refused", "[plan][sja]") {
  using Catch::Matchers::Contains;
  sja::broker<> broker;
  CHECK_THROWS_WITH(broker.announce(slice_window(10, std::nan(""))), Contains("give numbers"));
  CHECK_THROWS_WITH(broker.announce({-1, {2, 0, 2}, 0, 10, 0, 0}), Contains("has slice 2 twice"));
  CHECK(broker.windows() == 0);
  CHECK_THROWS_WITH(broker.bid_for(0, 0, {}, 0), Contains("window 0 has not been announced"));

  const int id = broker.announce(slice_window(10, 20));
  sja::offer good;
  good.job = 3;
  good.units = 5;
  good.start = 10;
  good.end = 20;
  good.useful = 5;
  const double infinity = std::numeric_limits<double>::infinity(), none = std::nan("");
  int job = 3;
  const auto why = [&](auto change) {  // the only offer of a job of its own
    sja::offer o = good;
    o.job = ++job;
    change(o);
    const auto before = broker.refusals();
    CHECK(broker.bid_for(id, job, {o}, 0));  // the job has answered, and its offer does not count
    CHECK(broker.refusals() == before + 1);
    CHECK(broker.last_refusal().job == job);
    return std::string(broker.last_refusal().why);
  };
  CHECK_THAT(why([](auto& o) { o.job = 99; }), Contains("of another job"));
  CHECK_THAT(why([](auto& o) { o.end = 21; }), Contains("outside of the window"));
  CHECK_THAT(why([](auto& o) { o.start = 9; }), Contains("outside of the window"));
  CHECK_THAT(why([](auto& o) { o.end = 10; }), Contains("too short"));
  CHECK_THAT(why([](auto& o) { o.end = std::nextafter(10.0, 11.0); }), Contains("too short"));
  CHECK_THAT(why([](auto& o) { o.units = 0; }), Contains("without units"));
  CHECK_THAT(why([](auto& o) { o.units = -5; }), Contains("without units"));
  CHECK_THAT(why([](auto& o) { o.first = -1; }), Contains("without units"));
  CHECK_THAT(why([](auto& o) { o.useful = 1e9; }), Contains("more useful seconds"));
  CHECK_THAT(why([](auto& o) { o.rest = 9; }), Contains("longer than all its rest"));
  CHECK_THAT(why([](auto& o) { o.rest = 5e-324; }), Contains("longer than all its rest"));
  CHECK_THAT(why([](auto& o) { o.bytes = 1; }), Contains("more memory"));
  CHECK_THAT(why([](auto& o) { o.urgency = 1e6; }), Contains("urgency outside"));
  CHECK_THAT(why([](auto& o) { o.trust = 100; }), Contains("trust outside"));
  for (const double wrong : {none, infinity, -infinity, -1.0}) {
    CAPTURE(wrong);
    const auto counts_as_wrong = [&](double sja::offer::* number) {
      CHECK_FALSE(why([&](auto& o) { o.*number = wrong; }).empty());
    };
    for (const auto number : {&sja::offer::start, &sja::offer::end, &sja::offer::useful, &sja::offer::bytes,
                              &sja::offer::waiting, &sja::offer::rest, &sja::offer::urgency, &sja::offer::trust})
      counts_as_wrong(number);
  }
  std::vector<sja::offer> two(2, good);
  two[0].job = two[1].job = 1;
  CHECK(broker.bid_for(id, 1, two, 0));
  CHECK_THAT(broker.last_refusal().why, Contains("more pieces than were asked for"));
  CHECK(broker.bid_for(id, 3, {good}, 0));
  CHECK_FALSE(broker.bid_for(id, 3, {good}, 0));
  CHECK_THAT(broker.last_refusal().why, Contains("bids again"));
  const auto counts = sja::count_messages(broker.log(), id);
  CHECK(counts.bids == job - 3 + 2);
  CHECK(counts.refusals == broker.refusals());
  CHECK(sja::broken_rule(broker.log(), false) == "");
  CHECK_THROWS_WITH(broker.announce({-1, {}, 0, 10, 0, 0}), Contains("has no slice"));
}

TEST_CASE("clearing by intervals is as good as trying all subsets", "[plan][sja]") {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    INFO("seed " << seed);
    draws random(seed);
    std::vector<sja::offer> offers(static_cast<std::size_t>(random.below(13)));
    for (sja::offer& o : offers) {
      // Whole numbers, so that some touch and sums are exact.
      o.start = random.below(20);
      o.end = o.start + 1 + random.below(8);
      o.useful = 1 + random.below(9);
      o.score = random.below(12) - 1;
    }
    double best = 0;
    for (unsigned set = 0; set < 1u << offers.size(); ++set) {
      double weight = 0;
      bool disjoint = true;
      for (std::size_t a = 0; a < offers.size() && disjoint; ++a) {
        if ((set >> a & 1) == 0) continue;
        weight += offers[a].weight();
        for (std::size_t b = 0; b < a && disjoint; ++b)
          if ((set >> b & 1) != 0) disjoint = offers[a].end <= offers[b].start || offers[b].end <= offers[a].start;
      }
      if (disjoint) best = std::max(best, weight);
    }
    const auto chosen = sja::heaviest_disjoint(offers);
    double weight = 0;
    for (std::size_t k = 0; k < chosen.size(); ++k) {
      weight += offers[chosen[k]].weight();
      if (k > 0) REQUIRE(offers[chosen[k - 1]].end <= offers[chosen[k]].start);
    }
    REQUIRE(weight == best);
  }
}

TEST_CASE("a score is the published sum, and equals go to the lowest job", "[plan][sja]") {
  sja::offer o;
  o.useful = 60;
  o.waiting = 30;
  o.urgency = 0.5;
  o.bytes = 6;
  const sja::window w = slice_window(0, 100, 10);
  CHECK(sja::weighted{1, 1, 1, 0}(o, w, 120) == Approx(0.6 + 0.25 + 0.5));
  CHECK(sja::weighted{2, 0, 0, 3}(o, w, 120) == Approx(1.2 - 1.2));
  const double unlimited = std::numeric_limits<double>::infinity();
  CHECK(sja::weighted{}(o, slice_window(0, 100, unlimited), 120) == Approx(0.6 + 0.25 + 0.5));
  CHECK(sja::weighted{1, 0, 0, 0.25}(o, slice_window(0, 100, unlimited), 120) == Approx(0.6 - 0.25));
  o.trust = 0.5;
  CHECK(sja::weighted{1, 1, 1, 0}(o, w, 0) == Approx(0.55));
  std::vector<sja::offer> equal(3);
  equal[0].job = 7, equal[1].job = 2, equal[2].job = 5;
  CHECK(sja::one_winner{}(equal) == std::vector<std::size_t>{1});
}

TEST_CASE("ageing lets a job with few useful seconds win", "[plan][sja]") {
  std::vector<sja::profiled_job<>> jobs{{0, seconds_profile(), {.units = 100000}},
                                        {1, seconds_profile(), {.units = 45, .arrival = 0}}};
  const auto first_win = [&](sja::weighted score) {
    auto mine = jobs;
    sja::broker broker{score};
    for (int k = 0; k < 20; ++k) {
      const sja::window w = slice_window(100 * k, 100 * k + 100);
      const auto pieces = broker.open(std::span<const sja::window>(&w, 1), mine, w.start);
      REQUIRE(pieces.size() == 1);
      if (pieces[0].job == 1) return k;
      broker.close(mine[0], {pieces[0].window, 0, pieces[0].units, 90, 0, false}, w.end);
    }
    return 20;
  };
  CHECK(first_win({1, 0, 0, 0}) == 20);
  CHECK(first_win({1, 1, 0, 0}) == 1);
}

TEST_CASE("every behaviour of jobs keeps the protocol's rules", "[plan][sja]") {
  // A job that does as the bits say: be interested, decline, stop early.
  struct odd_job {
    int number = 0;
    std::uint32_t* choices = nullptr;
    int live = 0;
    std::int64_t epoch = 0;
    bool choose() const {
      const bool yes = (*choices & 1) != 0;
      *choices >>= 1;
      return yes;
    }
    int id() const { return number; }
    std::vector<sja::offer> offers(const sja::window& w, int) const {
      std::vector<sja::offer> made;
      if (live > 0 || !choose()) return made;
      sja::offer o;
      o.job = number;
      o.epoch = epoch;
      o.units = 1;
      o.start = w.start + number;  // so that two of them fit beside each other
      o.end = o.start + 1;
      o.useful = number == 0 ? 0.5 : 1;
      made.push_back(o);
      return made;
    }
    std::optional<sja::subjob> materialize(const sja::window& w, const sja::offer& o) {
      if (o.epoch != epoch || choose()) return std::nullopt;
      ++live, ++epoch;
      return sja::subjob{number, w.id, w.slices, o.start, o.end, 0, 1};
    }
    void report(const sja::usage&) { --live, ++epoch; }
  };
  // Slice 0, slice 1, and both at once, first the gang or first the parts.
  const std::vector<sja::window> orders[2] = {{{-1, {0, 1}, 0, 3, 0, 0}, {-1, {0}, 0, 3, 0, 0}, {-1, {1}, 0, 3, 0, 0}},
                                              {{-1, {0}, 0, 3, 0, 0}, {-1, {1}, 0, 3, 0, 0}, {-1, {0, 1}, 0, 3, 0, 0}}};
  std::set<std::array<int, 3>> outcomes;  // pieces per window that were seen
  const auto check = [&](auto broker, const std::vector<sja::window>& windows, std::uint32_t bits) {
    std::uint32_t choices = bits;
    std::vector<odd_job> jobs{{0, &choices}, {1, &choices}};
    for (int round = 0; round < 2; ++round) {
      auto pieces = broker.open(std::span<const sja::window>(windows), jobs, 0);
      std::array<int, 3> seen{};
      for (const auto& s : pieces) ++seen[static_cast<std::size_t>(s.window % 3)];
      outcomes.insert(seen);
      for (const auto& s : pieces) {
        const bool early = (bits >> 20 & 1) != 0;
        broker.close(jobs[static_cast<std::size_t>(s.job)], {s.window, s.job, early ? 0 : 1, 1, 0, early},
                     early ? s.start : s.end);
      }
      if (round == 1) break;
      // The second round begins when the first has ended.
      if (pieces.empty()) continue;
      break;
    }
    REQUIRE(sja::broken_rule(broker.log()) == "");
    for (int id = 0; id < broker.windows(); ++id) {
      const auto n = sja::count_messages(broker.log(), id);
      REQUIRE(n.announcements == 1);
      REQUIRE(n.bids == 2);
      REQUIRE(n.reports == n.grants - n.declines);
      REQUIRE(n.withdrawals == (n.grants == n.declines ? 1 : 0));
    }
  };
  for (const auto& windows : orders)
    for (std::uint32_t bits = 0; bits < 1u << 12; ++bits)
      for (const std::uint32_t early : {0u, 1u << 20}) {
        check(sja::broker<sja::one_winner>{sja::one_winner{}}, windows, bits | early);
        check(sja::broker<sja::interval_clearing>{sja::interval_clearing{}}, windows, bits | early);
      }
  CHECK(outcomes.count({1, 0, 0}) == 1);  // the gang, and nothing beside it
  CHECK(outcomes.count({2, 0, 0}) == 1);  // two pieces, one behind the other
  CHECK(outcomes.count({0, 1, 1}) == 1);
  CHECK(outcomes.count({0, 0, 0}) == 1);
}

TEST_CASE("the check of the protocol finds each broken rule", "[plan][sja]") {
  const sja::window windows[] = {{0, {0}, 0, 10, 0, 0}, {1, {0, 1}, 0, 10, 0, 0}, {2, {2}, 0, 10, 0, 0}};
  using log = std::vector<sja::message>;
  const auto broken = [](const log& l) { return sja::broken_rule(l, [](int job) { return job == 9; }); };
  using Catch::Matchers::Contains;
  const auto piece = [](int job, double start, double end, std::int64_t epoch = 0) {
    sja::offer o;
    o.job = job;
    o.epoch = epoch;
    o.start = start;
    o.end = end;
    return o;
  };
  const auto announce = [&](int w) { return sja::message{0, sja::announcement{windows[w], 5}}; };
  const auto bids = [](int w, const sja::offer& o, double at = 0) { return sja::message{at, sja::bid{w, o.job, {o}}}; };
  const auto asked = [&](int w, const sja::offer& o) { return log{announce(w), bids(w, o)}; };
  const auto grant = [](int w, const sja::offer& o) { return sja::message{0, sja::grant{w, o}}; };
  const auto report = [](int w, int job, double at) { return sja::message{at, sja::report{{w, job}}}; };
  const auto decline = [](int w, int job) { return sja::message{0, sja::decline{w, job}}; };
  const sja::message withdrawal{0, sja::withdrawal{0}};
  const auto all = [](std::initializer_list<log> parts) {
    log l;
    for (const log& p : parts) l.insert(l.end(), p.begin(), p.end());
    return l;
  };
  const sja::offer four = piece(4, 0, 5);
  CHECK(broken(all({asked(0, four), {grant(0, four), report(0, 4, 5)}})) == "");
  CHECK(broken(all({asked(0, four), {withdrawal}})) == "");
  CHECK(broken(all({asked(0, four), {grant(0, four), decline(0, 4), withdrawal}})) == "");
  CHECK_THAT(broken({grant(0, four)}), Contains("before the announcement"));
  CHECK_THAT(broken({announce(0), announce(0)}), Contains("announced twice"));
  CHECK_THAT(broken(asked(0, four)), Contains("neither granted nor withdrawn"));
  CHECK_THAT(broken(all({asked(0, four), {grant(0, four)}})),
             Contains("window 0, job -1: a piece that never reported"));
  CHECK(sja::broken_rule(all({asked(0, four), {grant(0, four)}}), false) == "");
  CHECK_THAT(broken({announce(0), {0, sja::bid{0, 4, {}}}, grant(0, four)}), Contains("not interested"));
  CHECK_THAT(broken(all({asked(0, piece(3, 0, 5)), {grant(0, four)}})), Contains("window 0, job 4: a grant to a job"));
  CHECK_THAT(broken(all({asked(0, four), {grant(0, piece(4, 0, 5, 1))}})), Contains("not offered"));  // another epoch
  CHECK_THAT(broken(all({asked(0, four), {grant(0, piece(4, 0, 6))}})), Contains("not offered"));
  CHECK_THAT(broken(all({asked(0, four), {withdrawal, grant(0, four)}})), Contains("grant after the withdrawal"));
  CHECK_THAT(broken(all({asked(0, four), {withdrawal, withdrawal}})), Contains("withdrawn twice"));
  CHECK_THAT(broken(all({asked(0, four), {grant(0, four), withdrawal}})), Contains("withdrawn after a grant"));
  CHECK_THAT(broken(all({asked(0, four), {decline(0, 4)}})), Contains("a decline without a grant"));
  CHECK_THAT(broken(all({asked(0, four), {report(0, 4, 5)}})), Contains("a report without a piece"));
  CHECK_THAT(broken(all({asked(0, four), {grant(0, four), report(0, 4, 5), report(0, 4, 5)}})),
             Contains("a report without a piece"));
  CHECK_THAT(broken(all({asked(0, four), {grant(0, four), decline(0, 4), grant(0, four)}})), Contains("has declined"));
  const sja::offer beyond = piece(4, 0, 11);
  CHECK_THAT(broken(all({asked(0, beyond), {grant(0, beyond)}})), Contains("outside of the window"));
  const sja::offer five = piece(5, 4, 6), four_later = piece(4, 4, 6);
  CHECK_THAT(broken(all({asked(0, four), asked(1, five), {grant(0, four), grant(1, five)}})), Contains("one slice"));
  CHECK_THAT(broken(all({asked(0, four), asked(2, four_later), {grant(0, four), grant(2, four_later)}})),
             Contains("two live pieces"));
  // Unless the first has ended before its time, or the job is parallel.
  CHECK(broken(all(
            {asked(0, four), asked(1, five), {grant(0, four), report(0, 4, 3), grant(1, five), report(1, 5, 6)}})) ==
        "");
  const sja::offer nine = piece(9, 0, 5), nine_later = piece(9, 4, 6);
  CHECK(broken(all({asked(0, nine),
                    asked(2, nine_later),
                    {grant(0, nine), grant(2, nine_later), report(0, 9, 5), report(2, 9, 6)}})) == "");
  CHECK_THAT(broken(all({asked(0, four), {bids(0, four)}})), Contains("second bid"));
  CHECK_THAT(broken(all({asked(0, four), {grant(0, four), bids(0, five)}})),
             Contains("bid after the window was cleared"));
  CHECK_THAT(broken({announce(0), bids(0, four, 5.5)}), Contains("bid after the time for bids"));
}

TEST_CASE("bids that come late do not count", "[plan][sja]") {
  sja::profiled_job<> early(0, seconds_profile(), {.units = 50}), late(1, seconds_profile(), {.units = 90});
  sja::broker broker{sja::weighted{1, 0, 0, 0}};
  const int id = broker.announce(slice_window(10, 110), 5);
  CHECK(broker.bid_for(id, 0, early.offers(broker.announced(id), 1), 4));
  CHECK_FALSE(broker.bid_for(id, 1, late.offers(broker.announced(id), 1), 6));  // it would have won
  std::vector<sja::profiled_job<>*> jobs{&early, &late};
  const auto pieces = broker.clear(id, jobs, 5);
  REQUIRE(pieces.size() == 1);
  CHECK(pieces[0].job == 0);
  CHECK(sja::count_messages(broker.log(), id).bids == 1);
  CHECK(sja::broken_rule(broker.log(), false) == "");
}

TEST_CASE("a job that makes another piece than it was granted gets none, and is believed less", "[plan][sja]") {
  struct forger {
    void (*change)(sja::subjob&) = nullptr;
    int id() const { return 3; }
    std::vector<sja::offer> offers(const sja::window& w, int) const {
      sja::offer o;
      o.job = 3;
      o.units = 5;
      o.start = w.start;
      o.end = w.start + 10;
      o.useful = 5;
      return {o};
    }
    std::optional<sja::subjob> materialize(const sja::window& w, const sja::offer& o) {
      sja::subjob s{3, w.id, w.slices, o.start, o.end, o.first, o.units};
      change(s);
      return s;
    }
    void report(const sja::usage&) {}
  };
  using change = void (*)(sja::subjob&);
  const sja::window w = slice_window(0, 100);
  for (const change wrong :
       {change{[](sja::subjob& s) { s.slices.clear(); }}, change{[](sja::subjob& s) { s.slices = {0, 0}; }},
        change{[](sja::subjob& s) { s.slices = {1}; }}, change{[](sja::subjob& s) { s.first = 7; }},
        change{[](sja::subjob& s) { s.first = -1; }}, change{[](sja::subjob& s) { s.units = 6; }},
        change{[](sja::subjob& s) { s.units = 0; }}, change{[](sja::subjob& s) { s.job = 4; }},
        change{[](sja::subjob& s) { s.window = 1; }}, change{[](sja::subjob& s) { s.end = 100; }},
        change{[](sja::subjob& s) { s.start = -1; }}, change{[](sja::subjob& s) { s.end = std::nan(""); }}}) {
    std::vector<forger> jobs(1);
    jobs[0].change = wrong;
    sja::broker<> broker;
    CHECK(broker.open(std::span<const sja::window>(&w, 1), jobs, 0).empty());
    CHECK(broker.running().empty());
    CHECK(broker.refusals() == 1);
    CHECK_THAT(broker.last_refusal().why, Catch::Matchers::Contains("another piece than it was granted"));
    CHECK(broker.record(3)->trust() == sja::job_record::worst);
    CHECK(sja::broken_rule(broker.log()) == "");
  }
  // Without slices in its piece a job had the same slice and time twice; the second window is nobody's now.
  std::vector<forger> jobs(1);
  jobs[0].change = [](sja::subjob&) {};
  sja::broker<> broker;
  const std::vector<sja::window> twice{w, w};
  CHECK(broker.open(std::span<const sja::window>(twice), jobs, 0).size() == 1);
}

TEST_CASE("a job that throws loses nobody else's piece", "[plan][sja]") {
  struct moody_job : sja::profiled_job<> {
    using profiled_job::profiled_job;
    std::optional<sja::subjob> materialize(const sja::window& w, const sja::offer& o) {
      if (id() == 1) throw std::runtime_error("no room on the disk");
      return profiled_job::materialize(w, o);
    }
  };
  for (const int first : {0, 1}) {
    CAPTURE(first);
    std::vector<moody_job> jobs;
    for (int j = 0; j < 2; ++j) jobs.emplace_back(j, seconds_profile(), sja::job_terms{.units = j == first ? 15 : 40});
    sja::broker broker{sja::weighted{1, 0, 0, 0}, sja::interval_clearing{}};
    const std::vector<sja::window> windows{slice_window(0, 100)};
    const auto pieces = broker.open(std::span<const sja::window>(windows), jobs, 0);
    REQUIRE(pieces.size() == 1);
    CHECK(broker.running().size() == 1);
    CHECK(jobs[1].live() == 0);
    CHECK(broker.refusals() == 1);
    CHECK(broker.last_refusal().job == 1);
    CHECK(broker.last_refusal().why == "throws in materialize: no room on the disk");
    broker.close(jobs[0], {0, 0, pieces[0].units, static_cast<double>(pieces[0].units), 0, false}, pieces[0].end);
    CHECK(jobs[0].finished());
    CHECK(sja::broken_rule(broker.log()) == "");
  }
  // The last of the windows is open to bids when the first is cleared, and is not left so.
  std::vector<moody_job> only;
  only.emplace_back(1, seconds_profile(), sja::job_terms{.units = 40});
  sja::broker<> broker;
  const std::vector<sja::window> windows{slice_window(0, 100, 0, 0), slice_window(0, 100, 0, 1)};
  CHECK(broker.open(std::span<const sja::window>(windows), only, 0).empty());
  CHECK(broker.refusals() == 2);
  CHECK(sja::broken_rule(broker.log()) == "");
}

TEST_CASE("a job that throws when it is asked has made no bid, and the others have theirs", "[plan][sja]") {
  struct broken_job : sja::profiled_job<> {
    using profiled_job::profiled_job;
    std::vector<sja::offer> offers(const sja::window& w, int most) const {
      if (id() == 0) throw std::runtime_error("no profile" + std::string(1000, '!'));
      if (id() == 1) throw 7;
      return profiled_job::offers(w, most);
    }
  };
  std::vector<broken_job> jobs;
  for (int j = 0; j < 3; ++j) jobs.emplace_back(j, seconds_profile(), sja::job_terms{.units = 40});
  sja::broker<> broker;
  const std::vector<sja::window> windows{slice_window(0, 100, 0, 0), slice_window(0, 100, 0, 1)};
  const auto pieces = broker.open(std::span<const sja::window>(windows), jobs, 0);
  REQUIRE(pieces.size() == 1);
  CHECK(pieces[0].job == 2);
  CHECK(broker.refusals() == 4);
  CHECK(broker.last_refusal().job == 1);
  CHECK(broker.last_refusal().why == "throws in offers: no std::exception");
  std::vector<std::string> reasons;
  for (const sja::message& m : broker.log())
    if (m.is<sja::refusal>() && m.job() == 0) reasons.push_back(std::get<sja::refusal>(m.what).why);
  REQUIRE(reasons.size() == 2);
  CHECK_THAT(reasons[0], Catch::Matchers::StartsWith("throws in offers: no profile!!!"));
  CHECK(reasons[0].size() < 250);
  for (const int id : {0, 1}) CHECK(sja::count_messages(broker.log(), id).bids == 1);
  broker.close(jobs[2], {pieces[0].window, 2, 40, 40, 0, false}, 50);
  CHECK(sja::broken_rule(broker.log()) == "");
  // However often: what is remembered does not grow.
  jobs.pop_back();
  for (int k = 0; k < 3000; ++k) {
    const sja::window w = slice_window(100 + k, 200 + k);
    REQUIRE(broker.open(std::span<const sja::window>(&w, 1), jobs, 100 + k).empty());
  }
  CHECK_THROWS_WITH(broker.announced(0), Catch::Matchers::Contains("has been forgotten"));
  CHECK(sja::broken_rule(broker.log()) == "");
}

TEST_CASE("whatever leaves open, no window stays open behind it", "[plan][sja]") {
  struct moody_score {
    using kind = sja::score_kind;
    double operator()(const sja::offer&, const sja::window& w, double) const {
      if (w.id == 1) throw std::runtime_error("no score");
      return 1;
    }
  };
  std::vector<sja::profiled_job<>> jobs{{0, seconds_profile(), {.units = 90}}, {1, seconds_profile(), {.units = 90}}};
  sja::broker broker{moody_score{}};
  const std::vector<sja::window> windows{slice_window(0, 100, 0, 0), slice_window(0, 100, 0, 1),
                                         slice_window(0, 100, 0, 2)};
  CHECK_THROWS_WITH(broker.open(std::span<const sja::window>(windows), jobs, 0), "no score");
  REQUIRE(broker.running().size() == 1);  // of the first window
  CHECK(broker.running()[0].window == 0);
  for (const int id : {1, 2}) {
    CHECK(sja::count_messages(broker.log(), id).withdrawals == 1);
    CHECK_FALSE(broker.bid_for(id, 0, {}, 0));
  }
  broker.close(jobs[0], {0, 0, 90, 90, 0, false}, 100);
  CHECK(sja::broken_rule(broker.log()) == "");
  // A window that cannot be, behind one that can.
  const std::vector<sja::window> second_wrong{slice_window(100, 200), {-1, {}, 100, 200, 0, 0}};
  CHECK_THROWS_WITH(broker.open(std::span<const sja::window>(second_wrong), jobs, 100),
                    Catch::Matchers::Contains("has no slice"));
  CHECK(sja::broken_rule(broker.log()) == "");
}

TEST_CASE("units that 64 bits do not count are refused", "[plan][sja]") {
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  struct counter {
    std::int64_t offered = 0, made = 0;  // the first unit
    std::int64_t units = 0;
    int id() const { return 0; }
    std::vector<sja::offer> offers(const sja::window& w, int) const {
      sja::offer o;
      o.first = offered;
      o.units = units;
      o.job = 0;
      o.start = w.start;
      o.end = w.end;
      return {o};
    }
    std::optional<sja::subjob> materialize(const sja::window& w, const sja::offer& o) {
      return sja::subjob{0, w.id, w.slices, o.start, o.end, made, o.units};
    }
    void report(const sja::usage&) {}
  };
  const std::vector<sja::window> windows{slice_window(0, 100, 0, 0), slice_window(0, 100, 0, 1)};
  sja::broker<> broker;
  std::vector<counter> jobs{{most - 5, most - 5, most}};
  CHECK(broker.open(std::span<const sja::window>(windows), jobs, 0).empty());
  CHECK(broker.refusals() == 2);
  CHECK_THAT(broker.last_refusal().why, Catch::Matchers::Contains("no 64-bit number"));
  // An offer that can be, then a piece of a parallel job that cannot.
  jobs[0] = {0, 0, 10};
  CHECK(broker.open(std::span<const sja::window>(windows.data(), 1), jobs, 0).size() == 1);
  jobs[0] = {0, most - 5, 10};
  CHECK(broker.open(std::span<const sja::window>(&windows[1], 1), jobs, 0).empty());
  CHECK_THAT(broker.last_refusal().why, Catch::Matchers::Contains("another piece than it was granted"));
  // The last units there are.
  jobs[0] = {most - 5, most - 5, 5};
  CHECK(broker.open(std::span<const sja::window>(&windows[1], 1), jobs, 0).size() == 1);
}

TEST_CASE("a grant of an old state is declined, and the next best gets the window", "[plan][sja]") {
  std::vector<sja::profiled_job<>> jobs{{0, seconds_profile(), {.units = 500}}, {1, seconds_profile(), {.units = 80}}};
  sja::broker broker{sja::weighted{1, 0, 0, 0}};
  const std::vector<sja::window> windows{slice_window(0, 100, 0, 0), slice_window(0, 100, 0, 1),
                                         slice_window(0, 100, 0, 2)};
  const auto pieces = broker.open(std::span<const sja::window>(windows), jobs, 0);
  REQUIRE(pieces.size() == 2);
  CHECK(pieces[0].job == 0);
  CHECK(pieces[1].job == 1);
  CHECK(sja::count_messages(broker.log(), 1).declines == 1);
  CHECK(sja::count_messages(broker.log(), 2).declines == 2);
  CHECK(sja::count_messages(broker.log(), 2).withdrawals == 1);
  CHECK_FALSE(broker.bid_for(2, 0, {}, 0));
  CHECK_THROWS_AS(broker.clear(2, jobs, 0), hd::config_error);
  // What a piece did not do comes back.
  broker.close(jobs[0], {pieces[0].window, 0, 30, 31, 0, true}, 41);
  CHECK(jobs[0].done() == 30);
  CHECK_THROWS_AS(broker.close(jobs[0], {pieces[0].window, 0, 30, 31, 0, true}, 41), hd::config_error);
  // A parallel job takes several windows at once, and no unit twice.
  std::vector<sja::profiled_job<>> many{{5, seconds_profile(), {.units = 150, .parallel = true}}};
  sja::broker<> other;
  const auto three = other.open(std::span<const sja::window>(windows), many, 0);
  REQUIRE(three.size() == 2);
  CHECK(three[0].units == 90);
  CHECK(three[1].units == 60);
  for (const auto& s : three)
    other.close(many[0], {s.window, 5, s.units, static_cast<double>(s.units), 0, false}, s.end);
  CHECK(many[0].finished());
}

TEST_CASE("the units of a parallel job's pieces are different ones, and those not done come back", "[plan][sja]") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    draws random(seed);
    std::vector<sja::profiled_job<>> jobs{{0, seconds_profile(), {.units = 400, .least_units = 10, .parallel = true}}};
    sja::broker broker{sja::weighted{1, 0, 0, 0}};
    broker.keep_log(false);
    std::vector<char> state(400, 'o');  // open, given or done
    std::vector<sja::subjob> live;
    bool apart = true;
    int rounds = 0;
    for (double now = 0; !jobs[0].finished() && rounds < 1000; now += 10, ++rounds) {
      std::vector<sja::window> windows;
      for (int k = 0; k < 3; ++k)
        windows.push_back(slice_window(now, now + random.uniform(20, 120), 0, 3 * rounds + k));
      for (const sja::subjob& s : broker.open(std::span<const sja::window>(windows), jobs, now)) {
        for (std::int64_t u = s.first; u < s.first + s.units; ++u) {
          apart = apart && state.at(static_cast<std::size_t>(u)) == 'o';
          state.at(static_cast<std::size_t>(u)) = 'g';
        }
        live.push_back(s);
      }
      while (!live.empty() && random.below(3) != 0) {
        const auto which = live.begin() + random.below(static_cast<int>(live.size()));
        const std::int64_t did = random.below(2) == 0 ? which->units : random.below(static_cast<int>(which->units) + 1);
        for (std::int64_t u = which->first; u < which->first + which->units; ++u)
          state[static_cast<std::size_t>(u)] = u < which->first + did ? 'd' : 'o';
        broker.close(jobs[0], {which->window, 0, did, static_cast<double>(did), 0, did < which->units}, now);
        live.erase(which);
      }
    }
    CHECK(apart);
    CHECK(jobs[0].finished());
    CHECK(std::count(state.begin(), state.end(), 'd') == 400);
  }
}

TEST_CASE("gangs get all their slices or none", "[plan][sja]") {
  std::vector<sja::profiled_job<>> jobs{{0, seconds_profile(), {.units = 90, .width = 2}},
                                        {1, seconds_profile(), {.units = 90, .width = 2}},
                                        {2, seconds_profile(), {.units = 90}}};
  sja::broker<> broker;
  const std::vector<sja::window> windows{
      {-1, {0, 1}, 0, 100, 0, 0}, {-1, {1, 2}, 0, 100, 0, 0}, {-1, {0}, 0, 100, 0, 0}, {-1, {2}, 0, 100, 0, 0}};
  const auto pieces = broker.open(std::span<const sja::window>(windows), jobs, 0);
  REQUIRE(pieces.size() == 2);
  CHECK(pieces[0].slices == std::vector<int>{0, 1});
  CHECK(pieces[0].job == 0);
  CHECK(pieces[1].slices == std::vector<int>{2});
  CHECK(pieces[1].job == 2);
  for (const auto& s : pieces)
    broker.close(jobs[static_cast<std::size_t>(s.job)], {s.window, s.job, s.units, 90, 0, false}, s.end);
  CHECK(sja::broken_rule(broker.log()) == "");
}

TEST_CASE("windows that end one after the other do not save at the same time", "[plan][sja]") {
  // Eight slices are free until 100 s. A save takes 5 s.
  std::vector<sja::window> together;
  for (int k = 0; k < 8; ++k) together.push_back(slice_window(0, 100, 0, k));
  const auto most_saves_at_once = [&](const std::vector<sja::window>& windows) {
    std::vector<sja::profiled_job<>> jobs;
    for (int j = 0; j < 8; ++j) jobs.emplace_back(j, seconds_profile(), sja::job_terms{.units = 500});
    sja::broker<> broker;
    const auto pieces = broker.open(std::span<const sja::window>(windows), jobs, 0);
    REQUIRE(pieces.size() == 8);
    int most = 0;
    for (const auto& a : pieces)
      most = std::max(most, static_cast<int>(std::count_if(pieces.begin(), pieces.end(), [&](const auto& b) {
                        return b.end - 5 < a.end && a.end <= b.end;
                      })));
    return most;
  };
  CHECK(most_saves_at_once(together) == 8);
  const auto apart = sja::staggered(together, 5);
  CHECK(most_saves_at_once(apart) == 1);
  CHECK(apart.front().end == 100);
  CHECK(apart.back().end == 65);
  CHECK(apart[3].slices == std::vector<int>{3});
  // Ends that are apart stay; what would have no time left is dropped.
  const auto mixed = sja::staggered({slice_window(0, 50), slice_window(48, 50), slice_window(0, 20)}, 3);
  REQUIRE(mixed.size() == 2);
  CHECK(mixed[0].end == 50);
  CHECK(mixed[1].end == 20);
  CHECK_THROWS_AS(sja::staggered({}, -1), hd::config_error);
}

TEST_CASE("pieces overrun as seldom as they promise", "[plan][sja]") {
  const std::uint64_t seed = 20251121;
  INFO("seed " << seed);
  draws random(seed);
  for (const double theta : {0.01, 0.05}) {
    const sja::normal_safety safety(theta);
    int pieces = 0, late = 0, full = 0;
    while (pieces < 100000) {
      sja::resource_profile p;
      p.set_up = random.uniform(0, 5);
      p.finish = random.uniform(0, 5);
      p.unit_sd = random.uniform(0.05, 0.3);
      p.phases = {{0, 40, 10, random.uniform(0.1, 1)}, {40, 1000, random.uniform(8, 12), random.uniform(0.1, 1)}};
      const double length = random.uniform(40, 200), bytes = random.uniform(10, 15);
      const std::int64_t first = random.below(60);
      const std::int64_t n = sja::longest_safe_piece(safety, p, first, 1000 - first, length, bytes);
      if (n == 0) continue;
      ++pieces;
      const auto units = static_cast<double>(n);
      late += p.set_up + units * p.unit + p.unit_sd * std::sqrt(units) * random.normal() + p.finish > length;
      bool fits = true;
      for (const auto& f : p.phases)
        if (f.from < first + n && f.to > first) fits = fits && f.bytes + f.bytes_sd * random.normal() <= bytes;
      full += !fits;
    }
    const double error = 3 * std::sqrt(theta * (1 - theta) / pieces);
    CHECK(late / static_cast<double>(pieces) <= theta + error);
    CHECK(full / static_cast<double>(pieces) <= theta + error);
    CHECK(late / static_cast<double>(pieces) >= 0.3 * theta);  // and windows are used
  }
}

TEST_CASE("pieces whose units are late together overrun as seldom as they promise", "[plan][sja]") {
  const std::uint64_t seed = 20251123;
  INFO("seed " << seed);
  draws random(seed);
  const double theta = 0.05, together = 0.3;
  const sja::normal_safety safety(theta);
  int late = 0, late_if_ignored = 0, pieces = 0;
  for (; pieces < 20000; ++pieces) {
    sja::resource_profile p = seconds_profile(0.1);
    const double length = random.uniform(40, 200);
    const auto took = [&](std::int64_t n) {  // every unit shares a part of its lateness with all others
      const auto units = static_cast<double>(n);
      const double shared = units * std::sqrt(together) * random.normal();
      const double own = std::sqrt(units * (1 - together)) * random.normal();
      return 10 + units + 0.1 * (shared + own);
    };
    late_if_ignored += took(sja::longest_safe_piece(safety, p, 0, 1000, length, 0)) > length;
    p.unit_correlation = together;
    late += took(sja::longest_safe_piece(safety, p, 0, 1000, length, 0)) > length;
  }
  CHECK(late / static_cast<double>(pieces) <= theta + 3 * std::sqrt(theta * (1 - theta) / pieces));
  CHECK(late_if_ignored > 2 * theta * pieces);
  // All units late by the same: n deviations, not their root.
  sja::resource_profile p = seconds_profile(0.1);
  p.unit_correlation = 1;
  CHECK(safety.seconds(p, 100) == Approx(110 + sja::normal_quantile(0.95) * 10));
}

TEST_CASE("reports correct set-up and finish, and overruns are charged", "[plan][sja]") {
  sja::resource_profile p = seconds_profile();
  p.phases = {{0, 100, 8, 0}};
  sja::calibration c;
  c.observe(p, 0, {0, 0, 10, 10, 8, false, 7, 6});
  CHECK(c.corrected(p).set_up == 7);
  CHECK(c.corrected(p).finish == 6);
  CHECK(c.trust() == 1);
  c.observe(p, 0, {0, 0, 10, 10, 8, false, 9, -1});
  CHECK(c.corrected(p).set_up == Approx(8 + 2 * 1));  // two standard errors above the mean
  CHECK(c.corrected(p).finish == 6);
  // Late by a fifth: charged once if it ended in its window, twice if it did not.
  sja::calibration late = c, overran = c, nothing = c, fat = c;
  late.observe(p, 0, {0, 0, 10, 12, 8, false});
  overran.observe(p, 0, {0, 0, 10, 12, 8, true});
  nothing.observe(p, 0, {0, 0, 0, 0, 0, true});
  fat.observe(p, 0, {0, 0, 10, 10, 12, false});
  CHECK(late.trust() == Approx(1 - 0.2 * 0.2));
  CHECK(overran.trust() == Approx(1 - 0.2 * 0.4));
  CHECK(nothing.trust() == Approx(1 - 0.2));
  CHECK(fat.trust() == Approx(1 - 0.2 * 0.5));
  for (int k = 0; k < 100; ++k) nothing.observe(p, 0, {0, 0, 0, 0, 0, true});
  CHECK(nothing.trust() == sja::calibration::least);
}

TEST_CASE("twenty reports repair a profile that is a fifth off", "[plan][sja]") {
  const std::uint64_t seed = 20251122;
  INFO("seed " << seed);
  draws random(seed);
  const double theta = 0.01;
  int before = 0, after = 0, asked_before = 0, asked_after = 0;
  double trust_low = 1;
  for (int k = 0; k < 1000; ++k) {
    sja::resource_profile p;
    p.set_up = p.finish = 2;
    p.unit_sd = 0.1;
    p.phases = {{0, 1000000, 10, 0.2}};
    sja::profiled_job<> job(k, p, {.units = 1000000}, sja::normal_safety(theta));
    // Truly 1.2 times the time and the memory.
    for (int piece = 0; piece < 150; ++piece) {
      sja::window w = slice_window(0, random.uniform(60, 140), random.uniform(10, 16));
      const auto o = job.interest(w);
      if (!o) continue;
      const auto units = static_cast<double>(o->units);
      const double seconds = 1.2 * (units + 0.1 * std::sqrt(units) * random.normal());
      const double bytes = 1.2 * (10 + 0.2 * random.normal());
      const bool overran = seconds + 4 > w.length() || bytes > w.bytes;
      if (job.calibrated().reports() < 20) {
        w.id = piece;
        const auto s = job.materialize(w, *o);
        REQUIRE(s);
        const auto done = overran ? static_cast<std::int64_t>(0.75 * units) : o->units;
        job.report({w.id, k, done, seconds * static_cast<double>(done) / units, bytes, overran});
        if (piece < 5) before += overran, ++asked_before;
        trust_low = std::min(trust_low, job.calibrated().trust());
      } else {
        after += seconds + 4 > w.length();
        ++asked_after;
      }
    }
    CHECK(job.calibrated().trust() > 0.9);
  }
  CHECK(before > 0.1 * asked_before);
  CHECK(asked_after > 50000);
  CHECK(after / static_cast<double>(asked_after) <= theta + 3 * std::sqrt(theta * (1 - theta) / asked_after));
  CHECK(trust_low < 0.97);
}

TEST_CASE("MIG instances lie at their positions", "[plan][sja][mig]") {
  // All sets of instances that can be made, by brute force over positions: the largest number of each profile.
  for (const auto& p : sja::mig_profiles) {
    sja::mig_gpu gpu;
    int made = 0;
    for (int k = 0; k < p.places; ++k)
      if (gpu.is_free(p, p.positions[static_cast<std::size_t>(k)])) {
        gpu.make(p.name, p.positions[static_cast<std::size_t>(k)]);
        ++made;
      }
    CHECK(made == p.most);
    for (int position = -1; position <= 8; ++position) CHECK(!gpu.is_free(p, position));
  }
  // Positions, not only sizes: six of eight memory slices are free, and a 3g has no place.
  sja::mig_gpu gpu(10e9, 4);
  gpu.make("1g", 1);
  gpu.make("1g", 5);
  CHECK(gpu.free_positions(sja::mig_profile_named("3g")).empty());
  CHECK(gpu.free_positions(sja::mig_profile_named("2g")) == std::vector<int>{2});
  CHECK(gpu.bytes(gpu.instances()[0]) == 10e9);
  gpu.end(5);
  CHECK(gpu.free_positions(sja::mig_profile_named("3g")) == std::vector<int>{4});
  CHECK(gpu.make("3g", 4, 100).ready == 104);
  CHECK_THROWS_WITH(gpu.make("1g", 5), Catch::Matchers::Contains("1g cannot be made at memory slice 5"));
  CHECK_THROWS_WITH(sja::mig_profile_named("5g"), Catch::Matchers::Contains("there are 1g, 2g, 3g, 4g and 7g"));
  CHECK_THROWS_AS(gpu.end(0), hd::config_error);
  // The place that leaves the most to others: a 1g goes where nothing larger can begin, so that 4g, 3g and 2g remain.
  sja::mig_gpu fresh;
  const int best = fresh.best_position(sja::mig_profile_named("1g"));
  CHECK(best == 6);
  fresh.make("1g", best);
  CHECK(fresh.is_free(sja::mig_profile_named("4g"), 0));
  CHECK(fresh.is_free(sja::mig_profile_named("2g"), 4));
  fresh.make("4g", 0);
  fresh.make("2g", 4);
  CHECK(fresh.best_position(sja::mig_profile_named("1g")) == -1);  // seven compute slices are taken
  // 4g and 3g fill a GPU; 3g and 3g leave no memory, though one compute slice is left.
  sja::mig_gpu halves;
  halves.make("3g", 0);
  halves.make("3g", 4);
  for (const auto& p : sja::mig_profiles) CHECK(halves.free_positions(p).empty());
}

TEST_CASE("MIG rules hold while compiling", "[plan][sja][mig]") {
  constexpr bool ok = [] {
    sja::mig_gpu gpu;
    gpu.make("4g", 0);
    return gpu.is_free(sja::mig_profile_named("3g"), 4) && !gpu.is_free(sja::mig_profile_named("4g"), 4);
  }();
  STATIC_REQUIRE(ok);
}
