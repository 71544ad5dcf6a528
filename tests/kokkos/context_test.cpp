// Context tables run on a Kokkos execution space of the host: the host's results.
#include "catch.hpp"
#include "context/device_trials.hpp"
#include "space.hpp"

#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/compute/kokkos/merge_partials.hpp>

TEST_CASE("every carrier attends on Kokkos as on the host", "[kokkos][context]") {
  using tested = heddle::compute::kokkos<tested_space>;
  for (const int ranks : {1, 2, 4}) {
    if (ranks > 1 && !ranks_can_be_threads) continue;
    CHECK(device_trials::differences<double, tested>(ranks, {4, 2, 4, 6}, static_cast<unsigned>(ranks), 1e-11) == "");
    CHECK(device_trials::differences<float, tested>(ranks, {8, 1, 3, 5}, static_cast<unsigned>(10 + ranks), 5e-6) ==
          "");
  }
}
