// A GPT-2 in bf16 on the bodies of the CUDA backend's kernels, over the stand-in for CUDA.
#include "emulated_launcher.hpp"
#include "half_model_trials.hpp"

TEST_CASE("a GPT-2 in bf16 trains on the CUDA backend as on the host", "[cuda][train][bf16]") {
  half_model_trials::compare_with_host<heddle::compute::basic_cuda<cuda_double::emulated_launcher<1>>>();
}
