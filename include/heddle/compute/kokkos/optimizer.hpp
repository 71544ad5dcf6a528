// heddle/compute/kokkos/optimizer.hpp: one AdamW step, and one taken back, as Kokkos kernels.
#pragma once

#include <heddle/compute/adamw_scalars.hpp>
#include <heddle/compute/host/optimizer.hpp>
#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/kokkos/elementwise.hpp>
#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/compute/ops/optimizer.hpp>

#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

/// A block of the host's, with gradients of any type.
template <class T, class G>
void step_of_block(const adamw_update<T>& update, std::int64_t count, const G* g, T* m, T* v, T* p) {
  if constexpr (std::is_same_v<T, G>)
    if (count == adamw_update<T>::width) return update(g, m, v, p);
  T gradient[adamw_update<T>::width] = {};
  cast_lanes(count, g, gradient);
  update(gradient, m, v, p);
}
/// A step of one element on a device, of a block on the host: with its loops, which are vectorised.
template <class Exec, class T, class G, class Write>
void adamw_blocks(const on<Exec>& exec, std::int64_t n, T* p, const G* g, T* m, T* v, const adamw_step& step,
                  const Write& write) {
  if constexpr (runs_on_host<Exec>) {
    const adamw_update<T> update(step);
    each_block<elements_of_item<Exec>>(exec, "heddle::adamw", n, [=](std::int64_t begin, std::int64_t size) {
      for_each_adamw_block(begin, begin + size, p, m, v,
                           [&](std::int64_t i, std::int64_t count, T* first, T* second, T* parameter) {
                             step_of_block(update, count, g + i, first, second, parameter);
                             write(i, count, static_cast<const T*>(parameter));
                           });
    });
  } else {
    const adamw_scalars<T> s(step);
    each(
        exec, "heddle::adamw", n, n, KOKKOS_LAMBDA(const std::int64_t i) {
          p[i] = s.updated(p[i], converted<T>(g[i]), m[i], v[i]);
          write(i, 1, static_cast<const T*>(p + i));
        });
  }
}
template <class Exec, class T>
void body(ops::adamw, const on<Exec>& exec, std::int64_t n, T* p, const T* g, T* m, T* v, const adamw_step& step) {
  adamw_blocks(exec, n, p, g, m, v, step, KOKKOS_LAMBDA(std::int64_t, std::int64_t, const T*){});
}
/// On master weights of type T, with weights of type W and gradients of type G.
template <class Exec, class T, class W, class G>
void body(ops::master_adamw<W, G>, const on<Exec>& exec, std::int64_t n, T* master, W* weights, const G* g, T* m, T* v,
          const adamw_step& step) {
  adamw_blocks(
      exec, n, master, g, m, v, step, KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count, const T* from) {
        cast_block<Exec>(count, from, weights + i);
      });
}
/// The same into weights that are rounded stochastically.
template <class Exec, class T, class G>
void body(ops::stochastic_adamw<G>, const on<Exec>& exec, std::int64_t n, T* master, bf16* weights, const G* g, T* m,
          T* v, const adamw_step& step, const stochastic& rounding) {
  const counter_random random = rounding.random;
  const std::uint64_t first = rounding.first;
  adamw_blocks(
      exec, n, master, g, m, v, step, KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t count, const T* from) {
        cast_stochastic_block<Exec>(count, from, random, first + static_cast<std::uint64_t>(i), weights + i);
      });
}
/// Source: Qi et al. 2023, arXiv:2401.10241, appendix C.
template <class Exec, class T>
void body(ops::undo_adamw, const on<Exec>& exec, std::int64_t n, T* p, const T* g, T* m, T* v, const adamw_step& step) {
  const adamw_scalars<T> s(step);
  require_reversible(step);
  each(
      exec, "heddle::undo_adamw", n, n,
      KOKKOS_LAMBDA(const std::int64_t i) { p[i] = s.taken_back(p[i], g[i], m[i], v[i]); });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
