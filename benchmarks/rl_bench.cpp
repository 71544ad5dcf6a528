// benchmarks/rl_bench.cpp: what a run of reinforcement learning spends beside decoding and training, and whether the
// simulation that is told what those take foretells its steps. A model of 10 million floats, one thread a rank.
// run: rl_bench [batches of a run] [rounds]; or rl_bench samples [batches]: answers a second, beside rl_samples_trl.py
#include HEDDLE_GEMM_HEADER
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/rl/run.hpp>
#include <heddle/rl/simulated.hpp>

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

constexpr std::int64_t vocabulary = 2048, most_tokens = 48;

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

// `ends` of the vocabulary end an answer, so that lengths differ.
outcome run(const rl::flow& how, std::int64_t prompts, std::int64_t batches, int ends, int answers = 4) {
  hd::train::options<policy::config> options;
  static_cast<hd::model::gpt2_config&>(options.model) = {
      .layers = 5, .heads = 6, .width = 384, .context = 64, .vocabulary = vocabulary};
  options.learning_rate = {.peak = 1e-6, .minimum = 1e-6, .warmup_steps = 0};
  options.threads_per_rank = 1;
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
            return std::vector<std::int32_t>{static_cast<std::int32_t>(group / 1000), static_cast<std::int32_t>(group % 1000), 7, 8};
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
    rl::run<hd::strategy<train_mesh, hd::compute::host<HEDDLE_GEMM>>>(world, how, where, policy{}, options, s, task, [&](const rl::run_report& r) {
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
  const double foretold = sim::simulate(rl::simulated(how, s, 1), t, static_cast<int>(batches), skip).seconds_per_step(skip);
  const double took = mean({got.seconds.begin() + skip, got.seconds.end()});
  std::printf("%-28s foretold %.3f s a step, measured %.3f, ratio %.2f\n", name, foretold, took, foretold / took);
}

// 8 prompts with 8 answers of 48 tokens a batch, on one thread: generated, judged and trained on.
void print_samples(std::int64_t batches) {
  const std::clock_t began = std::clock();
  const outcome of = run({}, 8, batches, 0, 8);
  const double cpu = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC / static_cast<double>(batches);
  const double all = median_of(of, [](const batch_times& b) { return b.all; });
  std::printf("heddle: 64 answers in %.3f s (decoding %.3f, training %.3f): %.2f answers/s; processor time %.3f s a batch\n",
              all, median_of(of, [](const batch_times& b) { return b.decode; }),
              median_of(of, [](const batch_times& b) { return b.train; }), 64 / all, cpu);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "samples") {
    print_samples(argc > 2 ? std::atoll(argv[2]) : 5);
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
