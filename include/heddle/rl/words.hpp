// heddle/rl/words.hpp: what ranks of a pipeline tell each other, as numbers of 64 bits.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::rl {

/// Writes numbers and lists of them behind each other.
class word_writer {
 public:
  template <std::integral N>
  void put(N n) {
    words_.push_back(static_cast<std::int64_t>(n));
  }
  void put(double x) { words_.push_back(std::bit_cast<std::int64_t>(x)); }
  template <class N>
  void put(const std::vector<N>& all) {
    put(all.size());
    for (const N n : all) put(n);
  }
  /// As many characters as there are, each a word: for reasons, which are short.
  void put(const std::string& text) { put(std::vector<char>(text.begin(), text.end())); }
  const std::vector<std::int64_t>& words() const noexcept { return words_; }
  void clear() noexcept { words_.clear(); }

 private:
  std::vector<std::int64_t> words_;
};

/// Reads them again, in the same order. Errors: `error` where there are no more.
class word_reader {
 public:
  explicit word_reader(std::span<const std::int64_t> words) noexcept : words_(words) {}
  bool done() const noexcept { return at_ == words_.size(); }
  template <class N>
  N get() {
    if (at_ >= words_.size())
      throw error("heddle: rl: words of " + std::to_string(words_.size()) + " numbers end too early");
    const std::int64_t word = words_[at_++];
    if constexpr (std::floating_point<N>)
      return std::bit_cast<double>(word);
    else
      return static_cast<N>(word);
  }
  template <class N>
  void get(std::vector<N>& all) {
    const auto size = get<std::size_t>();
    if (size > words_.size() - at_)
      throw error("heddle: rl: a list of " + std::to_string(size) + " numbers in words of " +
                  std::to_string(words_.size()));
    all.resize(size);
    for (std::size_t i = 0; i < size; ++i) all[i] = get<N>();
  }
  void get(std::string& text) {
    std::vector<char> all;
    get(all);
    text.assign(all.begin(), all.end());
  }

 private:
  std::span<const std::int64_t> words_;
  std::size_t at_ = 0;
};

/// What every rank of `group` has to say, on all of them: words of rank r from `first[r]` to `first[r + 1]`.
struct gathered_words {
  std::vector<std::int64_t> words{};
  std::vector<std::size_t> first{};
  word_reader of(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return word_reader(std::span(words).subspan(first[r], first[r + 1] - first[r]));
  }
};
template <class Group>
gathered_words gather_words(Group& group, std::span<const std::int64_t> mine) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::int64_t> sizes(ranks);
  const auto size = static_cast<std::int64_t>(mine.size());
  group.all_gather(std::span<const std::int64_t>(&size, 1), std::span(sizes));
  gathered_words all;
  all.first.assign(1, 0);
  for (const std::int64_t n : sizes) all.first.push_back(all.first.back() + static_cast<std::size_t>(n));
  all.words.resize(all.first.back());
  group.all_gather_v(mine, std::span(all.words), sizes);
  return all;
}

}  // namespace heddle::inline v0::rl
