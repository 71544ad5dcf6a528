// What sharding gradients and weights costs: training steps of a GPT-2 on four data-parallel ranks under zero<1>, zero<2>
// and zero<3>, in turn, for few and for many tokens on each rank. zero<3> gathers each stage's weights twice a step.
// Usage: zero_stages_bench [rounds = 3]
#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/trainer.hpp>
#include HEDDLE_GEMM_HEADER

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace {

namespace hd = heddle;
using backend = hd::compute::host<HEDDLE_GEMM>;
using mesh = hd::mesh<hd::axis<hd::dp, 4>>;

constexpr hd::model::gpt2_config config{.layers = 6, .heads = 8, .width = 512, .context = 256, .vocabulary = 4096};

// Random words: the time of a step does not depend on what they say.
struct random_words {
  struct block {
    std::int64_t first, count;
  };
  static std::int64_t context() { return config.context; }
  static std::int64_t validation_samples() { return 0; }
  static void fill_train(block b, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) {
    const hd::counter_random random(1, 2);
    for (std::int64_t i = 0; i < b.count * config.context; ++i) {
      const auto at = static_cast<std::uint64_t>(b.first * config.context + i);
      tokens[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(random.integer(at) % 4096);
      targets[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(random.integer(at + 1) % 4096);
    }
  }
  static void fill_validation(block, std::span<std::int32_t>, std::span<std::int32_t>) {}
};

// Seconds of a step, the median of three behind a first one, which is left out.
template <int Stage>
double step(std::int64_t samples) {
  using strategy = hd::strategy<mesh, hd::schedule::one_f_one_b<hd::microbatches<1>>, hd::zero<Stage>, backend>;
  std::vector<double> seconds;
  hd::train::options<hd::model::gpt2_config> options;
  options.model = config;
  options.batch = samples;
  options.steps = 4;
  options.threads_per_rank = 1;
  hd::launch<hd::threads, mesh>([&](auto& world) {
    hd::train::trainer<hd::model::gpt2<float>, strategy> trainer(world, options);
    trainer.run(random_words{}, [&](const hd::train::step_report& r) {
      if (world.rank() == 0 && r.step > 0) seconds.push_back(r.seconds);
    });
  });
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? (std::max)(1, std::atoi(argv[1])) : 3;
  std::printf(
      "GPT-2, %lld layers of %lld, four ranks of dp, float, %s; step in ms: median of %d rounds, least to most\n",
      static_cast<long long>(config.layers), static_cast<long long>(config.width), backend(1).gemm_name(), rounds);
  std::printf("%14s %28s %28s %28s\n", "tokens a rank", "zero<1>", "zero<2>", "zero<3>");
  for (const std::int64_t samples : {4, 16}) {
    std::array<std::vector<double>, 3> seconds;
    for (int k = 0; k < rounds; ++k) {
      seconds[0].push_back(step<1>(samples));
      seconds[1].push_back(step<2>(samples));
      seconds[2].push_back(step<3>(samples));
    }
    std::printf("%14lld", static_cast<long long>(samples * config.context / 4));
    for (auto& s : seconds) std::sort(s.begin(), s.end());
    const auto middle = static_cast<std::size_t>(rounds / 2);
    for (const auto& s : seconds)
      std::printf("  %6.1f (%6.1f-%6.1f) x%.3f", 1e3 * s[middle], 1e3 * s.front(), 1e3 * s.back(),
                  s[middle] / seconds[0][middle]);
    std::printf("\n");
    std::fflush(stdout);
  }
}
