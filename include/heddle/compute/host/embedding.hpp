// heddle/compute/host/embedding.hpp: token and position embeddings, forward and backward.
#pragma once

#include <heddle/compute/argument_checks.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>

#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::compute::detail {

template <class T>
void embedding(team& workers, token_ids ids, std::int64_t vocabulary, std::int64_t width, const T* table,
               std::int64_t first_id, T* out) {
  workers.split(static_cast<std::int64_t>(ids.size()), row_grain(width), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = ids[static_cast<std::size_t>(i)] - first_id;
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
void embedding_backward(team& workers, token_ids ids, std::int64_t vocabulary, std::int64_t width, const T* dout,
                        std::int64_t first_id, sum_of_type<T>* dtable) {
  using S = sum_of_type<T>;
  const auto tokens = static_cast<std::int64_t>(ids.size());
  workers.split(width, column_grain(tokens), block_size<S>, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < tokens; ++i) {
      const std::int64_t row = ids[static_cast<std::size_t>(i)] - first_id;
      if (row < 0 || row >= vocabulary) continue;
      S* to = dtable + row * width;
      map_lanes(
          end - begin, to + begin, [](S old, S d) { return old + d; }, static_cast<const S*>(to) + begin,
          dout + i * width + begin);
    }
  });
}

template <class T>
void add_positions(team& workers, std::int64_t rows, std::int64_t width, std::int64_t sequence, T* x, const T* wpe) {
  using S = sum_of_type<T>;
  workers.split(rows, row_grain(width), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      map_lanes(
          width, x + i * width, [](S v, S p) { return v + p; }, static_cast<const T*>(x) + i * width,
          wpe + i % sequence * width);
  });
}

template <class T>
void add_positions_backward(team& workers, std::int64_t rows, std::int64_t width, std::int64_t sequence, const T* dx,
                            sum_of_type<T>* dwpe) {
  using S = sum_of_type<T>;
  workers.split(sequence, row_grain(width), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin; s < end; ++s)
      for (std::int64_t i = s; i < rows; i += sequence)
        map_lanes(
            width, dwpe + s * width, [](S old, S d) { return old + d; }, static_cast<const S*>(dwpe) + s * width,
            dx + i * width);
  });
}

/// The kernels of `embedding_kernels` as members of the host backend `Host`.
template <class Host>
class embedding_members {
 public:
  template <class T>
  void embedding(token_ids ids, input_matrix<T> table, std::int64_t first_id, matrix_view<T> out) {
    detail::expect("embedding", "rows of out", out.extent(0), ids.size());
    detail::expect("embedding", "columns of out", table.extent(1), out.extent(1));
    detail::embedding(static_cast<Host&>(*this).workers(), ids, table.extent(0), table.extent(1), table.data(),
                      first_id, out.data());
  }
  template <class T>
    requires(!is_half_precision<T>)
  void embedding_backward(token_ids ids, input_matrix<T> dout, std::int64_t first_id, matrix_view<T> dtable) {
    embedding_backward_into<T>(ids, dout, first_id, dtable);
  }
  template <class T>
    requires is_half_precision<std::remove_const_t<T>>
  void embedding_backward(token_ids ids, matrix_view<T> dout, std::int64_t first_id, matrix_of_sums<T> dtable) {
    embedding_backward_into<std::remove_const_t<T>>(ids, dout, first_id, dtable);
  }
  template <class T>
  void add_positions(matrix_view<T> x, input_matrix<T> wpe, std::int64_t sequence) {
    argument_checks::position_sizes("add_positions", x.extent(0), x.extent(1), wpe.extent(0), wpe.extent(1), sequence);
    detail::add_positions(static_cast<Host&>(*this).workers(), x.extent(0), x.extent(1), sequence, x.data(),
                          wpe.data());
  }
  template <class T>
    requires(!is_half_precision<T>)
  void add_positions_backward(input_matrix<T> dx, std::int64_t sequence, matrix_view<T> dwpe) {
    add_positions_backward_into<T>(dx, sequence, dwpe);
  }
  template <class T>
    requires is_half_precision<std::remove_const_t<T>>
  void add_positions_backward(matrix_view<T> dx, std::int64_t sequence, matrix_of_sums<T> dwpe) {
    add_positions_backward_into<std::remove_const_t<T>>(dx, sequence, dwpe);
  }

 private:
  template <class T>
  void embedding_backward_into(token_ids ids, input_matrix<T> dout, std::int64_t first_id, matrix_of_sums<T> dtable) {
    detail::expect("embedding_backward", "rows of dout", dout.extent(0), ids.size());
    detail::expect("embedding_backward", "columns of dout", dtable.extent(1), dout.extent(1));
    detail::embedding_backward(static_cast<Host&>(*this).workers(), ids, dtable.extent(0), dtable.extent(1),
                               dout.data(), first_id, dtable.data());
  }
  template <class T>
  void add_positions_backward_into(input_matrix<T> dx, std::int64_t sequence, matrix_of_sums<T> dwpe) {
    argument_checks::position_sizes("add_positions_backward", dx.extent(0), dx.extent(1), dwpe.extent(0),
                                    dwpe.extent(1), sequence);
    detail::add_positions_backward(static_cast<Host&>(*this).workers(), dx.extent(0), dx.extent(1), sequence, dx.data(),
                                   dwpe.data());
  }
};

}  // namespace heddle::inline v0::compute::detail
