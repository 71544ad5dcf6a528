// refuse: heddle: from_kokkos: the View has another rank, or other static extents, than the shape that is asked for
#include <heddle/tensor/kokkos/view.hpp>

namespace hd = heddle;
auto f(const Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace>& x) {
  return hd::from_kokkos<hd::host_memory, hd::dynamic_shape<3>>(x);
}
