// heddle/compute/cuda/launcher.hpp: launchers of kernels, and the threads that share a row of one.
//
// Bodies are objects whose call operators are functions of host and device both. On a GPU they are what the threads of a
// grid run; the same bodies run on threads of the host in tests, whose groups may be of any size.
#pragma once

#include <heddle/core/config.hpp>

#include <cmath>
#include <concepts>
#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cuda {

/// Threads that work on one row (or column) together. `rank()` counts them from 0 to `size() - 1`. `sum(x)` and `largest(x)` are over
/// the values of all of them, the same on each, in an order that depends on `size()` alone; each thread calls them equally often.
/// `leads()`: whether this thread writes what is one value for the row.
template <class G>
concept row_threads = requires(G& g, double x) {
  { g.rank() } -> std::same_as<int>;
  { g.size() } -> std::same_as<int>;
  { g.sum(x) } -> std::same_as<double>;
  { g.largest(x) } -> std::same_as<double>;
  { g.leads() } -> std::same_as<bool>;
};

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

/// The base of launchers, which brings the kernels of this namespace to calls of `launch_gelu(launcher, ...)`. A launcher has
/// - `each(n, body)`: body(i) for every i in [0, n);
/// - `each_row(rows, columns, body)`: body(group, i) for every row i, whose group shares so many columns;
/// - `each_column(columns, body)`: body(group, j) for every column j;
/// - `each_tile<T>(items, edge, n, body)`: body(group, i, memory) for every item i, whose group shares memory of n elements of T and
///   has `sync()`, after which its threads see what the others wrote there; n elements have up to `tile_bytes()`;
/// - `room<T>(n)`: n elements on the device for the kernels that follow, with `address()`, given back in the order of the queue;
/// - `multiply<TA, TB>(m, n, k, a, b, c, beta)`: c = op(a) op(b) + beta c, by the library of `products`, which has names;
/// - `multiply_ending<TA, TB>(m, n, k, a, b, c, beta, ending)`: the same with such an end, if the library has that for these sizes, types
///   and addresses; else it does nothing and returns false;
/// - `sort_places(keys, n, sorted, places)`: keys in ascending order and where they were, equal keys in the order they had.
struct launcher_base {
  static constexpr bool host_can_read = false;
};
template <class L>
concept launcher = std::derived_from<L, launcher_base>;

/// Bytes of a group's tiles on a device that offers a block so many bytes of shared memory: with 112 KiB two blocks find room in the
/// 228 KiB that a multiprocessor of sm_90 and sm_100 has. Where a block is offered less (99 KiB on sm_86, sm_89 and sm_120), all of that.
constexpr std::int64_t tile_bytes_of(std::int64_t offered) noexcept {
  constexpr std::int64_t most = 112 * 1024;
  return offered < most ? offered : most;
}

/// What formulas of activations compute with.
struct math {
  template <class T>
  HEDDLE_HD static T exponential(T x) {
    using std::exp;
    return exp(x);
  }
  template <class T>
  HEDDLE_HD static T select(bool condition, T yes, T no) {
    return condition ? yes : no;
  }
};

/// The larger of two; NaN if one is: it compares false with everything.
template <class T>
HEDDLE_HD T larger(T a, T b) {
  return a != a || !(b > a || b != b) ? a : b;
}

/// The sum of f(j) for j in [0, n), by all threads of the group.
template <class G, class F>
HEDDLE_HD auto sum_over(G& g, std::int64_t n, const F& f) {
  decltype(f(n)) sum = 0;
  for (std::int64_t j = g.rank(); j < n; j += g.size()) sum += f(j);
  return g.sum(sum);
}
/// f(j) for j in [0, n), shared by the threads of the group: neighbours take neighbours.
template <class G, class F>
HEDDLE_HD void for_each_of(G& g, std::int64_t n, const F& f) {
  for (std::int64_t j = g.rank(); j < n; j += g.size()) f(j);
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
