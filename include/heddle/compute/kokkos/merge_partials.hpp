// heddle/compute/kokkos/merge_partials.hpp: merges partial results of attention, and runs other bodies on rows, on Kokkos.
#pragma once

#include <heddle/compute/context_kernels.hpp>
#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/compute/kokkos/launch.hpp>

#include <cstdint>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute {

/// See `context_kernels`.
template <class Exec, class Gemm, class Body>
void run_on_rows(kokkos<Exec, Gemm>& backend, std::int64_t n, std::int64_t size, const Body& body) {
  detail::on_kokkos::each(
      backend.launcher(), "heddle::run_on_rows", n, n * size, KOKKOS_LAMBDA(const std::int64_t i) {
        detail::in_groups::lone_thread alone;
        body(alone, i);
      });
}

}  // namespace heddle::inline v0::compute
