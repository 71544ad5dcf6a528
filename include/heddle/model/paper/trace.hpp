// heddle/model/paper/trace.hpp: called kernels: calls, operations, bytes.
#pragma once

#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace heddle::inline v0::model {

/// What a device can do, for the time of a kernel as its roofline: the longer of computing and moving, and the launch.
/// Source: Williams, Waterman and Patterson 2009, Communications of the ACM 52 (4).
struct roofline {
  double flops = 1;             ///< per second, of matrix products and attention
  double bytes_per_second = 1;  ///< of its memory
  double efficiency = 1;        ///< share of `flops` that large products reach
  double launch_seconds = 0;    ///< of each kernel
  constexpr double seconds(double kernel_flops, double kernel_bytes) const noexcept {
    return (std::max)(kernel_flops / (flops * efficiency), kernel_bytes / bytes_per_second) + launch_seconds;
  }
};

/// Calls of one kernel with one shape. `flops` and `bytes` are of one call: those of matrix products and attention, and the
/// arguments in memory, each once.
struct kernel_calls {
  std::string_view name{};
  std::int64_t flops = 0;
  std::int64_t bytes = 0;
  std::int64_t calls = 0;
};

/// The calls of a backend, by kernel and shape. A multiplication and an addition are two operations, as in
/// `config.flops_per_token()`; attention counts pairs that the mask leaves, its backward the four products that a
/// backward needs and not the scores that kernels compute again.
class kernel_trace {
 public:
  void note(std::string_view name, std::int64_t flops, std::int64_t bytes) {
    for (kernel_calls& k : all_)
      if (k.flops == flops && k.bytes == bytes && k.name == name) {
        ++k.calls;
        return;
      }
    all_.push_back({name, flops, bytes, 1});
  }
  void clear() noexcept { all_.clear(); }
  std::span<const kernel_calls> kernels() const noexcept { return all_; }
  std::int64_t calls() const noexcept {
    return sum([](const kernel_calls& k) { return k.calls; });
  }
  std::int64_t flops() const noexcept {
    return sum([](const kernel_calls& k) { return k.calls * k.flops; });
  }
  std::int64_t bytes() const noexcept {
    return sum([](const kernel_calls& k) { return k.calls * k.bytes; });
  }
  /// Units: seconds. Kernels one after another.
  double seconds(const roofline& device) const noexcept {
    double all = 0;
    for (const kernel_calls& k : all_)
      all += static_cast<double>(k.calls) * device.seconds(static_cast<double>(k.flops), static_cast<double>(k.bytes));
    return all;
  }

 private:
  template <class F>
  std::int64_t sum(F&& of) const noexcept {
    std::int64_t n = 0;
    for (const kernel_calls& k : all_) n += of(k);
    return n;
  }
  std::vector<kernel_calls> all_;
};

namespace detail {

// Bytes of an argument in memory; 0 of numbers and flat structs.
template <class X>
constexpr std::int64_t bytes_of_argument(const X&) noexcept {
  return 0;
}
template <class T, class Shape, class Space>
constexpr std::int64_t bytes_of_argument(const view<T, Shape, Space>& x) noexcept {
  return x.size() * static_cast<std::int64_t>(sizeof(T));
}
template <class T>
constexpr std::int64_t bytes_of_argument(const std::span<T>& x) noexcept {
  return static_cast<std::int64_t>(x.size_bytes());
}
template <class T, class Space>
constexpr std::int64_t bytes_of_argument(const compute::head_rows<T, Space>& x) noexcept {
  return x.rows * x.width() * static_cast<std::int64_t>(sizeof(T));
}

// Query-key pairs of equal causal sequences that lie one behind the other.
constexpr std::int64_t causal_pairs(std::int64_t sequences, std::int64_t rows) noexcept {
  const std::int64_t length = sequences == 0 ? 0 : rows / sequences;
  return sequences * (length * (length + 1) / 2);
}

}  // namespace detail

}  // namespace heddle::inline v0::model
