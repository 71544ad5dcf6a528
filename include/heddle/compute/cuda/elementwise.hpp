// heddle/compute/cuda/elementwise.hpp: activations, biases, casts, look-ups in tables and AdamW for the CUDA backend.
#pragma once

#include <heddle/compute/activation_formulas.hpp>
#include <heddle/compute/adamw_scalars.hpp>
#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cuda {

template <class T>
struct gelu_body {
  const T* x;
  T* y;
  HEDDLE_HD void operator()(std::int64_t i) const { y[i] = activation<math>(gelu_tanh{}, x[i]); }
};
template <launcher L, class T>
void launch_gelu(const L& on, std::int64_t n, const T* x, T* y) {
  on.each(n, gelu_body<T>{x, y});
}
template <class T>
struct gelu_backward_body {
  const T *x, *dy;
  T* dx;
  HEDDLE_HD void operator()(std::int64_t i) const { dx[i] = dy[i] * activation_derivative<math>(gelu_tanh{}, x[i]); }
};
template <launcher L, class T>
void launch_gelu_backward(const L& on, std::int64_t n, const T* x, const T* dy, T* dx) {
  on.each(n, gelu_backward_body<T>{x, dy, dx});
}
template <class A, class T>
struct gated_body {
  const T *gate, *up;
  T* h;
  HEDDLE_HD void operator()(std::int64_t i) const { h[i] = activation<math>(A{}, gate[i]) * up[i]; }
};
template <class A, launcher L, class T>
void launch_gated(const L& on, std::int64_t n, const T* gate, const T* up, T* h) {
  on.each(n, gated_body<A, T>{gate, up, h});
}
/// Both results from one reading, so that each output may be an input's memory.
template <class A, class T>
struct gated_backward_body {
  const T *gate, *up, *dh;
  T *dgate, *dup;
  HEDDLE_HD void operator()(std::int64_t i) const {
    const T g = gate[i], u = up[i], d = dh[i];
    dgate[i] = d * u * activation_derivative<math>(A{}, g);
    dup[i] = d * activation<math>(A{}, g);
  }
};
template <class A, launcher L, class T>
void launch_gated_backward(const L& on, std::int64_t n, const T* gate, const T* up, const T* dh, T* dgate, T* dup) {
  on.each(n, gated_backward_body<A, T>{gate, up, dh, dgate, dup});
}

template <class T>
struct add_body {
  const T *a, *b;
  T* c;
  HEDDLE_HD void operator()(std::int64_t i) const { c[i] = a[i] + b[i]; }
};
template <launcher L, class T>
void launch_add(const L& on, std::int64_t n, const T* a, const T* b, T* c) {
  on.each(n, add_body<T>{a, b, c});
}
template <class T, class F>
struct scale_body {
  T* x;
  F factor;
  HEDDLE_HD void operator()(std::int64_t i) const { x[i] = T(x[i] * factor); }
};
template <launcher L, class T, class F>
void launch_scale(const L& on, std::int64_t n, T* x, F factor) {
  on.each(n, scale_body<T, F>{x, factor});
}
template <class T>
struct fill_body {
  T* x;
  T value;
  HEDDLE_HD void operator()(std::int64_t i) const { x[i] = value; }
};
template <launcher L, class T>
void launch_fill(const L& on, std::int64_t n, T* x, T value) {
  on.each(n, fill_body<T>{x, value});
}
template <class From, class To>
struct cast_body {
  const From* x;
  To* y;
  HEDDLE_HD void operator()(std::int64_t i) const { y[i] = converted<To>(x[i]); }
};
template <launcher L, class From, class To>
void launch_cast(const L& on, std::int64_t n, const From* x, To* y) {
  on.each(n, cast_body<From, To>{x, y});
}
/// With the random numbers of index first + i.
struct cast_stochastic_body {
  counter_random random;
  std::uint64_t first;
  const float* x;
  bf16* y;
  HEDDLE_HD void operator()(std::int64_t i) const {
    y[i] = round_stochastically(x[i], random.bits16(first + static_cast<std::uint64_t>(i)));
  }
};
template <launcher L>
void launch_cast_stochastic(const L& on, std::int64_t n, const float* x, const stochastic& rounding, bf16* y) {
  on.each(n, cast_stochastic_body{rounding.random, rounding.first, x, y});
}
template <class T>
struct squared_error_backward_body {
  T* x;
  const T* target;
  T factor;
  HEDDLE_HD void operator()(std::int64_t i) const { x[i] = T(2) * factor * (x[i] - target[i]); }
};
template <launcher L, class T>
void launch_squared_error_backward(const L& on, std::int64_t n, T* x, const T* target, T factor) {
  on.each(n, squared_error_backward_body<T>{x, target, factor});
}

// ---- rows ----

template <class T>
struct add_bias_row {
  std::int64_t columns;
  T* y;
  const T* bias;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    T* const row = y + i * columns;
    const T* const b = bias;
    for_each_of(g, columns, [=](std::int64_t j) { row[j] += b[j]; });
  }
};
template <launcher L, class T>
void launch_add_bias(const L& on, std::int64_t rows, std::int64_t columns, T* y, const T* bias) {
  on.each_row(rows, columns, add_bias_row<T>{columns, y, bias});
}
template <class T>
struct add_bias_backward_column {
  std::int64_t rows, columns;
  const T* dy;
  T* db;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t j) const {
    const T* const d = dy;  // nothing is added to it where there are no rows
    const std::int64_t step = columns;
    const T sum = sum_over(g, rows, [=](std::int64_t i) { return d[i * step + j]; });
    if (g.leads()) db[j] += sum;
  }
};
template <launcher L, class T>
void launch_add_bias_backward(const L& on, std::int64_t rows, std::int64_t columns, const T* dy, T* db) {
  on.each_column(columns, add_bias_backward_column<T>{rows, columns, dy, db});
}

/// Turns the first 2 * pairs elements of each head by the angles of the row's position, or back, and copies the rest.
template <rotary_pairs Pairs, bool Back, class T>
struct rotary_row {
  const T* from;
  std::int64_t from_stride, heads, width;
  const std::int32_t* positions;
  std::int64_t pairs;
  const T *cos, *sin;
  T* to;
  std::int64_t to_stride;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    const bool neighbours = Pairs == rotary_pairs::neighbours;
    const std::int64_t step = neighbours ? 2 : 1, other = neighbours ? 1 : pairs, at = positions[r] * pairs;
    const std::int64_t rest = width - 2 * pairs, items = pairs + rest;  // of a head: a pair, or an element that stays
    for (std::int64_t k = g.rank(); k < heads * items; k += g.size()) {
      const std::int64_t h = k / items, i = k % items;
      const T* const in = from + r * from_stride + h * width;
      T* const out = to + r * to_stride + h * width;
      if (i < pairs) {
        const T a = in[i * step], b = in[i * step + other], c = cos[at + i];
        const T s = Back ? -sin[at + i] : sin[at + i];
        out[i * step] = a * c - b * s;
        out[i * step + other] = b * c + a * s;
      } else {
        out[i + pairs] = in[i + pairs];
      }
    }
  }
};
template <rotary_pairs Pairs, bool Back, launcher L, class T, class Space>
void launch_rotary(const L& on, const head_rows<const T, Space>& x, const std::int32_t* positions, std::int64_t pairs,
                   const T* cos, const T* sin, const head_rows<T, Space>& y) {
  on.each_row(
      x.rows, x.width(),
      rotary_row<Pairs, Back, T>{x.data, x.stride, x.heads, x.head_dim, positions, pairs, cos, sin, y.data, y.stride});
}

// ---- embeddings ----

template <class T>
struct embedding_row {
  const std::int32_t* ids;
  std::int64_t vocabulary, width;
  const T* table;
  std::int64_t first_id;
  T* out;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const std::int64_t row = ids[i] - first_id;
    const T* const from = row >= 0 && row < vocabulary ? table + row * width : nullptr;
    T* const to = out + i * width;
    for_each_of(g, width, [=](std::int64_t j) { to[j] = from != nullptr ? from[j] : T(0); });
  }
};
template <launcher L, class T>
void launch_embedding(const L& on, std::int64_t tokens, const std::int32_t* ids, std::int64_t vocabulary,
                      std::int64_t width, const T* table, std::int64_t first_id, T* out) {
  on.each_row(tokens, width, embedding_row<T>{ids, vocabulary, width, table, first_id, out});
}
/// The group of the first of equal ids adds all of them, in the order of the tokens.
template <class T>
struct embedding_backward_row {
  std::int64_t tokens;
  const std::int32_t *sorted, *places;
  std::int64_t vocabulary, width;
  const T* dout;
  std::int64_t first_id;
  T* dtable;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t k) const {
    const std::int32_t id = sorted[k];
    const std::int64_t row = id - first_id;
    if (row < 0 || row >= vocabulary || (k > 0 && sorted[k - 1] == id)) return;
    for (std::int64_t j = g.rank(); j < width; j += g.size()) {
      T sum = dtable[row * width + j];
      for (std::int64_t t = k; t < tokens && sorted[t] == id; ++t) sum += dout[places[t] * width + j];
      dtable[row * width + j] = sum;
    }
  }
};
template <launcher L, class T>
void launch_embedding_backward(const L& on, std::int64_t tokens, const std::int32_t* ids, std::int64_t vocabulary,
                               std::int64_t width, const T* dout, std::int64_t first_id, T* dtable) {
  if (tokens == 0) return;
  auto sorted = on.template room<std::int32_t>(tokens), places = on.template room<std::int32_t>(tokens);
  on.sort_places(ids, tokens, sorted.address(), places.address());
  on.each_row(
      tokens, width,
      embedding_backward_row<T>{tokens, sorted.address(), places.address(), vocabulary, width, dout, first_id, dtable});
}
template <class T>
struct add_positions_row {
  std::int64_t width, sequence;
  T* x;
  const T* wpe;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    T* const row = x + i * width;
    const T* const p = wpe + i % sequence * width;
    for_each_of(g, width, [=](std::int64_t j) { row[j] += p[j]; });
  }
};
template <launcher L, class T>
void launch_add_positions(const L& on, std::int64_t rows, std::int64_t width, std::int64_t sequence, T* x,
                          const T* wpe) {
  on.each_row(rows, width, add_positions_row<T>{width, sequence, x, wpe});
}
template <class T>
struct add_positions_backward_row {
  std::int64_t rows, width, sequence;
  const T* dx;
  T* dwpe;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t s) const {
    for (std::int64_t j = g.rank(); j < width; j += g.size()) {
      T sum = dwpe[s * width + j];
      for (std::int64_t i = s; i < rows; i += sequence) sum += dx[i * width + j];
      dwpe[s * width + j] = sum;
    }
  }
};
template <launcher L, class T>
void launch_add_positions_backward(const L& on, std::int64_t rows, std::int64_t width, std::int64_t sequence,
                                   const T* dx, T* dwpe) {
  on.each_row(rows < sequence ? rows : sequence, width, add_positions_backward_row<T>{rows, width, sequence, dx, dwpe});
}

// ---- AdamW ----

template <class T>
struct adamw_body {
  adamw_scalars<T> s;
  T* p;
  const T* g;
  T *m, *v;
  HEDDLE_HD void operator()(std::int64_t i) const { p[i] = s.updated(p[i], g[i], m[i], v[i]); }
};
template <launcher L, class T>
void launch_adamw(const L& on, std::int64_t n, T* p, const T* g, T* m, T* v, const adamw_step& step) {
  on.each(n, adamw_body<T>{adamw_scalars<T>(step), p, g, m, v});
}
/// On master weights of type T, with weights of type W and gradients of type G.
template <class T, class W, class G>
struct master_adamw_body {
  adamw_scalars<T> s;
  T* master;
  W* weights;
  const G* g;
  T *m, *v;
  HEDDLE_HD void operator()(std::int64_t i) const {
    const T p = s.updated(master[i], converted<T>(g[i]), m[i], v[i]);
    master[i] = p;
    weights[i] = converted<W>(p);
  }
};
template <launcher L, class T, class W, class G>
void launch_adamw(const L& on, std::int64_t n, T* master, W* weights, const G* g, T* m, T* v, const adamw_step& step) {
  on.each(n, master_adamw_body<T, W, G>{adamw_scalars<T>(step), master, weights, g, m, v});
}
/// The same into weights that are rounded stochastically.
template <class T, class G>
struct stochastic_adamw_body {
  adamw_scalars<T> s;
  T* master;
  bf16* weights;
  const G* g;
  T *m, *v;
  counter_random random;
  std::uint64_t first;
  HEDDLE_HD void operator()(std::int64_t i) const {
    const T p = s.updated(master[i], converted<T>(g[i]), m[i], v[i]);
    master[i] = p;
    weights[i] = round_stochastically(static_cast<float>(p), random.bits16(first + static_cast<std::uint64_t>(i)));
  }
};
template <launcher L, class T, class G>
void launch_adamw(const L& on, std::int64_t n, T* master, bf16* weights, const G* g, T* m, T* v, const adamw_step& step,
                  const stochastic& rounding) {
  on.each(n, stochastic_adamw_body<T, G>{adamw_scalars<T>(step), master, weights, g, m, v, rounding.random,
                                         rounding.first});
}
template <class T>
struct undo_adamw_body {
  adamw_scalars<T> s;
  T* p;
  const T* g;
  T *m, *v;
  HEDDLE_HD void operator()(std::int64_t i) const { p[i] = s.taken_back(p[i], g[i], m[i], v[i]); }
};
/// Source: Qi et al. 2023, arXiv:2401.10241, appendix C.
template <launcher L, class T>
void launch_undo_adamw(const L& on, std::int64_t n, T* p, const T* g, T* m, T* v, const adamw_step& step) {
  const adamw_scalars<T> s(step);
  if (!(1.0 - step.lr * step.weight_decay > 0))
    throw config_error("heddle: an AdamW step with learning rate times weight decay of 1 or more cannot be taken back");
  on.each(n, undo_adamw_body<T>{s, p, g, m, v});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
