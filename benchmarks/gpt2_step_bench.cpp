// One training step of GPT-2 124M (4 x 64 tokens, float) by the trainer: one rank with two threads, two data-parallel
// ranks and two tensor-parallel ranks with one thread each. A step is everything a step is: forward, backward, reduction,
// global norm, clipping, AdamW and, over dp, ZeRO-1's exchange. Compared with this machine's GEMM peak, measured in the
// same run before, between and after, with the same library and two threads.
// Usage: gpt2_step_bench [steps = 8] [layers = 12]
#include <heddle/comm/threads.hpp>
#include <heddle/compute/gemm_peak.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/trainer.hpp>
#include HEDDLE_GEMM_HEADER

#include "random_tokens.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

namespace hd = heddle;
using hd::dp, hd::tp;
using backend = hd::compute::host<HEDDLE_GEMM>;

constexpr int samples = 4, sequence = 64;

hd::model::gpt2_config config(int layers) {
  auto c = hd::model::gpt2_124m();
  c.context = sequence;
  c.layers = layers;
  return c;
}

// Seconds of each step, fastest first; the first step of all (cold caches, new pages) is left out.
template <class Mesh>
std::vector<double> run(int threads, int steps, int layers) {
  using strategy = hd::strategy<Mesh, hd::schedule::one_f_one_b<hd::microbatches<1>>, hd::zero<1>, backend>;
  std::vector<double> seconds;
  hd::train::options<hd::model::gpt2_config> options;
  options.model = config(layers);
  options.batch = samples;
  options.steps = steps + 1;
  options.threads_per_rank = threads;
  hd::launch<hd::threads, Mesh>([&](auto& world) {
    hd::train::trainer<hd::model::gpt2<float>, strategy> trainer(world, options);
    trainer.run(random_tokens{.length = sequence, .vocabulary = 50257}, [&](const hd::train::step_report& r) {
      if (world.rank() == 0 && r.step > 0) seconds.push_back(r.seconds);
    });
  });
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

double peak() {
  backend kernels(2);
  return hd::compute::measure_gemm_peak<float>(kernels, 1024, 0.5);
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? (std::max)(1, std::atoi(argv[1])) : 8;
  const int layers = argc > 2 ? (std::max)(1, std::atoi(argv[2])) : 12;
  const double operations = config(layers).flops_per_token(sequence) * samples * sequence;
  double best_peak = peak();
  const auto one = run<hd::mesh<>>(2, steps, layers);
  best_peak = (std::max)(best_peak, peak());
  const auto data = run<hd::mesh<hd::axis<dp, 2>>>(1, steps, layers);
  best_peak = (std::max)(best_peak, peak());
  const auto tensor = run<hd::mesh<hd::axis<tp, 2>>>(1, steps, layers);
  best_peak = (std::max)(best_peak, peak());

  std::printf("GPT-2 124M shape, %d layers, %d x %d tokens, float, %s, %d steps; GEMM peak %.0f GFLOP/s\n", layers, samples,
              sequence, backend(1).gemm_name(), steps, best_peak / 1e9);
  std::printf("%-22s %12s %12s %8s %8s\n", "", "best tok/s", "median", "MFU", "ratio");
  const auto line = [&](const char* name, const std::vector<double>& runs) {
    const double best = runs.front(), median = runs[runs.size() / 2];
    std::printf("%-22s %12.0f %12.0f %7.1f%% %8.2f\n", name, samples * sequence / best, samples * sequence / median,
                100 * operations / median / best_peak, one[one.size() / 2] / median);
  };
  line("one rank, two threads", one);
  line("dp=2, one thread each", data);
  line("tp=2, one thread each", tensor);
}
