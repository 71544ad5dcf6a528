// heddle/compute/cuda/merge_partials.hpp: merges partial results of attention, and runs other bodies on rows, on a CUDA stream.
#pragma once

#include <heddle/compute/context_kernels.hpp>
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/cuda/launcher.hpp>

#include <cstdint>

namespace heddle::inline v0::compute {

namespace detail::on_cuda {
struct row_bodies {
  template <class Launcher, class Body>
  static void launch(basic_cuda<Launcher>& backend, std::int64_t n, std::int64_t size, const Body& body) {
    backend.launcher().each_row(n, size, body);
  }
};
}  // namespace detail::on_cuda

/// See `context_kernels`.
template <class Launcher, class Body>
void run_on_rows(basic_cuda<Launcher>& backend, std::int64_t n, std::int64_t size, const Body& body) {
  detail::on_cuda::row_bodies::launch(backend, n, size, body);
}

}  // namespace heddle::inline v0::compute
