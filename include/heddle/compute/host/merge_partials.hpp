// heddle/compute/host/merge_partials.hpp: merges partial results of attention, and runs other bodies on rows, on the host.
#pragma once

#include <heddle/compute/context_kernels.hpp>
#include <heddle/compute/host/host.hpp>

#include <algorithm>
#include <cstdint>

namespace heddle::inline v0::compute {

/// See `context_kernels`.
template <class Gemm, class Body>
void run_on_rows(host<Gemm>& backend, std::int64_t n, std::int64_t size, const Body& body) {
  constexpr std::int64_t grain = 1 << 14;  // elements that are worth a thread
  backend.workers().split(n, grain / (std::max)(std::int64_t{1}, size) + 1, 1,
                          [&](std::int64_t begin, std::int64_t end) {
                            detail::in_groups::lone_thread alone;
                            for (std::int64_t i = begin; i < end; ++i) body(alone, i);
                          });
}

}  // namespace heddle::inline v0::compute
