// tests/sim/rl_flow_test.cpp: simulated reinforcement learning equals closed forms, and published systems within their bands.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/sim/rl_flow.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace sim = heddle::sim;
using Catch::Matchers::Contains;

namespace {
sim::rl_times with_lengths(std::function<int(std::int64_t, int)> length, double step = 0.25) {
  sim::rl_times t;
  t.step = step;
  t.length = std::move(length);
  return t;
}
sim::rl_lengths lognormal(double median, double sigma, int cap) {
  sim::rl_lengths l;
  l.median = median;
  l.within = 0.3;
  l.between = std::sqrt(sigma * sigma - l.within * l.within);
  l.cap = cap;
  return l;
}
}  // namespace

TEST_CASE("rounds take what their longest or their last needed answers take", "[sim][rl]") {
  const sim::rl_lengths lengths = lognormal(100, 0.8, 400);
  sim::rl_flow flow;
  flow.engines = 3;
  flow.groups = 5;
  flow.of_group = 4;
  sim::rl_times times = with_lengths(lengths);
  times.train = 7;
  times.train_per_token = 0.001;
  times.publish = 0.5;
  times.load = 0.25;
  const auto of_group = [&](std::int64_t g) {
    int most = 0;
    for (int m = 0; m < 4; ++m) most = (std::max)(most, lengths(g, m));
    return most * 0.25;
  };
  for (const int k : {1, 3}) {
    CAPTURE(k);
    flow.steps_per_sync = k;
    const sim::rl_flow_report r = sim::simulate(flow, times, 12);
    double now = 0;
    for (int round = 0; round < 12 / k; ++round) {
      double longest = 0;
      for (int g = 0; g < 5 * k; ++g) longest = (std::max)(longest, of_group(round * 5 * k + g));
      now += longest;
      for (int s = 0; s < k; ++s) {
        const auto& step = r.steps.at(static_cast<std::size_t>(round * k + s));
        CHECK(step.begin == Approx(now));
        now += 7 + 0.001 * static_cast<double>(step.tokens);
        CHECK(step.end == Approx(now));
        CHECK(step.greatest_lag == s);
      }
      now += 0.75;
    }
    CHECK(r.all_generated == r.all_learned + r.buffered);
  }
  // The last needed one of those that were started; what is finished goes on waiting, and nothing is made twice.
  flow.steps_per_sync = 1;
  flow.completion = sim::rl_completion::partial;
  flow.started = 12;
  const sim::rl_flow_report p = sim::simulate(flow, times, 40);
  std::vector<double> ends;
  for (int g = 0; g < 12; ++g) ends.push_back(of_group(g));
  std::sort(ends.begin(), ends.end());
  CHECK(p.steps[0].begin == Approx(ends[4]));
  CHECK(p.all_generated == p.all_learned + p.buffered);
  CHECK(p.most_versions > 1);
  // Without more than is needed it is the same as waiting for all.
  flow.started = 5;
  const sim::rl_flow_report all = sim::simulate(flow, times, 12);
  flow.completion = sim::rl_completion::wait_all;
  CHECK(all.steps.back().end == sim::simulate(flow, times, 12).steps.back().end);
}

TEST_CASE("one step off takes the longer of generation and training", "[sim][rl]") {
  for (const double train : {1.0, 5.0, 9.0}) {
    CAPTURE(train);
    sim::rl_flow flow;
    flow.rule = sim::rl_rule::one_step_off;
    flow.groups = 4;
    flow.of_group = 2;
    sim::rl_times times = with_lengths([](std::int64_t, int) { return 20; });
    times.train = train;
    times.publish = 0.5;
    times.load = 0.25;
    const sim::rl_flow_report r = sim::simulate(flow, times, 10, 2);
    CHECK(r.seconds_per_step(2) == Approx((std::max)(5.0, train) + 0.75));
    CHECK(r.tokens_of_lag == std::vector<std::int64_t>{0, 8 * 4 * 2 * 20});  // each token is one step old
    CHECK(r.trainer_idle == Approx(1 - train / r.seconds_per_step(2)));
    CHECK(r.engine_idle == Approx(1 - 5 / r.seconds_per_step(2)));
  }
}

TEST_CASE("without room for staleness the rules that go on are synchronous", "[sim][rl]") {
  sim::rl_flow flow;
  flow.engines = 3;
  flow.groups = 5;
  flow.of_group = 4;
  sim::rl_times times = with_lengths(lognormal(100, 0.8, 400));
  times.step_per_answer = 0.01;
  times.train = 7;
  times.publish = 0.5;
  times.load = 0.25;
  for (const int k : {1, 3}) {
    flow.rule = sim::rl_rule::sync;
    flow.steps_per_sync = k;
    const sim::rl_flow_report sync = sim::simulate(flow, times, 4 * k);
    flow.window = 5 * k;
    for (const auto rule : {sim::rl_rule::bounded_stale, sim::rl_rule::in_flight})
      for (const auto load : {sim::rl_load::token_boundary, sim::rl_load::stop, sim::rl_load::drain}) {
        flow.rule = rule;
        flow.load = load;
        CAPTURE(k, static_cast<int>(rule), static_cast<int>(load));
        const sim::rl_flow_report r = sim::simulate(flow, times, 4 * k);
        CHECK(r.generated == sync.generated);
        if (k == 1)
          CHECK(r.steps.back().end == Approx(sync.steps.back().end));
        else  // the trainer does not wait for the groups of its later steps
          CHECK(r.steps.back().end < sync.steps.back().end);
        for (const sim::rl_flow_step& s : r.steps) CHECK(s.greatest_lag <= k - 1);
      }
  }
}

TEST_CASE("a pipeline takes its warm-up and its slowest stage", "[sim][rl]") {
  for (const int in_step : {1, 2, 4, 8})
    for (const double train : {0.5, 2.0, 3.5, 40.0}) {
      CAPTURE(in_step, train);
      sim::rl_flow flow;  // one group at a time, 16 of them
      flow.rule = sim::rl_rule::in_flight;
      flow.slots = 2;
      flow.groups = in_step;
      flow.of_group = 2;
      flow.steps_per_sync = 100;
      sim::rl_times times = with_lengths([](std::int64_t, int) { return 8; });
      times.train = train;
      const double generate = in_step * 2.0;  // of what a step needs
      const sim::rl_flow_report r = sim::simulate(flow, times, 16 / in_step);
      CHECK(r.steps.back().end == Approx(generate + train + (16 / in_step - 1) * (std::max)(generate, train)));
    }
}

TEST_CASE("the greatest lag in flight is the number of steps of an answer, and doubles with the devices", "[sim][rl]") {
  for (const int engines : {1, 2, 3, 4, 6}) {
    CAPTURE(engines);
    sim::rl_flow flow;  // an engine makes the batch of a step; engines begin one after the other
    flow.rule = sim::rl_rule::in_flight;
    flow.engines = engines;
    flow.slots = 4;
    flow.groups = 1;
    flow.of_group = 4;
    constexpr int length = 120;
    sim::rl_times times = with_lengths(
        [=](std::int64_t g, int) { return g < engines ? length * static_cast<int>(g + 1) / engines : length; });
    times.train = length * 0.25 / engines;  // as fast as batches come
    const auto greatest = [](const sim::rl_flow_report& r) {
      int most = 0;
      for (std::size_t i = r.steps.size() / 2; i < r.steps.size(); ++i)
        most = (std::max)(most, r.steps[i].greatest_lag);
      return most;
    };
    const sim::rl_flow_report r = sim::simulate(flow, times, 40, 20);
    CHECK(greatest(r) == static_cast<int>(std::ceil(length * 0.25 / times.train)));
    CHECK(r.most_versions <= 1 + engines);
    sim::rl_flow twice = flow;
    twice.engines = 2 * engines;
    times.train /= 2;
    times.length = [=](std::int64_t g, int) {
      return g < 2 * engines ? length * static_cast<int>(g + 1) / (2 * engines) : length;
    };
    CHECK(greatest(sim::simulate(twice, times, 80, 40)) == 2 * greatest(r));
  }
  // Weights for several steps: all lags below their number alike.
  sim::rl_flow flow;
  flow.groups = 3;
  flow.of_group = 2;
  flow.steps_per_sync = 4;
  const sim::rl_flow_report r = sim::simulate(flow, with_lengths([](std::int64_t, int) { return 5; }), 16);
  CHECK(r.tokens_of_lag == std::vector<std::int64_t>(4, 4 * 3 * 2 * 5));
}

TEST_CASE("no token is lost or made twice, and rules keep to their lag", "[sim][rl]") {
  const std::uint64_t seed = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  CAPTURE(seed);
  for (int i = 0; i < 300; ++i) {
    const heddle::counter_random draw(seed, static_cast<std::uint64_t>(i));
    std::uint64_t at = 0;
    const auto below = [&](int n) { return static_cast<int>(draw.integer(at++) % static_cast<std::uint64_t>(n)); };
    sim::rl_flow f;
    f.rule = static_cast<sim::rl_rule>(below(4));
    f.completion = static_cast<sim::rl_completion>(below(2));
    f.load = static_cast<sim::rl_load>(below(4));
    f.engines = 1 + below(4);
    f.slots = 1 + below(6);
    f.groups = 1 + below(4);
    f.of_group = 1 + below(4);
    f.steps_per_sync = 1 + below(3);
    f.started = f.groups * f.steps_per_sync + below(5);
    f.eta = below(5) / 4.0;
    f.window = below(2) * (f.groups * f.steps_per_sync + below(9));
    f.at_once = 1 + below(2);
    f.in_order = below(2) == 1;
    f.recompute = below(2) == 1;
    sim::rl_times t = with_lengths([seed](std::int64_t g, int m) {
      return 1 + static_cast<int>(heddle::counter_random(seed, 99).integer(static_cast<std::uint64_t>(g * 8 + m)) % 40);
    });
    t.step_per_answer = below(2) * 0.05;
    t.train = below(3);
    t.train_per_token = below(2) * 0.01;
    t.load = below(2) * 0.3;
    t.publish = below(2) * 0.7;
    t.prefill = below(2) * 0.01;
    t.prompt = [](std::int64_t g) { return static_cast<int>(g % 3); };
    t.reward = [](std::int64_t g, int m) { return static_cast<double>((g + m) % 3); };
    CAPTURE(i, static_cast<int>(f.rule), static_cast<int>(f.completion), static_cast<int>(f.load), f.engines, f.slots,
            f.groups, f.of_group, f.steps_per_sync, f.eta, f.window, f.in_order);
    const int steps = 4 * f.steps_per_sync + below(20);
    const sim::rl_flow_report r = sim::simulate(f, t, steps);
    REQUIRE(r.steps.size() == static_cast<std::size_t>(steps));
    CHECK(r.all_generated == r.all_learned + r.buffered);
    CHECK(r.generated == r.all_generated);
    CHECK(r.answers == std::int64_t{steps} * f.groups * f.of_group);
    std::int64_t of_lags = 0;
    for (const std::int64_t n : r.tokens_of_lag) of_lags += n;
    CHECK(of_lags == r.learned);
    const auto most = static_cast<int>(r.tokens_of_lag.size()) - 1;
    const bool whole = f.completion == sim::rl_completion::wait_all;
    if (f.rule == sim::rl_rule::sync && whole) CHECK(most <= f.steps_per_sync - 1);
    if (f.rule == sim::rl_rule::one_step_off && whole) CHECK(most <= 2 * f.steps_per_sync - 1);
    if (f.rule == sim::rl_rule::bounded_stale && f.in_order && f.load != sim::rl_load::rolling) {
      const double window = std::floor((1 + f.eta) * f.groups * f.steps_per_sync + 1e-9);
      CHECK(most <= static_cast<int>((window - 1) / f.groups));
    }
    if (f.load == sim::rl_load::rolling) CHECK(r.most_standing <= f.at_once);
    CHECK(r.engine_idle >= 0);
    CHECK(r.engine_idle < 1);
  }
}

TEST_CASE("an answer that takes long misses any number of steps, unless they are learned of in order", "[sim][rl]") {
  sim::rl_flow f;
  f.rule = sim::rl_rule::bounded_stale;
  f.eta = 1;
  f.engines = 4;
  f.groups = 2;
  f.of_group = 1;
  f.slots = 1;
  sim::rl_times t = with_lengths([](std::int64_t g, int) { return g == 3 ? 200 : 10; });
  t.train = 0.1;
  CHECK(sim::simulate(f, t, 60).tokens_of_lag.size() > 10);
  f.in_order = true;
  CHECK(sim::simulate(f, t, 60).tokens_of_lag.size() <= 2);
}

TEST_CASE("loading one after the other leaves the other engines at work", "[sim][rl]") {
  sim::rl_flow f;
  f.rule = sim::rl_rule::in_flight;
  f.engines = 4;
  f.slots = 8;
  f.groups = 4;
  f.of_group = 4;
  f.window = 16;
  sim::rl_times t = with_lengths(lognormal(60, 0.6, 200));
  t.train = 1;
  t.load = 3;
  f.load = sim::rl_load::rolling;
  CHECK(sim::simulate(f, t, 30, 10).most_standing == 1);
  f.load = sim::rl_load::stop;
  CHECK(sim::simulate(f, t, 30, 10).most_standing == 4);
}

TEST_CASE("APRIL gains what it is said to, and inherits as many tokens", "[sim][rl]") {
  // 4 engines of two devices; the paper: GRPO +24 to +44 %, 30 to 40 % of the tokens inherited, at most 5 versions.
  for (const auto& [median, sigma, each] : {std::tuple{5000., 0.7, 0.6e-3}, std::tuple{5000., 0.7, 1e-3},
                                            std::tuple{7000., 0.6, 0.6e-3}, std::tuple{7000., 0.6, 1e-3}}) {
    CAPTURE(median, each);
    sim::rl_flow f;
    f.engines = 4;
    sim::rl_times t = with_lengths(lognormal(median, sigma, 16384), 12e-3);
    t.step_per_answer = each;
    const sim::rl_flow_report whole = sim::simulate(f, t, 40, 10);
    f.completion = sim::rl_completion::partial;
    f.started = 64;
    const sim::rl_flow_report part = sim::simulate(f, t, 40, 10);
    const double gain = part.tokens_per_second() / whole.tokens_per_second() - 1;
    CAPTURE(gain, part.inherited, part.most_versions);
    CHECK(gain > 0.2);
    CHECK(gain < 0.48);
    CHECK(part.inherited > 0.365);
    CHECK(part.inherited < 0.43);
    CHECK(part.most_versions <= 5);
  }
}

TEST_CASE("PipelineRL is about twice as fast as four batches for one policy", "[sim][rl]") {
  for (const double sigma : {0.8, 1.0}) {
    sim::rl_times t = with_lengths(lognormal(1000, sigma, 8192), 10e-3);
    t.step_per_answer = 0.08e-3;
    const double tokens_per_second = 16 * 64 / (10e-3 + 64 * 0.08e-3);  // of 16 engines, and of 16 devices that train
    sim::rl_flow f;
    f.rule = sim::rl_rule::in_flight;
    f.engines = 16;
    f.slots = 64;
    f.groups = 128;
    f.window = 512;
    t.train_per_token = 1 / tokens_per_second;
    const sim::rl_flow_report pipeline = sim::simulate(f, t, 18, 8);
    sim::rl_flow conventional;
    conventional.engines = 32;
    conventional.groups = 128;
    t.train_per_token /= 2;
    double before = 1e9;
    for (const int g : {1, 2, 4, 8}) {
      conventional.steps_per_sync = g;
      const double ratio = pipeline.tokens_per_second() / sim::simulate(conventional, t, 4 * g, g).tokens_per_second();
      CAPTURE(sigma, g, ratio);
      CHECK(ratio < before);
      before = ratio;
      if (g == 1) CHECK(ratio > 4);
      if (g == 4) CHECK((ratio > 1.4 && ratio < 2.2));
      if (g == 8) CHECK((ratio > 1 && ratio < 1.4));
    }
  }
}

TEST_CASE("steps of verl on 128 devices come out from its synchronous row", "[sim][rl]") {
  // Generation of 512 x 16 answers of at most 28k tokens takes 178 s on 128 devices, log-probabilities and update 54 and 114 s. The lengths' shape
  // and what an answer adds to a token's time were chosen among 27 settings with the rows below in view, the time of a token follows from
  // the 178 s: this shows that the model can describe these rows, not that it foretells them. Apart, 64 devices generate, and
  // the update of a quarter of the groups takes a quarter of 114 s, as it was measured there, too; answers bring their log-probabilities.
  sim::rl_times t = with_lengths(lognormal(4000, 0.8, 28672), 1);
  t.step_per_answer = 0.01;
  sim::rl_flow together;
  together.engines = 64;
  together.groups = 512;
  together.of_group = 16;
  const double scale = 178 / sim::simulate(together, t, 3).seconds * 3;
  t.step *= scale;
  t.step_per_answer *= scale;
  t.train = 54 + 114;
  CHECK(sim::simulate(together, t, 3).seconds / 3 == Approx(178 + 54 + 114));  // 356 s were measured
  sim::rl_flow apart = together;
  apart.rule = sim::rl_rule::bounded_stale;
  apart.load = sim::rl_load::stop;
  apart.engines = 32;
  apart.groups = 128;
  apart.steps_per_sync = 4;
  t.train = 114 / 4.;
  for (const auto& [eta, seconds] :
       {std::pair{0., 231.}, std::pair{0.1, 171.}, std::pair{0.3, 146.}, std::pair{0.5, 151.}}) {
    apart.eta = eta;
    const double predicted = 4 * sim::simulate(apart, t, 16, 8).seconds_per_step(8);
    CAPTURE(eta, predicted, seconds);
    CHECK(std::abs(predicted / seconds - 1) < 0.2);
  }
}

TEST_CASE("training and generation apart gain more the larger the model is", "[sim][rl]") {
  // LlamaRL's argument: together, one group of devices holds 5 W and both kinds of activations; apart, each part has its own. All sizes
  // of groups and microbatches are tried, and the best of each is simulated.
  // Costs are made up: with many others the ratio does not grow steadily with W.
  // Within a group of devices messages take most of a token's time, and more the larger it is.
  constexpr int devices = 256, batch = 16384, tokens = 64;
  constexpr double memory = 80;
  const auto train = [](double w, int b, int m) { return b * w * 1e-4 / m + 0.002 * (1 + std::log2(m)); };
  const auto token = [](double w, int b, int m) { return (w * 1e-4 + b * 2e-5) / m + 4e-3 * (1 + std::log2(m)); };
  const auto run = [&](sim::rl_rule rule, int generating, int m_g, int b_g, int training, int m_t, int b_t, double w) {
    sim::rl_flow f;
    f.rule = rule;
    f.engines = generating / m_g;
    f.slots = b_g;
    f.groups = batch / 64;
    f.of_group = 64;
    sim::rl_times t = with_lengths([](std::int64_t, int) { return tokens; }, token(w, b_g, m_g));
    t.train = std::ceil(double(batch) / (training / m_t) / b_t) * train(w, b_t, m_t);
    return sim::simulate(f, t, 3, 1).seconds_per_step(1);
  };
  const auto rounds = [&](double w, int generating, int m, int b) {
    return std::ceil(double(batch) / (generating / m) / b) * tokens * token(w, b, m);
  };
  const auto updates = [&](double w, int training, int m, int b) {
    return std::ceil(double(batch) / (training / m) / b) * train(w, b, m);
  };
  double before = 1;
  for (const double w : {8., 70., 405.}) {
    CAPTURE(w);
    double together = std::numeric_limits<double>::infinity(), apart = together;
    int best[6] = {}, sync[3] = {};
    for (int m = 1; m <= devices; m *= 2)
      for (int b_t = 1; b_t <= 64; b_t *= 2)
        for (int b_g = 1; b_g <= 256; b_g *= 2) {
          if (5 * w + 4 * b_t + 4 * b_g > memory * m) continue;
          const double s = rounds(w, devices, m, b_g) + updates(w, devices, m, b_t);
          if (s < together) together = s, sync[0] = m, sync[1] = b_t, sync[2] = b_g;
        }
    for (int m_t = 1; m_t <= devices; m_t *= 2)
      for (int training = (std::max)(m_t, 8); training < devices; training += (std::max)(m_t, 8))
        for (int b_t = 1; b_t <= 64; b_t *= 2) {
          if (4 * w + 4 * b_t > memory * m_t) continue;
          for (int m_g = 1; m_g <= devices - training; m_g *= 2)
            for (int b_g = 1; b_g <= 256; b_g *= 2) {
              if ((devices - training) % m_g != 0 || w + 4 * b_g > memory * m_g) continue;
              const double s = (std::max)(rounds(w, devices - training, m_g, b_g), updates(w, training, m_t, b_t));
              if (s < apart) {
                apart = s;
                const int now[6] = {devices - training, m_g, b_g, training, m_t, b_t};
                std::copy(now, now + 6, best);
              }
            }
        }
    const double s = run(sim::rl_rule::sync, devices, sync[0], sync[2], devices, sync[0], sync[1], w);
    const double a = run(sim::rl_rule::one_step_off, best[0], best[1], best[2], best[3], best[4], best[5], w);
    CHECK(s == Approx(together));
    CHECK(a == Approx(apart));
    CAPTURE(s / a, before);
    CHECK(s / a > before);
    before = s / a;
  }
}

TEST_CASE("flows that cannot be are refused", "[sim][rl]") {
  const sim::rl_times t = with_lengths([](std::int64_t, int) { return 5; });
  sim::rl_flow f;
  f.engines = 0;
  CHECK_THROWS_WITH(sim::simulate(f, t, 1), Contains("a flow has engines"));
  f.engines = 1;
  CHECK_THROWS_WITH(sim::simulate(f, t, 4, 4), Contains("fewer steps to skip"));
  CHECK_THROWS_WITH(sim::simulate(f, sim::rl_times{}, 1), Contains("lengths of answers"));
  f.started = 31;
  CHECK_THROWS_WITH(sim::simulate(f, t, 1), Contains("needs 32 groups, and starts 31"));
  f.started = 0;
  f.rule = sim::rl_rule::in_flight;
  CHECK_THROWS_WITH(sim::simulate(f, t, 1), Contains("slots or a window"));
  f.window = 8;
  CHECK_THROWS_WITH(sim::simulate(f, t, 1), Contains("window of 8 groups never lets the 32"));
  CHECK_THROWS_WITH(sim::simulate(sim::rl_flow{}, with_lengths([](std::int64_t, int) { return 0; }), 1),
                    Contains("at least 1 token, got 0"));
}
