// Frames pixelized by the kernels for CUDA on the stand-in for CUDA: the host's bits.
#include "emulated_launcher.hpp"

#include "compute/pixelize_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>

TEST_CASE("pixelized frames have on CUDA the bits of the host's", "[cuda][compute]") {
  const int before = cuda_double::launches();
  pixelize_trials::compare_all_with_host<heddle::compute::basic_cuda<cuda_double::emulated_launcher<32>>>();
  CHECK(cuda_double::launches() > before);
}
