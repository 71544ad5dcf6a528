// benchmarks/gpt2_kernels_bench.cpp: what the kernels of a GPT-2 124M training step cost, alone and in a step's order.
//
// The shape is llm.c's: 12 layers, width 768, 12 heads, vocabulary 50257, 4 sequences of 64 tokens, float, one rank.
// `step` calls the kernels in the order of forward, backward and AdamW, on a full set of weights, and reports tokens/s,
// MFU against the product of 1024 x 1024 matrices measured in the same process, and the milliseconds per kind of
// kernel, all of the fastest step. Compare builds with -O3 -march=native (HEDDLE_NATIVE) and without.
#include HEDDLE_GEMM_HEADER
#include <heddle/compute/gemm_peak.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/tensor/buffer.hpp>

#include <benchmark/benchmark.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {
namespace hd = heddle;
namespace hc = heddle::compute;
using backend_type = hc::host<HEDDLE_GEMM>;
using hc::transpose;
using std::int64_t;

constexpr int64_t layers = 12, width = 768, heads = 12, vocabulary = 50257, batch = 4, sequence = 64;
constexpr int64_t rows = batch * sequence, wide = 4 * width;
constexpr int threads = 2;

hd::matrix_view<float> matrix(float* data, int64_t m, int64_t n) {
  return {data, hd::dynamic_shape<2>(m, n)};
}
std::span<float> vec(float* data, int64_t n) {
  return {data, static_cast<std::size_t>(n)};
}

void spread(hd::buffer<float>& x, float size) {
  std::uint32_t state = 12345;
  for (float& v : x) {
    state = state * 1664525u + 1013904223u;
    v = size * (static_cast<float>(state >> 8) * 0x1p-23f - 1.0f);
  }
}

enum kind {
  products,
  head_products,
  attention,
  norms,
  gelu,
  biases_and_sums,
  cross_entropy,
  embeddings,
  optimizer,
  kinds
};
constexpr std::array<const char*, kinds> kind_names{"gemm_ms",          "head_gemm_ms", "attention_ms",
                                                    "layer_norm_ms",    "gelu_ms",      "bias_add_ms",
                                                    "cross_entropy_ms", "embedding_ms", "adamw_ms"};

/// One layer's parameters, in the order they lie in the flat buffer.
struct layer_weights {
  float *ln1_w, *ln1_b, *attn_w, *attn_b, *proj_w, *proj_b, *ln2_w, *ln2_b, *fc_w, *fc_b, *out_w, *out_b;
  float* carve(float* at) {
    const auto take = [&at](int64_t n) { return std::exchange(at, at + n); };
    ln1_w = take(width), ln1_b = take(width);
    attn_w = take(width * 3 * width), attn_b = take(3 * width);
    proj_w = take(width * width), proj_b = take(width);
    ln2_w = take(width), ln2_b = take(width);
    fc_w = take(width * wide), fc_b = take(wide);
    out_w = take(wide * width), out_b = take(width);
    return at;
  }
};
struct layer_saved {
  float *x, *normed1, *qkv, *mixed, *middle, *normed2, *hidden, *activated, *mean1, *rstd1, *mean2, *rstd2, *lse;
  float* carve(float* at) {
    const auto take = [&at](int64_t n) { return std::exchange(at, at + n); };
    x = take(rows * width), normed1 = take(rows * width), qkv = take(rows * 3 * width), mixed = take(rows * width);
    middle = take(rows * width), normed2 = take(rows * width), hidden = take(rows * wide),
    activated = take(rows * wide);
    mean1 = take(rows), rstd1 = take(rows), mean2 = take(rows), rstd2 = take(rows), lse = take(rows * heads);
    return at;
  }
};

constexpr int64_t layer_size = 12 * width * width + 13 * width;
constexpr int64_t parameters = vocabulary * width + 1024 * width + layers * layer_size + 2 * width;
constexpr int64_t saved_size = rows * (6 * width + 3 * width + 2 * wide + 4 + heads);

/// A GPT-2's kernels without a GPT-2: enough to time them where the data really lies.
class step {
 public:
  explicit step(backend_type& backend) : be(backend) {
    spread(weights, 0.02f);
    float *w = weights.data() + (vocabulary + 1024) * width, *g = gradients.data() + (vocabulary + 1024) * width;
    float* s = activations.data();
    for (int l = 0; l < layers; ++l) {
      w = weight[l].carve(w);
      g = gradient[l].carve(g);
      s = saved[l].carve(s);
    }
    final_w = w, final_dw = g;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int32_t>(i * 193 % vocabulary);
      targets[i] = static_cast<std::int32_t>((i + 1) * 193 % vocabulary);
    }
  }

  double run() {
    spent = {};
    const auto begin = clock::now();
    time<embeddings>([&] { hc::run<hc::ops::fill>(be, vec(gradients.data(), parameters), 0.0f); });
    forward();
    backward();
    time<optimizer>([&] {
      benchmark::DoNotOptimize(hc::sum_of<hc::ops::sum_of_squares>(be, vec(gradients.data(), parameters)));
      hc::run<hc::ops::adamw>(be, vec(weights.data(), parameters), vec(gradients.data(), parameters),
                              vec(first.data(), parameters), vec(second.data(), parameters),
                              hc::adamw_step{1e-4, 0.9, 0.95, 1e-8, 0.1, ++steps, 1.0});
    });
    return seconds(begin);
  }

  std::array<double, kinds> spent{};

 private:
  using clock = std::chrono::steady_clock;
  static double seconds(clock::time_point since) { return std::chrono::duration<double>(clock::now() - since).count(); }
  template <kind K, class Work>
  void time(Work work) {
    const auto begin = clock::now();
    work();
    spent[K] += seconds(begin);
  }

  void linear(float* in, float* w, float* b, float* out, int64_t n, int64_t m) {
    time<products>([&] { hc::matmul(be, matrix(in, rows, n), matrix(w, n, m), matrix(out, rows, m), 0.0f); });
    time<biases_and_sums>([&] { hc::run<hc::ops::add_bias>(be, matrix(out, rows, m), vec(b, m)); });
  }
  void linear_backward(float* in, float* w, float* dout, float* din, float* dw, float* db, int64_t n, int64_t m) {
    time<products>([&] {
      hc::matmul<transpose::no, transpose::yes>(be, matrix(dout, rows, m), matrix(w, n, m), matrix(din, rows, n), 0.0f);
      hc::matmul<transpose::yes, transpose::no>(be, matrix(in, rows, n), matrix(dout, rows, m), matrix(dw, n, m), 1.0f);
    });
    time<biases_and_sums>([&] { hc::run<hc::ops::add_bias_backward>(be, matrix(dout, rows, m), vec(db, m)); });
  }
  void norm(float* x, float* w, float* y, float* mean, float* rstd) {
    time<norms>([&] {
      hc::run<hc::ops::layer_norm>(be, matrix(x, rows, width), vec(w, width), vec(w + width, width), 1e-5f,
                                   matrix(y, rows, width), vec(mean, rows), vec(rstd, rows));
    });
  }
  void norm_backward(float* x, float* w, float* dy, float* mean, float* rstd, float* dx, float* dw) {
    time<norms>([&] {
      hc::run<hc::ops::layer_norm_backward_input>(be, matrix(dy, rows, width), matrix(x, rows, width), vec(w, width),
                                                  vec(mean, rows), vec(rstd, rows), matrix(dx, rows, width));
      hc::run<hc::ops::layer_norm_backward_weight>(be, matrix(dy, rows, width), matrix(x, rows, width), vec(mean, rows),
                                                   vec(rstd, rows), vec(dw, width), vec(dw + width, width));
    });
  }
  void sum(float* a, float* b, float* c) {
    time<biases_and_sums>(
        [&] { hc::run<hc::ops::add>(be, vec(a, rows * width), vec(b, rows * width), vec(c, rows * width)); });
  }

  void forward() {
    time<embeddings>([&] {
      hc::run<hc::ops::embedding>(be, ids, matrix(weights.data(), vocabulary, width), 0,
                                  matrix(saved[0].x, rows, width));
      hc::run<hc::ops::add_positions>(be, matrix(saved[0].x, rows, width),
                                      matrix(weights.data() + vocabulary * width, 1024, width), sequence);
    });
    for (int l = 0; l < layers; ++l) {
      const layer_weights& w = weight[l];
      const layer_saved& s = saved[l];
      norm(s.x, w.ln1_w, s.normed1, s.mean1, s.rstd1);
      linear(s.normed1, w.attn_w, w.attn_b, s.qkv, width, 3 * width);
      time<attention>([&] {
        hc::run<hc::ops::causal_attention>(be, matrix(s.qkv, rows, 3 * width), shape, matrix(s.mixed, rows, width),
                                           vec(s.lse, rows * heads));
      });
      linear(s.mixed, w.proj_w, w.proj_b, s.middle, width, width);
      sum(s.middle, s.x, s.middle);
      norm(s.middle, w.ln2_w, s.normed2, s.mean2, s.rstd2);
      linear(s.normed2, w.fc_w, w.fc_b, s.hidden, width, wide);
      time<gelu>([&] { hc::run<hc::ops::gelu>(be, vec(s.hidden, rows * wide), vec(s.activated, rows * wide)); });
      float* next = l + 1 < layers ? saved[l + 1].x : last.data();
      linear(s.activated, w.out_w, w.out_b, next, wide, width);
      sum(next, s.middle, next);
    }
    norm(last.data(), final_w, normed.data(), mean.data(), rstd.data());
    const auto scores = matrix(logits.data(), rows, vocabulary);
    time<head_products>([&] {
      hc::matmul<transpose::no, transpose::yes>(be, matrix(normed.data(), rows, width),
                                                matrix(weights.data(), vocabulary, width), scores, 0.0f);
    });
    time<cross_entropy>([&] {
      hc::run<hc::ops::row_max>(be, scores, vec(top.data(), rows));
      hc::run<hc::ops::row_sum_exp>(be, scores, vec(top.data(), rows), vec(total.data(), rows));
      hc::run<hc::ops::pick_target>(be, scores, targets, 0, vec(picked.data(), rows));
    });
  }

  void backward() {
    const auto scores = matrix(logits.data(), rows, vocabulary);
    time<cross_entropy>([&] {
      hc::run<hc::ops::cross_entropy_backward>(be, scores, vec(top.data(), rows), vec(total.data(), rows), targets, 0,
                                               1.0f / rows);
    });
    time<head_products>([&] {
      hc::matmul(be, scores, matrix(weights.data(), vocabulary, width), matrix(dy.data(), rows, width), 0.0f);
      hc::matmul<transpose::yes, transpose::no>(be, scores, matrix(normed.data(), rows, width),
                                                matrix(gradients.data(), vocabulary, width), 1.0f);
    });
    time<biases_and_sums>([&] { hc::run<hc::ops::fill>(be, vec(dx.data(), rows * width), 0.0f); });
    norm_backward(last.data(), final_w, dy.data(), mean.data(), rstd.data(), dx.data(), final_dw);
    for (int l = layers - 1; l >= 0; --l) {
      const layer_weights &w = weight[l], &g = gradient[l];
      const layer_saved& s = saved[l];
      linear_backward(s.activated, w.out_w, dx.data(), dwide.data(), g.out_w, g.out_b, wide, width);
      time<gelu>([&] {
        hc::run<hc::ops::gelu_backward>(be, vec(s.hidden, rows * wide), vec(dwide.data(), rows * wide),
                                        vec(dwide.data(), rows * wide));
      });
      linear_backward(s.normed2, w.fc_w, dwide.data(), dy.data(), g.fc_w, g.fc_b, width, wide);
      norm_backward(s.middle, w.ln2_w, dy.data(), s.mean2, s.rstd2, dx.data(), g.ln2_w);
      linear_backward(s.mixed, w.proj_w, dx.data(), dy.data(), g.proj_w, g.proj_b, width, width);
      time<attention>([&] {
        hc::run<hc::ops::causal_attention_backward>(be, matrix(dy.data(), rows, width), matrix(s.qkv, rows, 3 * width),
                                                    matrix(s.mixed, rows, width), vec(s.lse, rows * heads), shape,
                                                    matrix(dwide.data(), rows, 3 * width));
      });
      linear_backward(s.normed1, w.attn_w, dwide.data(), dy.data(), g.attn_w, g.attn_b, width, 3 * width);
      norm_backward(s.x, w.ln1_w, dy.data(), s.mean1, s.rstd1, dx.data(), g.ln1_w);
    }
    time<embeddings>([&] {
      hc::run<hc::ops::embedding_backward>(be, ids, matrix(dx.data(), rows, width), 0,
                                           matrix(gradients.data(), vocabulary, width));
      hc::run<hc::ops::add_positions_backward>(be, matrix(dx.data(), rows, width), sequence,
                                               matrix(gradients.data() + vocabulary * width, 1024, width));
    });
  }

  static constexpr hc::attention_shape shape{batch, sequence, heads, width / heads};
  backend_type& be;
  hd::buffer<float> weights{parameters}, gradients{parameters}, first{parameters}, second{parameters};
  hd::buffer<float> activations{layers * saved_size}, logits{rows * vocabulary};
  hd::buffer<float> last{rows * width}, normed{rows * width}, dx{rows * width}, dy{rows * width}, dwide{rows * wide};
  hd::buffer<float> mean{rows}, rstd{rows}, top{rows}, total{rows}, picked{rows};
  std::array<layer_weights, layers> weight{}, gradient{};
  std::array<layer_saved, layers> saved{};
  float *final_w = nullptr, *final_dw = nullptr;
  std::vector<std::int32_t> ids = std::vector<std::int32_t>(rows), targets = ids;
  int64_t steps = 0;
};

void whole_step(benchmark::State& state) {
  backend_type backend(threads);
  step kernels(backend);
  kernels.run();  // touches every page
  double peak = hc::measure_gemm_peak<float>(backend), best = 1e9;
  std::array<double, kinds> spent{};
  for (auto _ : state) {
    const double took = kernels.run();
    if (took < best) best = took, spent = kernels.spent;
  }
  peak = (std::max)(peak, hc::measure_gemm_peak<float>(backend));
  // 2 operations per weight and token forward, 4 backward; 2 + 4 per pair of tokens and column for each of the two
  // products of attention, of which the causal half counts.
  const double flops = 6.0 * static_cast<double>((parameters - 1024 * width) * rows) +
                       6.0 * static_cast<double>(layers * batch * sequence * sequence * width);
  state.SetLabel(backend.gemm_name());
  state.counters["tokens/s"] = static_cast<double>(rows) / best;
  state.counters["peak_GFLOP/s"] = peak * 1e-9;
  state.counters["MFU_%"] = 100 * flops / best / peak;
  for (std::size_t k = 0; k < kinds; ++k) state.counters[kind_names[k]] = spent[k] * 1e3;
}
BENCHMARK(whole_step)->Name("gpt2_124m/step")->Unit(benchmark::kMillisecond)->UseRealTime()->MinTime(3);

/// A product of one layer: forward (x w), to the input (dy w^T), to the weight (x^T dy).
template <transpose TA, transpose TB>
void product(benchmark::State& state, int64_t m, int64_t n, int64_t k, float beta) {
  backend_type backend(threads);
  hd::buffer<float> a(m * k), b(k * n), c(m * n);
  spread(a, 1), spread(b, 1);
  for (auto _ : state)
    hc::matmul<TA, TB>(backend, TA == transpose::no ? matrix(a.data(), m, k) : matrix(a.data(), k, m),
                       TB == transpose::no ? matrix(b.data(), k, n) : matrix(b.data(), n, k), matrix(c.data(), m, n),
                       beta);
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * static_cast<double>(m * n * k), benchmark::Counter::kIsIterationInvariantRate);
}
constexpr auto no = transpose::no, yes = transpose::yes;
const int registered = [] {
  struct linear {
    const char* name;
    int64_t in, out;
  };
  for (const linear l : {linear{"c_attn", width, 3 * width},
                         {"attn.c_proj", width, width},
                         {"c_fc", width, wide},
                         {"mlp.c_proj", wide, width}}) {
    const std::string name = std::string("gemm/") + l.name;
    benchmark::RegisterBenchmark((name + "/forward").c_str(), product<no, no>, rows, l.out, l.in, 0.0f)->UseRealTime();
    benchmark::RegisterBenchmark((name + "/input").c_str(), product<no, yes>, rows, l.in, l.out, 0.0f)->UseRealTime();
    benchmark::RegisterBenchmark((name + "/weight").c_str(), product<yes, no>, l.in, l.out, rows, 1.0f)->UseRealTime();
  }
  benchmark::RegisterBenchmark("gemm/head/forward", product<no, yes>, rows, vocabulary, width, 0.0f)->UseRealTime();
  benchmark::RegisterBenchmark("gemm/head/input", product<no, no>, rows, width, vocabulary, 0.0f)->UseRealTime();
  benchmark::RegisterBenchmark("gemm/head/weight", product<yes, no>, vocabulary, width, rows, 1.0f)->UseRealTime();
  return 0;
}();

void gelu_forward(benchmark::State& state) {
  backend_type backend(static_cast<int>(state.range(0)));
  hd::buffer<float> x(rows * wide), y(rows * wide);
  spread(x, 3);
  for (auto _ : state) hc::run<hc::ops::gelu>(backend, vec(x.data(), rows * wide), vec(y.data(), rows * wide));
  state.SetBytesProcessed(state.iterations() * rows * wide * 8);
  state.SetItemsProcessed(state.iterations() * rows * wide);
}
BENCHMARK(gelu_forward)->Name("gelu")->Arg(1)->Arg(2)->UseRealTime();

void adamw(benchmark::State& state) {
  backend_type backend(static_cast<int>(state.range(0)));
  constexpr int64_t n = 32 << 20;
  hd::buffer<float> p(n), g(n), m(n), v(n);
  spread(g, 1);
  for (auto _ : state)
    hc::run<hc::ops::adamw>(backend, vec(p.data(), n), vec(g.data(), n), vec(m.data(), n), vec(v.data(), n),
                            hc::adamw_step{});
  state.SetBytesProcessed(state.iterations() * n * 28);  // four read, three written
}
BENCHMARK(adamw)->Arg(1)->Arg(2)->UseRealTime();
}  // namespace

BENCHMARK_MAIN();
