// heddle/compute/impl/host.hpp: the host's kernels in float and double, compiled here.
#pragma once

#include <heddle/compute/impl/host_kernels.hpp>

namespace heddle::inline v0::compute::detail {

HEDDLE_HOST_KERNELS(, float);
HEDDLE_HOST_KERNELS(, double);
HEDDLE_HOST_PRODUCTS(, portable, float);
HEDDLE_HOST_PRODUCTS(, portable, double);
#if defined(HEDDLE_COMPILED_GEMM)
HEDDLE_HOST_PRODUCTS(, HEDDLE_COMPILED_GEMM, float);
HEDDLE_HOST_PRODUCTS(, HEDDLE_COMPILED_GEMM, double);
#endif
HEDDLE_HOST_TILES(, float, 16);
HEDDLE_HOST_TILES(, double, 16);
#if defined(__x86_64__)
HEDDLE_HOST_TILES(, float, 32);
HEDDLE_HOST_TILES(, double, 32);
HEDDLE_HOST_TILES(, float, 64);
HEDDLE_HOST_TILES(, double, 64);
#endif

}  // namespace heddle::inline v0::compute::detail
