// Instantiates the kernels that are bound by the bandwidth of memory; sass_test.py reads their machine code. Not linked, not run.
#include <heddle/compute/cuda/optimizer.hpp>
#include <heddle/compute/cuda/elementwise.hpp>
#include <heddle/compute/cuda/routing.hpp>
#include <heddle/compute/cuda/rows.hpp>
#include <heddle/compute/cuda/stream_kernels.hpp>
#include <heddle/compute/cuda/sums.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cuda {

template <class T>
using silu_body = of_two_body<gated_by<silu>, T>;
template <class T>
using silu_backward_body = gated_backward_body<silu, T>;

#define HEDDLE_INSTANCE(KERNEL, BODY) template __global__ void KERNEL<BODY>(std::int64_t, BODY)
HEDDLE_INSTANCE(row_kernel, layer_norm_row<float>);
HEDDLE_INSTANCE(row_kernel, layer_norm_row<double>);
HEDDLE_INSTANCE(row_kernel, layer_norm_backward_row<float>);
HEDDLE_INSTANCE(row_kernel, layer_norm_row<bf16>);
HEDDLE_INSTANCE(row_kernel, layer_norm_backward_row<bf16>);
HEDDLE_INSTANCE(row_kernel, row_sum_exp_row<bf16>);
HEDDLE_INSTANCE(row_kernel, cross_entropy_backward_row<bf16>);
HEDDLE_INSTANCE(row_kernel, rms_norm_row<float>);
HEDDLE_INSTANCE(row_kernel, rms_norm_backward_row<float>);
HEDDLE_INSTANCE(row_kernel, row_max_row<float>);
HEDDLE_INSTANCE(row_kernel, row_sum_exp_row<float>);
HEDDLE_INSTANCE(row_kernel, add_to_softmax_row<float>);
HEDDLE_INSTANCE(row_kernel, add_to_softmax_row<bf16>);
HEDDLE_INSTANCE(row_kernel, cross_entropy_backward_row<float>);
HEDDLE_INSTANCE(each_kernel, silu_body<float>);
HEDDLE_INSTANCE(each_kernel, silu_backward_body<float>);
HEDDLE_INSTANCE(each_kernel, silu_body<bf16>);
HEDDLE_INSTANCE(each_kernel, silu_backward_body<bf16>);
HEDDLE_INSTANCE(each_kernel, adamw_body<float>);
HEDDLE_INSTANCE(each_kernel, adamw_body<double>);
HEDDLE_INSTANCE(row_kernel, part_of_sum<square_of<float>>);
HEDDLE_INSTANCE(row_kernel, permute_row<bf16>);
HEDDLE_INSTANCE(row_kernel, gathered_row<bf16>);
using master_of_halves = master_adamw_body<float, bf16, bf16>;
HEDDLE_INSTANCE(each_kernel, master_of_halves);
using masters_of_a_graph = adamw_at_body<float, master_adamw_body<float, bf16, float>>;
HEDDLE_INSTANCE(each_kernel, masters_of_a_graph);
using cast_of_halves = of_one_body<round_to_nearest<f16>, bf16, f16>;
HEDDLE_INSTANCE(each_kernel, cast_of_halves);

}  // namespace heddle::inline v0::compute::detail::on_cuda
