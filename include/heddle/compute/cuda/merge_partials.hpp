// heddle/compute/cuda/merge_partials.hpp: merges partial results of attention on a CUDA stream.
#pragma once

#include <heddle/compute/context_kernels.hpp>
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/cuda/launcher.hpp>

#include <cstdint>

namespace heddle::inline v0::compute {

namespace detail::on_cuda {

/// Head i of all rows.
template <class S, class M>
struct merged_head {
  std::int64_t heads, size;
  head_rows<S, cuda_memory> out;
  head_numbers<S, cuda_memory> lse;
  head_rows<const M, cuda_memory> more;
  head_numbers<const S, cuda_memory> more_lse;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const std::int64_t r = i / heads, h = i % heads;
    S* const to = out.data + r * out.stride + h * out.head_dim;
    const M* const from = more.data + r * more.stride + h * more.head_dim;
    S* const own = lse.data + r * lse.row_stride + h * lse.head_stride;
    const S before = *own, other = more_lse.data[r * more_lse.row_stride + h * more_lse.head_stride];
    // All threads of the group have read the number before one of them writes it.
    if (!(g.largest(larger(before, other)) > merge_factors<S>::nothing)) return;
    const merge_factors<S> with = factors_of(before, other);
    for_each_of(g, size, [&](std::int64_t c) { to[c] = to[c] * with.own + static_cast<S>(from[c]) * with.more; });
    if (g.leads()) *own = with.lse;
  }
};

struct partial_merging {
  template <class Launcher, class Body>
  static void launch(basic_cuda<Launcher>& backend, std::int64_t rows, const Body& body) {
    backend.launcher().each_row(rows, body.size, body);
  }
};

}  // namespace detail::on_cuda

/// See `context_kernels`; in the order of the backend's queue. Errors: `layout_error` if rows, heads or sizes differ.
template <class Launcher, class S, class M>
void merge_partials(basic_cuda<Launcher>& backend, head_rows<S, cuda_memory> out, head_numbers<S, cuda_memory> lse,
                    head_rows<const M, cuda_memory> more, head_numbers<const S, cuda_memory> more_lse) {
  detail::check_partials(out, lse, more, more_lse);
  detail::on_cuda::partial_merging::launch(
      backend, out.rows * out.heads,
      detail::on_cuda::merged_head<S, M>{out.heads, out.head_dim, out, lse, more, more_lse});
}

}  // namespace heddle::inline v0::compute
