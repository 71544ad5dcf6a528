// heddle/compute/cuda/launcher.hpp: launchers of kernels on CUDA streams (not run on a GPU).
//
// Bodies are objects whose call operators are functions of host and device both. On a GPU they are what the threads of a
// grid run; the same bodies run on threads of the host in tests, whose groups may be of any size.
#pragma once

#include <heddle/compute/group/threads.hpp>
#include <heddle/core/error.hpp>

#include <concepts>
#include <string>

namespace heddle::inline v0::compute::detail::on_cuda {

using in_groups::for_each_of;
using in_groups::larger;
using in_groups::math;
using in_groups::row_threads;
using in_groups::sum_over;
using in_groups::tile_bytes_of;

/// What becomes of a product before it is written, or is made beside it: a bias is added; that, and GELU in its tanh form of it; the product times the derivative of
/// GELU; the sums of the left or the right operand over what the product adds up.
enum class product_end { bias, gelu_of_bias, gelu_derivative, sums_of_left, sums_of_right };

/// With what: `bias` [columns]; `before` [rows, columns], what GELU is taken of: written with `gelu_of_bias`, read with `gelu_derivative`; `sums`
/// [rows or columns], which are overwritten.
template <class T>
struct product_ending {
  product_end end;
  const T* bias = nullptr;
  T* before = nullptr;
  T* sums = nullptr;
};

/// Errors: `config_error`, which this is.
[[noreturn]] inline void refuse_float8(int device, int major, int minor) {
  throw config_error("heddle: products in 8 bits (float8) need compute capability 8.9 or higher; CUDA device " +
                     std::to_string(device) + " has " + std::to_string(major) + "." + std::to_string(minor) +
                     ": take compute::cuda_float8_in_bf16, which multiplies the same rounded numbers as bf16, or leave "
                     "products_in<float8> or products_in<float8_rows> out of precision<...>");
}

/// The base of launchers, which brings the bodies of this namespace to calls of `body(operation, launcher, ...)`. A launcher has
/// - `each(n, body)`: body(i) for every i in [0, n);
/// - `each_row(rows, columns, body)`: body(group, i) for every row i, whose group shares so many columns (packs of columns, where its threads take those);
/// - `each_column(columns, body)`: body(group, j) for every column j;
/// - `each_tile<T>(items, edge, n, body)`: body(group, i, memory) for every item i, whose group shares memory of n elements of T and
///   has `sync()`, after which its threads see what the others wrote there; n elements have up to `tile_bytes()`;
/// - `multiplies_matrices()`: whether the device has the instructions of warps (compute/group/warps.hpp); `each_item_of_warps<T>(items, body)`: body(w, i, memory) for every item
///   i, by blocks of `Body::warps` warps that share memory of `Body::elements` elements of T from a multiple of 128 bytes on;
/// - `room<T>(n)`: n elements on the device for the kernels that follow, with `address()`, given back in the order of the queue;
/// - `multiply<TA, TB>(m, n, k, a, b, c, beta)`: c = op(a) op(b) + beta c, by the library of `products`, which has names;
/// - `multiply_ending<TA, TB>(m, n, k, a, b, c, beta, ending)`: the same with such an end, if the library has that for these sizes, types
///   and addresses; else it does nothing and returns false;
/// - `multiplies_float8()`: whether the library multiplies operands of 8 bits here; false: products of bf16 stand in for them. Errors: `config_error` where neither is wanted;
/// - `multiply_float8(m, n, k, a, b, c, beta, factor_a, factor_b)`: c[m, n] = factor_a[0] factor_b[0] a[m, k] b[n, k]' + beta c, of operands of 8 bits, added up in float; factors on
///   the device, or null for 1; sizes are multiples of 16 and addresses of 16 bytes;
/// - `multiply_float8_rows(...)`: the same with factors factor_a[i] factor_b[j], if the library has that here; else it does nothing and returns false;
/// - `attend_by_library(in, out, lse)`: attention of 16-bit elements (`in_groups::attention_inputs`, `heads_at`, lse of float on the device) by a library, if it has that for these
///   sizes, masks and addresses; else it does nothing and returns false, as here. Slices and pages lie on the device and are not looked at: `causal_batch` says all that it masks;
/// - `attend_backward_by_library(in, dout, out, lse, dq, dk, dv)`: the same of its gradients;
/// - `sort_places(keys, n, sorted, places, bits)`: keys in ascending order and where they were, equal keys in the order they had; of keys that are
///   not negative it may look at the lowest `bits` only, as all of them without it;
/// - `lower_bounds(sorted, n, count, bounds)`: bounds[v] = how many of n numbers in ascending order are less than v, for v in [0, count).
struct launcher_base {
  static constexpr bool host_can_read = false;
  template <class... Arguments>
  static bool attend_by_library(const Arguments&...) {
    return false;
  }
  template <class... Arguments>
  static bool attend_backward_by_library(const Arguments&...) {
    return false;
  }
};
template <class L>
concept launcher = std::derived_from<L, launcher_base>;

}  // namespace heddle::inline v0::compute::detail::on_cuda
