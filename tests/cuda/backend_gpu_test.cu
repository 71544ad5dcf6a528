// Each facet of the CUDA backend on a GPU against the host's backend, on the same numbers.
#include "compute/backend_trials.hpp"
#include "float8_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/buffer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

TEST_CASE("kernels on a GPU compute what the host's do", "[cuda][gpu]") {
  namespace co = heddle::compute;
  using backend_trials::compare_with_host, backend_trials::trial_sizes;
  compare_with_host<co::cuda, double>(1e-10, 1e-10, trial_sizes, {0, 1, 6, 37, 300});
  compare_with_host<co::cuda, float>(1e-4, 1e-4, trial_sizes, {0, 1, 6, 37, 300});
  backend_trials::compare_corners_with_host<co::cuda>();
  backend_trials::compare_halves_with_host<co::cuda>();
  backend_trials::compare_chunks_with_host<co::cuda, double>(1e-12);
  backend_trials::compare_chunks_with_host<co::cuda, float>(1e-5);
  backend_trials::compare_ends_with_host<co::cuda, double>(1e-10);
  backend_trials::compare_ends_with_host<co::cuda, float>(1e-4);
  backend_trials::compare_few_queries_with_host<co::cuda, double>(1e-10);
  backend_trials::compare_few_queries_with_host<co::cuda, float>(1e-4);
  backend_trials::compare_bf16_with_host_and_double<co::cuda>();
  backend_trials::compare_ends_with_host<co::cuda, heddle::bf16>(0x1p-6);
  backend_trials::compare_grouped_products_of_bf16<co::cuda>();
}

TEST_CASE("experts, parts of heads and images on a GPU are the host's", "[cuda][gpu]") {
  namespace co = heddle::compute;
  backend_trials::compare_experts_and_rows_with_host<co::cuda, double>(1e-10);
  backend_trials::compare_experts_and_rows_with_host<co::cuda, float>(1e-4);
}

TEST_CASE("products of floats in TF32 are those of the host to 2^-9", "[cuda][gpu]") {
  namespace co = heddle::compute;
  for (const auto& [rows, columns] : backend_trials::trial_sizes) {
    CAPTURE(rows, columns);
    backend_trials::check(backend_trials::products<co::cuda_tf32, float>(rows, columns),
                          backend_trials::products<co::host<>, float>(rows, columns),
                          0x1p-9 * (1 + static_cast<double>(rows + columns)), 5);
  }
}

// However the library cuts a long sum, its parts are added up in float.
TEST_CASE("a long sum of products of bf16 on a GPU is rounded once", "[cuda][gpu]") {
  namespace hd = heddle;
  namespace co = heddle::compute;
  constexpr std::int64_t terms = 65536, n = 16;
  co::cuda backend;
  auto& queue = backend.queue();
  const auto numbers = [&](std::uint64_t seed) {
    std::vector<hd::bf16> x;
    for (const float e : backend_trials::numbers<float>(terms * n, seed)) x.push_back(hd::bf16(std::abs(e)));
    return x;
  };
  const std::vector<hd::bf16> a = numbers(1), b = numbers(2);
  hd::buffer<hd::bf16, hd::cuda_memory> left(queue, terms * n), right(queue, terms * n), made(queue, n * n);
  queue.copy(std::span<const hd::bf16>(a), left);
  queue.copy(std::span<const hd::bf16>(b), right);
  using in = hd::matrix_view<const hd::bf16, hd::cuda_memory>;
  const hd::dynamic_shape<2> tall(terms, n);
  co::matmul<co::transpose::yes, co::transpose::no>(
      backend, in(left.address(), tall), in(right.address(), tall),
      hd::matrix_view<hd::bf16, hd::cuda_memory>(made.address(), hd::dynamic_shape<2>(n, n)));
  std::vector<hd::bf16> got(n * n);
  queue.copy(made, got);
  queue.wait();
  double worst = 0;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < terms; ++k)
        sum += static_cast<double>(static_cast<float>(a[k * n + i])) *
               static_cast<double>(static_cast<float>(b[k * n + j]));
      worst = (std::max)(worst, std::abs(static_cast<double>(static_cast<float>(got[i * n + j])) - sum) / sum);
    }
  CHECK(worst < 0x1p-9 * 1.02);  // half a unit of the last of 8 bits, and what float loses
}

// Sums in another order; cuBLASLt may keep fewer bits of them in 8 bits than float has.
TEST_CASE("products of scaled operands of 8 bits are the host's, or refused before sm_89", "[cuda][gpu][float8]") {
  int device = 0, major = 0, minor = 0;
  REQUIRE(cudaGetDevice(&device) == cudaSuccess);
  REQUIRE(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess);
  REQUIRE(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess);
  namespace co = heddle::compute;
  CHECK(float8_trials::worst_float8_difference<co::cuda_float8_in_bf16, float>() < 1e-2);
  if (10 * major + minor >= 89) {
    CHECK(float8_trials::worst_float8_difference<co::cuda, float>() < 1e-2);
    CHECK(float8_trials::worst_float8_difference<co::cuda, heddle::bf16>() < 0.1);
    CHECK(float8_trials::worst_float8_difference<co::cuda, float, true>() < 1e-2);
  } else {
    CHECK_THROWS_AS((float8_trials::worst_float8_difference<co::cuda, float>()), heddle::config_error);
  }
}
