// Frames pixelized on a GPU: the host's bits.
#include "compute/pixelize_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>

TEST_CASE("pixelized frames have on a GPU the bits of the host's", "[cuda][compute][gpu]") {
  pixelize_trials::compare_all_with_host<heddle::compute::cuda>();
}
