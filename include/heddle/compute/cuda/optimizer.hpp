// heddle/compute/cuda/optimizer.hpp: optimizer steps on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/adamw_scalars.hpp>
#include <heddle/compute/cuda/elementwise.hpp>
#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/group/vectors.hpp>
#include <heddle/compute/ops/optimizer.hpp>
#include <heddle/core/half_precision.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cuda {

using in_groups::for_pack;
using in_groups::overwritten;

/// A step, or one that is taken `Back`.
template <class T, bool Back = false>
struct adamw_body {
  std::int64_t n;
  adamw_scalars<T> s;
  T* p;
  const T* g;
  T *m, *v;
  HEDDLE_HD void operator()(std::int64_t k) const {
    const auto step = [this](std::int64_t, T& weight, T d, T& first, T& second) {
      weight = Back ? s.taken_back(weight, d, first, second) : s.updated(weight, d, first, second);
    };
    for_pack(k, n, step, p, g, m, v);
  }
};
template <launcher L, class T>
void body(ops::adamw, const L& on, std::int64_t n, T* p, const T* g, T* m, T* v, const adamw_step& step) {
  each_pack<T>(on, n, adamw_body<T>{n, adamw_scalars<T>(step), p, g, m, v});
}
/// `body`, a step of AdamW, with numbers that are read from memory when it runs; nothing where gradients are multiplied by less than 0.
template <class T, class Body>
struct adamw_at_body {
  adamw_step_at<T> from;
  Body body;
  HEDDLE_HD void operator()(std::int64_t k) const {
    const double scale = *from.grad_scale;
    if (scale < 0) return;
    Body now = body;
    now.s = *from.scalars;
    now.s.grad_scale = static_cast<T>(scale);
    now(k);
  }
};
template <launcher L, class T>
void body(ops::adamw_at, const L& on, std::int64_t n, T* p, const T* g, T* m, T* v, const adamw_step_at<T>& step) {
  each_pack<T>(on, n, adamw_at_body<T, adamw_body<T>>{step, {n, {}, p, g, m, v}});
}
/// Source: Qi et al. 2023, arXiv:2401.10241, appendix C.
template <launcher L, class T>
void body(ops::undo_adamw, const L& on, std::int64_t n, T* p, const T* g, T* m, T* v, const adamw_step& step) {
  const adamw_scalars<T> s(step);
  require_reversible(step);
  each_pack<T>(on, n, adamw_body<T, true>{n, s, p, g, m, v});
}

/// On master weights of type T, with weights of type W and gradients of type G.
template <class T, class W, class G, class Round = round_to_nearest<W>>
struct master_adamw_body {
  std::int64_t n;
  adamw_scalars<T> s;
  T* master;
  W* weights;
  const G* g;
  T *m, *v;
  Round rounded{};
  HEDDLE_HD void operator()(std::int64_t k) const {
    const auto step = [this](std::int64_t i, T& exact, W& weight, G d, T& first, T& second) {
      exact = s.updated(exact, converted<T>(d), first, second);
      weight = rounded(i, exact);
    };
    for_pack(k, n, step, master, overwritten(weights), g, m, v);
  }
};
template <launcher L, class T, class W, class G>
void body(ops::master_adamw<W, G>, const L& on, std::int64_t n, T* master, W* weights, const G* g, T* m, T* v,
          const adamw_step& step) {
  each_pack<wider<T, wider<W, G>>>(on, n,
                                   master_adamw_body<T, W, G>{n, adamw_scalars<T>(step), master, weights, g, m, v});
}
template <launcher L, class T, class W, class G>
void body(ops::master_adamw_at<W, G>, const L& on, std::int64_t n, T* master, W* weights, const G* g, T* m, T* v,
          const adamw_step_at<T>& step) {
  using steps = master_adamw_body<T, W, G>;
  each_pack<wider<T, wider<W, G>>>(on, n, adamw_at_body<T, steps>{step, {n, {}, master, weights, g, m, v}});
}
/// The same into weights that are rounded stochastically.
template <launcher L, class T, class G>
void body(ops::stochastic_adamw<G>, const L& on, std::int64_t n, T* master, bf16* weights, const G* g, T* m, T* v,
          const adamw_step& step, const stochastic& rounding) {
  using steps = master_adamw_body<T, bf16, G, round_by_chance>;
  each_pack<wider<T, G>>(on, n,
                         steps{n, adamw_scalars<T>(step), master, weights, g, m, v, {rounding.random, rounding.first}});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
