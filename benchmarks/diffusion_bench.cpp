// benchmarks/diffusion_bench.cpp: a masked model that is trained here answers with 512 tokens in blocks of 32: tokens a second of the caches `dual` and `none`, runs in
// turn; then of each rule tokens a forward, and the loss of the answer: the mean of -ln p of its tokens when they were committed, and the share that is in words of the text.
// Usage: diffusion_bench [steps of training = 600] [rounds = 3]
#include <heddle/heddle.hpp>
#include <heddle/infer/diffusion.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/model/masked.hpp>
#include <heddle/train.hpp>
#include <heddle/train/masked_targets.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

namespace hd = heddle;
namespace inf = heddle::infer;

namespace {

using mesh = hd::mesh<hd::axis<hd::tp, 1>>;
using model = hd::model::llada<float>;
using runner_type = inf::model_runner<model, hd::world<hd::threads, mesh>, hd::compute::host<>>;
using tokens = std::vector<std::int32_t>;
constexpr std::int32_t mask = 27;  // behind letters and a space
constexpr std::int64_t answer_tokens = 512;
const std::string words[] = {"warp ", "reed ", "heddle ", "loom ", "treadle ", "beam "};

struct answer {
  double seconds = 0, loss = 0, in_words = 0;
  inf::diffusion_counts counts{};
};

// Share of an answer's letters that are in words of the text, which end with a space; the first and the last word may be cut.
double share_in_words(const std::string& text) {
  double found = 0;
  for (std::size_t first = 0, end = 0; first < text.size(); first = end) {
    end = (std::min)(text.find(' ', first), text.size() - 1) + 1;
    const std::string word = text.substr(first, end - first);
    for (const std::string& known : words)
      if (word == known || (first == 0 && known.ends_with(word)) || (end == text.size() && known.starts_with(word))) {
        found += static_cast<double>(word.size());
        break;
      }
  }
  return found / static_cast<double>(text.size());
}

template <class Cache, class Rule>
answer decode(runner_type& runner, const tokens& prompt, Rule rule) {
  using decoding = inf::diffusion<32, Rule, Cache>;
  inf::engine<runner_type, decoding> engine(runner, {}, decoding(rule, mask));
  engine.submit(
      {.prompt = prompt, .max_tokens = answer_tokens, .sampling = {.temperature = 0}, .log_probabilities = 0});
  answer found;
  std::string text;
  const auto begin = std::chrono::steady_clock::now();
  while (!engine.idle())
    for (const inf::event& e : engine.step())
      if (e.token) {
        text.push_back(*e.token == 26 ? ' ' : static_cast<char>('a' + *e.token));
        found.loss -= *e.log_probability / static_cast<double>(answer_tokens);
      }
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  found.in_words = share_in_words(text);
  found.counts = engine.decoder().counts();
  return found;
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + std::ssize(x) / 2, x.end());
  return x[x.size() / 2];
}

void print(const char* name, const answer& a) {
  std::printf("%-24s %4d forwards, %5.2f tokens a forward, loss %.2f, %3.0f %% in words\n", name,
              static_cast<int>(a.counts.forwards),
              static_cast<double>(a.counts.committed) / static_cast<double>(a.counts.forwards), a.loss,
              100 * a.in_words);
}

}  // namespace

int main(int argc, char** argv) try {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 600, rounds = argc > 2 ? std::atoi(argv[2]) : 3;
  hd::launch<hd::threads, mesh>([&](auto& world) {
    hd::compute::host<> kernels;
    tokens text;  // words of weaving in any order
    for (std::uint64_t i = 0; i < 20000; ++i)
      for (const char c : words[hd::counter_random(1, 2).integer(i) % 6]) text.push_back(c == ' ' ? 26 : c - 'a');
    hd::train::options<model::config> options{
        .batch = 4, .steps = steps, .learning_rate = {.peak = 1e-2, .warmup_steps = 20}};
    options.model = {.layers = 2, .heads = 4, .kv_heads = 4, .width = 64, .ffn = 128, .context = 544, .vocabulary = 28};
    const hd::io::basic_dataset<std::int32_t> data(text, {.context = 544, .batch = 4});
    auto trainer = hd::train::make_trainer<hd::strategy<mesh>>(model{}, world, options);
    double loss = 0;
    for (int step = 0; step < steps; ++step) loss = trainer.step(hd::train::masked_targets{&data, mask}).loss;
    std::printf("trained: %d steps, loss %.2f\n", steps, loss);
    runner_type runner(options.model, world, kernels, {40, 16}, 544);
    for (const auto& to : runner.stage().parameters())  // one rank: both stages hold whole parameters
      for (const auto& from : trainer.stage(0).parameters())
        if (to.name == from.name)
          std::copy_n(trainer.stage(0).weights().data() + from.offset, from.count,
                      runner.stage().weights().data() + to.offset);
    const tokens prompt(text.begin(), text.begin() + 16);

    std::vector<double> dual, none, ratios;
    for (int round = 0; round < rounds; ++round) {
      dual.push_back(decode<inf::dual>(runner, prompt, inf::threshold{0.9}).seconds);
      none.push_back(decode<inf::none>(runner, prompt, inf::threshold{0.9}).seconds);
      ratios.push_back(none.back() / dual.back());
    }
    std::printf("dual %.0f tokens/s, none %.0f: %.2f x (rounds %.2f to %.2f; wanted >= 3)\n",
                answer_tokens / median(dual), answer_tokens / median(none), median(ratios),
                *std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end()));
    print("none, threshold 0.9", decode<inf::none>(runner, prompt, inf::threshold{0.9}));
    print("dual, threshold 0.9", decode<inf::dual>(runner, prompt, inf::threshold{0.9}));
    print("dual, one_per_run", decode<inf::dual>(runner, prompt, inf::one_per_run{0.9, 0.4}));
    print("dual, credit 0.9", decode<inf::dual>(runner, prompt, inf::credit{.tau = 0.9}));
    print("dual, fixed_steps 8", decode<inf::dual>(runner, prompt, inf::fixed_steps{8}));
  });
} catch (const std::exception& problem) {
  return std::fprintf(stderr, "%s\n", problem.what()), 1;
}
