// Routes of parameters by the CUDA backend's kernels of boxes and casts, over the stand-in for CUDA.
#include "emulated_launcher.hpp"
#include "model/parameter_routes.hpp"

#include "catch.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>

TEST_CASE("routes of parameters run as kernels of a device", "[cuda][route][threads]") {
  using emulated = heddle::compute::basic_cuda<cuda_double::emulated_launcher<1>>;
  using parameter_routes::check_runs, parameter_routes::gpt2, parameter_routes::few_kv;
  namespace md = heddle::model;
  check_runs<md::gpt2<float>, md::gpt2<float>, emulated>(gpt2, 10, 13);
  check_runs<md::tied_llama<float>, md::tied_llama<heddle::bf16>, emulated>(few_kv, 10, 14);
}
