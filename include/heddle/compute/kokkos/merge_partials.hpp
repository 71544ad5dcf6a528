// heddle/compute/kokkos/merge_partials.hpp: merges partial attention on Kokkos.
#pragma once

#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/compute/ops/on_rows.hpp>

#include <cstdint>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

template <class Exec, class Work>
void body(ops::on_rows<Work>, const on<Exec>& exec, const Work& work, std::int64_t n, std::int64_t size) {
  each(
      exec, "heddle::run_on_rows", n, n * size, KOKKOS_LAMBDA(const std::int64_t i) {
        in_groups::lone_thread alone;
        work(alone, i);
      });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
