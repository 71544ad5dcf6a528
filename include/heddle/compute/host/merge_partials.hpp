// heddle/compute/host/merge_partials.hpp: merges partial results of attention on the host.
#pragma once

#include <heddle/compute/context_kernels.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace heddle::inline v0::compute {

/// See `context_kernels`. The exponentials of a row are taken relative to the larger log-sum-exp, so that none
/// overflows.
/// Errors: `layout_error` if rows, heads or sizes differ.
template <class Gemm, class S, class M>
void merge_partials(host<Gemm>& backend, head_rows<S> out, head_numbers<S> lse, head_rows<const M> more,
                    head_numbers<const S> more_lse) {
  if (out.rows != lse.rows || out.rows != more.rows || out.rows != more_lse.rows || out.heads != lse.heads ||
      out.heads != more.heads || out.heads != more_lse.heads || out.head_dim != more.head_dim)
    throw layout_error("heddle: merge_partials: " + std::to_string(out.rows) + " rows of " + std::to_string(out.heads) +
                       " heads of " + std::to_string(out.head_dim) + " should be merged with as many, got " +
                       std::to_string(more.rows) + " rows of " + std::to_string(more.heads) + " heads of " +
                       std::to_string(more.head_dim));
  constexpr std::int64_t grain = 1 << 14;  // elements that are worth a thread
  const std::int64_t width = (std::max)(std::int64_t{1}, out.width());
  backend.workers().split(out.rows, grain / width + 1, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t h = 0; h < out.heads; ++h) {
        S& own = *lse.at(r, h);
        const S other = *more_lse.at(r, h), most = (std::max)(own, other);
        if (!(most > -std::numeric_limits<S>::infinity())) continue;  // neither has a key
        const S both = most + std::log1p(std::exp((std::min)(own, other) - most));
        const S a = std::exp(own - both), b = std::exp(other - both);
        S* const to = out.row(r, h);
        const M* const from = more.row(r, h);
        for (std::int64_t i = 0; i < out.head_dim; ++i) to[i] = to[i] * a + static_cast<S>(from[i]) * b;
        own = both;
      }
  });
}

}  // namespace heddle::inline v0::compute
