// heddle/compute/cuda/elementwise.hpp: elementwise kernels on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/activation_formulas.hpp>
#include <heddle/compute/cuda/column_sums.hpp>
#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/group/vectors.hpp>
#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/ops/elementwise.hpp>
#include <heddle/compute/ops/rotary.hpp>
#include <heddle/compute/ops/sums.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/random.hpp>
#include <heddle/tensor/cuda/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <cmath>
#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cuda {

using in_groups::each_row_of_packs;
using in_groups::for_pack;
using in_groups::for_packs;
using in_groups::overwritten;
using in_groups::pack_width;
using in_groups::packs_of;

// Bodies of elements take pack k of n elements (vectors.hpp). Outputs may be the same memory as inputs. Bodies of 16-bit elements
// compute in float (`sum_of_type`) and round what they write once.

/// Launches body(k) for each pack of n elements of `Widest`, the widest of the types of the body's arrays.
template <class Widest, launcher L, class Body>
void each_pack(const L& on, std::int64_t n, const Body& body) {
  on.each(packs_of(n, pack_width<Widest*>()), body);
}

/// y = f(i, x), i counting the elements of a call.
template <class F, class X, class Y>
struct of_one_body {
  std::int64_t n;
  const X* x;
  Y* y;
  F f{};
  HEDDLE_HD void operator()(std::int64_t k) const {
    for_pack(k, n, [this](std::int64_t i, X in, Y& out) { out = f(i, in); }, x, overwritten(y));
  }
};
/// c = f(a, b), computed in `sum_of_type<T>`.
template <class F, class T>
struct of_two_body {
  std::int64_t n;
  const T *a, *b;
  T* c;
  HEDDLE_HD void operator()(std::int64_t k) const {
    using S = sum_of_type<T>;
    for_pack(
        k, n, [](std::int64_t, S left, S right, T& out) { out = converted<T>(F{}(left, right)); }, a, b,
        overwritten(c));
  }
};

struct gelu_of {
  template <class T>
  HEDDLE_HD T operator()(std::int64_t, T in) const {
    return converted<T>(activation<math>(gelu_tanh{}, static_cast<sum_of_type<T>>(in)));
  }
};
template <launcher L, class T>
void body(ops::gelu, const L& on, std::int64_t n, const T* x, T* y) {
  each_pack<T>(on, n, of_one_body<gelu_of, T, T>{n, x, y});
}
struct gelu_backward_of {
  template <class T>
  HEDDLE_HD T operator()(T in, T d) const {
    return d * activation_derivative<math>(gelu_tanh{}, in);
  }
};
template <launcher L, class T>
void body(ops::gelu_backward, const L& on, std::int64_t n, const T* x, const T* dy, T* dx) {
  each_pack<T>(on, n, of_two_body<gelu_backward_of, T>{n, x, dy, dx});
}
template <class T>
struct soft_cap_of {
  sum_of_type<T> cap;
  HEDDLE_HD T operator()(std::int64_t, T in) const {
    return converted<T>(cap * std::tanh(static_cast<sum_of_type<T>>(in) / cap));
  }
};
template <launcher L, class T>
void body(ops::soft_cap, const L& on, std::int64_t n, const T* x, sum_of_type<T> cap, T* y) {
  each_pack<T>(on, n, of_one_body<soft_cap_of<T>, T, T>{n, x, y, {cap}});
}
template <class T>
struct soft_cap_backward_body {
  std::int64_t n;
  const T *x, *dy;
  T* dx;
  sum_of_type<T> cap;
  HEDDLE_HD void operator()(std::int64_t k) const {
    using S = sum_of_type<T>;
    const auto gradient = [c = cap](std::int64_t, S v, S d, T& out) {
      const S t = std::tanh(v / c);
      out = converted<T>(d * (S(1) - t * t));
    };
    for_pack(k, n, gradient, x, dy, overwritten(dx));
  }
};
template <launcher L, class T>
void body(ops::soft_cap_backward, const L& on, std::int64_t n, const T* x, const T* dy, sum_of_type<T> cap, T* dx) {
  each_pack<T>(on, n, soft_cap_backward_body<T>{n, x, dy, dx, cap});
}
template <class A>
struct gated_by {
  template <class T>
  HEDDLE_HD T operator()(T gate, T up) const {
    return activation<math>(A{}, gate) * factor_of_unit<math>(A{}, up);
  }
};
template <class A, launcher L, class T>
void body(ops::gated<A>, const L& on, std::int64_t n, const T* gate, const T* up, T* h) {
  each_pack<T>(on, n, of_two_body<gated_by<A>, T>{n, gate, up, h});
}
template <class A, class T>
struct gated_backward_body {
  std::int64_t n;
  const T *gate, *up, *dh;
  T *dgate, *dup;
  HEDDLE_HD void operator()(std::int64_t k) const {
    using S = sum_of_type<T>;
    const auto both = [](std::int64_t, S g, S u, S d, T& of_gate, T& of_up) {
      of_gate = converted<T>(d * factor_of_unit<math>(A{}, u) * activation_derivative<math>(A{}, g));
      of_up = converted<T>(times_factor_derivative<math>(A{}, d * activation<math>(A{}, g), u));
    };
    for_pack(k, n, both, gate, up, dh, overwritten(dgate), overwritten(dup));
  }
};
template <class A, launcher L, class T>
void body(ops::gated_backward<A>, const L& on, std::int64_t n, const T* gate, const T* up, const T* dh, T* dgate,
          T* dup) {
  each_pack<T>(on, n, gated_backward_body<A, T>{n, gate, up, dh, dgate, dup});
}

template <launcher L, class T>
void body(ops::add, const L& on, std::int64_t n, const T* a, const T* b, T* c) {
  each_pack<T>(on, n, of_two_body<plus, T>{n, a, b, c});
}
template <class T, class F>
struct scale_body {
  std::int64_t n;
  T* x;
  F factor;
  HEDDLE_HD void operator()(std::int64_t k) const {
    for_pack(k, n, [by = factor](std::int64_t, T& e) { e = T(e * by); }, x);
  }
};
template <launcher L, class T, class F>
void body(ops::scale, const L& on, std::int64_t n, T* x, F factor) {
  each_pack<T>(on, n, scale_body<T, F>{n, x, factor});
}
template <class T>
struct fill_body {
  std::int64_t n;
  T* x;
  T value;
  HEDDLE_HD void operator()(std::int64_t k) const {
    for_pack(k, n, [to = value](std::int64_t, T& e) { e = to; }, overwritten(x));
  }
};
template <launcher L, class T>
void body(ops::fill, const L& on, std::int64_t n, T* x, sum_of_type<T> value) {
  each_pack<T>(on, n, fill_body<T>{n, x, converted<T>(value)});
}
template <launcher L, class T>
void body(ops::copy, const L& on, std::int64_t n, const T* x, T* y) {
  if (x != y) on.queue.copy(row_at<cuda_memory>(x, n), row_at<cuda_memory>(y, n));
}
/// The wider of two types.
template <class A, class B>
using wider = std::conditional_t<(sizeof(A) > sizeof(B)), A, B>;
/// How a number becomes one of fewer digits, the i-th of a call.
template <class To>
struct round_to_nearest {
  template <class From>
  HEDDLE_HD To operator()(std::int64_t, From in) const {
    return converted<To>(in);
  }
};
/// With the random numbers of index first + i.
struct round_by_chance {
  counter_random random;
  std::uint64_t first;
  template <class From>
  HEDDLE_HD bf16 operator()(std::int64_t i, From in) const {
    return round_stochastically(static_cast<float>(in), random.bits16(first + static_cast<std::uint64_t>(i)));
  }
};
template <launcher L, class From, class To>
void body(ops::cast<To>, const L& on, std::int64_t n, const From* x, To* y) {
  each_pack<wider<From, To>>(on, n, of_one_body<round_to_nearest<To>, From, To>{n, x, y});
}
template <launcher L>
void body(ops::stochastic_cast, const L& on, std::int64_t n, const float* x, bf16* y, const stochastic& rounding) {
  each_pack<float>(on, n, of_one_body<round_by_chance, float, bf16>{n, x, y, {rounding.random, rounding.first}});
}
template <class T>
struct squared_error_backward_body {
  std::int64_t n;
  T* x;
  const T* target;
  sum_of_type<T> factor;
  HEDDLE_HD void operator()(std::int64_t k) const {
    using S = sum_of_type<T>;
    for_pack(k, n, [by = S(2) * factor](std::int64_t, T& e, S t) { e = converted<T>(by * (e - t)); }, x, target);
  }
};
template <launcher L, class T>
void body(ops::squared_error_backward, const L& on, std::int64_t n, T* x, const T* target, sum_of_type<T> factor) {
  each_pack<T>(on, n, squared_error_backward_body<T>{n, x, target, factor});
}

// ---- rows ----

template <class T>
struct add_bias_row {
  std::int64_t columns;
  T* y;
  const T* bias;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    using S = sum_of_type<T>;
    for_packs(g, columns, [](std::int64_t, T& e, S b) { e = converted<T>(e + b); }, y + i * columns, bias);
  }
};
template <launcher L, class T>
void body(ops::add_bias, const L& on, std::int64_t rows, std::int64_t columns, T* y, const T* bias) {
  each_row_of_packs<T>(on, rows, columns, add_bias_row<T>{columns, y, bias});
}
template <class T>
struct bias_terms {
  std::int64_t columns;
  const T* dy;
  HEDDLE_HD void add(std::int64_t i, std::int64_t j, sum_of_type<T> (&sums)[1]) const {
    sums[0] += static_cast<sum_of_type<T>>(dy[i * columns + j]);
  }
};
template <launcher L, class T>
void body(ops::add_bias_backward, const L& on, std::int64_t rows, std::int64_t columns, const T* dy,
          sum_of_type<T>* db) {
  add_column_sums<sum_of_type<T>>(on, rows, columns, bias_terms<T>{columns, dy}, {db});
}

/// Turns the first 2 * pairs elements of each head by the angles of the row's position, or back, and copies the rest.
template <rotary_pairs Pairs, bool Back, class T>
struct rotary_row {
  const T* from;
  std::int64_t from_stride, heads, width;
  const std::int32_t* positions;
  std::int64_t pairs;
  const sum_of_type<T>*cos, *sin;
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
        using S = sum_of_type<T>;
        const S a = in[i * step], b = in[i * step + other], c = cos[at + i];
        const S s = Back ? -sin[at + i] : sin[at + i];
        out[i * step] = converted<T>(a * c - b * s);
        out[i * step + other] = converted<T>(b * c + a * s);
      } else {
        out[i + pairs] = in[i + pairs];
      }
    }
  }
};
template <rotary_pairs Pairs, bool Back, launcher L, class T>
void body(ops::rotary<Pairs, Back>, const L& on, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
          std::int64_t pairs, head_rows<const T> x, const std::int32_t* positions, const sum_of_type<T>* cos,
          const sum_of_type<T>* sin, head_rows<T> y) {
  on.each_row(
      x.rows, x.width(),
      rotary_row<Pairs, Back, T>{x.data, x.stride, x.heads, x.head_dim, positions, pairs, cos, sin, y.data, y.stride});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
