// refuse: heddle: from_kokkos: heddle's views are row-major: give it a View of LayoutRight
#include <heddle/tensor/kokkos/view.hpp>

auto f(const Kokkos::View<float**, Kokkos::LayoutLeft, Kokkos::HostSpace>& x) {
  return heddle::from_kokkos(x);
}
