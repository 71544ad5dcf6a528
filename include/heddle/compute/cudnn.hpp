// heddle/compute/cudnn.hpp: the backend on a CUDA stream with cuDNN's attention (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/cudnn/attention.hpp>

namespace heddle::inline v0::compute {

#if defined(__CUDACC__)
/// `cuda`, whose attention of bf16 and f16 is cuDNN's (9.16 or later) where cuDNN has it: causal self-attention (`ops::causal_attention`
/// and its gradient) with heads of a multiple of 8 elements, 128 at most, at addresses of 16 bytes. All other attention is `cuda`'s. Gradients of queries are added up
/// in an order that may differ from run to run.
using cuda_with_cudnn =
    basic_cuda<detail::on_cudnn::launcher_with_cudnn<detail::on_cuda::stream_launcher<detail::on_cuda::full_floats>>>;
#else
using cuda_with_cudnn = detail::on_cuda::compiled_by_nvcc<void>;
#endif

}  // namespace heddle::inline v0::compute
