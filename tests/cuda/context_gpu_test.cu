// Context tables run on a GPU by ranks that are threads and share it: the host's results.
#include "catch.hpp"
#include "context/device_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/cuda/merge_partials.hpp>

TEST_CASE("every carrier attends on a GPU as on the host", "[cuda][context][ranks][gpu]") {
  for (const int ranks : {1, 2, 3, 4})
    CHECK(device_trials::differences<float, heddle::compute::cuda>(ranks, {8, 2, 16, 16}, static_cast<unsigned>(ranks),
                                                                   1e-5) == "");
}
