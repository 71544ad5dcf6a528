// tests/kokkos/space.hpp: the execution space that is tested: that of the host that this Kokkos prefers, Serial where it has no other.
#pragma once

#include <heddle/tensor/kokkos/memory.hpp>

using tested_space = Kokkos::DefaultHostExecutionSpace;
/// Whether ranks that are threads can each launch kernels.
inline constexpr bool ranks_can_be_threads = !heddle::detail::kokkos_launches_from_one_thread<tested_space>;
