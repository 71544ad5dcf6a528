// Attention of bf16 and f16 on the CUDA backend, its bodies on the host, and on the host's backend, against double.
#include "emulated_launcher.hpp"
#include "half_attention_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>

namespace {
using namespace half_attention_trials;
template <int Threads>
using emulated = co::basic_cuda<cuda_double::emulated_launcher<Threads>>;
}  // namespace

TEST_CASE("attention takes bf16 and f16, with statistics of float", "[cuda][law]") {
  STATIC_REQUIRE(co::sliced_attention_kernels<emulated<2>, hd::bf16>);
  STATIC_REQUIRE(co::attention_kernels<emulated<2>, hd::f16>);
  STATIC_REQUIRE(co::sliced_attention_kernels<co::host<>, hd::f16>);
  STATIC_REQUIRE(co::attention_kernels<co::host<>, hd::bf16>);
}

TEST_CASE("attention of 16-bit elements on the host is that of double", "[cuda]") {
  compare<co::host<>, hd::bf16>(problems(64));
  compare<co::host<>, hd::f16>(odd_problems());
}

TEST_CASE("attention of 16-bit elements that tensor cores do not take goes by float", "[cuda]") {
  compare<emulated<1>, hd::bf16>(odd_problems());
  compare<emulated<4>, hd::f16>(odd_problems());
}
