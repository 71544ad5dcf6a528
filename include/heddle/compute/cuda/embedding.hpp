// heddle/compute/cuda/embedding.hpp: embeddings and gradients on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/group/vectors.hpp>
#include <heddle/compute/ops/embedding.hpp>
#include <heddle/core/half_precision.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cuda {

using in_groups::each_row_of_packs;
using in_groups::for_packs;

/// The rows of a table that are here: those of `vocabulary` ids from `first_id` on.
struct table_rows {
  std::int64_t first_id, vocabulary, width;
  HEDDLE_HD std::int64_t row(std::int32_t id) const { return id - first_id; }
  HEDDLE_HD bool has(std::int32_t id) const { return row(id) >= 0 && row(id) < vocabulary; }
};
template <class T>
struct embedding_row {
  const std::int32_t* ids;
  table_rows here;
  const T* table;
  T* out;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const std::int64_t width = here.width;
    const T* const from = here.has(ids[i]) ? table + here.row(ids[i]) * width : nullptr;
    T* const to = out + i * width;
    for_each_of(g, width, [=](std::int64_t j) { to[j] = from != nullptr ? from[j] : T(0); });
  }
};
template <launcher L, class T>
void body(ops::embedding, const L& on, std::int64_t tokens, std::int64_t vocabulary, std::int64_t width,
          const std::int32_t* ids, const T* table, std::int64_t first_id, T* out) {
  on.each_row(tokens, width, embedding_row<T>{ids, {first_id, vocabulary, width}, table, out});
}
/// The group of the first of equal ids adds all of them, in the order of the tokens. Where they end is looked up first, so that a thread has several loads
/// under way: the most frequent words of a text are a few in a hundred of its tokens.
template <class T>
struct embedding_backward_row {
  std::int64_t tokens;
  const std::int32_t *sorted, *places;
  table_rows here;
  const T* dout;
  sum_of_type<T>* dtable;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t k) const {
    const std::int32_t id = sorted[k];
    if (!here.has(id) || (k > 0 && sorted[k - 1] == id)) return;
    std::int64_t end = k + 1;
    for (std::int64_t beyond = tokens; end < beyond;) {
      const std::int64_t middle = end + (beyond - end) / 2;
      if (sorted[middle] == id)
        end = middle + 1;
      else
        beyond = middle;
    }
    const std::int64_t row = here.row(id), width = here.width;
    for (std::int64_t j = g.rank(); j < width; j += g.size()) {
      sum_of_type<T> sum = dtable[row * width + j];
      for (std::int64_t t = k; t < end; ++t) sum += dout[places[t] * width + j];
      dtable[row * width + j] = sum;
    }
  }
};
template <launcher L, class T>
void body(ops::embedding_backward, const L& on, std::int64_t tokens, std::int64_t vocabulary, std::int64_t width,
          const std::int32_t* ids, const T* dout, std::int64_t first_id, sum_of_type<T>* dtable) {
  if (tokens == 0) return;
  auto sorted = on.template room<std::int32_t>(tokens), places = on.template room<std::int32_t>(tokens);
  on.sort_places(ids, tokens, sorted.address(), places.address());
  on.each_row(tokens, width,
              embedding_backward_row<T>{
                  tokens, sorted.address(), places.address(), {first_id, vocabulary, width}, dout, dtable});
}
template <class T>
struct add_positions_row {
  std::int64_t width, sequence;
  T* x;
  const T* wpe;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    using S = sum_of_type<T>;
    for_packs(
        g, width, [](std::int64_t, T& e, S p) { e = converted<T>(e + p); }, x + i * width, wpe + i % sequence * width);
  }
};
template <launcher L, class T>
void body(ops::add_positions, const L& on, std::int64_t rows, std::int64_t, std::int64_t width, T* x, const T* wpe,
          std::int64_t sequence) {
  each_row_of_packs<T>(on, rows, width, add_positions_row<T>{width, sequence, x, wpe});
}
template <class T>
struct add_positions_backward_row {
  std::int64_t rows, width, sequence;
  const T* dx;
  sum_of_type<T>* dwpe;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t s) const {
    for (std::int64_t j = g.rank(); j < width; j += g.size()) {
      sum_of_type<T> sum = dwpe[s * width + j];
      for (std::int64_t i = s; i < rows; i += sequence) sum += dx[i * width + j];
      dwpe[s * width + j] = sum;
    }
  }
};
template <launcher L, class T>
void body(ops::add_positions_backward, const L& on, std::int64_t rows, std::int64_t, std::int64_t width, const T* dx,
          std::int64_t sequence, sum_of_type<T>* dwpe) {
  on.each_row(rows < sequence ? rows : sequence, width, add_positions_backward_row<T>{rows, width, sequence, dx, dwpe});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
