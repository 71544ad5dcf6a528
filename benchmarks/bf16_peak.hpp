// benchmarks/bf16_peak.hpp: the speed of square products of bf16 by cuBLASLt on this device, which other work is compared with.
#pragma once

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>
#include <heddle/tensor/buffer.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// The median of ten rounds of ten products of random numbers, whose values decide how fast a chip goes. Units: floating-point operations per second.
inline double peak_of_bf16(std::int64_t extent) {
  namespace hd = heddle;
  namespace hc = heddle::compute;
  using clock_type = std::chrono::steady_clock;
  hc::cuda backend;
  auto& queue = backend.queue();
  const std::int64_t n = extent * extent;
  hd::buffer<hd::bf16, hd::cuda_memory> a(queue, n, "a factor"), b(queue, n, "a factor"), c(queue, n, "a product");
  std::vector<hd::bf16> here(static_cast<std::size_t>(n));
  const hd::counter_random random(7, 1);
  for (std::size_t i = 0; i < here.size(); ++i)
    here[i] = static_cast<hd::bf16>(static_cast<float>(random.integer(i) % 65536) / 32768.0f - 1.0f);
  queue.copy(std::span<const hd::bf16>(here), a);
  queue.wait();
  std::reverse(here.begin(), here.end());
  queue.copy(std::span<const hd::bf16>(here), b);
  queue.wait();
  const hd::dynamic_shape<2> square(extent, extent);
  using in = hd::matrix_view<const hd::bf16, hd::cuda_memory>;
  std::vector<double> all;
  for (int i = 0; i < 13; ++i) {
    const auto start = clock_type::now();
    for (int k = 0; k < 10; ++k)
      hc::matmul<hc::transpose::no, hc::transpose::no>(backend, in(a.address(), square), in(b.address(), square),
                                                       hd::matrix_view<hd::bf16, hd::cuda_memory>(c.address(), square));
    queue.wait();
    all.push_back(std::chrono::duration<double>(clock_type::now() - start).count() / 10);
  }
  all.erase(all.begin(), all.begin() + 3);
  std::sort(all.begin(), all.end());
  const auto e = static_cast<double>(extent);
  return 2 * e * e * e / all[all.size() / 2];
}
