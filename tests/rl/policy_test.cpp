// tests/rl/policy_test.cpp: policies trained on any mesh are those of one rank; their gradients are derivatives;
// log-probabilities are those that tokens were drawn with; and a policy learns to count.
#include "catch.hpp"
#include "train/difference.hpp"
#include "train/tables.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/rl/advantage.hpp>
#include <heddle/rl/experience.hpp>
#include <heddle/rl/frozen_reference.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace rl = heddle::rl;
namespace sc = heddle::schedule;
using hd::dp, hd::pp, hd::tp;

namespace {

using train_test::relative_difference;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using policy = rl::policy<md::gpt2<double>, rl::any_objective>;  // one trainer for all tests: they compile once
template <class World, int Zero>
using trainer_of = hd::train::trainer<policy, hd::strategy<mesh_type, sc::tabled, hd::zero<Zero>>, World>;

hd::train::options<policy::config> options(const md::gpt2_config& model, const rl::any_objective& objective,
                                           std::int64_t batch, std::int64_t steps, double rate) {
  hd::train::options<policy::config> o;
  static_cast<md::gpt2_config&>(o.model) = model;
  o.model.objective = objective;
  o.batch = batch;
  o.steps = steps;
  o.learning_rate = {.peak = rate, .minimum = rate, .warmup_steps = 0, .total_steps = steps};
  o.adamw = {.beta1 = .9, .beta2 = .99, .weight_decay = 0};
  o.threads_per_rank = 1;
  return o;
}

// Runs f(trainer) on each rank.
template <int Zero = 1, class F>
void on_ranks(const std::string& mesh_text, int microbatches, const hd::train::options<policy::config>& o, F&& f,
              const char* schedule = "1f1b") {
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  const sc::tabled when(train_test::table_named(schedule, mesh.template extent<pp>(), microbatches));
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    trainer_of<std::remove_reference_t<decltype(world)>, Zero> trainer(world, o, when);
    f(trainer);
  });
}

constexpr md::gpt2_config small{
    .layers = 2, .heads = 4, .width = 16, .context = 9, .vocabulary = 23, .initial_deviation = .3};

// Answers of all lengths, with ratios on both sides of the clips, and tokens that do not count.
std::vector<rl::sample> random_samples(std::int64_t count, std::uint64_t seed) {
  const hd::counter_random random(seed, 5);
  std::uint64_t at = 0;
  const auto integer = [&](std::uint64_t below) { return random.integer(at++) % below; };
  const auto number = [&](double least, double most) {
    return least + (most - least) * static_cast<double>(integer(1024)) / 1024;
  };
  std::vector<rl::sample> all;
  for (std::int64_t i = 0; i < count; ++i) {
    rl::sample& s = all.emplace_back();
    for (std::uint64_t n = 1 + integer(3); n > 0; --n) s.prompt.push_back(static_cast<std::int32_t>(integer(23)));
    for (std::uint64_t n = integer(8); n > 0; --n) {
      s.tokens.push_back(static_cast<std::int32_t>(integer(23)));
      s.log_probabilities.push_back(number(-5, -1));
      s.proximal.push_back(number(-5, -1));
      s.reference.push_back(number(-4, -2));
      s.weights.push_back(number(0, 2));
      s.mask.push_back(integer(5) > 0);
    }
    s.advantage = number(-2, 2);
  }
  return all;
}

struct outcome {
  std::vector<double> losses, norms;
  std::int64_t targets = 0, tokens = 0;
};
template <int Zero = 1, class Aggregate>
outcome train(const std::string& mesh, int microbatches, const rl::any_objective& objective, const Aggregate& how,
              const char* schedule = "1f1b") {
  outcome all;
  std::mutex mutex;
  auto o = options(small, objective, 16, 2, 1e-3);
  o.model.temperature = 1.3;
  const auto run = [&](auto& trainer) {
    outcome mine;
    while (trainer.steps_done() < 2) {
      const rl::experience data(random_samples(15, 3 + static_cast<std::uint64_t>(trainer.steps_done())), 9,
                                trainer.samples_consumed(), how);
      const auto report = trainer.step(data);
      mine.losses.push_back(report.loss), mine.norms.push_back(report.gradient_norm);
      mine.targets = report.targets, mine.tokens = report.tokens;
      CHECK(static_cast<double>(report.targets) == data.counted_tokens());
    }
    const std::lock_guard lock(mutex);
    all = mine;
  };
  on_ranks<Zero>(mesh, microbatches, o, run, schedule);
  return all;
}

}  // namespace

TEST_CASE("one batch has one loss and one gradient norm on any mesh and any number of microbatches",
          "[rl][policy][ranks]") {
  const rl::any_objective objective = rl::with_kl<rl::ppo>{{}, .25};
  const auto check = [&](const auto& how) {
    const outcome serial = train("", 1, objective, how);
    REQUIRE(serial.norms[0] > 1e-3);
    REQUIRE(serial.losses[0] != serial.losses[1]);
    CHECK(serial.tokens == 16 * 9);
    const auto compare = [&](const outcome& got) {
      CHECK(relative_difference({got.losses[0]}, {serial.losses[0]}) <= 1e-12);
      CHECK(relative_difference({got.norms[0]}, {serial.norms[0]}) <= 1e-12);
      CHECK(relative_difference(got.losses, serial.losses) <= 1e-9);  // behind a step of AdamW
      CHECK(relative_difference(got.norms, serial.norms) <= 1e-9);
      CHECK(got.targets == serial.targets);
    };
    struct run {
      const char* mesh;
      int microbatches;
      const char* schedule = "1f1b";
    };
    for (const run& r : {run{"", 2}, run{"", 4}, run{"", 8}, run{"dp=2", 1}, run{"pp=2", 4}, run{"pp=2", 4, "zb-h1"},
                         run{"tp=2", 2}, run{"dp=2,pp=2", 8}, run{"pp=2,tp=2", 2, "gpipe"}, run{"dp=2,pp=2,tp=2", 2}}) {
      INFO("mesh '" << r.mesh << "', " << r.microbatches << " microbatches, " << r.schedule);
      compare(train(r.mesh, r.microbatches, objective, how, r.schedule));
    }
    compare(train<0>("dp=2,tp=2", 2, objective, how));
    compare(train<2>("dp=2,pp=2,tp=2", 2, objective, how));
    compare(train<3>("dp=2,pp=2,tp=2", 2, objective, how, "zb-h1"));
  };
  check(rl::aggregate::token_mean{});
  check(rl::aggregate::sequence_mean{});
}

TEST_CASE("the loss of a step is that of its log-probabilities, and its gradient the derivative", "[rl][policy]") {
  const rl::any_objective objective = rl::with_kl<rl::ppo>{{.dual = 0}, .25, rl::kl_form::k2};
  auto o = options(small, objective, 6, 1, 1e-3);
  o.model.temperature = .6;
  on_ranks("", 2, o, [&](auto& trainer) {
    const rl::experience data(random_samples(6, 9), 9, 0);
    const auto result = trainer.compute_gradients(data);
    auto& stage = trainer.stage(0);
    std::vector<double> gradient(stage.gradients().begin(), stage.gradients().end());
    for (double& g : gradient) g *= result.gradient_scale;

    std::vector<std::int32_t> x(6 * 9), y(6 * 9 * 6);
    data.fill_train({0, 6}, x, y);
    const auto loss_now = [&] {  // by the log-probabilities of three samples at a time
      double loss = 0;
      for (std::size_t half = 0; half < 2; ++half) {
        rl::batch<double> b;
        b.tokens = std::span<const std::int32_t>(x).subspan(half * 27, 27);
        b.targets = std::span<const std::int32_t>(y).subspan(half * 162, 162);
        b.samples = 3;
        std::vector<double> lp(27);
        trainer.target_log_probabilities(b, lp);
        double here = 0;
        for (std::size_t r = 0; r < 27; ++r) {
          const std::size_t at = r / 9 * 54 + r % 9;
          if (b.targets[at] < 0) {
            CHECK(lp[r] == 0);
            continue;
          }
          const auto number = [&](std::size_t c) { return double{std::bit_cast<float>(b.targets[at + 9 * c])}; };
          const rl::token t{number(1), number(2), number(3), number(4), number(5)};
          here += t.weight * objective(lp[r], t).loss;
        }
        CHECK(std::abs(trainer.forward_through(b) - here) <= 1e-12 * std::abs(here));
        loss += here;
      }
      return loss / data.counted_tokens();
    };
    CHECK(std::abs(loss_now() - result.loss) <= 1e-12 * std::abs(result.loss));

    const hd::counter_random random(21, 1);
    INFO("seed 21");
    double along = 0, norm = 0;
    std::vector<double> direction(gradient.size());
    const std::vector<double> before(stage.weights().begin(), stage.weights().end());
    for (std::size_t i = 0; i < direction.size(); ++i) {
      direction[i] = random.normal(i);
      along += direction[i] * gradient[i], norm += gradient[i] * gradient[i];
    }
    CHECK(std::abs(std::sqrt(norm) - result.gradient_norm) <= 1e-12 * result.gradient_norm);
    const auto moved = [&](double by) {
      for (std::size_t i = 0; i < before.size(); ++i) stage.weights()[i] = before[i] + by * direction[i];
      return loss_now();
    };
    const double h = 1e-6;
    CHECK(std::abs((moved(h) - moved(-h)) / (2 * h) - along) <= 1e-6 * std::abs(along));
  });
}

TEST_CASE("a frozen reference scores by the weights of its begin, and leaves the trainer's bits",
          "[rl][policy][ranks]") {
  const auto check = [](auto zero, const std::string& mesh, const char* schedule) {
    constexpr int stage = decltype(zero)::value;
    INFO("ZeRO " << stage << ", mesh '" << mesh << "', " << schedule);
    std::mutex mutex;
    on_ranks<stage>(
        mesh, 2, options(small, rl::with_kl<rl::ppo>{}, 16, 3, 1e-2),
        [&](auto& trainer) {
          using trainer_type = std::remove_reference_t<decltype(trainer)>;
          rl::frozen_reference<trainer_type> reference(trainer);
          const auto kept = [&] {
            std::vector<double> all;
            for (const auto& row : hd::train::trainer_weights<trainer_type>(&trainer).rows())
              all.insert(all.end(), row.begin(), row.end());
            return all;
          };
          const std::vector<double> first = kept();
          auto samples = random_samples(13, 8);  // not as many for each rank
          rl::score_by(trainer, std::span(samples), &rl::sample::proximal);
          for (int step = 0; step < 3; ++step) {
            auto again = samples;
            const std::vector<double> before = kept();
            reference.score(trainer, again);
            {
              const std::lock_guard lock(mutex);
              CHECK(kept() == before);
              CHECK((before == first) == (step == 0));
              CHECK(reference.bytes() == static_cast<std::int64_t>(first.size() * sizeof(double)));
              for (std::size_t i = 0; i < samples.size(); ++i) CHECK(again[i].reference == samples[i].proximal);
            }
            trainer.step(rl::experience(random_samples(16, 4), 9, trainer.samples_consumed()));
          }
          hd::train::fill_weights(trainer, [&](auto& stage) { stage.initialize(trainer.options().seed); });
          const std::lock_guard lock(mutex);
          CHECK(kept() == first);
        },
        schedule);
  };
  check(std::integral_constant<int, 1>{}, "", "1f1b");
  check(std::integral_constant<int, 1>{}, "dp=2,pp=2,tp=2", "1f1b");
  check(std::integral_constant<int, 0>{}, "dp=3", "1f1b");
  check(std::integral_constant<int, 2>{}, "dp=2,tp=2", "1f1b");
  check(std::integral_constant<int, 3>{}, "", "1f1b");
  check(std::integral_constant<int, 3>{}, "dp=2,pp=2,tp=2", "zb-h1");
}

TEST_CASE("a policy of no temperature is refused, and another than 1 is said", "[rl][policy]") {
  policy::config c = options(small, rl::reinforce{}, 1, 1, 1e-3).model;
  CHECK(to_string(c).find("temperature") == std::string::npos);
  c.temperature = .6;
  c.validate();
  CHECK_THAT(to_string(c), Catch::Contains(", temperature 0.6"));
  for (const double t : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    c.temperature = t;
    CHECK_THROWS_WITH(c.validate(), Catch::Contains("policy.temperature must be a finite number above 0, got "));
  }
}

namespace {

// The counting task: a digit n and a separator are answered by n times `a`, then the end. Reward: matching positions
// over the longer length.
constexpr std::int32_t digits = 4, separator = 5, end = 6, a = 7;
constexpr int longest = 6, groups = 12, of_group = 8;
constexpr md::gpt2_config counter{
    .layers = 1, .heads = 2, .width = 16, .context = 7, .vocabulary = 8, .initial_deviation = .1};

double reward_of(const rl::sample& s) {
  std::vector<std::int32_t> right(static_cast<std::size_t>(s.prompt[0]), a);
  right.push_back(end);
  double same = 0;
  for (std::size_t i = 0; i < (std::min)(right.size(), s.tokens.size()); ++i) same += right[i] == s.tokens[i] ? 1 : 0;
  return same / static_cast<double>((std::max)(right.size(), s.tokens.size()));
}

// Answers of all prompts at once, drawn from the trainer's own weights, or the likeliest tokens.
template <class Trainer>
void answer(Trainer& trainer, std::vector<rl::sample>& samples, bool greedy, const hd::counter_random& random,
            std::uint64_t key) {
  const std::size_t n = samples.size(), words = 8;
  std::vector<bool> done(n, false);
  std::vector<std::int32_t> tokens;
  for (int t = 0; t < longest; ++t) {
    const std::size_t sequence = 2 + static_cast<std::size_t>(t);
    if (static_cast<int>(sequence) > counter.context) break;
    tokens.assign(n * sequence, 0);
    for (std::size_t i = 0; i < n; ++i) {
      std::copy(samples[i].prompt.begin(), samples[i].prompt.end(), tokens.begin() + static_cast<long>(i * sequence));
      std::copy(samples[i].tokens.begin(), samples[i].tokens.end(),
                tokens.begin() + static_cast<long>(i * sequence + 2));
    }
    rl::batch<double> b;
    b.tokens = tokens, b.samples = static_cast<int>(n), b.sequence = static_cast<int>(sequence);
    std::vector<double> logits(n * words);
    trainer.last_logits(b, std::span<double>(logits));
    for (std::size_t i = 0; i < n; ++i) {
      if (done[i]) continue;
      const std::span<const double> of(logits.data() + i * words, words);
      const auto most = std::max_element(of.begin(), of.end());
      double sum = 0;
      for (const double l : of) sum += std::exp(l - *most);
      std::size_t word = static_cast<std::size_t>(most - of.begin());
      if (!greedy) {
        double left = random.uniform((key * n + i) * longest + static_cast<std::uint64_t>(t)) * sum;
        for (word = 0; word + 1 < words && (left -= std::exp(of[word] - *most)) >= 0;) ++word;
      }
      samples[i].tokens.push_back(static_cast<std::int32_t>(word));
      samples[i].log_probabilities.push_back(of[word] - *most - std::log(sum));
      done[i] = samples[i].tokens.back() == end;
    }
  }
}

std::vector<rl::sample> prompts(const hd::counter_random& random, std::uint64_t key) {
  std::vector<rl::sample> all;
  for (std::uint64_t g = 0; g < groups; ++g) {
    rl::sample s;
    s.prompt = {1 + static_cast<std::int32_t>(random.integer(key * groups + g) % digits), separator};
    all.insert(all.end(), of_group, s);
  }
  return all;
}

}  // namespace

TEST_CASE("log-probabilities of what was drawn are those of the trainer, and a policy learns to count",
          "[rl][policy][learning]") {
  const std::uint64_t seed = 1;
  const std::int64_t steps = 100;
  const rl::any_objective objective = rl::reinforce{};
  double first = 0, reward = 0;
  on_ranks("", 1, options(counter, objective, groups * of_group, steps, 6e-3), [&](auto& trainer) {
    const hd::counter_random drawn(seed, 1), asked(seed, 2);
    for (std::int64_t step = 0; step < steps; ++step) {
      auto samples = prompts(asked, static_cast<std::uint64_t>(step));
      answer(trainer, samples, false, drawn, static_cast<std::uint64_t>(step));
      std::vector<double> rewards;
      for (rl::sample& s : samples) rewards.push_back(s.reward = reward_of(s));
      if (step == 0)
        for (const double r : rewards) first += r / static_cast<double>(rewards.size());
      const auto advantages = rl::group_normalised(rewards, of_group);
      for (std::size_t i = 0; i < samples.size(); ++i) samples[i].advantage = advantages[i];
      const rl::experience data(samples, counter.context, trainer.samples_consumed());
      if (step % 40 == 0) {
        std::vector<std::int32_t> x(samples.size() * 7), y(samples.size() * 42);
        data.fill_train({trainer.samples_consumed(), std::ssize(samples)}, x, y);
        rl::batch<double> b;
        b.tokens = x, b.targets = y, b.samples = static_cast<int>(samples.size());
        std::vector<double> lp(x.size());
        trainer.target_log_probabilities(b, lp);
        double most = 0;
        for (std::size_t i = 0; i < samples.size(); ++i)
          for (std::size_t t = 0; t < samples[i].tokens.size(); ++t)
            most = (std::max)(most, std::abs(lp[i * 7 + 1 + t] - samples[i].log_probabilities[t]));
        CHECK(most <= 1e-12);
      }
      trainer.step(data);
    }
    auto all = prompts(asked, static_cast<std::uint64_t>(steps));
    for (std::size_t i = 0; i < all.size(); ++i) all[i].prompt[0] = 1 + static_cast<std::int32_t>(i) % digits;
    answer(trainer, all, true, drawn, 0);
    for (const rl::sample& s : all) reward += reward_of(s) / static_cast<double>(all.size());
  });
  std::cout << "counting, seed " << seed << ": reward " << first << " at first, " << reward << " greedily at the end\n";
  CHECK(first < .5);
  CHECK(reward >= .95);
}
