// What sharding gradients and weights costs: training steps of a GPT-2 on four data-parallel ranks under zero<1>, zero<2>
// and zero<3>, in turn, for few and for many tokens on each rank. Each rank has one stage, so zero<3> gathers the weights once a step.
// Then what reduce_beside costs on two stages a rank, under zero<2>.
// Then what determinism::mesh_to_mesh costs under zero<1>.
// Usage: zero_stages_bench [rounds = 3 [beside | determinism]]
#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/generate/breadth_first.hpp>
#include <heddle/train/mesh_to_mesh.hpp>
#include <heddle/train/trainer.hpp>
#include HEDDLE_GEMM_HEADER

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <initializer_list>
#include <span>
#include <string_view>
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

// A step of all ranks: its seconds, and the processor's seconds of the whole process, which other programs change less.
struct cost {
  double seconds = 0, processor = 0;
};

// The medians of five steps behind a first one, which is left out.
template <int Stage, class When = hd::schedule::one_f_one_b<hd::microbatches<1>>, class Policy = hd::reduce_in_turn>
cost step(std::int64_t samples) {
  using strategy = hd::strategy<mesh, When, hd::zero<Stage>, backend, Policy>;
  std::vector<double> seconds, processor;
  std::clock_t before = 0;
  hd::train::options<hd::model::gpt2_config> options;
  options.model = config;
  options.batch = samples;
  options.steps = 6;
  options.threads_per_rank = 1;
  hd::launch<hd::threads, mesh>([&](auto& world) {
    hd::train::trainer<hd::model::gpt2<float>, strategy> trainer(world, options);
    trainer.run(random_words{}, [&](const hd::train::step_report& r) {
      if (world.rank() != 0) return;
      const std::clock_t now = std::clock();
      if (r.step > 0) {
        seconds.push_back(r.seconds);
        processor.push_back(static_cast<double>(now - before) / CLOCKS_PER_SEC);
      }
      before = now;
    });
  });
  const auto median = [](std::vector<double>& x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
  };
  return {median(seconds), median(processor)};
}

// What a policy takes beside the steps without it. Those run twice in a round, so that the second ones, which should take as long, show what
// the machine adds; the order turns from round to round.
template <int Stage, class When, class Policy>
void compare(int rounds, const char* what, std::initializer_list<std::int64_t> batches) {
  constexpr int with = 0, again = 1, without = 2;
  for (const std::int64_t samples : batches) {
    std::array<std::array<std::vector<double>, 2>, 2> ratios;  // of the clock and of the processor
    for (int k = 0; k < rounds; ++k) {
      std::array<cost, 3> costs;
      for (int i = 0; i < 3; ++i) {
        const int which = (i + k) % 3;
        costs[static_cast<std::size_t>(which)] =
            which == with ? step<Stage, When, Policy>(samples) : step<Stage, When>(samples);
      }
      for (const int which : {with, again}) {
        const cost &x = costs[static_cast<std::size_t>(which)], &y = costs[without];
        ratios[0][static_cast<std::size_t>(which)].push_back(x.seconds / y.seconds);
        ratios[1][static_cast<std::size_t>(which)].push_back(x.processor / y.processor);
      }
    }
    std::printf("%14lld tokens a rank, %s\n", static_cast<long long>(samples * config.context / 4), what);
    for (const bool of_processor : {false, true}) {
      std::printf("%25s", of_processor ? "processor" : "clock");
      for (const int which : {with, again}) {
        std::vector<double>& x = ratios[of_processor ? 1 : 0][static_cast<std::size_t>(which)];
        std::sort(x.begin(), x.end());
        std::printf("  %s x%.3f (%.3f-%.3f)", which == with ? "with" : "without, again", x[x.size() / 2], x.front(),
                    x.back());
      }
      std::printf("\n");
    }
    std::fflush(stdout);
  }
}

// With two stages a rank, the first of which to be through is reduced beside the other's backward.
void beside(int rounds) {
  using loop = hd::schedule::breadth_first<hd::microbatches<1>, 2>;
  compare<2, loop, hd::reduce_beside>(rounds, "zero<2>, two stages: reduce_beside", {4, 16});
}
void determinism(int rounds) {
  using hd::determinism::mesh_to_mesh;
  compare<1, hd::schedule::one_f_one_b<hd::microbatches<1>>, mesh_to_mesh>(rounds, "zero<1>: mesh_to_mesh", {4, 16});
  compare<1, hd::schedule::one_f_one_b<hd::microbatches<4>>, mesh_to_mesh>(
      rounds, "zero<1>, 4 microbatches: mesh_to_mesh", {16});
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? (std::max)(1, std::atoi(argv[1])) : 3;
  if (argc > 2 && std::string_view(argv[2]) == "beside") return beside(rounds), 0;
  if (argc > 2 && std::string_view(argv[2]) == "determinism") return determinism(rounds), 0;
  std::printf(
      "GPT-2, %lld layers of %lld, four ranks of dp, float, %s; a step in ms: median of %d rounds, least to most\n",
      static_cast<long long>(config.layers), static_cast<long long>(config.width), backend(1).gemm_name(), rounds);
  std::printf("%14s %10s %28s %28s %28s\n", "tokens a rank", "time", "zero<1>", "zero<2>", "zero<3>");
  for (const std::int64_t samples : {4, 16}) {
    std::array<std::vector<cost>, 3> costs;
    for (int k = 0; k < rounds; ++k) {
      costs[0].push_back(step<1>(samples));
      costs[1].push_back(step<2>(samples));
      costs[2].push_back(step<3>(samples));
    }
    for (const bool of_processor : {false, true}) {
      std::printf("%14lld %10s", static_cast<long long>(samples * config.context / 4),
                  of_processor ? "processor" : "clock");
      double first = 0;
      for (const std::vector<cost>& all : costs) {
        std::vector<double> x;
        for (const cost& c : all) x.push_back(of_processor ? c.processor : c.seconds);
        std::sort(x.begin(), x.end());
        const double median = x[x.size() / 2];
        if (first == 0) first = median;
        std::printf("  %6.1f (%6.1f-%6.1f) x%.3f", 1e3 * median, 1e3 * x.front(), 1e3 * x.back(), median / first);
      }
      std::printf("\n");
    }
    std::fflush(stdout);
  }
  beside(rounds);
  determinism(rounds);
}
