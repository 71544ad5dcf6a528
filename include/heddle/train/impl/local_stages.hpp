// heddle/train/impl/local_stages.hpp: parts of trainers on the host to compile once.
#pragma once

#include <heddle/train/impl/host_training.hpp>

namespace heddle::inline v0 {

HEDDLE_HOST_TRAINING(, float);
HEDDLE_HOST_TRAINING(, double);
HEDDLE_HOST_SUMS(, compute::portable, float);
HEDDLE_HOST_SUMS(, compute::portable, double);
#if defined(HEDDLE_COMPILED_GEMM)
HEDDLE_HOST_SUMS(, HEDDLE_COMPILED_GEMM, float);
HEDDLE_HOST_SUMS(, HEDDLE_COMPILED_GEMM, double);
#endif
HEDDLE_THREADS_TRAINING();

}  // namespace heddle::inline v0
