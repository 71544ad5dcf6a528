// Instantiates the kernels that multiply by the matrix instructions of warps; sass_test.py reads their machine code. Not linked, not run.
#include <heddle/compute/cuda/warp_instructions.hpp>
#include <heddle/compute/group/matrix_attention.hpp>
#include <heddle/compute/group/matrix_attention_gradients.hpp>
#include <heddle/compute/group/matrix_products.hpp>
#include <heddle/compute/group/split_matrix_attention.hpp>
#include <heddle/core/half_precision.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cuda {

#define HEDDLE_INSTANCE(BODY, T, WIDTH)                                                                         \
  template __global__ void warp_kernel<T, in_groups::BODY<T, WIDTH>::warps, in_groups::BODY<T, WIDTH>::blocks>( \
      std::int64_t, const __grid_constant__ in_groups::BODY<T, WIDTH>)
#define HEDDLE_INSTANCES(BODY)      \
  HEDDLE_INSTANCE(BODY, bf16, 64);  \
  HEDDLE_INSTANCE(BODY, bf16, 96);  \
  HEDDLE_INSTANCE(BODY, bf16, 128); \
  HEDDLE_INSTANCE(BODY, f16, 128)
HEDDLE_INSTANCES(matrix_attention_of);
HEDDLE_INSTANCE(matrix_attention_of, bf16, 192);
HEDDLE_INSTANCE(matrix_attention_of, bf16, 256);
HEDDLE_INSTANCES(matrix_query_gradients_of);
HEDDLE_INSTANCES(matrix_key_gradients_of);
HEDDLE_INSTANCES(matrix_attention_part);
HEDDLE_INSTANCE(matrix_attention_part, bf16, 192);
HEDDLE_INSTANCE(matrix_attention_part, bf16, 256);

#define HEDDLE_PRODUCT(...)                                                                                  \
  template __global__ void warp_kernel<bf16, in_groups::__VA_ARGS__::warps, in_groups::__VA_ARGS__::blocks>( \
      std::int64_t, const __grid_constant__ in_groups::__VA_ARGS__)
HEDDLE_PRODUCT(warp_grouped_product<false, bf16, bf16>);
HEDDLE_PRODUCT(warp_grouped_product<true, bf16, bf16>);
HEDDLE_PRODUCT(warp_grouped_product<true, bf16, float>);
HEDDLE_PRODUCT(warp_grouped_weight<bf16, float>);

}  // namespace heddle::inline v0::compute::detail::on_cuda
