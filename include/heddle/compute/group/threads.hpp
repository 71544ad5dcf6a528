// heddle/compute/group/threads.hpp: groups of threads that compute a row or a tile.
//
// Bodies are objects whose call operators are functions of host and device both: blocks and warps of CUDA run them, teams of Kokkos, and
// threads of the host in tests.
#pragma once

#include <heddle/core/config.hpp>

#include <cmath>
#include <concepts>
#include <cstdint>

namespace heddle::inline v0::compute::detail::in_groups {

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

/// A thread that is a group by itself.
struct lone_thread {
  HEDDLE_HD static constexpr int rank() { return 0; }
  HEDDLE_HD static constexpr int size() { return 1; }
  HEDDLE_HD static constexpr bool leads() { return true; }
  HEDDLE_HD static constexpr void sync() {}
  template <class T>
  HEDDLE_HD static constexpr T sum(T x) {
    return x;
  }
  template <class T>
  HEDDLE_HD static constexpr T largest(T x) {
    return x;
  }
};

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

}  // namespace heddle::inline v0::compute::detail::in_groups
