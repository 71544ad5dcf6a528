// Attention of bf16 and f16 on a GPU, by matrix instructions and by float, against double on the host.
#include "half_attention_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>

// Few, for tools that take a hundred times as long.
TEST_CASE("attention of 16-bit elements on a GPU is that of double, some sizes", "[cuda][gpu][few]") {
  using namespace half_attention_trials;
  compare<heddle::compute::cuda, hd::bf16>(problems(64));
  compare_fused<heddle::compute::cuda, hd::bf16>(1, 200, 2, 64);
  compare_fused<heddle::compute::cuda, hd::bf16>(1, 100, 2, 128);
  compare<heddle::compute::cuda, hd::bf16>(decoding_problems(64), false);
}

TEST_CASE("attention of 16-bit elements on a GPU is that of double", "[cuda][gpu]") {
  namespace co = heddle::compute;
  using namespace half_attention_trials;
  for (const std::int64_t head_dim : {24, 64, 80, 128}) {
    compare<co::cuda, hd::bf16>(problems(head_dim));
    compare<co::cuda, hd::f16>(problems(head_dim));
    compare<co::cuda, hd::bf16>(decoding_problems(head_dim), false);
    compare<co::cuda, hd::f16>(decoding_problems(head_dim), false);
  }
  compare<co::cuda, hd::bf16>(odd_problems());
  compare<co::cuda, hd::bf16>(decoding_problems(20), false);
  compare<co::cuda, hd::bf16>(wide_problems(), false);
  compare<co::cuda, hd::f16>({decoding("long", 8, 1, 128, {{1, 5000}, {1, 30}, {4, 20000}})}, false);
  for (const std::int64_t sequence : {1, 200, 1000}) {
    compare_fused<co::cuda, hd::bf16>(2, sequence, 3, 128);
    compare_fused<co::cuda, hd::f16>(2, sequence, 3, 64);
  }
}
