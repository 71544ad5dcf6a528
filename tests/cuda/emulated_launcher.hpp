// Launches of the CUDA backend's bodies on the host: jobs of a stream of the stand-in for CUDA, in which groups of threads run them.
#pragma once

#include "double.hpp"
#include "emulated_warp.hpp"
#include "group_of_threads.hpp"

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/cuda/memory.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

namespace cuda_double {

/// Launches of `launch_each`, by all threads together.
inline std::atomic<int>& launches() {
  static std::atomic<int> count{0};
  return count;
}

}  // namespace cuda_double

namespace heddle::inline v0 {
// Where nvcc compiles, this is in heddle/tensor/cuda/memory.hpp.
template <class Body>
void launch_each(cuda_memory::queue& queue, std::int64_t n, const Body& body) {
  static_assert(sizeof(Body) + sizeof(n) <= cuda_memory::queue::largest_kernel_argument);
  if (n <= 0) return;
  ++cuda_double::launches();
  cuda_double::give_arguments(queue.stream(), &body, sizeof body);
  cuda_double::enqueue(queue.stream(), [=] {
    for (std::int64_t i = n; i-- > 0;) body(i);  // no order is promised
  });
}
// And this in heddle/compute/cuda/stream_launcher.hpp.
inline void exclusive_sum(cuda_memory::queue& queue, std::int64_t n, const std::int64_t* in, std::int64_t* out) {
  ++cuda_double::launches();
  cuda_double::enqueue(queue.stream(), [=] { std::exclusive_scan(in, in + n, out, std::int64_t{0}); });
}
}  // namespace heddle::inline v0

namespace cuda_double {

/// What devices offer a group in bytes of shared memory; 0: what `emulated_launcher` takes by itself.
inline std::atomic<std::int64_t>& offered_to_groups() {
  static std::atomic<std::int64_t> bytes{0};
  return bytes;
}
/// The edge of the tiles that were launched last.
inline std::atomic<std::int64_t>& last_edge() {
  static std::atomic<std::int64_t> edge{0};
  return edge;
}

/// Whether devices have the matrix instructions of warps.
inline std::atomic<bool>& has_matrix_instructions() {
  static std::atomic<bool> has{true};
  return has;
}
/// Kernels of warps that were launched, by all threads together.
inline std::atomic<int>& matrix_kernels() {
  static std::atomic<int> count{0};
  return count;
}

/// The most bytes that a kernel's room between had since this was set, by all threads together.
inline std::atomic<std::int64_t>& largest_room() {
  static std::atomic<std::int64_t> bytes{0};
  return bytes;
}

/// Kernels that launchers were given, products among them, by all threads together; a sort counts as one.
inline std::atomic<int>& kernels() {
  static std::atomic<int> count{0};
  return count;
}
/// Products that launchers were given.
inline std::atomic<int>& products_made() {
  static std::atomic<int> count{0};
  return count;
}

/// Whether the stand-in for the library of products has epilogues; without, backends make the same in two steps.
inline std::atomic<bool>& has_epilogues() {
  static std::atomic<bool> has{true};
  return has;
}
/// How many products with each end were made, by all threads together.
inline std::array<std::atomic<int>, 5>& ended_products() {
  static std::array<std::atomic<int>, 5> count{};
  return count;
}

/// How the stand-in for the library multiplies 8 bits: by itself, not at all with bf16 in its place, or not at all.
enum class float8_way { library, as_bf16, none };
inline std::atomic<float8_way>& float8_of_library() {
  static std::atomic<float8_way> way{float8_way::library};
  return way;
}
/// Whether it has those with a factor for each row.
inline std::atomic<bool>& float8_rows_of_library() {
  static std::atomic<bool> has{true};
  return has;
}
/// Products in 8 bits that were made, by all threads together.
inline std::atomic<int>& float8_products() {
  static std::atomic<int> count{0};
  return count;
}

/// A thread of a group of `size`, with the group's memory.
class group_thread {
 public:
  struct shared {
    explicit shared(group_of_threads& of) : all(of), values(static_cast<std::size_t>(of.size())) {}
    group_of_threads& all;
    std::vector<double> values;
  };
  group_thread(shared& group, int rank, int size) : group_(group), rank_(rank), size_(size) {}
  int rank() const { return rank_; }
  int size() const { return size_; }
  bool leads() const { return rank_ == 0; }
  void sync() { group_.all.sync(); }
  template <class T>
  T sum(T x) {
    return combined(x, [](T a, T b) { return a + b; });
  }
  template <class T>
  T largest(T x) {
    return combined(x, [](T a, T b) { return heddle::compute::detail::on_cuda::larger(a, b); });
  }

 private:
  template <class T, class Op>
  T combined(T x, Op op) {
    group_.values[static_cast<std::size_t>(rank_)] = static_cast<double>(x);
    sync();
    T all = static_cast<T>(group_.values[0]);
    for (int r = 1; r < size_; ++r) all = op(all, static_cast<T>(group_.values[static_cast<std::size_t>(r)]));
    sync();
    return all;
  }
  shared& group_;
  int rank_, size_;
};

/// `Size` threads in each group.
template <int Size>
struct emulated_launcher : heddle::compute::detail::on_cuda::launcher_base {
  struct products {
    static constexpr const char *name = "of the test", *half_name = "of the test, in float";
    explicit products(heddle::cuda_memory::queue&) {}
  };
  heddle::cuda_memory::queue& queue;
  emulated_launcher(heddle::cuda_memory::queue& on, products&) : queue(on) {}

  template <class Body>
  void each(std::int64_t n, Body body) const {
    ++kernels();
    enqueue(queue.stream(), [=] {
      for (std::int64_t i = 0; i < n; ++i) body(i);
    });
  }
  template <class Body>
  void each_row(std::int64_t rows, std::int64_t, Body body) const {
    groups(rows, body);
  }
  template <class Body>
  void each_column(std::int64_t columns, Body body) const {
    groups(columns, body);
  }
  /// What attention in parts of the keys may keep of its queries at once: groups of three have room for few.
  static constexpr std::int64_t split_room = Size == 3 ? 4 << 10 : 1 << 20;
  /// Groups of one have large tiles, groups of two and three tiles of eight rows in the tests, and larger groups none: they go key by key.
  std::int64_t tile_bytes() const {
    if (const std::int64_t offered = offered_to_groups(); offered != 0)
      return heddle::compute::detail::on_cuda::tile_bytes_of(offered);
    return Size == 1 ? 1 << 20 : Size <= 3 ? 3 << 10 : 0;
  }
  template <class T, class Body>
  void each_tile(std::int64_t items, std::int64_t edge, std::int64_t elements, Body body) const {
    last_edge() = edge;
    const auto memory = std::make_shared<std::vector<T>>(static_cast<std::size_t>(elements));
    groups(items, [=](group_thread& thread, std::int64_t i) { body(thread, i, memory->data()); });
  }
  bool multiplies_matrices() const { return has_matrix_instructions(); }
  template <class T, class Body>
  void each_item_of_warps(std::int64_t items, Body body) const {
    ++kernels();
    ++matrix_kernels();
    const auto memory =
        std::make_shared<std::vector<T>>(static_cast<std::size_t>(Body::elements) + 64, T::from_bits(0x7fff));
    enqueue(queue.stream(), [=] {
      auto at = reinterpret_cast<std::uintptr_t>(memory->data());
      T* const aligned = reinterpret_cast<T*>((at + 127) / 128 * 128);
      group_of_threads block(Body::warps);
      block.run([&](int index) {
        emulated_warp w(block, index);
        for (std::int64_t i = 0; i < items; ++i) body(w, i, aligned);
      });
    });
  }
  template <class T>
  heddle::buffer<T, heddle::cuda_memory> room(std::int64_t n) const {
    const std::int64_t bytes = n * static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t most = largest_room(); most < bytes && !largest_room().compare_exchange_weak(most, bytes);) {
    }
    return heddle::buffer<T, heddle::cuda_memory>(queue, n);
  }
  template <class Key>
  void sort_places(const Key* keys, std::int64_t n, Key* sorted, std::int32_t* places,
                   [[maybe_unused]] int bits = 0) const {
    ++kernels();
    enqueue(queue.stream(), [=] {
      std::iota(places, places + n, 0);
      std::sort(places, places + n,
                [&](std::int32_t a, std::int32_t b) { return keys[a] != keys[b] ? keys[a] < keys[b] : a < b; });
      for (std::int64_t i = 0; i < n; ++i) sorted[i] = keys[places[i]];
    });
  }
  void lower_bounds(const std::int32_t* sorted, std::int64_t n, std::int64_t count, std::int64_t* bounds) const {
    enqueue(queue.stream(), [=] {
      for (std::int64_t v = 0; v < count; ++v) bounds[v] = std::lower_bound(sorted, sorted + n, v) - sorted;
    });
  }
  template <bool TA, bool TB, class In, class Out, class Sum>
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const In* a, const In* b, Out* c, Sum beta) const {
    ++kernels();
    ++products_made();
    enqueue(queue.stream(), [=] {
      each_of_product<TA, TB>(
          m, n, k, a, b, [&](std::int64_t i, Sum sum) { c[i] = Out(sum + (beta == Sum(0) ? Sum(0) : beta * c[i])); });
    });
  }
  template <bool TA, bool TB, class In, class Out, class Sum>
  bool multiply_ending(std::int64_t m, std::int64_t n, std::int64_t k, const In* a, const In* b, Out* c, Sum beta,
                       const heddle::compute::detail::on_cuda::product_ending<Out>& with) const {
    using heddle::compute::detail::on_cuda::product_end;
    if (!has_epilogues()) return false;
    ++kernels();
    ++products_made();
    ++ended_products()[static_cast<std::size_t>(with.end)];
    const auto gelu = [](double x) { return 0.5 * x * (1 + std::tanh(inner_of_gelu(x))); };
    const auto slope = [](double x) {
      const double t = std::tanh(inner_of_gelu(x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / std::acos(-1.0)) * (1 + 3 * 0.044715 * x * x);
    };
    enqueue(queue.stream(), [=] {
      each_of_product<TA, TB>(m, n, k, a, b, [&](std::int64_t i, Sum sum) {
        if (beta != Sum(0)) sum += beta * static_cast<Sum>(c[i]);
        if (with.bias != nullptr) sum += static_cast<Sum>(with.bias[i % n]);
        if (with.end == product_end::gelu_of_bias) {
          with.before[i] = static_cast<Out>(sum);
          sum = static_cast<Sum>(gelu(static_cast<double>(sum)));
        }
        if (with.end == product_end::gelu_derivative)
          sum *= static_cast<Sum>(slope(static_cast<double>(with.before[i])));
        c[i] = static_cast<Out>(sum);
      });
      const auto sum_up = [&](const In* x, std::int64_t count, bool by_columns) {
        for (std::int64_t i = 0; i < count; ++i) {
          double sum = 0;
          for (std::int64_t p = 0; p < k; ++p) sum += static_cast<double>(x[by_columns ? p * count + i : i * k + p]);
          with.sums[i] = static_cast<Out>(static_cast<Sum>(sum));
        }
      };
      if (with.end == product_end::sums_of_left) sum_up(a, m, TA);
      if (with.end == product_end::sums_of_right) sum_up(b, n, !TB);
    });
    return true;
  }
  bool multiplies_float8() const {
    if (float8_of_library() == float8_way::none) heddle::compute::detail::on_cuda::refuse_float8(queue.device(), 8, 0);
    return float8_of_library() == float8_way::library;
  }
  /// Of what cuBLASLt refuses, the test would get a NaN.
  template <class A, class B, class Out>
  void multiply_float8(std::int64_t m, std::int64_t n, std::int64_t k, const A* a, const B* b, Out* c, float beta,
                       const float* factor_a, const float* factor_b) const {
    multiply_float8_as<false>(m, n, k, a, b, c, beta, factor_a, factor_b);
  }
  template <class A, class B, class Out>
  bool multiply_float8_rows(std::int64_t m, std::int64_t n, std::int64_t k, const A* a, const B* b, Out* c, float beta,
                            const float* factor_a, const float* factor_b) const {
    if (!float8_rows_of_library()) return false;
    multiply_float8_as<true>(m, n, k, a, b, c, beta, factor_a, factor_b);
    return true;
  }

 private:
  // f(i, element i) of op(a) op(b), row by row.
  template <bool TA, bool TB, class In, class F>
  static void each_of_product(std::int64_t m, std::int64_t n, std::int64_t k, const In* a, const In* b, const F& f) {
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        heddle::sum_of_type<In> sum = 0;
        for (std::int64_t p = 0; p < k; ++p) sum += a[TA ? p * m + i : i * k + p] * b[TB ? j * k + p : p * n + j];
        f(i * n + j, sum);
      }
  }
  template <bool ByRows, class A, class B, class Out>
  void multiply_float8_as(std::int64_t m, std::int64_t n, std::int64_t k, const A* a, const B* b, Out* c, float beta,
                          const float* factor_a, const float* factor_b) const {
    ++float8_products();
    const auto fits = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; };
    const bool taken = m % 16 == 0 && n % 16 == 0 && k % 16 == 0 && fits(a) && fits(b) && fits(c);
    enqueue(queue.stream(), [=] {
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          float sum = taken ? 0.0f : std::nanf("");
          for (std::int64_t p = 0; p < k; ++p)
            sum += static_cast<float>(a[i * k + p]) * static_cast<float>(b[j * k + p]);
          const float scaled = factor_a == nullptr ? sum : sum * (factor_a[ByRows ? i : 0] * factor_b[ByRows ? j : 0]);
          c[i * n + j] = Out(beta == 0 ? scaled : beta * static_cast<float>(c[i * n + j]) + scaled);
        }
    });
  }

  // Of the tanh form of GELU: 0.5 x (1 + tanh of this).
  static double inner_of_gelu(double x) { return std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x); }
  template <class Body>
  void groups(std::int64_t count, Body body) const {
    ++kernels();
    enqueue(queue.stream(), [=] {
      group_of_threads threads(Size);
      group_thread::shared group(threads);
      threads.run([&](int rank) {
        group_thread thread(group, rank, Size);
        for (std::int64_t i = 0; i < count; ++i) body(thread, i);
      });
    });
  }
};

}  // namespace cuda_double
