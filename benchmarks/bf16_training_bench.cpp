// Training of GPT-2 shapes with products of bf16 (`precision<products_in<bf16>>`) against float, in one run: steps of both alternate, each
// rank with one thread, 1F1B, ZeRO-1 and four microbatches. For each row of docs/benchmarks/bf16_training.md it prints the medians of
// both, their ratios by the processor's time of all ranks and by the clock; then times of products and casts alone, and the greatest
// relative difference of both losses over some steps of a task that can be learnt.
// Usage: bf16_training_bench [steps = 6] [steps of the demo's shape = 20] [loss steps = 200]; 0 leaves out
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/products.hpp>
#include <heddle/train/trainer.hpp>
#include HEDDLE_GEMM_HEADER

#include "random_tokens.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <span>
#include <utility>
#include <vector>

namespace {

namespace hd = heddle;
using backend = hd::compute::host<HEDDLE_GEMM>;
using hd::dp, hd::pp, hd::tp;
using hd::compute::transpose;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using in_float = hd::strategy<mesh_type, hd::zero<1>, backend>;
using in_bf16 = hd::strategy<mesh_type, hd::zero<1>, backend, hd::precision<hd::products_in<hd::bf16>>>;

hd::train::options<hd::model::gpt2_config> options_of(const hd::model::gpt2_config& model, int batch, double rate) {
  hd::train::options<hd::model::gpt2_config> o;
  o.model = model;
  o.batch = batch;
  o.microbatches = 4;
  o.steps = 1 << 20;
  o.threads_per_rank = 1;
  o.learning_rate = {.peak = rate, .minimum = rate, .warmup_steps = 10, .total_steps = 1 << 20};
  return o;
}

// Two trainers whose steps alternate: f(report of float, report of bf16, seconds of the processor of each), `steps` times, on rank 0. The
// processor's time is that of all threads of all ranks, and does not count what others on the machine take.
template <class F>
void alternate(const mesh_type& mesh, const hd::model::gpt2_config& model, int batch, double rate, int steps, F&& f) {
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    using world_type = decltype(world);
    hd::train::trainer<hd::model::gpt2<float>, in_float, world_type> one(world, options_of(model, batch, rate));
    hd::train::trainer<hd::model::gpt2<float>, in_bf16, world_type> other(world, options_of(model, batch, rate));
    const paired_words data{model.context, model.vocabulary};
    const auto now = [&] {  // all ranks have ended what was before, and begin what follows together
      world.control().barrier();
      const std::clock_t t = std::clock();
      world.control().barrier();
      return t;
    };
    for (int i = 0; i < steps; ++i) {
      const std::clock_t begin = now();
      const auto a = one.step(data);
      const std::clock_t middle = now();
      const auto b = other.step(data);
      const std::clock_t end = now();
      const auto seconds = [](std::clock_t t) { return static_cast<double>(t) / CLOCKS_PER_SEC; };
      if (world.rank() == 0) f(a, b, seconds(middle - begin), seconds(end - middle));
    }
  });
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// Seconds of one product [m, k] [n, k]' with operands of type T into float.
template <class T>
double product_seconds(std::int64_t m, std::int64_t n, std::int64_t k) {
  backend kernels(1);
  const std::vector<T> a(static_cast<std::size_t>(m * k), T(0.5f)), b(static_cast<std::size_t>(n * k), T(0.25f));
  std::vector<float> c(static_cast<std::size_t>(m * n));
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    hd::compute::matmul<transpose::no, transpose::yes>(kernels, hd::matrix_view<const T>(a.data(), {m, k}),
                                                       hd::matrix_view<const T>(b.data(), {n, k}),
                                                       hd::matrix_view<float>(c.data(), {m, n}), 0.0f);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return median(seconds);
}
double cast_seconds(std::int64_t n) {
  backend kernels(1);
  const std::vector<float> a(static_cast<std::size_t>(n), 0.5f);
  std::vector<hd::bf16> b(static_cast<std::size_t>(n));
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    heddle::compute::cast(kernels, std::span<const float>(a), std::span<hd::bf16>(b));
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return median(seconds);
}

void compare(const char* name, const mesh_type& mesh, const hd::model::gpt2_config& model, int batch, int steps) {
  std::vector<double> a, b, used_a, used_b;
  alternate(mesh, model, batch, 1e-4, steps + 1,
            [&](const auto& one, const auto& other, double of_one, double of_other) {
              used_a.push_back(of_one);
              used_b.push_back(of_other);
              a.push_back(one.seconds);
              b.push_back(other.seconds);
            });
  for (auto* x : {&a, &b, &used_a, &used_b}) x->erase(x->begin());  // cold caches, new pages
  std::printf("%-42s %9.1f %9.1f %6.2f %9.1f %9.1f %6.2f\n", name, median(used_a) * 1e3, median(used_b) * 1e3,
              median(used_a) / median(used_b), median(a) * 1e3, median(b) * 1e3, median(a) / median(b));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, int usual) { return argc > i ? (std::max)(0, std::atoi(argv[i])) : usual; };
  const int steps = argument(1, 6), demo_steps = argument(2, 20), loss_steps = argument(3, 200);
  const hd::model::gpt2_config wide{.layers = 4, .heads = 12, .width = 768, .context = 64, .vocabulary = 50257};
  const hd::model::gpt2_config demo{.layers = 4, .heads = 4, .width = 128, .context = 64, .vocabulary = 256};
  std::printf("%s, products of bf16: %s\n", backend(1).gemm_name(), backend(1).half_product_name());

  std::printf("%-42s %9s %9s %6s %9s %9s %6s\n", "milliseconds of a step", "used f32", "bf16", "ratio", "clock f32",
              "bf16", "ratio");
  if (steps > 0) {
    compare("width 768, 4 x 64 tokens a microbatch", mesh_type(1, 1, 1), wide, 16, steps);
    compare("width 768, 1 x 64 tokens a microbatch", mesh_type(1, 1, 1), wide, 4, steps);
  }
  if (demo_steps > 0) {
    compare("the demo's, one rank", mesh_type(1, 1, 1), demo, 24, demo_steps);
    compare("the demo's, dp=2 x pp=2 x tp=2", mesh_type(2, 2, 2), demo, 24, demo_steps);
  }

  for (const auto& [shape, samples] : {std::pair{wide, 4}, std::pair{demo, 6}}) {
    const std::int64_t rows = samples * shape.context;
    const int width = shape.width;
    std::printf("products of %lld rows, one thread:\n%-16s %10s %10s %10s %8s\n", static_cast<long long>(rows), "n x k",
                "float ms", "bf16 ms", "cast w ms", "ratio");
    for (const auto& [n, k] :
         {std::pair{4 * width, width}, std::pair{width, 4 * width}, std::pair{shape.vocabulary, width}}) {
      const double f = product_seconds<float>(rows, n, k), h = product_seconds<hd::bf16>(rows, n, k);
      const double w = cast_seconds(std::int64_t{n} * k);
      std::printf("%6d x %-7d %10.2f %10.2f %10.2f %8.2f\n", n, k, f * 1e3, h * 1e3, w * 1e3, f / h);
    }
  }
  if (loss_steps > 0) {
    const hd::model::gpt2_config small{.layers = 4, .heads = 4, .width = 64, .context = 32, .vocabulary = 97};
    double apart = 0, last = 0;
    alternate(mesh_type(1, 1, 1), small, 8, 3e-3, loss_steps, [&](const auto& one, const auto& other, double, double) {
      const double d = std::abs(one.loss - other.loss) / one.loss;
      if (!(d <= apart)) apart = d;  // a NaN stays
      last = one.loss;
    });
    std::printf("losses over %d steps: at most %.3f %% apart, the last %.4f\n", loss_steps, 100 * apart, last);
  }
  return 0;
}
