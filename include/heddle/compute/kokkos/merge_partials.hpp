// heddle/compute/kokkos/merge_partials.hpp: merges partial results of attention on a Kokkos execution space.
#pragma once

#include <heddle/compute/context_kernels.hpp>
#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/compute/kokkos/launch.hpp>

#include <cstdint>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute {

/// See `context_kernels`; in the order of the backend's queue. Errors: `layout_error` if rows, heads or sizes differ.
template <class Exec, class Gemm, class S, class M>
void merge_partials(kokkos<Exec, Gemm>& backend, head_rows<S, kokkos_memory<Exec>> out,
                    head_numbers<S, kokkos_memory<Exec>> lse, head_rows<const M, kokkos_memory<Exec>> more,
                    head_numbers<const S, kokkos_memory<Exec>> more_lse) {
  detail::check_partials(out, lse, more, more_lse);
  const std::int64_t heads = out.heads, size = out.head_dim;
  detail::on_kokkos::each(
      detail::on_kokkos::on<Exec>{backend.queue().instance()}, "heddle::merge_partials", out.rows * heads,
      out.rows * out.width(), KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t r = i / heads, h = i % heads;
        detail::merge_head(out.row(r, h), *lse.at(r, h), more.row(r, h), *more_lse.at(r, h), size);
      });
}

}  // namespace heddle::inline v0::compute
