// refuse: heddle: from_kokkos: the View is not in this memory space: name the kokkos_memory of the View's execution space
#include <heddle/tensor/kokkos/view.hpp>

using scratch = Kokkos::Serial::scratch_memory_space;
auto f(const Kokkos::View<float*, scratch, Kokkos::MemoryTraits<Kokkos::Unmanaged>>& x) {
  return heddle::from_kokkos<heddle::kokkos_memory<Kokkos::Serial>>(x);
}
