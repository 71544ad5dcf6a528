// refuse: heddle: to_kokkos: a Kokkos::View has at most 8 dimensions
#include <heddle/tensor/kokkos/view.hpp>

namespace hd = heddle;
auto f(const hd::view<float, hd::dynamic_shape<9>>& x) {
  return hd::to_kokkos(x);
}
