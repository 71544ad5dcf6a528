// heddle/tensor/random.hpp: random tensors and dropout that are bit for bit the same on every mesh.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/text.hpp>
#include <heddle/tensor/box_kernels.hpp>
#include <heddle/tensor/global_runs.hpp>
#include <heddle/tensor/sharded.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
namespace detail {

template <bool Ok, class... Names>
inline constexpr bool elements_have_a_global_index = Ok;
template <class L>
constexpr bool has_global_index() {
  static_assert(
      elements_have_a_global_index<!L::has_varying, L>,
      "heddle: random numbers are keyed by the index in the whole tensor, which values that vary along an axis do not "
      "have; give the tensor a layout that splits or replicates, or draw from a counter_random of the rank's own");
  return !L::has_varying;
}
template <class L>
constexpr bool scales() {
  if constexpr (L::has_partial) {
    constexpr bool sum = std::is_same_v<typename partial_op<L>::type, plus>;
    static_assert(
        elements_have_a_global_index<sum, L>,
        "heddle: dropout scales values, with which the operator of these partial values does not commute (only plus "
        "does); redistribute the tensor to replicated over this axis (all_reduce) first");
    return sum;
  } else {
    return true;
  }
}

inline void require_rate(double rate) {
  if (!(rate >= 0 && rate < 1))
    throw config_error("heddle: dropout needs a rate in [0, 1), got " + number_text(rate));
}

// Elements of a run that begins at index `global` of the tensor: `number` of each index.
template <class T, class Number>
void each_number(T* out, std::int64_t count, std::int64_t global, const Number& number) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(number(static_cast<std::uint64_t>(global + i)));
}

// What draws a run of neighbours. Not inlined: with one compiled form for every layout there is one rounding of every number.
struct uniform_numbers {
  counter_random random;
  double low = 0, high = 1;

  template <class T>
  [[gnu::noinline]] void operator()(T* out, std::int64_t count, std::int64_t global) const {
    each_number(out, count, global, [this](std::uint64_t i) { return low + (high - low) * random.uniform(i); });
    // The bound can come of rounding, the more often the fewer digits T has; the number below it is drawn instead.
    if constexpr (std::is_floating_point_v<T>) {
      const T end = static_cast<T>(high);
      if (low < high)
        for (std::int64_t i = 0; i < count; ++i)
          if (out[i] >= end) out[i] = std::nextafter(end, static_cast<T>(low));
    }
  }
};
struct normal_numbers {
  counter_random random;
  double mean = 0, deviation = 1;

  template <class T>
  [[gnu::noinline]] void operator()(T* out, std::int64_t count, std::int64_t global) const {
    each_number(out, count, global, [this](std::uint64_t i) { return mean + deviation * random.normal(i); });
  }
};
// Dropout of a run of neighbours.
template <class T>
[[gnu::noinline]] void drop(T* out, std::int64_t count, std::int64_t global, const counter_random& random, double rate,
                            T scale) {
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = random.uniform(static_cast<std::uint64_t>(global + i)) < rate ? T(0) : out[i] * scale;
}

// Gives `draw(out, count, global)` the runs of this rank's part. Along partial axes the first rank draws and the others hold
// the operator's identity, so that the combination is what one rank alone would draw.
template <class T, std::size_t Rank, layout_like Layout, class Draw>
void draw_part(sharded<T, Rank, Layout>& x, Draw&& draw) {
  if constexpr (has_global_index<Layout>()) {
    require_held(x);
    if constexpr (Layout::has_partial) {
      if (!carries_value(x.layout(), x.rank())) {
        using op = typename partial_op<Layout>::type;
        std::fill(x.elements().begin(), x.elements().end(), op::template identity<T>());
        return;
      }
    }
    T* const out = x.elements().data();
    for_each_global_run(
        x.shape().extents(), x.layout().part(x.shape(), x.rank()),
        [&](std::int64_t global, std::int64_t local, std::int64_t count) { draw(out + local, count, global); });
  }
}

// The same in the order of a queue that runs host code; the work keeps what it needs.
template <class T, std::size_t Rank, layout_like Layout, class Space, class Draw>
void draw_part(typename Space::queue& q, sharded<T, Rank, Layout, Space>& x, Draw draw) {
  if constexpr (has_global_index<Layout>()) {
    require_held(x);
    if constexpr (Layout::has_partial) {
      if (!carries_value(x.layout(), x.rank())) {
        fill<T, Space>(q, x.memory(), partial_op<Layout>::type::template identity<T>());
        return;
      }
    }
    q.run(
        [layout = x.layout(), whole = x.shape(), rank = x.rank(), draw = std::move(draw)](const auto& memory) {
          for_each_global_run(whole.extents(), layout.part(whole, rank),
                              [&](std::int64_t global, std::int64_t local, std::int64_t count) {
                                draw(memory.address() + local, count, global);
                              });
        },
        x.memory());
  }
}

}  // namespace detail

/// Fills a tensor: the element with flat index g in the whole (row-major) becomes `value(g)`, whatever the layout, so that any
/// mesh holds the same tensor. Along partial axes the first rank gets the values, the others the operator's identity.
/// Errors (at compile time): a layout that varies along an axis, whose elements have no index in a whole.
template <class T, std::size_t Rank, layout_like Layout, std::invocable<std::int64_t> Value>
void fill_by_index(sharded<T, Rank, Layout>& x, Value&& value) {
  detail::draw_part(x, [&](T* out, std::int64_t count, std::int64_t global) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(value(global + i));
  });
}

/// In any space whose queue runs host code, in its order; `value` is kept until then.
template <class T, std::size_t Rank, layout_like Layout, memory_space Space, std::invocable<std::int64_t> Value>
  requires runs_host_code<typename Space::queue>
void fill_by_index(typename Space::queue& queue, sharded<T, Rank, Layout, Space>& x, Value value) {
  detail::draw_part(queue, x, [value](T* out, std::int64_t count, std::int64_t global) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(value(global + i));
  });
}

/// Uniform numbers in [low, high), keyed by the index in the whole tensor: bit for bit the same on every mesh. Like all of these, with
/// a queue in front for memory of its space.
/// Errors: as `fill_by_index`.
template <class T, std::size_t Rank, layout_like Layout>
void fill_uniform(sharded<T, Rank, Layout>& x, const counter_random& random, double low = 0, double high = 1) {
  detail::draw_part(x, detail::uniform_numbers{random, low, high});
}

template <class T, std::size_t Rank, layout_like Layout, memory_space Space>
  requires runs_host_code<typename Space::queue>
void fill_uniform(typename Space::queue& queue, sharded<T, Rank, Layout, Space>& x, const counter_random& random,
                  double low = 0, double high = 1) {
  detail::draw_part(queue, x, detail::uniform_numbers{random, low, high});
}

/// Normal numbers, keyed by the index in the whole tensor: bit for bit the same on every mesh.
/// Errors: as `fill_by_index`.
template <class T, std::size_t Rank, layout_like Layout>
void fill_normal(sharded<T, Rank, Layout>& x, const counter_random& random, double mean = 0, double deviation = 1) {
  detail::draw_part(x, detail::normal_numbers{random, mean, deviation});
}

template <class T, std::size_t Rank, layout_like Layout, memory_space Space>
  requires runs_host_code<typename Space::queue>
void fill_normal(typename Space::queue& queue, sharded<T, Rank, Layout, Space>& x, const counter_random& random,
                 double mean = 0, double deviation = 1) {
  detail::draw_part(queue, x, detail::normal_numbers{random, mean, deviation});
}

/// Dropout in place: each element is set to zero with probability `rate`, and divided by 1 - rate otherwise. Which ones is
/// decided by their index in the whole tensor, so every mesh drops the same elements: copies stay copies, parts drop
/// independently. Nothing is saved: the same call on the gradient is the backward. Use another stream for each use of one
/// seed. Partial sums may be dropped before they are reduced.
/// Errors: `config_error` for a rate outside [0, 1); at compile time as `fill_by_index`, and for partial values under another
/// operator than plus.
/// Source: Srivastava et al. 2014, JMLR 15 (inverted form); counters by Salmon et al., SC 2011.
template <std::floating_point T, std::size_t Rank, layout_like Layout>
void dropout(sharded<T, Rank, Layout>& x, double rate, const counter_random& random) {
  detail::require_rate(rate);
  if constexpr (detail::has_global_index<Layout>() && detail::scales<Layout>()) {
    detail::require_held(x);
    const T scale = static_cast<T>(1 / (1 - rate));
    T* const out = x.elements().data();
    detail::for_each_global_run(x.shape().extents(), x.layout().part(x.shape(), x.rank()),
                                [&](std::int64_t global, std::int64_t local, std::int64_t count) {
                                  detail::drop(out + local, count, global, random, rate, scale);
                                });
  }
}

template <std::floating_point T, std::size_t Rank, layout_like Layout, memory_space Space>
  requires runs_host_code<typename Space::queue>
void dropout(typename Space::queue& queue, sharded<T, Rank, Layout, Space>& x, double rate,
             const counter_random& random) {
  detail::require_rate(rate);
  if constexpr (detail::has_global_index<Layout>() && detail::scales<Layout>()) {
    detail::require_held(x);
    const T scale = static_cast<T>(1 / (1 - rate));
    queue.run(
        [layout = x.layout(), whole = x.shape(), rank = x.rank(), random, rate, scale](const auto& memory) {
          detail::for_each_global_run(whole.extents(), layout.part(whole, rank),
                                      [&](std::int64_t global, std::int64_t local, std::int64_t count) {
                                        detail::drop(memory.address() + local, count, global, random, rate, scale);
                                      });
        },
        x.memory());
  }
}

}  // namespace heddle::inline v0
