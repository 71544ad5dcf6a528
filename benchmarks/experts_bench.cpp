// Dropless training of a Mixtral shape with its experts over two ranks against a dense Llama of the same active parameters over two ranks,
// in one run: steps of both alternate, each rank with one thread. Prints tokens per second of both, their ratio by the clock and by the
// processor's time, and how far the ratios of single pairs of steps spread.
// Usage: experts_bench [steps = 15] [samples = 16] [width = 256] [hidden units = 512] [experts = 8] [chosen = 2] [layers = 4]
#include <heddle/comm/threads.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/train/trainer.hpp>
#include HEDDLE_GEMM_HEADER

#include "random_tokens.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

namespace {

namespace hd = heddle;
namespace md = heddle::model;
using backend = hd::compute::host<HEDDLE_GEMM>;
using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::ep>>;
using one_microbatch = hd::schedule::one_f_one_b<hd::microbatches<1>>;
using strategy = hd::strategy<mesh_type, one_microbatch, backend>;
// Both models split samples over ep; only the Mixtral has experts to split.
using how = md::expert_parallel<>;
using dense_model = md::llama<float, how>;
using mixture_model = md::mixtral<float, how>;

template <class Config>
hd::train::options<Config> options_of(const Config& model, int samples) {
  hd::train::options<Config> o;
  o.model = model;
  o.batch = samples;
  o.steps = 1 << 20;
  o.threads_per_rank = 1;
  o.learning_rate = {.peak = 1e-3, .minimum = 1e-3, .warmup_steps = 10, .total_steps = 1 << 20};
  return o;
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// Seconds of each step, by the clock and of the processor over all ranks, which does not count what others on the machine take.
struct measured {
  std::vector<double> clock{}, processor{};
  double loss = 0;

  void print(const char* name, double tokens, std::int64_t active, std::int64_t all) const {
    std::printf(
        "%-10s %6.2f M parameters active, %6.2f M in all: %8.0f tokens/s, %7.1f ms, processor %7.1f ms, loss %.3f\n",
        name, static_cast<double>(active) * 1e-6, static_cast<double>(all) * 1e-6, tokens / median(clock),
        median(clock) * 1e3, median(processor) * 1e3, loss);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, int usual) { return argc > i ? (std::max)(1, std::atoi(argv[i])) : usual; };
  const int steps = argument(1, 15), samples = argument(2, 16), width = argument(3, 256), hidden = argument(4, 512);
  const int experts = argument(5, 8), chosen = argument(6, 2), layers = argument(7, 4);
  md::llama_config shape{.layers = layers,
                         .heads = width / 32,
                         .kv_heads = width / 64,
                         .width = width,
                         .ffn = hidden,
                         .context = 128,
                         .vocabulary = 4096};
  const md::mixtral_config mixture_shape(shape, experts, chosen);
  shape.ffn = hidden * chosen;
  std::printf("%s; %d layers of width %d, %d experts of %d units, %d chosen; %d samples of %d tokens on 2 ranks\n",
              backend(1).gemm_name(), layers, width, experts, hidden, chosen, samples, shape.context);

  measured dense, mixture;
  hd::launch<hd::threads>(mesh_type{1, 2}, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    hd::train::trainer<dense_model, strategy, world_type> one(world, options_of(shape, samples));
    hd::train::trainer<mixture_model, strategy, world_type> other(world, options_of(mixture_shape, samples));
    const paired_words data{shape.context, shape.vocabulary};
    const auto measure = [&](auto& trainer, measured& to, bool counts) {
      world.control().barrier();
      const std::clock_t begin = std::clock();
      const auto report = trainer.step(data);
      world.control().barrier();
      const std::clock_t end = std::clock();
      if (world.rank() != 0 || !counts) return;
      to.clock.push_back(report.seconds);
      to.processor.push_back(static_cast<double>(end - begin) / CLOCKS_PER_SEC);
      to.loss = report.loss;
    };
    for (int i = 0; i <= steps; ++i) {  // the first has cold caches and new pages
      measure(one, dense, i > 0);
      measure(other, mixture, i > 0);
    }
  });
  const double tokens = static_cast<double>(samples) * shape.context;
  dense.print("dense", tokens, shape.matmul_parameters(), shape.parameters());
  mixture.print("mixture", tokens, mixture_shape.matmul_parameters(), mixture_shape.parameters());
  std::vector<double> by_clock, by_processor;
  for (std::size_t i = 0; i < dense.clock.size(); ++i) {
    by_clock.push_back(dense.clock[i] / mixture.clock[i]);
    by_processor.push_back(dense.processor[i] / mixture.processor[i]);
  }
  const auto [least, most] = std::minmax_element(by_clock.begin(), by_clock.end());
  std::printf(
      "tokens/s of the mixture over those of the dense model: %.2f (pairs of steps %.2f to %.2f, their median %.2f)\n",
      median(dense.clock) / median(mixture.clock), *least, *most, median(by_clock));
  std::printf("by the processor's time of both ranks: %.2f (median of pairs %.2f)\n",
              median(dense.processor) / median(mixture.processor), median(by_processor));
  return 0;
}
