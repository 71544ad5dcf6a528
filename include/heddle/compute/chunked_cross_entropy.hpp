// heddle/compute/chunked_cross_entropy.hpp: cross-entropy of logits, made chunk by chunk.
#pragma once

#include <heddle/compute/check.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace heddle::inline v0::compute {

namespace detail {
// What both gradients need: products, that of logits by `cross_entropy_backward`, and `fill` where a rank has no words.
template <class B, class T>
concept chunk_gradient_kernels =
    offered<product_facet, B, T> && offered<elementwise_facet, B, T> && offered<cross_entropy_facet, B, T>;

/// call(first word of a chunk, its words [words, width], room for its logits [rows, words]).
template <class Space, class T, class W, class Call>
void each_chunk_of_words(const char* name, std::int64_t rows, const matrix_view<W, Space>& words,
                         const row_view<T, Space>& room, const Call& call) {
  const auto have = static_cast<std::int64_t>(element_count(room)), width = words.extent(1);
  if (rows == 0) return;
  const std::int64_t chunk = have / rows;
  if (chunk == 0 && words.extent(0) > 0) [[unlikely]]
    throw layout_error("heddle: " + std::string(name) + ": room for the logits of one word takes " +
                       std::to_string(rows) + " elements, one per row, got " + std::to_string(have));
  for (std::int64_t first = 0; first < words.extent(0); first += chunk) {
    const std::int64_t count = (std::min)(chunk, words.extent(0) - first);
    call(first, matrix_view<W, Space>(words.address() + first * width, dynamic_shape<2>(count, width)),
         matrix_view<T, Space>(first_element(room), dynamic_shape<2>(rows, count)));
  }
}
}  // namespace detail

/// What the cross-entropy of logits x words' needs of each row: the greatest logit `m`, the sum of exp(logit - m), the target's logit
/// `picked` (0 for targets that are negative or not among the words). Logits are made for as many words at a time as `room` has
/// elements for, and each is read once; all of them are never there. The loss is `cross_entropy_loss(m, sum, picked, targets, out)`.
/// Shapes: x [rows, width], words [words, width], targets, m, sum, picked [rows]; room: rows * (words of a chunk) elements. The id of the
/// first word is `first_id`.
/// Errors: `layout_error` if sizes do not fit together, or the room has less than one element per row.
/// Source: Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3; Wijmans et al. 2024, arXiv:2411.09009 (logits not kept).
template <class T, class B>
  requires offered<product_facet, B, T> && offered<elementwise_facet, B, T> &&
           offered<chunked_cross_entropy_facet, B, T>
void chunked_cross_entropy(B& backend, matrix_view<const T, space_of<B>> x, matrix_view<const T, space_of<B>> words,
                           token_ids_in<space_of<B>> targets, std::int64_t first_id, row_view<T, space_of<B>> room,
                           row_view<T, space_of<B>> m, row_view<T, space_of<B>> sum, row_view<T, space_of<B>> picked) {
  run<ops::fill>(backend, m, -(std::numeric_limits<T>::infinity)());
  run<ops::fill>(backend, sum, T(0));
  run<ops::fill>(backend, picked, T(0));
  detail::each_chunk_of_words<space_of<B>, T>(
      "chunked_cross_entropy", x.extent(0), words, room, [&](std::int64_t first, const auto& some, const auto& logits) {
        compute::matmul<transpose::no, transpose::yes>(backend, x, some, logits, T(0));
        run<ops::add_to_softmax>(backend, logits, targets, first_id + first, m, sum, picked);
      });
}

namespace detail {
/// use(logits' gradient of a chunk, its words, first of them), the logits made again.
template <class T, class B, class Use>
void each_gradient_of_words(const char* name, B& backend, const matrix_view<const T, space_of<B>>& x,
                            const matrix_view<const T, space_of<B>>& words, const token_ids_in<space_of<B>>& targets,
                            std::int64_t first_id, const row_view<const T, space_of<B>>& m,
                            const row_view<const T, space_of<B>>& sum, T scale, const row_view<T, space_of<B>>& room,
                            const Use& use) {
  each_chunk_of_words<space_of<B>, T>(
      name, x.extent(0), words, room, [&](std::int64_t first, const auto& some, const auto& logits) {
        compute::matmul<transpose::no, transpose::yes>(backend, x, some, logits, T(0));
        run<ops::cross_entropy_backward>(backend, logits, m, sum, targets, first_id + first, scale);
        use(logits, some, first);
      });
}
template <class T, class B, class G, class W>
void add_to_input(B& backend, const G& logits, const W& some, std::int64_t first,
                  const matrix_view<T, space_of<B>>& dx) {
  compute::matmul<transpose::no, transpose::no>(backend, logits, some, dx, first == 0 ? T(0) : T(1));
}
template <class T, class B, class G, class W>
void add_to_words(B& backend, const G& logits, const W& some, std::int64_t first,
                  const matrix_view<const T, space_of<B>>& x, const matrix_view<T, space_of<B>>& dwords) {
  const matrix_view<T, space_of<B>> dsome(dwords.address() + first * some.extent(1), some.shape());
  compute::matmul<transpose::yes, transpose::no>(backend, logits, x, dsome, T(1));
}
template <class T, class B>
void without_words(B& backend, const matrix_view<const T, space_of<B>>& words, const matrix_view<T, space_of<B>>& dx) {
  if (words.extent(0) == 0) run<ops::fill>(backend, row_at<space_of<B>>(dx.address(), dx.size()), T(0));
}
template <class Words, class Gradient>
void same_words(const char* name, const Words& words, const Gradient& dwords) {
  expect(name, "rows of dwords", words.extent(0), dwords.extent(0));
  expect(name, "columns of dwords", words.extent(1), dwords.extent(1));
}
}  // namespace detail

/// The gradient of that cross-entropy times `scale`, from `m` and `sum` of the whole vocabulary: the logits of a chunk are made again.
/// Overwrites dx and adds to dwords.
/// Shapes: as above; dx [rows, width], dwords [words, width].
/// Errors: as above.
template <class T, detail::chunk_gradient_kernels<T> B>
void chunked_cross_entropy_backward(B& backend, matrix_view<const T, space_of<B>> x,
                                    matrix_view<const T, space_of<B>> words, token_ids_in<space_of<B>> targets,
                                    std::int64_t first_id, row_view<const T, space_of<B>> m,
                                    row_view<const T, space_of<B>> sum, T scale, row_view<T, space_of<B>> room,
                                    matrix_view<T, space_of<B>> dx, matrix_view<T, space_of<B>> dwords) {
  constexpr const char* name = "chunked_cross_entropy_backward";
  detail::same_words(name, words, dwords);
  detail::without_words<T>(backend, words, dx);
  detail::each_gradient_of_words<T>(name, backend, x, words, targets, first_id, m, sum, scale, room,
                                    [&](const auto& logits, const auto& some, std::int64_t first) {
                                      detail::add_to_input<T>(backend, logits, some, first, dx);
                                      detail::add_to_words<T>(backend, logits, some, first, x, dwords);
                                    });
}
/// The same without that of the words: dx alone.
template <class T, detail::chunk_gradient_kernels<T> B>
void chunked_cross_entropy_backward_input(B& backend, matrix_view<const T, space_of<B>> x,
                                          matrix_view<const T, space_of<B>> words, token_ids_in<space_of<B>> targets,
                                          std::int64_t first_id, row_view<const T, space_of<B>> m,
                                          row_view<const T, space_of<B>> sum, T scale, row_view<T, space_of<B>> room,
                                          matrix_view<T, space_of<B>> dx) {
  detail::without_words<T>(backend, words, dx);
  detail::each_gradient_of_words<T>("chunked_cross_entropy_backward_input", backend, x, words, targets, first_id, m,
                                    sum, scale, room, [&](const auto& logits, const auto& some, std::int64_t first) {
                                      detail::add_to_input<T>(backend, logits, some, first, dx);
                                    });
}

}  // namespace heddle::inline v0::compute
