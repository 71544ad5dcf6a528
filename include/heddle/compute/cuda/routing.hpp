// heddle/compute/cuda/routing.hpp: routing of rows to experts on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/cuda/sums.hpp>
#include <heddle/compute/group/vectors.hpp>
#include <heddle/compute/group/choices.hpp>
#include <heddle/compute/ops/routing.hpp>
#include <heddle/core/half_precision.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace heddle::inline v0::compute::detail::on_cuda {

using in_groups::all_aligned;
using in_groups::each_row_of_packs;
using in_groups::for_packs;
using in_groups::next_greatest;
using in_groups::overwritten;
using in_groups::pack;
using in_groups::pack_width;
using in_groups::softmax_of_row;
using in_groups::sum_packs;

// Elements of 16 bits are computed with in float (`sum_of_type`), and rounded once where they are written.
template <class Rule, class T>
struct top_k_row {
  std::int64_t experts, k;
  const T* logits;
  std::int32_t* ids;
  T* weights;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t t) const {
    using std::exp;
    const T* const row = logits + t * experts;
    sum_of_type<T> top = 0, sum = 0;
    std::int64_t last = -1;
    for (std::int64_t j = 0; j < k; ++j) {
      last = next_greatest(g, experts, row, last);
      if (j == 0) top = row[last];
      sum += exp(row[last] - top);
      if (g.leads()) ids[t * k + j] = static_cast<std::int32_t>(last);
    }
    if constexpr (std::is_same_v<Rule, softmax_of_all>)
      sum = sum_over(g, experts, [=](std::int64_t e) { return exp(row[e] - top); });
    if (!g.leads()) return;
    for (std::int64_t j = 0; j < k; ++j) weights[t * k + j] = static_cast<T>(exp(row[ids[t * k + j]] - top) / sum);
  }
};
template <class Rule, launcher L, class T>
void body(ops::top_k<Rule>, const L& on, std::int64_t tokens, std::int64_t experts, std::int64_t k, const T* logits,
          std::int32_t* ids, T* weights) {
  if (k > 0) on.each_row(tokens, experts, top_k_row<Rule, T>{experts, k, logits, ids, weights});
}

/// The formula is beside `detail::top_k_backward` in host/routing.hpp.
template <class Rule, class T>
struct top_k_backward_row {
  std::int64_t experts, k;
  const T* logits;
  const std::int32_t* ids;
  const T *weights, *dweights;
  T* dlogits;
  using S = sum_of_type<T>;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t t) const {
    const T *const w = weights + t * k, *const d = dweights + t * k;
    S inner = 0;
    for (std::int64_t j = 0; j < k; ++j) inner += w[j] * d[j];
    if constexpr (std::is_same_v<Rule, softmax_of_all>) {
      const T* const row = logits + t * experts;
      const softmax_of_row<T> p(g, experts, row);
      write(g, t, [&](std::int64_t e) { return -p.of(row[e]) * inner; }, S(0));
    } else {
      write(g, t, [](std::int64_t) { return S(0); }, inner);
    }
  }

 private:
  // base(e), and for a chosen expert w (d - inner) besides.
  template <class G, class F>
  HEDDLE_HD void write(G& g, std::int64_t t, const F& base, S inner) const {
    for (std::int64_t e = g.rank(); e < experts; e += g.size()) {
      S sum = base(e);
      for (std::int64_t j = t * k; j < (t + 1) * k; ++j)
        if (ids[j] == e) sum += weights[j] * (dweights[j] - inner);
      dlogits[t * experts + e] = static_cast<T>(sum);
    }
  }
};
template <class Rule, launcher L, class T>
void body(ops::top_k_backward<Rule>, const L& on, std::int64_t tokens, std::int64_t experts, std::int64_t k,
          const T* logits, const std::int32_t* ids, const T* weights, const T* dweights, T* dlogits) {
  on.each_row(tokens, experts, top_k_backward_row<Rule, T>{experts, k, logits, ids, weights, dweights, dlogits});
}

/// What choices are sorted by: the number of their expert from `first` on, and `experts` for those of others.
struct expert_key {
  const std::int32_t* ids;
  std::int64_t first, experts;
  std::int32_t* keys;
  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t e = ids[i] - first;
    keys[i] = static_cast<std::int32_t>(e >= 0 && e < experts ? e : experts);
  }
};
/// keys[r] = from[places[r]].
struct key_of_place {
  const std::int32_t *from, *places;
  std::int32_t* keys;
  HEDDLE_HD void operator()(std::int64_t r) const { keys[r] = from[places[r]]; }
};
/// What sorts of the keys of `expert_key` look at.
inline int bits_of_experts(std::int64_t experts) {
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(experts)));
}

/// A choice behind the sort: choice order[r] of n has row r, if its expert is here.
struct placed_choice {
  std::int64_t k, experts;
  const std::int32_t *sorted, *order;
  std::int32_t *sources, *places;
  HEDDLE_HD void operator()(std::int64_t r) const {
    const std::int64_t i = order[r];
    const bool here = sorted[r] < experts;
    sources[r] = here ? static_cast<std::int32_t>(i / k) : -1;
    places[i] = here ? static_cast<std::int32_t>(r) : -1;
  }
};
template <launcher L>
void body(ops::route, const L& on, std::int64_t tokens, std::int64_t k, std::int64_t begins, std::int64_t,
          const std::int32_t* ids, std::int64_t first_id, std::int64_t* offsets, std::int32_t* sources,
          std::int32_t* places) {
  const std::int64_t experts = begins - 1;
  const std::int64_t n = tokens * k;
  auto keys = on.template room<std::int32_t>(n), sorted = on.template room<std::int32_t>(n),
       order = on.template room<std::int32_t>(n);
  on.each(n, expert_key{ids, first_id, experts, keys.address()});
  on.sort_places(keys.address(), n, sorted.address(), order.address(), bits_of_experts(experts));
  on.lower_bounds(sorted.address(), n, experts + 1, offsets);
  on.each(n, placed_choice{k, experts, sorted.address(), order.address(), sources, places});
}

/// counts[e] = how many of the sorted choices are expert e.
struct counted_choices {
  const std::int64_t* bounds;
  double* counts;
  HEDDLE_HD void operator()(std::int64_t e) const { counts[e] = static_cast<double>(bounds[e + 1] - bounds[e]); }
};
template <launcher L>
void count_choices(const L& on, std::int64_t choices, std::int64_t experts, const std::int32_t* ids, double* counts) {
  auto keys = on.template room<std::int32_t>(choices), sorted = on.template room<std::int32_t>(choices),
       order = on.template room<std::int32_t>(choices);
  auto bounds = on.template room<std::int64_t>(experts + 1);
  on.each(choices, expert_key{ids, 0, experts, keys.address()});
  on.sort_places(keys.address(), choices, sorted.address(), order.address(), bits_of_experts(experts));
  on.lower_bounds(sorted.address(), choices, experts + 1, bounds.address());
  on.each(experts, counted_choices{bounds.address(), counts});
}

template <class T>
struct expert_balance_row {
  std::int64_t experts;
  const T* logits;
  const double* counts;
  double* of_tokens;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t t) const {
    const T* const row = logits + t * experts;
    const double* const c = counts;
    const softmax_of_row<T> p(g, experts, row);
    const double sum = sum_over(g, experts, [&](std::int64_t e) { return c[e] * static_cast<double>(p.of(row[e])); });
    if (g.leads()) of_tokens[t] = sum;
  }
};
struct number_itself {
  const double* x;
  template <class G>
  HEDDLE_HD double over(G& g, std::int64_t begin, std::int64_t count) const {
    return sum_packs<double>(g, count, [](double e) { return e; }, x + begin);
  }
};
template <launcher L, class T>
void body(ops::expert_balance, const L& on, std::int64_t tokens, std::int64_t experts, std::int64_t k, const T* logits,
          const std::int32_t* ids, double* out) {
  auto counts = on.template room<double>(experts);
  count_choices(on, tokens * k, experts, ids, counts.address());
  if (experts == 0 || tokens == 0) return;
  auto of_tokens = on.template room<double>(tokens);
  on.each_row(tokens, experts, expert_balance_row<T>{experts, logits, counts.address(), of_tokens.address()});
  add_terms(on, tokens, out, number_itself{of_tokens.address()});
}
/// dlogits += scale p (c - sum of p c).
template <class T>
struct expert_balance_backward_row {
  std::int64_t experts;
  const T* logits;
  const double* counts;
  sum_of_type<T> scale;
  T* dlogits;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t t) const {
    const T* const row = logits + t * experts;
    const double* const c = counts;
    const softmax_of_row<T> p(g, experts, row);
    using S = sum_of_type<T>;
    const S mean = sum_over(g, experts, [&](std::int64_t e) { return p.of(row[e]) * static_cast<S>(c[e]); });
    for (std::int64_t e = g.rank(); e < experts; e += g.size()) {
      T& to = dlogits[t * experts + e];
      to = static_cast<T>(to + scale * p.of(row[e]) * (static_cast<S>(c[e]) - mean));
    }
  }
};
template <launcher L, class T>
void body(ops::expert_balance_backward, const L& on, std::int64_t tokens, std::int64_t experts, std::int64_t k,
          const T* logits, const std::int32_t* ids, sum_of_type<T> scale, T* dlogits) {
  auto counts = on.template room<double>(experts);
  count_choices(on, tokens * k, experts, ids, counts.address());
  if (experts > 0)
    on.each_row(tokens, experts, expert_balance_backward_row<T>{experts, logits, counts.address(), scale, dlogits});
}

/// Keys whose ascending order is the descending one of numbers: NaN first, the two zeros equal.
template <class T>
struct descending_key {
  using number = sum_of_type<T>;
  using bits = std::conditional_t<sizeof(number) == 4, std::uint32_t, std::uint64_t>;
  const T* x;
  bits* keys;
  HEDDLE_HD void operator()(std::int64_t i) const {
    constexpr bits sign = bits(1) << (8 * sizeof(bits) - 1);
    const number value = x[i];
    bits all = 0;
    if (value != number(0)) std::memcpy(&all, &value, sizeof all);
    keys[i] = value != value ? bits(0) : (all & sign) != 0 ? all : bits(~(all | sign));
  }
};
/// A choice behind the sorts: sorted[r] is its expert, and bounds[expert] the first of that.
struct kept_choice {
  std::int64_t experts, most;
  const std::int32_t *sorted, *order, *first_order;  // first_order: of a sort before, or null
  const std::int64_t* bounds;
  std::int32_t* kept;
  HEDDLE_HD void operator()(std::int64_t r) const {
    const std::int64_t i = first_order != nullptr ? first_order[order[r]] : order[r];
    const std::int32_t e = sorted[r];
    kept[i] = e < experts && r - bounds[e] < most ? e : -1;
  }
};
/// Sorted by expert, and before that by weight, if those of the greatest are kept: sorts are stable.
template <class Rule, launcher L, class T>
void body(ops::limit_choices<Rule>, const L& on, std::int64_t rows, std::int64_t k, const std::int32_t* ids,
          const T* weights, std::int64_t experts, std::int64_t most, std::int32_t* kept) {
  const std::int64_t choices = rows * k;
  using bits = typename descending_key<T>::bits;
  constexpr bool by_weight = std::is_same_v<Rule, keep_heaviest>;
  auto keys = on.template room<std::int32_t>(choices), sorted = on.template room<std::int32_t>(choices),
       order = on.template room<std::int32_t>(choices);
  auto first_keys = on.template room<std::int32_t>(by_weight ? choices : 0),
       first_order = on.template room<std::int32_t>(by_weight ? choices : 0);
  auto bounds = on.template room<std::int64_t>(experts + 1);
  if constexpr (by_weight) {
    auto of_weights = on.template room<bits>(choices), in_order = on.template room<bits>(choices);
    on.each(choices, descending_key<T>{weights, of_weights.address()});
    on.sort_places(of_weights.address(), choices, in_order.address(), first_order.address(),
                   static_cast<int>(8 * sizeof(bits)));
    on.each(choices, expert_key{ids, 0, experts, first_keys.address()});
    on.each(choices, key_of_place{first_keys.address(), first_order.address(), keys.address()});
  } else {
    on.each(choices, expert_key{ids, 0, experts, keys.address()});
  }
  on.sort_places(keys.address(), choices, sorted.address(), order.address(), bits_of_experts(experts));
  on.lower_bounds(sorted.address(), choices, experts + 1, bounds.address());
  on.each(choices, kept_choice{experts, most, sorted.address(), order.address(),
                               by_weight ? first_order.address() : nullptr, bounds.address(), kept});
}

template <class T>
struct permute_row {
  std::int64_t width;
  const T* x;
  const std::int32_t* sources;
  T* y;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const std::int64_t from = sources[i];
    T* const to = y + i * width;
    if (from >= 0)
      for_packs(g, width, [](std::int64_t, T v, T& out) { out = v; }, x + from * width, overwritten(to));
    else
      for_packs(g, width, [](std::int64_t, T& out) { out = T(0); }, overwritten(to));
  }
};
template <launcher L, class T>
void body(ops::permute, const L& on, std::int64_t, std::int64_t rows, std::int64_t width, const T* x,
          const std::int32_t* sources, T* y) {
  each_row_of_packs<T>(on, rows, width, permute_row<T>{width, x, sources, y});
}
/// out[t] = sum over j, in order, of weights[t, j] * y[places[t, j]]; without weights for a null pointer.
template <class T>
struct gathered_row {
  std::int64_t k, width;
  const T* y;
  const std::int32_t* places;
  const T* weights;
  T* out;
  static constexpr int wide = pack_width<T*>(),
                       ahead = 4;  // elements of a pack, and rows that are read before they are added up

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t t) const {
    if (width % wide == 0 && all_aligned<wide>(y, out)) {
      for (std::int64_t c = g.rank() * wide; c < width; c += g.size() * wide) add_packs(t, c);
      return;
    }
    for (std::int64_t c = g.rank(); c < width; c += g.size()) {
      sum_of_type<T> sum = 0;
      for (std::int64_t i = t * k; i < (t + 1) * k; ++i)
        if (const std::int64_t row = places[i]; row >= 0)
          sum += (weights != nullptr ? weights[i] : T(1)) * y[row * width + c];
      out[t * width + c] = static_cast<T>(sum);
    }
  }

 private:
  HEDDLE_HD void add_packs(std::int64_t t, std::int64_t c) const {
    sum_of_type<T> sums[wide] = {};
    for (std::int64_t i = t * k; i < (t + 1) * k; i += ahead) {
      pack<T, wide> rows[ahead]{};
      T factors[ahead]{};
      bool is_there[ahead];
      for (int u = 0; u < ahead; ++u) {
        const std::int64_t row = i + u < (t + 1) * k ? places[i + u] : -1;
        is_there[u] = row >= 0;
        if (is_there[u]) rows[u].load(y + row * width + c);
        if (is_there[u]) factors[u] = weights != nullptr ? weights[i + u] : T(1);
      }
      for (int u = 0; u < ahead; ++u)
        for (int e = 0; e < wide; ++e)
          if (is_there[u]) sums[e] += factors[u] * rows[u].values[e];
    }
    pack<T, wide> sum;
    for (int e = 0; e < wide; ++e) sum.values[e] = static_cast<T>(sums[e]);
    sum.store(out + t * width + c);
  }
};
template <launcher L, class T>
void gather_rows(const L& on, std::int64_t tokens, std::int64_t k, std::int64_t width, const T* y,
                 const std::int32_t* places, const T* weights, T* out) {
  each_row_of_packs<T>(on, tokens, width, gathered_row<T>{k, width, y, places, weights, out});
}

template <launcher L, class T>
void body(ops::permute_backward, const L& on, std::int64_t tokens, std::int64_t k, std::int64_t, std::int64_t width,
          const T* dy, const std::int32_t* places, T* dx) {
  gather_rows(on, tokens, k, width, dy, places, static_cast<const T*>(nullptr), dx);
}
template <launcher L, class T>
void body(ops::unpermute, const L& on, std::int64_t tokens, std::int64_t k, std::int64_t, std::int64_t width,
          const T* y, const std::int32_t* places, const T* weights, T* out) {
  gather_rows(on, tokens, k, width, y, places, weights, out);
}

struct not_used {
  std::int32_t* used;
  HEDDLE_HD void operator()(std::int64_t r) const { used[r] = 0; }
};
/// A choice, whose row of y belongs to no other. dy may be y: sums of a group are there when all its threads have read.
template <class T>
struct unpermute_backward_row {
  std::int64_t k, width;
  const T *dout, *y;
  const std::int32_t* places;
  const T* weights;
  T *dy, *dweights;
  std::int32_t* used;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const std::int64_t row = places[i];
    if (row < 0) {
      if (g.leads()) dweights[i] = T(0);
      return;
    }
    const T* const d = dout + i / k * width;
    using S = sum_of_type<T>;
    const S f = weights[i];
    const S sum = sum_packs<S>(g, width, [](S a, S b) { return a * b; }, d, y + row * width);
    if (g.leads()) {
      dweights[i] = static_cast<T>(sum);
      used[row] = 1;
    }
    for_packs(
        g, width, [f](std::int64_t, S v, T& out) { out = static_cast<T>(f * v); }, d, overwritten(dy + row * width));
  }
};
template <class T>
struct unused_row {
  std::int64_t width;
  const std::int32_t* used;
  T* dy;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    if (used[r] == 0) for_packs(g, width, [](std::int64_t, T& out) { out = T(0); }, overwritten(dy + r * width));
  }
};
template <launcher L, class T>
void body(ops::unpermute_backward, const L& on, std::int64_t tokens, std::int64_t k, std::int64_t rows,
          std::int64_t width, const T* dout, const T* y, const std::int32_t* places, const T* weights, T* dy,
          T* dweights) {
  auto room = on.template room<std::int32_t>(rows);
  std::int32_t* const used = room.address();
  on.each(rows, not_used{used});
  each_row_of_packs<T>(on, tokens * k, width,
                       unpermute_backward_row<T>{k, width, dout, y, places, weights, dy, dweights, used});
  each_row_of_packs<T>(on, rows, width, unused_row<T>{width, used, dy});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
