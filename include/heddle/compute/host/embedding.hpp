// heddle/compute/host/embedding.hpp: token and position embeddings, forward and backward.
#pragma once

#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/ops/embedding.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <cstdint>

namespace heddle::inline v0::compute::detail {

template <class T>
void body(ops::embedding, team& workers, std::int64_t tokens, std::int64_t vocabulary, std::int64_t width,
          const std::int32_t* ids, const T* table, std::int64_t first_id, T* out) {
  workers.split(tokens, row_grain(width), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = ids[i] - first_id;
      T* to = out + i * width;
      if (row >= 0 && row < vocabulary)
        std::copy_n(table + row * width, width, to);
      else
        std::fill_n(to, width, T(0));
    }
  });
}

/// Threads share the columns and each walks the tokens in order, so that repeated tokens add up in that order.
template <class T>
void body(ops::embedding_backward, team& workers, std::int64_t tokens, std::int64_t vocabulary, std::int64_t width,
          const std::int32_t* ids, const T* dout, std::int64_t first_id, sum_of_type<T>* dtable) {
  using S = sum_of_type<T>;
  workers.split(width, column_grain(tokens), block_size<S>, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < tokens; ++i) {
      const std::int64_t row = ids[i] - first_id;
      if (row < 0 || row >= vocabulary) continue;
      S* to = dtable + row * width;
      map_lanes(
          end - begin, to + begin, [](S old, S d) { return old + d; }, static_cast<const S*>(to) + begin,
          dout + i * width + begin);
    }
  });
}

template <class T>
void body(ops::add_positions, team& workers, std::int64_t rows, std::int64_t, std::int64_t width, T* x, const T* wpe,
          std::int64_t sequence) {
  using S = sum_of_type<T>;
  workers.split(rows, row_grain(width), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      map_lanes(
          width, x + i * width, [](S v, S p) { return v + p; }, static_cast<const T*>(x) + i * width,
          wpe + i % sequence * width);
  });
}

template <class T>
void body(ops::add_positions_backward, team& workers, std::int64_t rows, std::int64_t, std::int64_t width, const T* dx,
          std::int64_t sequence, sum_of_type<T>* dwpe) {
  using S = sum_of_type<T>;
  workers.split(sequence, row_grain(width), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin; s < end; ++s)
      for (std::int64_t i = s; i < rows; i += sequence)
        map_lanes(
            width, dwpe + s * width, [](S old, S d) { return old + d; }, static_cast<const S*>(dwpe) + s * width,
            dx + i * width);
  });
}

}  // namespace heddle::inline v0::compute::detail
