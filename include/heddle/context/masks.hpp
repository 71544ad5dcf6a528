// heddle/context/masks.hpp: generators of attention masks of documents, as lists of slices.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/context/slices_between.hpp>
#include <heddle/core/config.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {

/// A mask of documents: `slices(length)` are those of a document of so many tokens. They do not overlap.
template <class M>
concept document_mask = requires(const M& m, std::int64_t length) {
  { m.slices(length) } -> std::convertible_to<std::vector<compute::attention_slice>>;
};

/// How many pairs of query and key count.
constexpr std::int64_t area_of(std::span<const compute::attention_slice> mask) noexcept {
  std::int64_t area = 0;
  for (const compute::attention_slice& s : mask) area += s.area();
  return area;
}

/// Masks of a document. A parameter is known at compile time, `window<4096>`, or at run time, `window<>{w}`. Several
/// documents that lie behind each other in one are given by their lengths, which should add up to the length of the
/// whole; what is missing is a last document, what is too much is cut off.
/// Source: Bu et al. 2025, arXiv:2510.17896, appendix on masks; slices as there.
namespace masks {

namespace detail {
using slice = compute::attention_slice;
using slice_list = std::vector<slice>;
using compute::slice_mask;

constexpr void add(slice_list& out, std::int64_t q0, std::int64_t q1, std::int64_t k0, std::int64_t k1,
                   slice_mask mask) {
  if (q0 < q1 && k0 < k1) out.push_back({q0, q1, k0, k1, mask});
}
// Rows [q0, q1) and columns [k0, k1) of the pairs with lower <= key - query <= upper.
constexpr void add_diagonal(slice_list& out, std::int64_t q0, std::int64_t q1, std::int64_t k0, std::int64_t k1,
                            std::int64_t lower, std::int64_t upper) {
  heddle::detail::add_band({q1 - q0, k1 - k0, lower + q0 - k0, upper + q0 - k0}, q0, k0, out);
}
// Calls f(number, begin, end, whether it is the last one) for each document.
template <class F>
constexpr void each_document(std::span<const std::int64_t> lengths, std::int64_t total, F f) {
  std::int64_t begin = 0;
  for (std::size_t i = 0; begin < total; ++i) {
    const std::int64_t end =
        i < lengths.size() ? (std::min)(total, begin + (std::max)(std::int64_t{0}, lengths[i])) : total;
    if (begin < end) f(static_cast<int>(i), begin, end, end == total);
    begin = end;
  }
}
}  // namespace detail

/// Every query sees every key.
struct full {
  constexpr std::vector<compute::attention_slice> slices(std::int64_t length) const {
    detail::slice_list out;
    detail::add(out, 0, length, 0, length, compute::slice_mask::full);
    return out;
  }
};

/// A query sees itself and what lies before it.
struct causal {
  constexpr std::vector<compute::attention_slice> slices(std::int64_t length) const {
    detail::slice_list out;
    detail::add(out, 0, length, 0, length, compute::slice_mask::causal);
    return out;
  }
};

/// A query sees itself and the Keys - 1 positions before it.
template <std::int64_t Keys = 0>
struct window {
  std::int64_t keys = Keys;
  constexpr std::vector<compute::attention_slice> slices(std::int64_t length) const {
    detail::slice_list out;
    detail::add_diagonal(out, 0, length, 0, length, 1 - keys, 0);
    return out;
  }
};

/// A query sees itself and the Keys - 1 positions before and behind it.
template <std::int64_t Keys = 0>
struct window_both_sides {
  std::int64_t keys = Keys;
  constexpr std::vector<compute::attention_slice> slices(std::int64_t length) const {
    detail::slice_list out;
    detail::add_diagonal(out, 0, length, 0, length, 1 - keys, keys - 1);
    return out;
  }
};

/// As `window_both_sides`; besides, the first Keys positions see all and are seen by all.
template <std::int64_t Keys = 0>
struct global_window {
  std::int64_t keys = Keys;
  constexpr std::vector<compute::attention_slice> slices(std::int64_t length) const {
    detail::slice_list out;
    const std::int64_t w = (std::min)(keys, length);
    detail::add(out, 0, w, 0, length, compute::slice_mask::full);
    detail::add(out, w, length, 0, w, compute::slice_mask::full);
    detail::add_diagonal(out, w, length, w, length, 1 - keys, keys - 1);
    return out;
  }
};

/// The first Tokens positions see each other; the others see what lies before them.
template <std::int64_t Tokens = 0>
struct prefix {
  std::int64_t tokens = Tokens;
  constexpr std::vector<compute::attention_slice> slices(std::int64_t length) const {
    detail::slice_list out;
    const std::int64_t p = (std::min)(tokens, length);
    detail::add(out, 0, p, 0, p, compute::slice_mask::full);
    detail::add(out, p, length, 0, length, compute::slice_mask::causal);
    return out;
  }
};

/// Documents that do not see each other; `Each` is the mask of one.
template <document_mask Each = causal>
struct documents {
  std::vector<std::int64_t> lengths{};
  Each each{};
  constexpr std::vector<compute::attention_slice> slices(std::int64_t length) const {
    detail::slice_list out;
    detail::each_document(lengths, length, [&](int, std::int64_t begin, std::int64_t end, bool) {
      for (detail::slice s : each.slices(end - begin)) {
        s.q_begin += begin;
        s.q_end += begin;
        s.k_begin += begin;
        s.k_end += begin;
        out.push_back(s);
      }
    });
    return out;
  }
};

/// The first document is a question; the others see it and what lies before in themselves.
struct share_question {
  std::vector<std::int64_t> lengths{};
  constexpr std::vector<compute::attention_slice> slices(std::int64_t length) const {
    detail::slice_list out;
    std::int64_t question = 0;
    detail::each_document(lengths, length, [&](int, std::int64_t begin, std::int64_t end, bool) {
      if (begin == 0)
        question = end;
      else
        detail::add(out, begin, end, 0, question, compute::slice_mask::full);
      detail::add(out, begin, end, begin, end, compute::slice_mask::causal);
    });
    return out;
  }
};

/// Documents that see what lies before in themselves; the last one sees all documents before it.
struct causal_blockwise {
  std::vector<std::int64_t> lengths{};
  constexpr std::vector<compute::attention_slice> slices(std::int64_t length) const {
    detail::slice_list out;
    detail::each_document(lengths, length, [&](int, std::int64_t begin, std::int64_t end, bool last) {
      detail::add(out, begin, end, last ? 0 : begin, end, compute::slice_mask::causal);
    });
    return out;
  }
};

/// Documents in blocks of Block positions: a block sees its document up to its own end.
template <std::int64_t Block = 0>
struct block_causal {
  std::int64_t block = Block;
  std::vector<std::int64_t> lengths{};
  constexpr std::vector<compute::attention_slice> slices(std::int64_t length) const {
    detail::slice_list out;
    detail::each_document(lengths, length, [&](int, std::int64_t begin, std::int64_t end, bool) {
      const std::int64_t size = block > 0 ? block : end - begin;
      for (std::int64_t at = begin; at < end; at += size) {
        const std::int64_t stop = (std::min)(end, at + size);
        detail::add(out, at, stop, begin, stop, compute::slice_mask::full);
      }
    });
    return out;
  }
};

}  // namespace masks

/// Document lengths between `from` and `to`, both possible, drawn as often as its weight says among those of others.
struct length_interval {
  std::int64_t from = 1;
  std::int64_t to = 1;
  double weight = 1;
};

/// Lengths that add up to `total`: an interval by weight, a uniform length in it, the last one cut. The same for every
/// rank that asks.
/// Errors: `config_error` for no intervals, for lengths below 1, and for weights that are negative or add up to
/// nothing.
HEDDLE_INLINE std::vector<std::int64_t> draw_lengths(std::int64_t total, std::span<const length_interval> intervals,
                                                     std::uint64_t seed);

/// Lengths of which 40 % of the tokens are drawn as by `draw_lengths` and the others uniform in `long_ones`, shuffled.
HEDDLE_INLINE std::vector<std::int64_t> draw_long_lengths(std::int64_t total,
                                                          std::span<const length_interval> intervals,
                                                          const length_interval& long_ones, std::uint64_t seed);

/// The names of the 14 masks that `named_context_mask` makes.
HEDDLE_INLINE std::span<const std::string_view> context_mask_names() noexcept;

/// A mask of that name for a document of so many tokens; windows, prefixes, blocks and inner documents are drawn from
/// the seed, in proportion to the length.
/// Errors: `config_error` that lists the known names.
HEDDLE_INLINE std::vector<compute::attention_slice> named_context_mask(std::string_view name, std::int64_t length,
                                                                       std::uint64_t seed = 0);

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/context/impl/masks.hpp>
#endif
