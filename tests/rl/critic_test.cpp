// tests/rl/critic_test.cpp: value losses equal verl's; a critic has one loss and gradient on any mesh, which is the derivative;
// and a policy learns to count with advantages by a critic.
#include "catch.hpp"
#include "train/difference.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/rl/with_critic.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <mutex>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace {
namespace critic_test {

namespace hd = heddle;
namespace rl = heddle::rl;
using hd::dp, hd::pp, hd::tp;
using train_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using generate_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>, hd::axis<rl::replica>>;
using base = hd::model::gpt2<double>;
using critic = rl::critic<base>;
using policy = rl::policy<base, rl::any_objective>;
using strategy = hd::strategy<train_mesh, hd::zero<1>>;

// As in tests/golden/rl_golden.py.
struct numbers_of_script {
  std::uint64_t x;
  std::uint64_t integer(std::uint64_t below) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    return (x >> 33) % below;
  }
  std::vector<double> numbers(std::size_t n, int least, int most) {
    std::vector<double> all(n);
    for (double& e : all)
      e = least + static_cast<double>(integer(static_cast<std::uint64_t>((most - least) * 1024 + 1))) / 1024;
    return all;
  }
};

constexpr hd::model::gpt2_config small{
    .layers = 2, .heads = 4, .width = 16, .context = 9, .vocabulary = 23, .initial_deviation = .3};

// Answers of all lengths, with values on both sides of the clips, and tokens that do not count.
std::vector<rl::sample> random_answers(std::int64_t count, std::uint64_t seed) {
  const hd::counter_random random(seed, 5);
  std::uint64_t at = 0;
  const auto integer = [&](std::uint64_t below) { return random.integer(at++) % below; };
  std::vector<rl::sample> all;
  for (std::int64_t i = 0; i < count; ++i) {
    rl::sample& s = all.emplace_back();
    for (std::uint64_t n = 1 + integer(3); n > 0; --n) s.prompt.push_back(static_cast<std::int32_t>(integer(23)));
    for (std::uint64_t n = integer(8); n > 0; --n) {
      s.tokens.push_back(static_cast<std::int32_t>(integer(23)));
      s.log_probabilities.push_back(static_cast<double>(integer(1024)) / 512 - 1);
      s.advantages.push_back(static_cast<double>(integer(1024)) / 256 - 2);
      s.mask.push_back(integer(5) > 0);
    }
  }
  return all;
}

// Runs f(trainer) of a critic on each rank.
template <class F>
void on_ranks(const std::string& mesh_text, int microbatches, F&& f) {
  const auto mesh = hd::parse_mesh<train_mesh>(mesh_text);
  hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>{mesh.size()}, [&](auto& world) {
    std::vector<int> ranks(static_cast<std::size_t>(mesh.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    auto training = world.on(mesh, ranks);
    hd::train::options<critic::config> o;
    static_cast<hd::model::gpt2_config&>(o.model) = small;
    o.model.objective.clip = .25;
    o.batch = 16, o.steps = 2, o.microbatches = microbatches;
    o.learning_rate = {.peak = 1e-3, .minimum = 1e-3, .warmup_steps = 0};
    o.threads_per_rank = 1;
    hd::train::trainer<critic, strategy, typename decltype(training)::value_type> trainer(*training, o);
    f(trainer);
  });
}

}  // namespace critic_test
}  // namespace

TEST_CASE("value losses and their slopes equal verl's", "[rl][critic][golden]") {
  using namespace critic_test;
  std::ifstream file(HEDDLE_SOURCE_DIR "/tests/golden/rl_critic_golden.txt");
  REQUIRE(file);
  numbers_of_script g{45};
  int lines = 0, clipped = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    std::istringstream words(line);
    double loss = 0, projected = 0, magnitude = 0;
    words >> loss >> projected >> magnitude;
    REQUIRE(words);
    const std::size_t n = 1 + g.integer(12);
    const auto values = g.numbers(n, -2, 2), before = g.numbers(n, -2, 2), returns = g.numbers(n, -2, 2);
    std::vector<bool> mask(n);
    for (std::size_t i = 0; i < n; ++i) mask[i] = g.integer(4) > 0;
    mask[0] = true;
    const rl::value_loss objective{static_cast<double>(1 + g.integer(8)) / 8};
    const auto c = g.numbers(n, -1, 1);
    const auto counted = static_cast<double>(std::count(mask.begin(), mask.end(), true));
    double own = 0, along = 0, most = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (!mask[i]) continue;
      const rl::term x = objective(values[i], {.advantage = returns[i], .behaviour = before[i]});
      own += x.loss / counted, along += x.slope * c[i] / counted, most += std::abs(x.slope) / counted;
      clipped += x.slope == 0 && x.loss != 0;
    }
    INFO("line " << lines + 1);
    CHECK(std::abs(own - loss) <= 1e-12 * (std::max)(1.0, std::abs(loss)));
    CHECK(std::abs(along - projected) <= 1e-12);
    CHECK(std::abs(most - magnitude) <= 1e-12);
  }
  CHECK(lines == 300);
  CHECK(clipped > 100);
  CHECK(rl::value_loss{0}(3, {.advantage = 1}).loss == 2);
  CHECK_THROWS_WITH(rl::value_loss{-1}.validate(),
                    Catch::Contains("value_loss.clip must be at least 0 (0: no clip), got -1"));
}

TEST_CASE("a critic has one loss and one gradient on any mesh, and it is the derivative", "[rl][critic][ranks]") {
  using namespace critic_test;
  struct seen {
    std::vector<double> losses, norms;
    std::vector<std::vector<double>> values;
  };
  const auto train = [](const std::string& mesh, int microbatches) {
    seen all;
    std::mutex mutex;
    on_ranks(mesh, microbatches, [&](auto& trainer) {
      seen mine;
      auto scored = random_answers(7, 11);
      rl::score_by(trainer, std::span(scored), &rl::sample::values);
      for (const rl::sample& s : scored) mine.values.push_back(s.values);
      for (std::uint64_t step = 0; step < 2; ++step) {
        const auto report = trainer.step(rl::experience(random_answers(15, 3 + step), 9, trainer.samples_consumed()));
        mine.losses.push_back(report.loss), mine.norms.push_back(report.gradient_norm);
      }
      const std::lock_guard lock(mutex);
      all = mine;
    });
    return all;
  };
  const seen serial = train("", 1);
  REQUIRE(serial.norms[0] > 1e-3);
  REQUIRE(serial.values[0] != serial.values[1]);
  struct run {
    const char* mesh;
    int microbatches;
  };
  for (const run& r : {run{"", 4}, run{"dp=3", 1}, run{"tp=2", 2}, run{"pp=2", 2}, run{"dp=2,tp=4", 1}}) {
    INFO("mesh '" << r.mesh << "', " << r.microbatches << " microbatches");
    const seen got = train(r.mesh, r.microbatches);
    CHECK(train_test::relative_difference({got.losses[0]}, {serial.losses[0]}) <= 1e-12);
    CHECK(train_test::relative_difference({got.norms[0]}, {serial.norms[0]}) <= 1e-12);
    CHECK(train_test::relative_difference(got.losses, serial.losses) <= 1e-9);
    CHECK(train_test::relative_difference(got.norms, serial.norms) <= 1e-9);
    for (std::size_t i = 0; i < got.values.size(); ++i)
      for (std::size_t t = 0; t < got.values[i].size(); ++t)
        CHECK(std::abs(got.values[i][t] - serial.values[i][t]) <= 1e-12);
  }
  on_ranks("", 1, [&](auto& trainer) {
    const auto samples = random_answers(16, 9);
    const rl::experience data(samples, 9, 0);
    const auto result = trainer.compute_gradients(data);
    auto& stage = trainer.stage(0);
    std::vector<double> gradient(stage.gradients().begin(), stage.gradients().end());
    for (double& g : gradient) g *= result.gradient_scale;
    std::vector<std::int32_t> x(16 * 9), y(16 * 9 * 6);
    data.fill_train({0, 16}, x, y);
    rl::batch<double> b;
    b.tokens = x, b.targets = y, b.samples = 16;
    const auto loss_now = [&] { return trainer.forward_through(b) / data.counted_tokens(); };
    CHECK(std::abs(loss_now() - result.loss) <= 1e-12 * std::abs(result.loss));
    const hd::counter_random random(21, 1);
    INFO("seed 21");
    double along = 0;
    std::vector<double> direction(gradient.size());
    const std::vector<double> before(stage.weights().begin(), stage.weights().end());
    for (std::size_t i = 0; i < direction.size(); ++i) along += (direction[i] = random.normal(i)) * gradient[i];
    const auto moved = [&](double by) {
      for (std::size_t i = 0; i < before.size(); ++i) stage.weights()[i] = before[i] + by * direction[i];
      return loss_now();
    };
    const double h = 1e-6;
    CHECK(std::abs((moved(h) - moved(-h)) / (2 * h) - along) <= 1e-6 * std::abs(along));
  });
}

TEST_CASE("advantages by a critic are those of GAE, whitened", "[rl][critic]") {
  std::vector<heddle::rl::sample> all(3);
  all[0].tokens = {1, 2, 3}, all[0].values = {.5, .25, 1}, all[0].reward = 2;
  all[1].tokens = {4}, all[1].values = {1}, all[1].reward = 1;
  all[2].tokens = {5}, all[2].missing = "no verdict";
  const auto returns = heddle::rl::set_gae(all, .5, .25);
  const auto of = heddle::rl::gae(std::vector<double>{0, 0, 2}, all[0].values, .5, .25);
  CHECK(returns[0] == of.returns);
  CHECK(returns[1] == std::vector<double>{1});
  CHECK(all[2].advantages.empty());
  std::vector<double> raw = of.advantages;
  raw.push_back(0);
  double mean = 0, squares = 0;
  for (const double a : raw) mean += a / 4;
  for (const double a : raw) squares += (a - mean) * (a - mean);
  for (std::size_t t = 0; t < 3; ++t)
    CHECK(all[0].advantages[t] == Approx((raw[t] - mean) / std::sqrt(squares / 3)).epsilon(1e-6));
  all[1].values.clear();
  CHECK_THROWS_WITH(heddle::rl::set_gae(all, .5, .25), Catch::Contains("1 rewards came with 0 values"));
}

TEST_CASE("a policy learns to count by PPO with a critic", "[rl][critic][learning][ranks]") {
  using namespace critic_test;
  static constexpr std::int32_t digits = 4, separator = 5, end = 6, letter = 7;
  hd::train::options<policy::config> o;
  static_cast<hd::model::gpt2_config&>(o.model) = {
      .layers = 1, .heads = 2, .width = 16, .context = 8, .vocabulary = 8, .initial_deviation = .1};
  o.model.objective = rl::ppo{};
  o.learning_rate = {.peak = 6e-3, .minimum = 6e-3, .warmup_steps = 0};
  o.adamw = {.beta1 = .9, .beta2 = .99, .weight_decay = 0};
  o.threads_per_rank = 1;
  rl::settings s{.prompts = 12, .answers = 8, .steps = 60, .most_tokens = 6};
  s.end_tokens = {end}, s.seed = 1, s.advantage = rl::advantage_of::reward;
  const rl::task task{.prompt =
                          [](std::int64_t group) {
                            return std::vector<std::int32_t>{1 + static_cast<std::int32_t>(group % digits), separator};
                          },
                      .reward =
                          [](std::span<const rl::question> all) {
                            const auto reward = [](const rl::question& q) {
                              std::vector<std::int32_t> right(static_cast<std::size_t>(q.prompt[0]), letter);
                              right.push_back(end);
                              double same = 0;
                              for (std::size_t i = 0; i < (std::min)(right.size(), q.answer.size()); ++i)
                                same += right[i] == q.answer[i] ? 1 : 0;
                              return same / static_cast<double>((std::max)(right.size(), q.answer.size()));
                            };
                            return rl::judge_each(reward, all);
                          }};
  rl::with_critic<base> critic;
  critic.options.learning_rate = {.peak = 6e-3, .minimum = 6e-3, .warmup_steps = 0};
  critic.options.adamw = o.adamw;
  const auto run = [&](const char* train, const char* generate) {
    std::vector<rl::run_report> reports;
    const rl::meshes<train_mesh, generate_mesh> where{hd::parse_mesh<train_mesh>(train),
                                                      hd::parse_mesh<generate_mesh>(generate)};
    hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>{where.train.size()}, [&](auto& world) {
      rl::run<strategy>(
          world, rl::flow{}, where, policy{}, o, s, task,
          [&](const rl::run_report& r) {
            if (world.rank() == 0) reports.push_back(r);
          },
          rl::no_saves{}, rl::seeded_weights{}, critic);
    });
    return reports;
  };
  const auto reports = run("", "");
  REQUIRE(reports.size() == 60);
  const auto mean = [&](std::size_t from, auto&& of) {
    double sum = 0;
    for (std::size_t i = from; i < from + 10; ++i) sum += of(reports[i]) / 10;
    return sum;
  };
  const auto reward = [](const rl::run_report& r) { return r.reward; };
  const auto loss = [](const rl::run_report& r) { return r.critic.loss; };
  std::cout << "counting by PPO with a critic, seed 1: rewards " << mean(0, reward) << " to " << mean(50, reward)
            << ", value losses " << mean(0, loss) << " to " << mean(50, loss) << "\n";
  CHECK(mean(0, reward) < .5);
  CHECK(mean(50, reward) >= .9);
  CHECK(mean(50, loss) < mean(0, loss) / 2);

  s.steps = 3;
  const auto first = run("", ""), split = run("dp=2,tp=2", "dp=2,tp=2");
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(split[i].reward == first[i].reward);
    CHECK(split[i].training.loss == Approx(first[i].training.loss).margin(1e-6));  // whitened: nearly 0
    CHECK(split[i].training.gradient_norm == Approx(first[i].training.gradient_norm).epsilon(1e-6));
    CHECK(split[i].critic.loss == Approx(first[i].critic.loss).epsilon(1e-9));
  }
  s.advantage = rl::advantage_of::group_normalised;
  CHECK_THROWS_WITH(run("", ""), Catch::Contains("settings.advantage must be advantage_of::reward"));
}
