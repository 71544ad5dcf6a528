// Teaches a small model to count, by a published system's pipeline on any ranks; docs/tutorial/rl.md begins with it.
// run: --system pipelinerl --train dp=2 --generate tp=2 --steps 6 --prompts 8
// prints: pipelinerl: apart, weights in flight
// prints: batch    6/6
// prints: every answer was used, given up or left at the end
// varies: (reward|lag|weights|tok/s|given up|tokens|greedy|groups) .*
#include <heddle/heddle.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/rl.hpp>
#include <heddle/rl/run.hpp>
#include <heddle/train.hpp>
#include <heddle/train/sampling.hpp>

#include "tool.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace hd = heddle;
namespace rl = heddle::rl;
using train_mesh = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::tp>>;
using generate_mesh = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::tp>, hd::axis<rl::replica>>;
using policy = rl::policy<hd::model::gpt2<float>, rl::any_objective>;

namespace {

// A digit n and a separator are to be answered by n times `a` and the end; the share of right places is the reward.
constexpr std::int32_t separator = 10, end_of_answer = 11, a = 12;
double reward_of(std::span<const std::int32_t> prompt, std::span<const std::int32_t> got) {
  std::vector<std::int32_t> right(static_cast<std::size_t>(prompt[0]), a);
  right.push_back(end_of_answer);
  double same = 0;
  for (std::size_t t = 0; t < std::min(got.size(), right.size()); ++t) same += got[t] == right[t];
  return same / static_cast<double>(std::max(got.size(), right.size()));
}

struct settings {
  std::string system = "hybridflow", train = "dp=2", generate = "dp=2";
  std::int64_t steps = 400, prompts = 32, answers = 8, seed = 1, ahead = -1;
  double lr = 1e-3, cap = 5;
};

int count(const settings& s) {
  const rl::flow how = s.ahead < 0 ? rl::flow_named(s.system) : rl::flow{.apart = true, .ahead = s.ahead};
  const rl::meshes<train_mesh, generate_mesh> where{hd::parse_mesh<train_mesh>(s.train),
                                                    hd::parse_mesh<generate_mesh>(s.generate)};
  hd::train::options<policy::config> options;
  // Small weights to begin with: nearly all answers are equally likely, so that all of them are tried.
  static_cast<hd::model::gpt2_config&>(options.model) = {
      .layers = 1, .heads = 2, .width = 32, .context = 16, .vocabulary = 13, .initial_deviation = 0.05};
  options.model.objective = rl::reinforce{.cap = s.cap};
  options.learning_rate = {.peak = s.lr, .minimum = 0, .warmup_steps = 0};
  options.adamw = {.beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0};
  options.seed = static_cast<std::uint64_t>(s.seed);
  rl::settings of_run{.prompts = s.prompts, .answers = s.answers, .steps = s.steps, .most_tokens = 14};
  of_run.end_tokens = {end_of_answer};
  of_run.seed = static_cast<std::uint64_t>(s.seed);
  const hd::counter_random asked(static_cast<std::uint64_t>(s.seed), 7);
  const rl::task task{
      .prompt =
          [&](std::int64_t group) {
            const auto digit = 1 + static_cast<std::int32_t>(asked.integer(static_cast<std::uint64_t>(group)) % 8);
            return std::vector<std::int32_t>{digit, separator};
          },
      .reward =
          [](std::span<const rl::question> all) {
            auto judge = [](const rl::question& q) { return reward_of(q.prompt, q.answer); };
            return rl::judge_each(judge, all);
          }};

  const int ranks = how.apart ? where.train.size() + where.generate.size() : where.train.size();
  std::printf("%s: %s\ntrain %s, generate %s: %d ranks\n", s.ahead < 0 ? s.system.c_str() : "ahead", to_string(how).c_str(),
              hd::to_string(where.train).c_str(), hd::to_string(where.generate).c_str(), ranks);
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{ranks}, [&](auto& world) {
    double greedy = 0, weights = 0, lag = 0;
    const rl::run_result all = rl::run<hd::strategy<train_mesh, hd::zero<1>>>(
        world, how, where, policy{}, options, of_run, task, [&](const rl::run_report& r, auto& trainer) {
          const std::int64_t n = r.batch + 1;
          weights += r.statistics.effective_share() / static_cast<double>(s.steps);
          lag += r.mean_lag / static_cast<double>(s.steps);
          if (world.rank() == 0 && (n % 20 == 0 || n == s.steps))
            std::printf("batch %4lld/%lld  reward %.3f  lag %.2f (most %lld)  weights %.3f  given up %lld  %.0f tok/s\n",
                        static_cast<long long>(n), static_cast<long long>(s.steps), r.reward, r.mean_lag,
                        static_cast<long long>(r.greatest_lag), r.statistics.effective_share(),
                        static_cast<long long>(r.given_up), static_cast<double>(r.tokens) / r.seconds);
          if (n < s.steps) return;
          for (std::int32_t digit = 1; digit <= 8; ++digit) {
            const std::vector<std::int32_t> prompt{digit, separator};
            const auto text = hd::train::sample(trainer, prompt, {.tokens = 14, .temperature = 0});
            const auto ends = std::find(text.begin() + 2, text.end() - 1, end_of_answer) + 1;
            greedy += reward_of(prompt, {text.begin() + 2, ends}) / 8;
          }
        });
    if (world.rank() == 0)
      std::printf("greedy %.3f  mean lag %.2f, weights %.3f  groups %lld, given up %lld, batches without a step %lld\n%s\n",
                  greedy, lag, weights, static_cast<long long>(all.groups), static_cast<long long>(all.given_up),
                  static_cast<long long>(all.skipped),
                  all.groups >= all.batches * s.prompts + all.given_up
                      ? "every answer was used, given up or left at the end"
                      : "ANSWERS WERE LOST");
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  tool::command_line app("Teaches a small model to count, by a pipeline of reinforcement learning.");
  app.add_option("--system", s.system, "whose pipeline")
      ->one_of({"hybridflow", "llamarl", "asyncflow", "april", "pipelinerl"});
  app.add_option("--train", s.train, "ranks that train, along dp, pp and tp");
  app.add_option("--generate", s.generate, "ranks that generate, along dp, pp, tp and replica; apart: further ones");
  app.add_option("--steps", s.steps, "batches")->range(1, 1000000000);
  app.add_option("--prompts", s.prompts, "of a batch")->range(1, 1 << 20);
  app.add_option("--answers", s.answers, "to each prompt")->range(2, 1 << 16);
  app.add_option("--ahead", s.ahead, "in place of a system: generators on their own ranks, this many batches ahead")
      ->range(0, 1 << 10);
  app.add_option("--cap", s.cap, "of the weights of what older versions drew; 0: no weights")->at_least(0);
  app.add_option("--lr", s.lr, "the highest learning rate")->more_than(0);
  app.add_option("--seed", s.seed, "of weights, prompts and answers")->range(0, 1 << 30);
  return tool::run(app, argc, argv, [&] { return count(s); });
}
