// heddle/compute/ops/sums.hpp: operations that add up rows, in double and in fixed order.
#pragma once

#include <heddle/compute/op.hpp>
#include <heddle/compute/ops/elementwise.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::compute {
namespace detail {
/// Elements of one part of a sum over a whole row of numbers, whoever adds them, so that the order depends on their count alone.
inline constexpr std::int64_t sum_block = 4096;
/// Parts of a sum of n elements.
HEDDLE_HD constexpr std::int64_t sum_blocks(std::int64_t n) noexcept {
  return (n + sum_block - 1) / sum_block;
}
}  // namespace detail

namespace ops {

/// out += the sum of x^2.
struct sum_of_squares : element_operation {
  static constexpr const char* name = "sum_of_squares";
  static constexpr const char* arguments[] = {"x", "out"};
  using takes = signature<in<elements>, total>;
  static constexpr std::int64_t flops(const dims& n) { return 2 * n.product(); }
};
/// out += how many elements of x are infinite or NaN, also where the compiler assumes that none is.
struct count_nonfinite : element_operation {
  static constexpr const char* name = "count_nonfinite";
  static constexpr const char* arguments[] = {"x", "out"};
  using takes = signature<in<elements>, total>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
};
/// out += the sum of (x - target)^2.
struct squared_error : element_operation {
  static constexpr const char* name = "squared_error";
  static constexpr const char* arguments[] = {"x", "target", "out"};
  using takes = signature<in<elements>, in<elements>, total>;
  static constexpr std::int64_t flops(const dims& n) { return 3 * n.product(); }
};
/// x = 2 scale (x - target).
struct squared_error_backward : element_operation {
  static constexpr const char* name = "squared_error_backward";
  static constexpr const char* arguments[] = {"x", "target", "scale"};
  using takes = signature<inout<elements>, in<elements>, number>;
  static constexpr std::int64_t flops(const dims& n) { return 2 * n.product(); }
};
/// out += the sum over rows of log(sum) + (m - picked), without rows of negative (ignored) targets. `m`, `sum` and `picked` are
/// those of `cross_entropy_facet`, of the whole vocabulary.
struct cross_entropy_loss : operation {
  static constexpr const char* name = "cross_entropy_loss";
  static constexpr const char* arguments[] = {"m", "sum", "picked", "targets", "out"};
  using dims = sizes<rows>;
  using takes = signature<in_sums<rows>, in_sums<rows>, in_sums<rows>, in_ids<rows>, total>;
  static constexpr std::int64_t flops(const dims& n) { return 4 * n.product(); }
};
}  // namespace ops

/// Sums of squares and counts of numbers that are not finite.
struct reduction_facet : operations<ops::sum_of_squares, ops::count_nonfinite> {};
/// Squared errors and their gradient.
struct squared_error_facet : operations<ops::squared_error, ops::squared_error_backward> {};
/// The sum of cross-entropies.
struct loss_facet : operations<ops::cross_entropy_loss> {};

/// What an operation adds to its last argument, a total: `sum_of<ops::sum_of_squares>(backend, x)`. Waits for the backend's queue.
template <class Op, class B, class... V>
double sum_of(B& backend, const V&... v) {
  using space = space_of<B>;
  double sum = 0;
  if constexpr (std::is_same_v<space, host_memory>) {
    run<Op>(backend, v..., &sum);
  } else {
    auto& queue = backend.queue();
    buffer<double, space> there(queue, 1, "a sum");
    queue.zero(there);
    run<Op>(backend, v..., scalar_view<double, space>(there.address(), {}));
    queue.copy(there, std::span<double>(&sum, 1));
    queue.wait();
  }
  return sum;
}
/// Whether there is neither an infinity nor a NaN. Waits for the backend's queue.
template <class B, class X>
bool all_finite(B& backend, const X& x) {
  return sum_of<ops::count_nonfinite>(backend, x) == 0;
}

}  // namespace heddle::inline v0::compute
