// heddle/compute/host/merge_partials.hpp: merges partial results of attention on the host.
#pragma once

#include <heddle/compute/context_kernels.hpp>
#include <heddle/compute/host/host.hpp>

#include <algorithm>
#include <cstdint>

namespace heddle::inline v0::compute {

/// See `context_kernels`. Errors: `layout_error` if rows, heads or sizes differ.
template <class Gemm, class S, class M>
void merge_partials(host<Gemm>& backend, head_rows<S> out, head_numbers<S> lse, head_rows<const M> more,
                    head_numbers<const S> more_lse) {
  detail::check_partials(out, lse, more, more_lse);
  constexpr std::int64_t grain = 1 << 14;  // elements that are worth a thread
  const std::int64_t width = (std::max)(std::int64_t{1}, out.width());
  backend.workers().split(out.rows, grain / width + 1, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t h = 0; h < out.heads; ++h)
        detail::merge_head(out.row(r, h), *lse.at(r, h), more.row(r, h), *more_lse.at(r, h), out.head_dim);
  });
}

}  // namespace heddle::inline v0::compute
