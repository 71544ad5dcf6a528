// heddle/compute/group/attention_sinks.hpp: sinks of attention by groups of threads.
#pragma once

#include <heddle/compute/group/attention_rows.hpp>
#include <heddle/compute/group/threads.hpp>
#include <heddle/compute/ops/attention.hpp>
#include <heddle/core/half_precision.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail::in_groups {

/// Items [rows * heads]: out and lse of attention without a sink become those with one.
template <class T>
struct attention_sinks_row {
  using S = sum_of_type<T>;
  heads_at<const T> x;
  std::int64_t rows, heads;
  const T* sinks;
  S* lse;
  heads_at<T> y;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item) const {
    const std::int64_t r = item / heads, h = item % heads;
    S& own = lse[h * rows + r];
    const S before = g.sum(g.leads() ? own : S(0));  // read by the thread that writes it
    const S level = level_with_sink(before, static_cast<S>(sinks[h])), share = math::exponential(before - level);
    const T* const from = x(r, h);
    T* const to = y(r, h);
    for_each_of(g, x.head_dim, [=](std::int64_t d) { to[d] = T(static_cast<S>(from[d]) * share); });
    if (g.leads()) own = level;
  }
};
/// Items [rows * heads]: what each row gives to the gradient of its head's sink.
template <class T>
struct attention_sinks_backward_row {
  using S = sum_of_type<T>;
  heads_at<const T> dout, out;
  std::int64_t rows, heads;
  const T* sinks;
  const S* lse;
  T* terms;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item) const {
    const std::int64_t r = item / heads, h = item % heads;
    const T *const d = dout(r, h), *const o = out(r, h);
    const S sum =
        sum_over(g, out.head_dim, [=](std::int64_t c) { return static_cast<S>(d[c]) * static_cast<S>(o[c]); });
    if (g.leads()) terms[item] = T(-math::exponential(static_cast<S>(sinks[h]) - lse[h * rows + r]) * sum);
  }
};

}  // namespace heddle::inline v0::compute::detail::in_groups
