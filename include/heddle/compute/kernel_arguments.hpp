// heddle/compute/kernel_arguments.hpp: argument types of kernels: heads, pages, scalars.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

namespace heddle::inline v0::compute {

namespace detail {
// What a kernel takes one of for all rows, or one for each.
template <class S>
HEDDLE_HD constexpr S of_row(S for_all, std::int64_t) noexcept {
  return for_all;
}
template <class S>
HEDDLE_HD constexpr S of_row(const S* of_rows, std::int64_t row) noexcept {
  return of_rows[row];
}
}  // namespace detail

/// Whether a product reads an operand as it lies or with rows and columns exchanged.
enum class transpose : bool { no, yes };

/// What causal self-attention works on. Units: sequences, tokens, heads, elements.
struct attention_shape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  /// Tokens: rows of the matrices that attention reads and writes.
  constexpr std::int64_t rows() const noexcept { return batch * sequence; }
  /// Columns of the output; q, k and v have three times as many.
  constexpr std::int64_t width() const noexcept { return heads * head_dim; }
};

/// Rows of heads inside a matrix that may be wider: head h of row r is the `head_dim` elements from
/// data + r * stride + h * head_dim on. Converts from `head_rows<T>` to `head_rows<const T>`. `data` is an address in `Space`.
template <class T, memory_space Space = host_memory>
struct head_rows {
  using space = Space;
  using value_type = std::remove_const_t<T>;
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t stride = 0;
  std::int64_t head_step = head_dim;  ///< from a head of a row to its next
  constexpr T* row(std::int64_t r, std::int64_t head) const noexcept { return data + r * stride + head * head_step; }
  /// Whether blocks of rows follow one another in which the rows of a head do: [blocks, heads, head_step / stride rows, head_dim]. `row` then takes `row_in_blocks(r)` for row r.
  constexpr bool lies_by_head() const noexcept { return head_step != head_dim; }
  constexpr std::int64_t row_in_blocks(std::int64_t r) const noexcept {
    const std::int64_t block_rows = head_step / stride;
    return r + r / block_rows * block_rows * (heads - 1);
  }
  constexpr std::int64_t width() const noexcept { return heads * head_dim; }
  template <class U>
    requires(std::is_same_v<U, const T> && !std::is_same_v<U, T>)
  constexpr operator head_rows<U, Space>() const noexcept {
    return {data, rows, heads, head_dim, stride, head_step};
  }
};

/// Columns [first, first + heads * head_dim) of a matrix as heads: q, k and v of a fused product, or the whole matrix.
/// Errors: `layout_error` if the matrix does not have these columns.
template <class T, class Space>
constexpr head_rows<T, Space> heads_of(matrix_view<T, Space> m, std::int64_t heads, std::int64_t head_dim,
                                       std::int64_t first = 0) {
  const std::int64_t end = sum_of_counts(first, product_of_counts(heads, head_dim));
  if (heads < 0 || head_dim < 0 || end < 0 || end > m.extent(1))
    throw layout_error("heddle: heads_of: " + std::to_string(heads) + " heads of " + std::to_string(head_dim) +
                       " columns from column " + std::to_string(first) + " on should lie in a matrix of " +
                       std::to_string(m.extent(1)) + " columns");
  T* const data = m.address() == nullptr ? nullptr : m.address() + first;  // nothing is added to no address
  return {data, m.extent(0), heads, head_dim, m.extent(1)};
}

/// Where keys and values lie. Without `pages`, key j is row j. With pages of `page_rows` rows, key j is row
/// pages[j / page_rows] * page_rows + j % page_rows, so that a sequence's cache need not be in one piece.
///
/// Of queries that decode there are few in a sequence, and many keys. `most_keys`: as many as one of these queries sees; backends then may give each some keys of a query instead of
/// some queries, and combine the parts; 0: there are no such queries. `few_rows`: which rows of q these are; where it is empty, all. With it, the first `few_slices` slices are those of
/// these rows, and of no others. How such a query is computed depends on its own slices and keys alone.
template <memory_space Space>
struct key_pages_in {
  row_view<const std::int32_t, Space> pages{};
  std::int64_t page_rows = 0;
  std::int64_t most_keys = 0;
  row_view<const std::int32_t, Space> few_rows{};
  std::int64_t few_slices = 0;
};
/// Where keys and values lie, with the list of pages on the host.
using key_pages = key_pages_in<host_memory>;

/// Rows of one sequence that follow one another, and which of the states that layers keep is the sequence's. `fresh`: it begins from zeros.
struct state_rows {
  std::int32_t first_row = 0, rows = 0, state = 0, fresh = 1;
  friend constexpr bool operator==(const state_rows&, const state_rows&) = default;
};

/// The scalars of one AdamW step, kept in double. `step` counts from 1; gradients are multiplied by `grad_scale`
/// (clipping, loss normalisation) as they are read.
/// Source: Loshchilov and Hutter, arXiv:1711.05101, algorithm 2, in PyTorch's order of operations.
struct adamw_step {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  std::int64_t step = 1;
  double grad_scale = 1.0;
};

/// What a kernel only reads. The element type is deduced from what it writes, so that `matrix_view<T>` and
/// `std::span<T>` convert on the way in.
template <class T>
using input_matrix = std::type_identity_t<matrix_view<const T>>;
/// A vector on the host that a kernel only reads; not deduced from.
template <class T>
using input_vector = std::type_identity_t<std::span<const T>>;
/// Rows of heads on the host that a kernel only reads; not deduced from.
template <class T>
using input_heads = std::type_identity_t<head_rows<const T>>;
/// Statistics and sums of numbers of type T on the host (`sum_of_type`) that a kernel only reads; not deduced from.
template <class T>
using input_sums = std::type_identity_t<std::span<const sum_of_type<T>>>;
/// Those that it writes.
template <class T>
using sums_of = std::type_identity_t<std::span<sum_of_type<T>>>;
/// A matrix of such sums, as of gradients of weights.
template <class T>
using matrix_of_sums = std::type_identity_t<matrix_view<sum_of_type<T>>>;
/// Token ids on the host.
using token_ids = std::span<const std::int32_t>;
/// Token ids in any space.
template <class Space>
using token_ids_in = row_view<const std::int32_t, Space>;
/// Matrices one behind the other, such as the weights of experts: [matrices, rows, columns].
template <class T>
using stack_view = view<T, dynamic_shape<3>>;

/// Stochastic rounding to bf16: element i of a call draws the numbers of index `first` + i, so that a part of a tensor,
/// called with its offset, rounds as the whole. Take another stream for each tensor and step.
struct stochastic {
  counter_random random;
  std::uint64_t first = 0;
};

/// Weights of the chosen experts: a softmax over their logits alone (Mixtral; Qwen-MoE where it normalises the chosen
/// probabilities, which is the same), or the chosen entries of the softmax over all (Qwen-MoE where it does not).
struct softmax_of_chosen {};
struct softmax_of_all {};  ///< the chosen entries of the softmax over all experts

/// Which choices an expert keeps that has more than it may have: those with the greatest weights, equal ones by lower token; or those
/// of the first tokens.
struct keep_heaviest {};
struct keep_first {};  ///< those of the first tokens

/// How a rotary embedding pairs the elements of a head: (i, i + r/2) as Hugging Face stores weights, or (2i, 2i + 1) as
/// complex numbers lie, with r the number of elements that rotate.
enum class rotary_pairs : bool { halves, neighbours };

/// The activation of a gated unit: silu in SwiGLU, GELU (tanh form) in GEGLU, relu in ReGLU.
struct silu {};
/// GELU in its tanh form
struct gelu_tanh {};
struct relu {};  ///< the larger of x and 0
/// The gated unit of GPT-OSS: h = m sigmoid(alpha m) (max(-limit, min(up, limit)) + 1) with m = min(gate, limit). At a limit the derivative is
/// that of numbers within it, as PyTorch's `clamp` has it.
/// Source: OpenAI 2025, arXiv:2508.10925, section 2.3; Hugging Face `GptOssExperts`.
struct clamped_swiglu {
  static constexpr double alpha = 1.702;
  static constexpr double limit = 7;
};

/// Images whose pixels are rows, and the square neighbourhood of each: `radius` 1 is 3 x 3. Units: pixels.
struct image_window {
  std::int64_t height = 0, width = 0, radius = 1;
  constexpr std::int64_t pixels() const noexcept { return height * width; }
  /// Pixels of a neighbourhood, row by row.
  constexpr std::int64_t taps() const noexcept { return (2 * radius + 1) * (2 * radius + 1); }
};

namespace detail {
// What a kernel in memory `To` takes for an argument of the same kernel in another memory. Nothing is read.
template <class To, class X>
constexpr const X& argument_in(const X& x) noexcept {
  return x;
}
template <class To, class T, class Shape, class From>
  requires(!std::is_same_v<From, To>)
constexpr auto argument_in(const view<T, Shape, From>& x) noexcept {
  if constexpr (!std::is_same_v<To, host_memory>)
    return view<T, Shape, To>(x.address(), x.shape());
  else if constexpr (Shape::rank() == 0)
    return x.address();
  else if constexpr (Shape::rank() == 1)
    return std::span<T>(x.address(), static_cast<std::size_t>(x.size()));
  else
    return view<T, Shape>(x.address(), x.shape());
}
template <class To, class T, class From>
  requires(!std::is_same_v<From, To>)
constexpr head_rows<T, To> argument_in(const head_rows<T, From>& x) noexcept {
  return {x.data, x.rows, x.heads, x.head_dim, x.stride, x.head_step};
}
template <class To, class From>
  requires(!std::is_same_v<From, To>)
constexpr key_pages_in<To> argument_in(const key_pages_in<From>& x) noexcept {
  return {argument_in<To>(x.pages), x.page_rows, x.most_keys, argument_in<To>(x.few_rows), x.few_slices};
}
}  // namespace detail

}  // namespace heddle::inline v0::compute
