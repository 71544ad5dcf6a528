// Partial results of attention merged by bodies of the CUDA backend on the stand-in for CUDA, by groups of several sizes: the host's.
#include "emulated_launcher.hpp"
#include "merge_trials.hpp"

#include "compute/decay_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>

TEST_CASE("partial results of attention are merged on CUDA as on the host", "[cuda][context]") {
  namespace co = heddle::compute;
  merge_trials::compare_all_with_host<co::basic_cuda<cuda_double::emulated_launcher<1>>>();
  merge_trials::compare_all_with_host<co::basic_cuda<cuda_double::emulated_launcher<2>>>();
  merge_trials::compare_all_with_host<co::basic_cuda<cuda_double::emulated_launcher<32>>>();
}

TEST_CASE("linear attention with decays is on CUDA what it is on the host", "[cuda][compute]") {
  namespace co = heddle::compute;
  decay_trials::compare_all_with_host<co::basic_cuda<cuda_double::emulated_launcher<32>>>();
}
