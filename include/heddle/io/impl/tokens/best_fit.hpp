// heddle/io/impl/tokens/best_fit.hpp: bodies of heddle/io/tokens/best_fit.hpp.
#pragma once

#include <heddle/io/tokens/best_fit.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::io {
namespace detail {

// A set of numbers below a bound, which finds the least that is not below another: words of 64, and words of those.
class small_set {
 public:
  explicit small_set(std::size_t bound) : words_(bound / 64 + 1), of_words_(words_.size() / 64 + 1) {}
  void insert(std::size_t x) noexcept {
    words_[x / 64] |= std::uint64_t{1} << x % 64;
    of_words_[x / 4096] |= std::uint64_t{1} << x / 64 % 64;
  }
  void erase(std::size_t x) noexcept {
    if ((words_[x / 64] &= ~(std::uint64_t{1} << x % 64)) == 0)
      of_words_[x / 4096] &= ~(std::uint64_t{1} << x / 64 % 64);
  }
  static constexpr std::size_t none = (std::numeric_limits<std::size_t>::max)();
  std::size_t at_least(std::size_t x) const noexcept {
    std::size_t w = x / 64;
    if (const std::uint64_t here = words_[w] >> x % 64 << x % 64; here != 0) return w * 64 + lowest(here);
    if (++w == words_.size()) return none;
    std::uint64_t here = of_words_[w / 64] >> w % 64 << w % 64;
    for (w /= 64; here == 0; here = of_words_[w])
      if (++w == of_words_.size()) return none;
    w = w * 64 + lowest(here);
    return w * 64 + lowest(words_[w]);
  }

 private:
  static std::size_t lowest(std::uint64_t x) noexcept { return static_cast<std::size_t>(std::countr_zero(x)); }
  std::vector<std::uint64_t> words_, of_words_;
};

}  // namespace detail

HEDDLE_INLINE std::vector<std::int32_t> best_fit_bins(std::span<const std::int32_t> lengths, std::int64_t capacity) {
  constexpr std::int64_t most = (std::numeric_limits<std::int32_t>::max)();
  if (capacity < 1 || capacity > most || std::ssize(lengths) > most)
    throw config_error("heddle: best_fit_bins: " + std::to_string(lengths.size()) + " items into bins of " +
                       std::to_string(capacity) + "; both are below 2^31, and bins have room for 1 or more");
  const auto room = static_cast<std::size_t>(capacity);
  // By length, the longest first; those of one length in their order.
  std::vector<std::int32_t> place(room + 1, 0), order(lengths.size()), bins(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 1 || lengths[i] > capacity)
      throw config_error("heddle: best_fit_bins: item " + std::to_string(i) + " is of " + std::to_string(lengths[i]) +
                         "; expected 1 to " + std::to_string(capacity));
    ++place[room - static_cast<std::size_t>(lengths[i])];
  }
  std::exclusive_scan(place.begin(), place.end(), place.begin(), 0);
  for (std::size_t i = 0; i < lengths.size(); ++i)
    order[static_cast<std::size_t>(place[room - static_cast<std::size_t>(lengths[i])]++)] =
        static_cast<std::int32_t>(i);

  // Bins of equal room are lists; `rooms` has those that are not empty.
  detail::small_set rooms(room);
  std::vector<std::int32_t> newest(room + 1, -1), before{};
  for (const std::int32_t i : order) {
    const auto length = static_cast<std::size_t>(lengths[static_cast<std::size_t>(i)]);
    std::size_t left = rooms.at_least(length);
    std::int32_t bin = 0;
    if (left == detail::small_set::none) {
      bin = static_cast<std::int32_t>(before.size());
      before.push_back(-1);
      left = room;
    } else {
      bin = newest[left];
      newest[left] = before[static_cast<std::size_t>(bin)];
      if (newest[left] < 0) rooms.erase(left);
    }
    bins[static_cast<std::size_t>(i)] = bin;
    left -= length;
    if (left == 0) continue;
    before[static_cast<std::size_t>(bin)] = newest[left];
    newest[left] = bin;
    rooms.insert(left);
  }
  return bins;
}

HEDDLE_INLINE void packing::require(std::int64_t documents) const {
  if (options_.context < 1 || options_.context > (std::numeric_limits<std::int32_t>::max)())
    throw config_error("heddle: packing: the context is 1 token or more and below 2^31, not " +
                       std::to_string(options_.context));
  if (options_.first < 0 || options_.first >= options_.end || options_.end > documents)
    throw config_error("heddle: packing: documents " + std::to_string(options_.first) + " to " +
                       std::to_string(options_.end) + " of " + std::to_string(documents));
  if (options_.held_out < 0 || options_.held_out >= options_.end - options_.first)
    throw config_error("heddle: packing: " + std::to_string(options_.held_out) + " documents of " +
                       std::to_string(options_.end - options_.first) + " held out");
}

HEDDLE_INLINE void packing::build(std::span<const std::int64_t> lengths) {
  const std::int64_t train = std::ssize(lengths) - options_.held_out;
  add(lengths, 0, train);
  train_packs_ = static_cast<std::int64_t>(begins_.size()) - 1;
  if (train_packs_ == 0) throw io_error("heddle: packing: the documents for training have no tokens");
  add(lengths, train, std::ssize(lengths));
}

HEDDLE_INLINE void packing::add(std::span<const std::int64_t> lengths, std::int64_t first, std::int64_t end) {
  std::vector<piece> all;
  std::vector<std::int32_t> counts;
  for (std::int64_t d = first; d < end; ++d) {
    const std::int64_t length = lengths[static_cast<std::size_t>(d)];
    for (std::int64_t at = 0; at < length; at += options_.context) {
      const std::int64_t n = (std::min)(options_.context, length - at);
      all.push_back({options_.first + d, at, static_cast<std::int32_t>(n), at + n < length});
      counts.push_back(static_cast<std::int32_t>(n));
      tokens_ += n;
    }
  }
  const std::vector<std::int32_t> bins = best_fit_bins(counts, options_.context);
  const std::size_t before = begins_.size() - 1, at = pieces_.size();
  for (const std::int32_t b : bins) {
    const std::size_t needed = before + static_cast<std::size_t>(b) + 2;
    if (begins_.size() < needed) begins_.resize(needed, 0);
    ++begins_[needed - 1];
  }
  for (std::size_t i = before + 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
  std::vector<std::int64_t> next(begins_.begin() + static_cast<std::ptrdiff_t>(before), begins_.end());
  pieces_.resize(at + all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    pieces_[static_cast<std::size_t>(next[static_cast<std::size_t>(bins[i])]++)] = all[i];
}

HEDDLE_INLINE double packing::filled() const noexcept {
  return static_cast<double>(tokens_) /
         (static_cast<double>(options_.context) * static_cast<double>(begins_.size() - 1));
}

HEDDLE_INLINE std::string packing::text() const {
  return "packing seed " + std::to_string(options_.shuffle ? options_.seed : 0) +
         (options_.shuffle ? "" : " in order") + ", context " + std::to_string(options_.context) + ", documents " +
         std::to_string(options_.first) + " to " + std::to_string(options_.end) + ", held out " +
         std::to_string(options_.held_out);
}

}  // namespace heddle::inline v0::io
