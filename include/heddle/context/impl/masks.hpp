// heddle/context/impl/masks.hpp: bodies of heddle/context/masks.hpp.
#pragma once

#include <heddle/context/masks.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace heddle::inline v0 {
namespace detail {

// Whole numbers from a seed, one after the other.
class length_draws {
 public:
  length_draws(std::uint64_t seed, std::uint64_t stream) : random_(seed, stream) {}
  double uniform() { return random_.uniform(at_++); }
  // In [from, to].
  std::int64_t within(std::int64_t from, std::int64_t to) {
    const auto range = static_cast<std::uint64_t>(to - from + 1);
    return from + static_cast<std::int64_t>(random_.integer(at_++) % range);
  }

 private:
  counter_random random_;
  std::uint64_t at_ = 0;
};

inline void check_intervals(std::span<const length_interval> intervals) {
  double sum = 0;
  for (const length_interval& i : intervals) {
    if (i.from < 1 || i.to < i.from || !(i.weight >= 0)) {
      throw config_error(
          "heddle: document lengths of at least 1, in order, with weights of at least 0 are expected; got [" +
          std::to_string(i.from) + ", " + std::to_string(i.to) + "] with weight " + std::to_string(i.weight));
    }
    sum += i.weight;
  }
  if (!(sum > 0)) throw config_error("heddle: no interval of document lengths has a weight");
}

inline std::vector<std::int64_t> drawn_lengths(std::int64_t total, std::span<const length_interval> intervals,
                                               length_draws& draws) {
  check_intervals(intervals);
  double sum = 0;
  for (const length_interval& i : intervals) sum += i.weight;
  std::vector<std::int64_t> lengths;
  while (total > 0) {
    double left = draws.uniform() * sum;
    std::size_t chosen = 0;
    while (chosen + 1 < intervals.size() && left >= intervals[chosen].weight) left -= intervals[chosen++].weight;
    lengths.push_back((std::min)(total, draws.within(intervals[chosen].from, intervals[chosen].to)));
    total -= lengths.back();
  }
  return lengths;
}

inline constexpr std::array<std::string_view, 14> context_masks{"full",
                                                                "causal",
                                                                "full-documents",
                                                                "causal-documents",
                                                                "full-documents-long",
                                                                "causal-documents-long",
                                                                "share-question",
                                                                "causal-blockwise",
                                                                "prefix",
                                                                "prefix-documents",
                                                                "window",
                                                                "window-both-sides",
                                                                "global-window",
                                                                "block-causal"};

}  // namespace detail

HEDDLE_INLINE std::vector<std::int64_t> draw_lengths(std::int64_t total, std::span<const length_interval> intervals,
                                                     std::uint64_t seed) {
  detail::length_draws draws(seed, 0);
  return detail::drawn_lengths(total, intervals, draws);
}

HEDDLE_INLINE std::vector<std::int64_t> draw_long_lengths(std::int64_t total,
                                                          std::span<const length_interval> intervals,
                                                          const length_interval& long_ones, std::uint64_t seed) {
  detail::length_draws draws(seed, 1);
  std::vector<std::int64_t> lengths = detail::drawn_lengths(total * 2 / 5, intervals, draws);
  const auto others = detail::drawn_lengths(total - total * 2 / 5, std::span(&long_ones, 1), draws);
  lengths.insert(lengths.end(), others.begin(), others.end());
  for (std::size_t i = lengths.size(); i > 1; --i)
    std::swap(lengths[i - 1], lengths[static_cast<std::size_t>(draws.within(0, static_cast<std::int64_t>(i) - 1))]);
  return lengths;
}

HEDDLE_INLINE std::span<const std::string_view> context_mask_names() noexcept {
  return detail::context_masks;
}

HEDDLE_INLINE std::vector<compute::attention_slice> named_context_mask(std::string_view name, std::int64_t length,
                                                                       std::uint64_t seed) {
  detail::length_draws draws(seed, 2);
  // A share of the document, at least one token.
  const auto share = [&](std::int64_t parts) { return (std::max)(std::int64_t{1}, length / parts); };
  const std::array<length_interval, 2> mixed{{{1, share(8), 4}, {share(8), share(3), 1}}};
  const auto lengths = [&] { return draw_lengths(length, mixed, seed); };
  const auto long_lengths = [&] { return draw_long_lengths(length, mixed, {share(4), share(2), 1}, seed); };
  const auto some = [&](std::int64_t most) { return draws.within(1, most); };
  if (name == "full") return masks::full{}.slices(length);
  if (name == "causal") return masks::causal{}.slices(length);
  if (name == "full-documents") return masks::documents<masks::full>{lengths()}.slices(length);
  if (name == "causal-documents") return masks::documents<>{lengths()}.slices(length);
  if (name == "full-documents-long") return masks::documents<masks::full>{long_lengths()}.slices(length);
  if (name == "causal-documents-long") return masks::documents<>{long_lengths()}.slices(length);
  if (name == "share-question") return masks::share_question{lengths()}.slices(length);
  if (name == "causal-blockwise") return masks::causal_blockwise{lengths()}.slices(length);
  if (name == "prefix") return masks::prefix<>{some(share(1))}.slices(length);
  if (name == "prefix-documents") return masks::documents<masks::prefix<>>{lengths(), {some(share(4))}}.slices(length);
  if (name == "window") return masks::window<>{share(8)}.slices(length);
  if (name == "window-both-sides") return masks::window_both_sides<>{share(8)}.slices(length);
  if (name == "global-window") return masks::global_window<>{some(share(3))}.slices(length);
  if (name == "block-causal") return masks::block_causal<>{share(16), long_lengths()}.slices(length);
  std::string known;
  for (const std::string_view one : detail::context_masks) {
    known += known.empty() ? "" : ", ";
    known += one;
  }
  throw config_error("heddle: no mask is named \"" + std::string(name) + "\"; the masks are " + known);
}

}  // namespace heddle::inline v0
