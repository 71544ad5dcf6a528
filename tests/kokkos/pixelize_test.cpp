// tests/kokkos/pixelize_test.cpp: pixelized frames on Kokkos have the bits of the host's.
#include "compute/pixelize_trials.hpp"
#include "space.hpp"

#include <heddle/compute/kokkos/kokkos.hpp>

TEST_CASE("pixelized frames have the bits of the host's", "[kokkos]") {
  pixelize_trials::compare_all_with_host<heddle::compute::kokkos<tested_space>>();
}
