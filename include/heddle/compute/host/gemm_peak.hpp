// heddle/compute/host/gemm_peak.hpp: the measured peak of matrix products on this machine, which MFU is relative to.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/tensor/buffer.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace heddle::inline v0::compute {

/// The best speed of a square product of this backend, over as many runs as fit into `seconds` (at least two).
/// Units: floating-point operations per second, two per multiplication.
template <class T, class Backend>
  requires product_kernels<Backend, T>
double measure_gemm_peak(Backend& backend, std::int64_t extent = 1024, double seconds = 0.3) {
  buffer<T> a(extent * extent), b(extent * extent), c(extent * extent);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<T>(i % 7) / T(7);
    b[i] = static_cast<T>(i % 5) / T(5);
  }
  const dynamic_shape<2> square(extent, extent);
  const double operations =
      2.0 * static_cast<double>(extent) * static_cast<double>(extent) * static_cast<double>(extent);
  using clock = std::chrono::steady_clock;
  const auto begin = clock::now();
  double best = 0;
  for (int runs = 0; runs < 2 || std::chrono::duration<double>(clock::now() - begin).count() < seconds; ++runs) {
    const auto start = clock::now();
    backend.template matmul<transpose::no, transpose::no>(matrix_view<const T>(a.data(), square),
                                                          matrix_view<const T>(b.data(), square),
                                                          matrix_view<T>(c.data(), square), T(0));
    best = (std::max)(best, operations / std::chrono::duration<double>(clock::now() - start).count());
  }
  return best;
}

}  // namespace heddle::inline v0::compute
