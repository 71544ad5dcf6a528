// refuse: heddle: teams<TileBytes, TeamSize> takes at least 2048 bytes
// needs: kokkos
#include <heddle/compute/kokkos/kokkos.hpp>

namespace co = heddle::compute;

void f(co::kokkos<Kokkos::Serial, co::teams<1024>>& backend) {
  backend.queue().wait();
}
