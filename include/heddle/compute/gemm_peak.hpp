// heddle/compute/gemm_peak.hpp: measures the peak speed of a backend's matrix products.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/tensor/buffer.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::compute {

/// The best speed of a square product of this backend, in its memory and until its queue has done it, over as many runs as fit into
/// `seconds` (at least two). Units: floating-point operations per second, two per multiplication.
template <class T, class Backend>
  requires offered<product_facet, Backend, T>
double measure_gemm_peak(Backend& backend, std::int64_t extent = 1024, double seconds = 0.3) {
  using space = space_of<Backend>;
  auto& queue = queue_of(backend);
  const std::int64_t n = extent * extent;
  buffer<T, space> a(queue, n, "a factor"), b(queue, n, "a factor"), c(queue, n, "a product");
  std::vector<T> values(static_cast<std::size_t>(n));
  const auto fill = [&](buffer<T, space>& x, std::size_t period) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i % period) / static_cast<T>(period);
    queue.copy(std::span<const T>(values), x);
    queue.wait();
  };
  fill(a, 7);
  fill(b, 5);
  const dynamic_shape<2> square(extent, extent);
  const double operations =
      2.0 * static_cast<double>(extent) * static_cast<double>(extent) * static_cast<double>(extent);
  using clock = std::chrono::steady_clock;
  const auto begin = clock::now();
  double best = 0;
  for (int runs = 0; runs < 2 || std::chrono::duration<double>(clock::now() - begin).count() < seconds; ++runs) {
    const auto start = clock::now();
    compute::matmul<transpose::no, transpose::no>(backend, matrix_view<const T, space>(a.address(), square),
                                                  matrix_view<const T, space>(b.address(), square),
                                                  matrix_view<T, space>(c.address(), square), T(0));
    queue.wait();
    best = (std::max)(best, operations / std::chrono::duration<double>(clock::now() - start).count());
  }
  return best;
}

}  // namespace heddle::inline v0::compute
