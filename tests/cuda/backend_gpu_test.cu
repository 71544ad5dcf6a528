// Each facet of the CUDA backend on a GPU against the host's backend, on the same numbers.
#include "compute/backend_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>

TEST_CASE("kernels on a GPU compute what the host's do", "[cuda][gpu]") {
  namespace co = heddle::compute;
  using backend_trials::compare_with_host, backend_trials::trial_sizes;
  compare_with_host<co::cuda, double>(1e-10, 1e-10, trial_sizes, {0, 1, 6, 37, 300});
  compare_with_host<co::cuda, float>(1e-4, 1e-4, trial_sizes, {0, 1, 6, 37, 300});
  backend_trials::compare_corners_with_host<co::cuda>();
}
