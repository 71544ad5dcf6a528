// What the host's inference reaches of what bounds it, all in one run, in rounds that take every side in turn, medians over the rounds: decoding of a
// Llama of 100 million weights in products against the read bandwidth, its prompts against the fastest product, 16 sequences against one, and
// for a model of 10 million weights the part of an engine's step that is not in kernels; and how far logits are from those of the floats.
// Usage: inference_bench [threads = 1] [rounds = 7] [names of weights: library, portable, f32, bf16, q8, w8a8, w8a8/64; all of them].
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/packed_weights.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/model/llama.hpp>
#include HEDDLE_GEMM_HEADER

#include "llama_100m.hpp"
#include "packed_stage.hpp"
#include "read_bandwidth.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;
namespace cp = heddle::compute;

namespace {

constexpr md::llama_config large = llama_100m;
constexpr md::llama_config small{
    .layers = 10, .heads = 4, .kv_heads = 4, .width = 256, .ffn = 704, .context = 1024, .vocabulary = 8192};
constexpr std::int64_t block_rows = 16, prompt_rows = 512, together = 16;

/// A backend that adds up the seconds in its kernels, those that a Llama calls.
template <class Backend>
class timed : public Backend {
 public:
  using Backend::Backend;
  double seconds = 0;

  template <class Op, class T, class... X>
    requires cp::offered<Op, Backend, T>
  void run(const X&... x) {
    add_time([&] { cp::run<Op>(static_cast<Backend&>(*this), x...); });
  }

 private:
  template <class F>
  void add_time(F&& kernel) {
    const auto begin = std::chrono::steady_clock::now();
    kernel();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
};

/// A runner that notes the seconds of its last step.
template <class Runner>
class timed_runner {
 public:
  using scalar = typename Runner::scalar;
  using capabilities = typename Runner::capabilities;
  explicit timed_runner(Runner& runner) : runner_(&runner) {}
  inf::step_limits limits() const { return runner_->limits(); }
  void run(const inf::step& s, std::span<scalar> logits) {
    const auto begin = std::chrono::steady_clock::now();
    runner_->run(s, logits);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  double seconds = 0;

 private:
  Runner* runner_;
};

/// `sequences` with `rows` each behind `before` tokens; only the logits of the last rows are wanted.
inf::step step_of(std::int64_t sequences, std::int64_t rows, std::int64_t before) {
  inf::step s;
  const std::int64_t blocks = (before + rows + block_rows - 1) / block_rows, per_slot = large.context / block_rows;
  for (std::int64_t q = 0; q < sequences; ++q) {
    s.sequences.push_back({s.rows(), rows, before, std::ssize(s.blocks), blocks});
    for (std::int64_t b = 0; b < blocks; ++b)  // not one behind the other
      s.blocks.push_back(static_cast<std::int32_t>(q * per_slot + b * 37 % per_slot));
    for (std::int64_t r = 0; r < rows; ++r)
      s.tokens.push_back(static_cast<std::int32_t>((17 * q + 29 * r) % large.vocabulary));
    s.wanted.push_back(s.rows() - 1);
  }
  return s;
}

/// Operations per second of products of 1024 x 1024 x 1024, by the library and by heddle's own.
class products {
 public:
  explicit products(int threads) : library_(threads), own_(threads) {}
  template <class Backend>
  spent time(Backend& b) {
    return time_of([&] { cp::matmul<cp::transpose::no, cp::transpose::yes>(b, view(a_), view(b_), view(c_)); });
  }
  spent library() { return time(library_); }
  spent own() { return time(own_); }
  static constexpr std::int64_t size = 1024;
  static constexpr double operations = 2.0 * size * size * size;

 private:
  static hd::matrix_view<float> view(std::vector<float>& x) { return {x.data(), hd::dynamic_shape<2>(size, size)}; }
  cp::host<HEDDLE_GEMM> library_;
  cp::host<> own_;
  std::vector<float> a_ = std::vector<float>(size * size, 0.5f), b_ = a_, c_ = a_;
};

/// Operations of a step with `rows` rows of a prompt and one row of logits.
double operations_of_prompt(std::int64_t rows) {
  const double head = static_cast<double>(large.width * large.vocabulary);
  const double blocks = static_cast<double>(large.matmul_parameters()) - head;
  const auto n = static_cast<double>(rows);
  return 2 * (blocks * n + head) +
         2 * n * (n + 1) * static_cast<double>(large.width) * static_cast<double>(large.layers);
}

/// Medians over rounds of numbers by the clock and of the processor.
struct both {
  std::vector<double> wall{}, processor{};
  void push(double by_wall, double by_processor) {
    wall.push_back(by_wall);
    processor.push_back(by_processor);
  }
};
void print(const char* what, const both& x, const char* unit = "") {
  std::printf("  %-46s %8.3f of the processor, %8.3f by the clock %s\n", what, median(x.processor), median(x.wall),
              unit);
}

template <class World, class Backend>
void measure_large(World& world, Backend& kernels, int threads, int rounds) {
  inf::model_runner<md::llama<float>, World, Backend> runner(
      large, world, kernels, {together * (large.context / block_rows), block_rows}, prompt_rows);
  runner.stage().initialize(1);
  const inf::step one = step_of(1, 1, 64), many = step_of(together, 1, 64), prompt = step_of(1, prompt_rows, 0);
  std::vector<float> logits(static_cast<std::size_t>(together * large.vocabulary));
  inf::step last_rows = prompt;
  last_rows.wanted.clear();
  for (std::int64_t r = prompt_rows - together; r < prompt_rows; ++r) last_rows.wanted.push_back(r);
  runner.run(last_rows, logits);
  const std::vector<float> of_floats = logits;
  pack(kernels, runner.stage());
  runner.run(last_rows, logits);
  double apart = 0, squares = 0, all_squares = 0, greatest = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto x = static_cast<double>(of_floats[i]), off = std::abs(static_cast<double>(logits[i]) - x);
    apart = (std::max)(apart, off);
    greatest = (std::max)(greatest, std::abs(x));
    squares += off * off;
    all_squares += x * x;
  }
  std::printf("  logits of 16 rows apart from those of floats: at most %.1e of the greatest, %.1e of them in squares\n",
              apart / greatest, std::sqrt(squares / all_squares));
  const auto run = [&](const inf::step& s, int times = 1) {
    const spent all = time_of([&] {
      for (int i = 0; i < times; ++i)
        runner.run(s, std::span<float>(logits).first(s.wanted.size() * static_cast<std::size_t>(large.vocabulary)));
    });
    return spent{all.wall / times, all.processor / times};
  };
  products fastest(threads);
  for (const inf::step* s : {&one, &many, &prompt}) run(*s);
  fastest.library(), fastest.own(), read_memory(threads);
  const double weights = static_cast<double>(large.matmul_parameters()) * bytes_per_weight<Backend>();
  both bandwidth, peak, tokens, of_bound, batching, prefill, of_peak;
  for (int i = 0; i < rounds; ++i) {
    const spent before = read_memory(threads), decoded = run(one, 4), after = read_memory(threads);
    const spent batch = run(many), library = fastest.library(), own = fastest.own(), filled = run(prompt);
    const spent read{(std::min)(before.wall, after.wall), (std::min)(before.processor, after.processor)};
    const spent product{(std::min)(library.wall, own.wall), (std::min)(library.processor, own.processor)};
    const auto bytes = static_cast<double>(bytes_of_memory);
    const double flops = operations_of_prompt(prompt_rows);
    bandwidth.push(bytes / read.wall / 1e9, bytes / read.processor / 1e9);
    peak.push(products::operations / product.wall / 1e9, products::operations / product.processor / 1e9);
    tokens.push(1 / decoded.wall, 1 / decoded.processor);
    of_bound.push(weights / decoded.wall * read.wall / bytes, weights / decoded.processor * read.processor / bytes);
    batching.push(together * decoded.wall / batch.wall, together * decoded.processor / batch.processor);
    prefill.push(prompt_rows / filled.wall, prompt_rows / filled.processor);
    of_peak.push(flops / filled.wall * product.wall / products::operations,
                 flops / filled.processor * product.processor / products::operations);
  }
  print("read bandwidth", bandwidth, "GB/s");
  print("fastest product", peak, "Gflop/s");
  print("one sequence", tokens, "tokens/s");
  print("  of the bound by memory (wanted: 0.90)", of_bound);
  print("16 sequences against one (wanted: 6)", batching);
  print("a prompt of 512 tokens", prefill, "tokens/s");
  print("  of the fastest product (wanted: 0.66)", of_peak);
}

template <class World, class Backend>
void measure_small(World& world, Backend& kernels, int steps) {
  using runner_type = inf::model_runner<md::llama<float>, World, Backend>;
  runner_type runner(small, world, kernels, {together * (small.context / block_rows), block_rows}, prompt_rows);
  runner.stage().initialize(1);
  pack(kernels, runner.stage());
  timed_runner<runner_type> noted(runner);
  for (const std::int64_t sequences : {std::int64_t{1}, together}) {
    inf::engine<timed_runner<runner_type>> engine(noted);
    for (std::int64_t i = 0; i < sequences; ++i)
      engine.submit({.prompt = {1, 2, 3}, .max_tokens = 1000, .sampling = {.temperature = 0}});
    for (int i = 0; i < 8; ++i) engine.step();
    // By the clock where the time is short, and of the processor where it is long, since others on the machine take theirs from long ones.
    std::vector<double> whole, outside, of_engine;
    for (int i = 0; i < steps; ++i) {
      kernels.seconds = 0;
      const spent step = time_of([&] { engine.step(); });
      whole.push_back(step.processor * 1e6);
      outside.push_back((step.wall - kernels.seconds) * 1e6);
      of_engine.push_back((step.wall - noted.seconds) * 1e6);
    }
    std::printf(
        "  a step of %2d of the model of %.1f M: %.0f us of the processor, outside of kernels %.1f us, %.2f %% "
        "(wanted: "
        "5), of these the engine %.1f us\n",
        static_cast<int>(sequences), static_cast<double>(small.matmul_parameters()) * 1e-6, median(whole),
        median(outside), 100 * median(outside) / median(whole), median(of_engine));
  }
}

template <class Backend>
void measure(const char* name, int threads, int rounds) {
  hd::launch<hd::threads, hd::mesh<hd::axis<hd::tp, 1>>>([&](auto& world) {
    timed<Backend> kernels{threads};
    std::printf("%s\n", name);
    measure_large(world, kernels, threads, rounds);
    measure_small(world, kernels, 40 * rounds);
    std::fflush(stdout);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1, rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  if (threads < 1 || rounds < 1) {
    std::fprintf(
        stderr, "usage: inference_bench [threads >= 1] [rounds >= 1] [library|portable|f32|bf16|q8|w8a8|w8a8/64]...\n");
    return 2;
  }
  const auto wanted = [&](std::string_view name) {
    return argc < 4 || std::find(argv + 3, argv + argc, name) != argv + argc;
  };
  std::printf("%.0f M weights in products, threads: %d, products of the library: %s\n",
              static_cast<double>(large.matmul_parameters()) * 1e-6, threads, HEDDLE_GEMM::name());
  if (wanted("library")) measure<cp::host<HEDDLE_GEMM>>("library, weights as they lie", threads, rounds);
  if (wanted("portable")) measure<cp::host<>>("portable, weights as they lie", threads, rounds);
  if (wanted("f32")) measure<cp::packed_weights<cp::host<>, cp::f32_weights>>("f32, packed", threads, rounds);
  if (wanted("bf16")) measure<cp::packed_weights<cp::host<>, cp::bf16_weights>>("bf16, packed", threads, rounds);
  if (wanted("q8")) measure<cp::packed_weights<cp::host<>, cp::q8_weights<>>>("q8, packed", threads, rounds);
  if (wanted("w8a8"))
    measure<cp::packed_weights<cp::host<>, cp::w8a8_weights<>>>("w8a8, packed, products of integers", threads, rounds);
  if (wanted("w8a8/64"))
    measure<cp::packed_weights<cp::host<>, cp::w8a8_weights<64>>>("w8a8/64, the same in blocks of 64", threads, rounds);
}
