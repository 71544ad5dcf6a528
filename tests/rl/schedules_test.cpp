// tests/rl/schedules_test.cpp: runs of random pipelines, meshes and delays, by threads or processes, lose and repeat nothing.
#include "catch.hpp"
#include "transport.hpp"

#include <heddle/core/random.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/rl/run.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {
namespace rl_schedules_test {

namespace hd = heddle;
namespace rl = heddle::rl;
using hd::dp, hd::pp, hd::tp;
using train_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using generate_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>, hd::axis<rl::replica>>;
using policy = rl::policy<hd::model::gpt2<double>, rl::any_objective>;
using strategy = hd::strategy<train_mesh, hd::zero<1>>;

// Any pipeline that can be, on up to so many ranks.
struct chosen {
  rl::flow how{};
  std::string train, generate;
  int ranks = 0;
  std::uint64_t delay_us = 0;
};
chosen choose(const hd::counter_random& random, int most_ranks) {
  std::uint64_t at = 0;
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random.integer(at++) % n); };
  chosen c;
  rl::flow& f = c.how;
  f.apart = most_ranks > 1 && below(4) != 0;
  if (f.apart) {
    f.in_flight = below(2) == 0;
    f.of = 1 + below(2), f.ahead = below(4);
    if (!f.in_flight) f.updates = 1 + below(2), f.rolling = below(2);
    if (f.in_flight && below(2) == 0) f.cache = hd::infer::kv::recompute;
  }
  if (below(3) == 0) f.over = 2;
  if (f.apart && !f.overtakes()) f.delayed = below(2) == 0;
  if (below(2) == 0) f.slots = 1 + below(4);
  if (below(4) == 0) f.most_age = below(3);
  if (below(4) == 0) f.least_share = .99;
  const std::string axes[] = {"dp=", "tp=", "pp="};
  // Two heads and two layers: more than two ranks are copies.
  const auto mesh = [&](int n) { return axes[n > 2 ? 0 : below(3)] + std::to_string(n); };
  const int most = most_ranks > 4 ? most_ranks / 2 : 2;
  if (f.apart) {
    const int train = 1 + static_cast<int>(below(static_cast<std::uint64_t>((std::min)(most_ranks - 1, most)))),
              generate = 1 + static_cast<int>(below(static_cast<std::uint64_t>((std::min)(most_ranks - train, most))));
    c.train = mesh(train), c.generate = mesh(generate);
    c.ranks = train + generate;
  } else {
    c.ranks = 1 + static_cast<int>(below(static_cast<std::uint64_t>((std::min)(most_ranks, most))));
    c.train = mesh(c.ranks), c.generate = mesh(c.ranks);
  }
  c.delay_us = below(2) == 0 ? 0 : 1000;
  return c;
}

struct seen {
  std::map<std::int64_t, std::int64_t> judged{};  // times, of each group that this process judged
  std::int64_t tokens = 0;
};

void check_pipelines(std::uint64_t first, std::uint64_t trials, int most_ranks) {
  const std::uint64_t seed = 20261130;
  CAPTURE(seed);
  rl::settings s{.prompts = 2, .answers = 2, .steps = 4, .most_tokens = 4};
  s.end_tokens = {6}, s.sequences = 4;
  hd::train::options<policy::config> o;
  static_cast<hd::model::gpt2_config&>(o.model) = {
      .layers = 2, .heads = 2, .width = 8, .context = 8, .vocabulary = 8, .initial_deviation = .3};
  o.model.objective = rl::aipo{};
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-2, .warmup_steps = 0};
  o.threads_per_rank = 1;
  int apart = 0, guarded = 0, flying = 0, delayed = 0;
  for (std::uint64_t trial = first; trial < first + trials; ++trial) {
    const hd::counter_random random(seed, trial);
    const chosen c = choose(random, (std::min)(transport_test::most_ranks(), most_ranks));
    CAPTURE(trial, to_string(c.how), c.train, c.generate, c.delay_us);
    apart += c.how.apart, guarded += c.how.most_age >= 0 || c.how.least_share > 0, flying += c.how.in_flight;
    delayed += c.how.delayed;
    std::mutex mutex;
    seen all;
    const auto reward = [&](const rl::question& q) {
      if (c.delay_us > 0)
        std::this_thread::sleep_for(
            std::chrono::microseconds(random.integer(1000 + static_cast<std::uint64_t>(q.group)) % c.delay_us));
      const std::lock_guard lock(mutex);
      ++all.judged[q.group];
      all.tokens += std::ssize(q.answer);
      return static_cast<double>(q.answer.size()) / 4 + (q.answer[0] == 7 ? 1 : 0);
    };
    const rl::task task{.prompt =
                            [](std::int64_t group) {
                              const auto g = static_cast<std::int32_t>(group);
                              return std::vector<std::int32_t>(static_cast<std::size_t>(1 + g % 3), g % 5);
                            },
                        .reward = [&](std::span<const rl::question> of) { return rl::judge_each(reward, of); }};
    const rl::meshes<train_mesh, generate_mesh> where{hd::parse_mesh<train_mesh>(c.train),
                                                      hd::parse_mesh<generate_mesh>(c.generate)};
    std::vector<std::int64_t> told(8);  // of rank 0
    std::vector<std::int64_t> lags;
    transport_test::launch(hd::mesh<hd::axis<dp>>{c.ranks}, {}, [&](auto& world) {
      std::int64_t tokens = 0, greatest = 0;
      const rl::run_result r =
          rl::run<strategy>(world, c.how, where, policy{}, o, s, task, [&](const rl::run_report& step) {
            tokens += step.tokens;
            greatest = (std::max)(greatest, step.greatest_lag);
          });
      if (world.rank() != 0) return;
      told = {r.batches, r.version, r.skipped, r.groups, r.given_up, r.tokens, tokens, greatest};
      lags = r.lags;
    });
    transport_test::tell(told, 0);
    transport_test::tell(lags, 0);
    const auto add = [](auto& to, auto&& more) {
      for (const auto& [group, times] : more) to[group] += times;
    };
    transport_test::merge(all.judged, add);
    transport_test::merge(all.tokens, [](std::int64_t& to, std::int64_t more) { to += more; });
    CHECK(told[0] == s.steps);
    CHECK(told[1] + told[2] == s.steps);
    CHECK(told[3] >= s.steps * s.prompts + told[4]);
    CHECK(told[3] <= std::ssize(all.judged));  // what came was judged
    CHECK(told[5] == told[6]);
    CHECK(told[5] <= all.tokens);
    CHECK(std::accumulate(lags.begin(), lags.end(), std::int64_t{0}) == told[5]);
    if (c.how.greatest_lag() >= 0) CHECK(told[7] <= c.how.greatest_lag());
    for (const auto& [group, times] : all.judged) {
      CAPTURE(group);
      CHECK(times == s.answers);  // whole, and once
    }
  }
  if (transport_test::most_ranks() > 1) {
    CHECK(apart > 5);
    CHECK(guarded > 3);
    CHECK(flying > 2);
    CHECK(delayed > static_cast<int>(trials / 40));
  }
}

}  // namespace rl_schedules_test
}  // namespace

TEST_CASE("random pipelines on random meshes with random delays lose and repeat nothing", "[rl][schedules][ranks]") {
  rl_schedules_test::check_pipelines(0, transport_test::on_threads ? 80 : 24, 4);
}
TEST_CASE("so do pipelines of up to 12 ranks, many times", "[rl][schedules][ranks][slow]") {
  rl_schedules_test::check_pipelines(1000, transport_test::on_threads ? 1000 : 200, 12);
}
