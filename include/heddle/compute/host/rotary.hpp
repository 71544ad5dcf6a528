// heddle/compute/host/rotary.hpp: rotary position embeddings, forward and backward.
#pragma once

#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/ops/rotary.hpp>
#include <heddle/compute/rotary_table.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <cstdint>

namespace heddle::inline v0::compute::detail {

template <rotary_pairs Pairs, bool Back, class T>
void body(ops::rotary<Pairs, Back>, team& workers, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
          std::int64_t pairs, head_rows<const T> x, const std::int32_t* positions, const sum_of_type<T>* cos,
          const sum_of_type<T>* sin, head_rows<T> y) {
  using S = sum_of_type<T>;
  const bool neighbours = Pairs == rotary_pairs::neighbours;
  const std::int64_t step = neighbours ? 2 : 1, other = neighbours ? 1 : pairs;
  workers.split(x.rows, row_grain(x.width()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t at = positions[r] * pairs;
      for (std::int64_t h = 0; h < x.heads; ++h) {
        const T* in = x.row(r, h);
        T* to = y.row(r, h);
        for (std::int64_t i = 0; i < pairs; ++i) {
          const S a = in[i * step], b = in[i * step + other], c = cos[at + i], s = Back ? -sin[at + i] : sin[at + i];
          to[i * step] = T(a * c - b * s);
          to[i * step + other] = T(b * c + a * s);
        }
        if (to != in) std::copy(in + 2 * pairs, in + x.head_dim, to + 2 * pairs);
      }
    }
  });
}

}  // namespace heddle::inline v0::compute::detail
