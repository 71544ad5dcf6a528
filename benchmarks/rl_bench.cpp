// benchmarks/rl_bench.cpp: what a run of reinforcement learning spends beside decoding and training, and whether the
// simulation that is told what those take foretells its steps. A model of 10 million floats, one thread a rank.
// run: rl_bench [batches of a run] [rounds]; rl_bench samples [batches]: answers a second, beside rl_samples_trl.py; or
// rl_bench losses [rounds]: steps with the loss of a policy beside steps with cross-entropy
#include HEDDLE_GEMM_HEADER
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/rl/experience.hpp>
#include <heddle/rl/run.hpp>
#include <heddle/rl/simulated.hpp>
#include <heddle/train/make_trainer.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace rl = heddle::rl;
namespace sim = heddle::sim;

namespace {

using train_mesh = hd::mesh<hd::axis<hd::dp>>;
using generate_mesh = hd::mesh<hd::axis<hd::dp>>;
using policy = rl::policy<hd::model::gpt2<float>, rl::any_objective>;

constexpr std::int64_t vocabulary = 2048, most_words = 64, most_tokens = 48;

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all.empty() ? 0 : all[all.size() / 2];
}
double mean(const std::vector<double>& all) {
  return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>((std::max)(all.size(), std::size_t{1}));
}

// Of one batch, seconds. Decoding is from the last prompt that is asked for to the last group that is judged.
struct batch_times {
  double all = 0, decode = 0, judge = 0, train = 0, weights = 0, words = 0;
  double rest() const { return judge + weights + words; }
};
struct outcome {
  std::vector<batch_times> batches{};  // where ranks train and generate in turn
  std::vector<double> seconds{};       // of each batch
  std::map<std::int64_t, std::vector<int>> lengths{};
};

template <class Config>
hd::train::options<Config> options_of() {
  hd::train::options<Config> options;
  static_cast<hd::model::gpt2_config&>(options.model) = {
      .layers = 5, .heads = 6, .width = 384, .context = most_words, .vocabulary = vocabulary};
  options.learning_rate = {.peak = 1e-6, .minimum = 1e-6, .warmup_steps = 0};
  options.threads_per_rank = 1;
  return options;
}

// `ends` of the vocabulary end an answer, so that lengths differ.
outcome run(const rl::flow& how, std::int64_t prompts, std::int64_t batches, int ends, int answers = 4) {
  const auto options = options_of<policy::config>();
  rl::settings s{.prompts = prompts, .answers = answers, .steps = batches, .most_tokens = most_tokens};
  for (int t = 0; t < ends; ++t) s.end_tokens.push_back(t);
  outcome got;
  std::mutex mutex;
  std::int64_t reported = hd::now_ns(), first_prompt = 0, last_prompt = 0, judged = 0;
  double judging = 0, last_judgement = 0;
  const rl::task task{
      .prompt =
          [&](std::int64_t group) {
            const std::lock_guard lock(mutex);
            last_prompt = hd::now_ns();
            if (first_prompt == 0) first_prompt = last_prompt;
            // The group's number is in its prompt, as rewards are told the prompt only.
            return std::vector<std::int32_t>{static_cast<std::int32_t>(group / 1000),
                                             static_cast<std::int32_t>(group % 1000), 7, 8};
          },
      .reward =
          [&](std::span<const rl::question> all) {
            const std::int64_t began = hd::now_ns();
            auto judge = [](const rl::question& q) {  // the share of even tokens
              double even = 0;
              for (const std::int32_t t : q.answer) even += t % 2 == 0;
              return even / static_cast<double>(q.answer.size());
            };
            auto said = rl::judge_all(judge, all);
            const std::lock_guard lock(mutex);
            for (const rl::question& q : all)
              got.lengths[q.prompt[0] * 1000 + q.prompt[1]].push_back(static_cast<int>(q.answer.size()));
            judged = hd::now_ns();
            last_judgement = static_cast<double>(judged - began) * 1e-9;
            judging += last_judgement;
            return said;
          }};
  const rl::meshes<train_mesh, generate_mesh> where{train_mesh{1}, generate_mesh{1}};
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{how.apart ? 2 : 1}, [&](auto& world) {
    rl::run<hd::strategy<train_mesh, hd::compute::host<HEDDLE_GEMM>>>(
        world, how, where, policy{}, options, s, task, [&](const rl::run_report& r) {
          const std::int64_t now = hd::now_ns();
          const std::lock_guard lock(mutex);
          batch_times b;
          b.all = static_cast<double>(now - std::exchange(reported, now)) * 1e-9;
          got.seconds.push_back(b.all);
          if (how.apart) return;
          b.train = r.training.seconds;
          b.judge = std::exchange(judging, 0);
          b.decode = static_cast<double>(judged - last_prompt) * 1e-9 - b.judge;
          b.words = static_cast<double>(now - judged) * 1e-9 - b.train;
          b.weights = b.all - b.train - b.judge - b.decode - b.words;
          first_prompt = 0;
          got.batches.push_back(b);
        });
  });
  return got;
}

template <class Of>
double median_of(const outcome& o, Of&& of) {
  std::vector<double> all;
  for (std::size_t i = 1; i < o.batches.size(); ++i) all.push_back(of(o.batches[i]));  // the first warms up
  return median(std::move(all));
}

// What the simulation is told: of runs whose answers have equal lengths, with few and with many of them.
sim::rl_times measured(std::int64_t batches) {
  const outcome few = run({}, 1, batches, 0), many = run({}, 8, batches, 0);
  const auto decode = [](const batch_times& b) { return b.decode / most_tokens; };
  const auto train = [](const batch_times& b) { return b.train; };
  const auto rest = [](const batch_times& b) { return b.rest(); };
  sim::rl_times t;
  t.step_per_answer = (std::max)(0.0, (median_of(many, decode) - median_of(few, decode)) / 28);
  t.step = (std::max)(0.0, median_of(few, decode) - 4 * t.step_per_answer);
  t.train = median_of(many, train);
  t.publish = median_of(many, rest);
  return t;
}

void foretell(const char* name, const rl::flow& how, std::int64_t batches, sim::rl_times t) {
  constexpr std::int64_t prompts = 8;
  const outcome got = run(how, prompts, batches, 64);
  t.length = [&](std::int64_t group, int member) {
    const auto at = got.lengths.find(group);
    return at == got.lengths.end() ? static_cast<int>(most_tokens) : at->second[static_cast<std::size_t>(member)];
  };
  rl::settings s{.prompts = prompts, .answers = 4};
  const int skip = 2;
  const double foretold =
      sim::simulate(rl::simulated(how, s, 1), t, static_cast<int>(batches), skip).seconds_per_step(skip);
  const double took = mean({got.seconds.begin() + skip, got.seconds.end()});
  std::printf("%-28s foretold %.3f s a step, measured %.3f, ratio %.2f\n", name, foretold, took, foretold / took);
}

// 8 prompts with 8 answers of 48 tokens a batch, on one thread: generated, judged and trained on.
void print_samples(std::int64_t batches) {
  const std::clock_t began = std::clock();
  const outcome of = run({}, 8, batches, 0, 8);
  const double cpu = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC / static_cast<double>(batches);
  const double all = median_of(of, [](const batch_times& b) { return b.all; });
  std::printf(
      "heddle: 64 answers in %.3f s (decoding %.3f, training %.3f): %.2f answers/s; processor time %.3f s a batch\n",
      all, median_of(of, [](const batch_times& b) { return b.decode; }),
      median_of(of, [](const batch_times& b) { return b.train; }), 64 / all, cpu);
}

// Texts of context + 1 words, as tokens and targets, and as answers to a prompt of one word: each word counts in both.
std::int32_t word(std::int64_t sample, std::int64_t at) {
  return static_cast<std::int32_t>((sample * 7919 + at * at * 31 + at * 271) % vocabulary);
}
struct texts {
  static constexpr std::int64_t context() { return most_words; }
  static constexpr std::int64_t validation_samples() { return 0; }
  static void fill_train(hd::io::sample_block at, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) {
    for (std::size_t k = 0; k < tokens.size(); ++k) {
      const std::int64_t sample = at.first + static_cast<std::int64_t>(k) / most_words;
      const std::int64_t t = static_cast<std::int64_t>(k) % most_words;
      tokens[k] = word(sample, t), targets[k] = word(sample, t + 1);
    }
  }
  static void fill_validation(hd::io::sample_block, std::span<std::int32_t>, std::span<std::int32_t>) {}
};
rl::experience answers_of(std::int64_t first, std::int64_t count) {
  std::vector<rl::sample> all(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    rl::sample& s = all[static_cast<std::size_t>(i)];
    s.prompt = {word(first + i, 0)};
    for (std::int64_t t = 1; t <= most_words; ++t) s.tokens.push_back(word(first + i, t));
    s.log_probabilities.assign(s.tokens.size(), -7.5);
    s.advantage = i % 2 == 0 ? 1 : -1;
  }
  return {std::move(all), most_words, first};
}

// Of the same model, words and threads; steps of both in turn.
void print_losses(int rounds) {
  using strategy = hd::strategy<train_mesh, hd::compute::host<HEDDLE_GEMM>>;
  hd::launch<hd::threads>(train_mesh{1}, [&](auto& world) {
    auto plain_options = options_of<hd::model::gpt2_config>();
    auto policy_options = options_of<policy::config>();
    plain_options.batch = policy_options.batch = 8;
    policy_options.model.objective = rl::ppo{};
    auto plain = hd::train::make_trainer<strategy>(hd::model::gpt2<float>{}, world, plain_options);
    auto objective = hd::train::make_trainer<strategy>(policy{}, world, policy_options);
    std::vector<double> seconds[2], processor[2];
    const auto time = [&](int which, auto& trainer, const auto& data) {
      const std::int64_t began = hd::now_ns();
      const std::clock_t before = std::clock();
      (void)trainer.step(data);
      if (trainer.steps_done() == 1) return;  // the first warms up
      seconds[which].push_back(static_cast<double>(hd::now_ns() - began) * 1e-6);
      processor[which].push_back(static_cast<double>(std::clock() - before) * 1e3 / CLOCKS_PER_SEC);
    };
    for (int k = 0; k <= rounds; ++k) {
      time(0, plain, texts{});
      time(1, objective, answers_of(objective.samples_consumed(), 8));
    }
    std::printf(
        "a step of 8 x 64 words: cross-entropy %.1f ms (processor %.1f), a policy's loss %.1f ms (%.1f): ratio %.3f "
        "(%.3f)\n",
        median(seconds[0]), median(processor[0]), median(seconds[1]), median(processor[1]),
        median(seconds[1]) / median(seconds[0]), median(processor[1]) / median(processor[0]));
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "samples") {
    print_samples(argc > 2 ? std::atoll(argv[2]) : 5);
    return 0;
  }
  if (argc > 1 && std::string_view(argv[1]) == "losses") {
    print_losses(argc > 2 ? std::atoi(argv[2]) : 9);
    return 0;
  }
  const std::int64_t batches = argc > 1 ? std::atoll(argv[1]) : 8;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 3;
  using one_off = rl::pipeline<rl::split, rl::one_step_off>;
  for (int round = 0; round < rounds; ++round) {
    const outcome of = run({}, 8, batches, 64);
    const double all = median_of(of, [](const batch_times& b) { return b.all; });
    std::printf("a step of 8 x 4 answers: %.3f s\n", all);
    const auto line = [&](const char* name, auto&& seconds) {
      const double s = median_of(of, seconds);
      std::printf("  %-34s %8.2f ms  %6.2f %%\n", name, s * 1e3, 100 * s / all);
    };
    line("decoding", [](const batch_times& b) { return b.decode; });
    line("training", [](const batch_times& b) { return b.train; });
    line("judging", [](const batch_times& b) { return b.judge; });
    line("a meeting with weights, prompts", [](const batch_times& b) { return b.weights; });
    line("a meeting with words, the batch", [](const batch_times& b) { return b.words; });
    line("all beside decoding and training", [](const batch_times& b) { return b.rest(); });
    const sim::rl_times t = measured(batches);
    std::printf("measured: decoding %.2f ms and %.3f ms an answer, training %.1f ms, the rest %.2f ms\n", t.step * 1e3,
                t.step_per_answer * 1e3, t.train * 1e3, t.publish * 1e3);
    foretell("in turn", {}, batches, t);
    foretell("one step off, apart", one_off::flow, batches, t);
  }
  return 0;
}
