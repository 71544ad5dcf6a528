// Kernels of the CUDA backend and collectives of ranks that share a GPU, against what the same device does at best: a copy of memory for
// kernels that move bytes, the largest square product for those that multiply. A table on standard output, in Markdown.
//   nvcc -std=c++20 -O2 -arch=native -Iinclude benchmarks/cuda_kernels.cu -o cuda_kernels -lcublasLt
//   ./cuda_kernels [bytes] [products] [attention] [ranks]     without words all parts
// Lines `result <name> <number> <unit>` among those of the table are for gpu_summary.py. Attention has the shapes of attention_cuda.py, in 16 bits
// too where the backend has that. Times are from the first launch until the queue has done the last of a batch, divided by the batch:
// medians of 15 batches, of 5 where a call takes over 20 ms. Bytes are those that the kernel must read and write once; products count two
// operations per multiplication. An all_reduce of n numbers of b bytes on each of r ranks must read and write 2 r n b bytes: that over the
// bandwidth of a copy, which counts both too, is its bound.
#include <heddle/comm/threads.hpp>
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/gemm_peak.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/tensor/space_collectives.hpp>

#include "bf16_peak.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace hc = heddle::compute;
using space = hd::cuda_memory;
using clock_type = std::chrono::steady_clock;

namespace {

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// Seconds of one call of `work`, which puts work in the queue.
template <class Work>
double seconds_of(space::queue& queue, const Work& work) {
  work();
  queue.wait();
  const auto timed = [&](int calls) {
    const auto start = clock_type::now();
    for (int i = 0; i < calls; ++i) work();
    queue.wait();
    return std::chrono::duration<double>(clock_type::now() - start).count() / calls;
  };
  const double once = timed(3);
  const int calls = static_cast<int>((std::clamp)(2e-3 / once, 1.0, 200.0)), batches = once > 20e-3 ? 5 : 15;
  std::vector<double> all;
  for (int i = 0; i < batches; ++i) all.push_back(timed(calls));
  return median(all);
}

// Numbers that differ from each other, of about unit size.
template <class T>
hd::buffer<T, space> numbers_by(space::queue& queue, std::int64_t n) {
  hd::buffer<T, space> x(queue, n, "numbers of a benchmark");
  std::vector<T> here(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < here.size(); ++i)
    here[i] = static_cast<T>(static_cast<float>((i * 2654435761u) % 2001) / 1000.0f - 1.0f);
  queue.copy(std::span<const T>(here), x);
  queue.wait();
  return x;
}

struct device {
  hc::cuda backend{};
  double copy_bytes_per_second = 0, peak = 0, bf16_peak = 0;

  space::queue& queue() { return backend.queue(); }
  template <class T = float>
  hd::buffer<T, space> numbers(std::int64_t n) {
    return numbers_by<T>(queue(), n);
  }
  hd::buffer<std::int32_t, space> ids(std::int64_t n, std::int32_t below) {
    hd::buffer<std::int32_t, space> x(queue(), n, "ids of a benchmark");
    std::vector<std::int32_t> here(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < here.size(); ++i)
      here[i] = static_cast<std::int32_t>((i * 7919) % static_cast<std::size_t>(below));
    queue().copy(std::span<const std::int32_t>(here), x);
    queue().wait();
    return x;
  }
  // `key`: the name of its result; null where nobody asks for one.
  template <class Work>
  void bytes(const char* name, const char* key, double moved, const Work& work) {
    moved_in(name, key, moved, seconds_of(queue(), work));
  }
  void moved_in(const std::string& name, const std::string& key, double moved, double t) {
    const double ratio = moved / t / copy_bytes_per_second;
    std::printf("| %s | %.1f | %.0f GB/s | %.2f of a copy |\n", name.c_str(), t * 1e6, moved / t * 1e-9, ratio);
    result("heddle." + key, ratio, "of_copy");
  }
  void result(const std::string& name, double value, const char* unit) {
    std::printf("result %s %.6g %s\n", name.c_str(), value, unit);
  }
  template <class Work>
  double operations(const std::string& name, double count, double peak, const Work& work) {
    const double t = seconds_of(queue(), work);
    std::printf("| %s | %.1f | %.2f TFLOP/s | %.2f of a product |\n", name.c_str(), t * 1e6, count / t * 1e-12,
                count / t / peak);
    return t;
  }
};

template <class T>
hd::matrix_view<T, space> matrix(hd::buffer<T, space>& x, std::int64_t rows, std::int64_t columns) {
  return {x.address(), hd::dynamic_shape<2>(rows, columns)};
}

void rows_of_a_transformer(device& d) {
  constexpr std::int64_t rows = 8192, width = 4096, n = rows * width;
  constexpr double element = sizeof(float);
  auto& b = d.backend;
  auto x = d.numbers(n), y = d.numbers(n), z = d.numbers(n), v = d.numbers(n), w = d.numbers(width),
       bias = d.numbers(width);
  auto mean = d.numbers(rows), scale = d.numbers(rows);
  d.bytes("gelu", "gelu", 2 * element * n, [&] { hc::run<hc::ops::gelu>(b, x.view(), y.view()); });
  d.bytes("add", "add", 3 * element * n, [&] { hc::run<hc::ops::add>(b, x.view(), y.view(), z.view()); });
  d.bytes("layer norm", "norm.layer", 2 * element * n, [&] {
    hc::run<hc::ops::layer_norm>(b, matrix(x, rows, width), w.view(), bias.view(), 1e-5f, matrix(y, rows, width),
                                 mean.view(), scale.view());
  });
  d.bytes("layer norm, gradient of the input", "norm.layer_backward", 4 * element * n, [&] {
    hc::run<hc::ops::layer_norm_backward_input>(b, matrix(x, rows, width), matrix(y, rows, width), w.view(),
                                                mean.view(), scale.view(), matrix(z, rows, width));
  });
  d.bytes("root mean square norm", "norm.rms", 2 * element * n, [&] {
    hc::run<hc::ops::rms_norm>(b, matrix(x, rows, width), w.view(), 1e-5f, matrix(y, rows, width), scale.view());
  });
  d.bytes("AdamW over a bucket of 2^25 numbers", "adamw", 7 * element * n,
          [&] { hc::run<hc::ops::adamw>(b, x.view(), y.view(), z.view(), v.view(), hc::adamw_step{}); });
}

void cross_entropy(device& d) {
  constexpr std::int64_t tokens = 2048, words = 50304;  // rows begin at multiples of 16 bytes
  constexpr double element = sizeof(float);
  auto& b = d.backend;
  auto logits = d.numbers(tokens * words);
  auto m = d.numbers(tokens), sum = d.numbers(tokens), picked = d.numbers(tokens);
  const auto targets = d.ids(tokens, words);
  d.bytes("cross-entropy, forward in three kernels that read twice", "cross_entropy.two_reads",
          2 * element * tokens * words, [&] {
            hc::run<hc::ops::row_max>(b, matrix(logits, tokens, words), m.view());
            hc::run<hc::ops::row_sum_exp>(b, matrix(logits, tokens, words), m.view(), sum.view());
            hc::run<hc::ops::pick_target>(b, matrix(logits, tokens, words), targets.view(), 0, picked.view());
          });
  d.bytes("cross-entropy, forward in one kernel", "cross_entropy.forward", element * tokens * words, [&] {
    hc::run<hc::ops::add_to_softmax>(b, matrix(logits, tokens, words), targets.view(), 0, m.view(), sum.view(),
                                     picked.view());
  });
  d.bytes("cross-entropy, gradient", "cross_entropy.backward", 2 * element * tokens * words, [&] {
    hc::run<hc::ops::cross_entropy_backward>(b, matrix(logits, tokens, words), m.view(), sum.view(), targets.view(), 0,
                                             1.0f);
  });
}

// Every row once, in another order: 7919 is prime to the number of rows.
template <class Backend>
void permutations(device& d, Backend& b) {
  constexpr std::int64_t rows = 32768, width = 1024, n = rows * width;
  constexpr double moved = 2.0 * sizeof(float) * n;
  auto x = d.numbers(n), y = d.numbers(n);
  const auto order = d.ids(rows, rows);
  d.bytes("rows of 4 KiB permuted, as embedding", "permutation.embedding", moved,
          [&] { hc::run<hc::ops::embedding>(b, order.view(), matrix(x, rows, width), 0, matrix(y, rows, width)); });
  if constexpr (hc::offered<hc::ops::permute, Backend, float>)
    d.bytes("rows of 4 KiB permuted, as for experts", "permutation.permute", moved,
            [&] { hc::run<hc::ops::permute>(b, matrix(x, rows, width), order.view(), matrix(y, rows, width)); });
}

void products(device& d) {
  using hc::transpose;
  auto& b = d.backend;
  constexpr std::int64_t rows = 8192, width = 768, wide = 4 * width;
  auto x = d.numbers(rows * wide), y = d.numbers(rows * wide), w = d.numbers(width * wide);
  d.operations("product of 8192 x 768 by 768 x 3072", 2.0 * rows * width * wide, d.peak, [&] {
    hc::matmul<transpose::no, transpose::no>(b, matrix(x, rows, width), matrix(w, width, wide), matrix(y, rows, wide),
                                             0.0f);
  });
}

template <class T, class Backend>
void attention_of(device& d, Backend& b, const char* type) {
  for (const std::int64_t head_dim : {64, 128})
    for (const std::int64_t sequence : {1024, 4096}) {
      const hc::attention_shape s{
          .batch = 16384 / sequence, .sequence = sequence, .heads = 2048 / head_dim, .head_dim = head_dim};
      auto qkv = d.numbers<T>(s.rows() * 3 * s.width()), out = d.numbers<T>(s.rows() * s.width());
      auto lse = d.numbers(s.rows() * s.heads);
      auto dout = d.numbers<T>(s.rows() * s.width()), dqkv = d.numbers<T>(s.rows() * 3 * s.width());
      const double pairs = 0.5 * static_cast<double>(s.batch * s.heads * sequence * (sequence + 1));
      const std::string shape = ".d" + std::to_string(head_dim) + ".s" + std::to_string(sequence) + "." + type,
                        about = "causal attention in " + std::string(type) + ", " + std::to_string(s.batch) + " x " +
                                std::to_string(sequence) + " x " + std::to_string(s.heads) + " x " +
                                std::to_string(head_dim);
      const double peak = std::is_same_v<T, hd::bf16> ? d.bf16_peak : d.peak;
      const double forward = d.operations(about, 4 * pairs * static_cast<double>(head_dim), peak, [&] {
        hc::run<hc::ops::causal_attention>(b, matrix(qkv, s.rows(), 3 * s.width()), s, matrix(out, s.rows(), s.width()),
                                           lse.view());
      });
      d.result("heddle.attention.forward" + shape, forward * 1e6, "us");
      const double backward =
          d.operations(about + ", gradients", 10 * pairs * static_cast<double>(head_dim), peak, [&] {
            hc::run<hc::ops::causal_attention_backward>(
                b, matrix(dout, s.rows(), s.width()), matrix(qkv, s.rows(), 3 * s.width()),
                matrix(out, s.rows(), s.width()), lse.view(), s, matrix(dqkv, s.rows(), 3 * s.width()));
          });
      d.result("heddle.attention.backward" + shape, backward * 1e6, "us");
    }
}
template <class Backend>
void attention(device& d, Backend& b) {
  attention_of<float>(d, b, "float");
  if constexpr (hc::attention_facet::offered<Backend, hd::bf16>) attention_of<hd::bf16>(d, b, "bf16");
}

// Decoding: one query of each sequence over keys and values in pages, which are what is read; in parts of the keys, and by tiles of queries.
template <class T>
void decoding(device& d, const std::string& type) {
  constexpr std::int64_t keys = 4096, page = 16, heads = 32, kv_heads = 8, width = 128;
  for (std::int64_t sequences : {4, 16}) {  // one sequence's cache would stay in the L2
    sequences *= static_cast<std::int64_t>(sizeof(float) / sizeof(T));
    const std::int64_t rows = sequences * keys;
    auto q = d.numbers<T>(sequences * heads * width), k = d.numbers<T>(rows * kv_heads * width),
         v = d.numbers<T>(rows * kv_heads * width), out = d.numbers<T>(sequences * heads * width);
    auto lse = d.numbers(sequences * heads);
    auto pages = d.ids(rows / page, static_cast<std::int32_t>(rows / page));
    std::vector<hc::attention_slice> here;
    for (std::int64_t s = 0; s < sequences; ++s) here.push_back({s, s + 1, s * keys, (s + 1) * keys});
    hd::buffer<hc::attention_slice, space> slices(d.queue(), sequences, "slices of a benchmark");
    d.queue().copy(here, slices);
    d.queue().wait();
    const auto heads_of = [&](auto& x, std::int64_t n, std::int64_t h) {
      return hc::heads_of(matrix(x, n, h * width), h, width);
    };
    for (const std::int64_t most : {keys, std::int64_t{0}}) {
      const std::string name = std::to_string(sequences) + " queries of " + std::to_string(keys) + " keys in " + type +
                               ", " + (most > 0 ? "in parts of the keys" : "by tiles of queries");
      const std::string key =
          "decoding." + type + "." + std::to_string(sequences) + (most > 0 ? ".in_parts" : ".by_tiles");
      d.bytes(name.c_str(), key.c_str(), 2.0 * sizeof(T) * static_cast<double>(rows * kv_heads * width), [&] {
        const hd::row_view<const hc::attention_slice, space> seen = slices.view();
        hc::run<hc::ops::attention>(d.backend, heads_of(q, sequences, heads), heads_of(k, rows, kv_heads),
                                    heads_of(v, rows, kv_heads), seen, 0.088f, heads_of(out, sequences, heads),
                                    lse.view(), hc::key_pages_in<space>{pages.view(), page, most});
      });
    }
  }
}

// The least that a kernel of all ranks moves: each rank's elements read once, and written once.
void ranks_on_one_gpu(device& d) {
  constexpr std::int64_t n = std::int64_t{1} << 24;
  for (const int ranks : {2, 4, 8}) {
    double slowest = 0;
    hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{ranks}, [&](auto& world) {
      space::queue queue;
      auto x = numbers_by<float>(queue, n);
      auto& group = world.template along<hd::dp>();
      std::vector<double> all;
      for (int i = 0; i < 20; ++i) {
        queue.wait();
        world.control().barrier();
        const auto start = clock_type::now();
        for (int k = 0; k < 5; ++k) hd::all_reduce(queue, group, x, hd::maximum{});  // sums would grow
        queue.wait();
        all.push_back(std::chrono::duration<double>(clock_type::now() - start).count() / 5);
      }
      double mine = median(all);
      world.control().all_reduce(std::span(&mine, 1), hd::maximum{});
      if (world.rank() == 0) slowest = mine;
    });
    d.moved_in("all_reduce of 64 MiB on each of " + std::to_string(ranks) + " ranks",
               "all_reduce.r" + std::to_string(ranks), 2.0 * ranks * n * sizeof(float), slowest);
  }
}

bool asked_for(const char* part, int argc, char** argv) {
  bool all = true;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == part) return true;
    all = false;
  }
  return all;
}

int run(int argc, char** argv) {
  int devices = 0, driver = 0;
  const cudaError_t asked = cudaGetDeviceCount(&devices);
  if (asked != cudaSuccess || devices == 0) {
    std::printf("skipped: there is no GPU (%s)\n", cudaGetErrorString(asked));
    return 77;
  }
  cudaDeviceProp about{};
  hd::detail::require_cuda(cudaGetDeviceProperties(&about, 0), "cudaGetDeviceProperties", 0);
  hd::detail::require_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion", 0);
  device d;
  {
    auto from = d.numbers(std::int64_t{1} << 28), to = d.numbers(std::int64_t{1} << 28);
    const double moved = 2.0 * sizeof(float) * static_cast<double>(from.size());
    d.copy_bytes_per_second = moved / seconds_of(d.queue(), [&] { d.queue().copy(from, to); });
  }
  d.peak = hc::measure_gemm_peak<float>(d.backend, 8192, 1.0);
  d.bf16_peak = peak_of_bf16(8192);
  std::printf(
      "%s, CUDA %d.%d; a copy moves %.0f GB/s (read and written), a product of 8192^3 %.1f TFLOP/s in float, %.1f in "
      "bf16\n\n",
      about.name, driver / 1000, driver / 10 % 100, d.copy_bytes_per_second * 1e-9, d.peak * 1e-12,
      d.bf16_peak * 1e-12);
  std::printf("| what | us | speed | ratio |\n|---|---|---|---|\n");
  d.result("heddle.copy", d.copy_bytes_per_second * 1e-9, "GB/s");
  if (asked_for("bytes", argc, argv)) {
    rows_of_a_transformer(d);
    cross_entropy(d);
    permutations(d, d.backend);
  }
  if (asked_for("products", argc, argv)) products(d);
  if (asked_for("attention", argc, argv)) {
    attention(d, d.backend);
    decoding<float>(d, "float");
    decoding<hd::bf16>(d, "bf16");
  }
  if (asked_for("ranks", argc, argv)) ranks_on_one_gpu(d);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
