// heddle/compute/host/optimizer.hpp: one AdamW step in one pass over its arrays.
#pragma once

#include <heddle/compute/adamw_scalars.hpp>
#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/host/elementwise.hpp>
#include <heddle/compute/ops/optimizer.hpp>

#include <algorithm>
#include <cstdint>

namespace heddle::inline v0::compute::detail {

/// The update of one block of elements, each as `adamw_scalars::updated`.
template <class T>
class adamw_update : adamw_scalars<T> {
  using scalars = adamw_scalars<T>;
  using scalars::b1, scalars::b2, scalars::c1, scalars::c2, scalars::decay, scalars::eps, scalars::grad_scale,
      scalars::inverse, scalars::rate;

 public:
  static constexpr int width = block_size<T>;

  using scalars::scalars;

  void operator()(const T* gradient, T* first, T* second, T* parameter) const {
    T mean[width], square[width], root[width];
    for (int l = 0; l < width; ++l) {
      const T d = gradient[l] * grad_scale;
      mean[l] = b1 * first[l] + c1 * d;
      square[l] = b2 * second[l] + c2 * d * d;
    }
    square_roots<width>(square, root);
    for (int l = 0; l < width; ++l) root[l] = parameter[l] * decay - rate * mean[l] / (root[l] * inverse + eps);
    for (int l = 0; l < width; ++l) first[l] = mean[l];
    for (int l = 0; l < width; ++l) second[l] = square[l];
    for (int l = 0; l < width; ++l) parameter[l] = root[l];
  }
};

/// Gives `body(i, count, first, second, parameter)` blocks of at most `width` elements; what is shorter lies in
/// whole blocks of memory, so that every element goes through the same code.
template <class T, class Body>
void for_each_adamw_block(std::int64_t begin, std::int64_t end, T* p, T* m, T* v, Body body) {
  constexpr int width = adamw_update<T>::width;
  std::int64_t i = begin;
  for (; i + width <= end; i += width) body(i, std::int64_t{width}, m + i, v + i, p + i);
  if (i == end) return;
  T first[width] = {}, second[width] = {}, parameter[width] = {};
  const auto rest = end - i;
  std::copy_n(m + i, rest, first);
  std::copy_n(v + i, rest, second);
  std::copy_n(p + i, rest, parameter);
  body(i, rest, first, second, parameter);
  std::copy_n(first, rest, m + i);
  std::copy_n(second, rest, v + i);
  std::copy_n(parameter, rest, p + i);
}

template <class T>
void body(ops::adamw, team& workers, std::int64_t n, T* p, const T* g, T* m, T* v, adamw_step step) {
  const adamw_update<T> update(step);
  constexpr int width = adamw_update<T>::width;
  workers.split(n, elementwise_grain, width, [&](std::int64_t begin, std::int64_t end) {
    for_each_adamw_block(begin, end, p, m, v,
                         [&](std::int64_t i, std::int64_t count, T* first, T* second, T* parameter) {
                           if (count == width) return update(g + i, first, second, parameter);
                           T gradient[width] = {};
                           std::copy_n(g + i, count, gradient);
                           update(gradient, first, second, parameter);
                         });
  });
}

/// As a step on master weights of type T with gradients of type G; `round(i, count, master, weights)` writes the weights.
template <class T, class W, class G, class Round>
void master_steps(team& workers, std::int64_t n, T* master, W* weights, const G* g, T* m, T* v, const adamw_step& step,
                  Round round) {
  const adamw_update<T> update(step);
  constexpr int width = adamw_update<T>::width;
  workers.split(n, elementwise_grain, width, [&](std::int64_t begin, std::int64_t end) {
    for_each_adamw_block(begin, end, master, m, v,
                         [&](std::int64_t i, std::int64_t count, T* first, T* second, T* parameter) {
                           T gradient[width] = {};
                           cast_lanes(count, g + i, gradient);
                           update(gradient, first, second, parameter);
                           round(i, count, static_cast<const T*>(parameter), weights + i);
                         });
  });
}

template <class T, class W, class G>
void body(ops::master_adamw<W, G>, team& workers, std::int64_t n, T* master, W* weights, const G* g, T* m, T* v,
          const adamw_step& step) {
  master_steps(workers, n, master, weights, g, m, v, step,
               [](std::int64_t, std::int64_t count, const T* from, W* to) { cast_lanes(count, from, to); });
}
template <class T, class G>
void body(ops::stochastic_adamw<G>, team& workers, std::int64_t n, T* master, bf16* weights, const G* g, T* m, T* v,
          const adamw_step& step, const stochastic& rounding) {
  master_steps(workers, n, master, weights, g, m, v, step,
               [&rounding](std::int64_t i, std::int64_t count, const T* from, bf16* to) {
                 cast_stochastic_lanes(count, from, rounding.random, rounding.first + static_cast<std::uint64_t>(i),
                                       to);
               });
}

/// Takes the last step with the same gradients and scalars back, up to rounding. A second moment is never left below 0; moments whose beta is 0
/// are set to 0, which is what the next step makes of them.
/// Source: Qi et al. 2023, arXiv:2401.10241, appendix C.
template <class T>
void body(ops::undo_adamw, team& workers, std::int64_t n, T* p, const T* g, T* m, T* v, adamw_step step) {
  const adamw_scalars<T> s(step);
  require_reversible(step);
  workers.split(n, elementwise_grain, block_size<T>, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) p[i] = s.taken_back(p[i], g[i], m[i], v[i]);
  });
}

}  // namespace heddle::inline v0::compute::detail
