// heddle/infer/token_mask.hpp: constrains an answer to texts that an automaton over bytes accepts.
#pragma once

#include <heddle/infer/request.hpp>

#include <algorithm>
#include <bitset>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// A state of an automaton over bytes. `take(c)` reads a byte; false: no text goes on so. `complete()`: a text may end here.
template <class A>
concept byte_automaton = std::copyable<A> && requires(A& a, const A& that, unsigned char c) {
  { a.take(c) } -> std::same_as<bool>;
  { that.complete() } -> std::same_as<bool>;
};

/// The bytes of a vocabulary's tokens as a tree, in which tokens with a common beginning are tried together.
class vocabulary_trie {
 public:
  /// `bytes(token)`: what the token adds to a text; empty for those that no text has (special ones, gaps).
  template <class Bytes>
    requires std::convertible_to<std::invoke_result_t<Bytes&, std::int32_t>, std::string_view>
  vocabulary_trie(std::int64_t vocabulary, Bytes&& bytes) {
    std::vector<std::size_t> sizes;
    for (std::int64_t t = 0; t < vocabulary; ++t) {
      const std::size_t before = text_.size();
      text_ += std::string_view(bytes(static_cast<std::int32_t>(t)));
      sizes.push_back(text_.size() - before);
    }
    std::size_t at = 0;  // the text is complete and stays where it is
    for (const std::size_t size : sizes) {
      entries_.push_back({std::string_view(text_).substr(at, size), static_cast<std::int32_t>(entries_.size())});
      at += size;
    }
    by_token_ = entries_;
    std::sort(entries_.begin(), entries_.end(), [](const entry& a, const entry& b) { return a.bytes < b.bytes; });
  }
  vocabulary_trie(const vocabulary_trie&) = delete;
  vocabulary_trie& operator=(const vocabulary_trie&) = delete;

  std::string_view bytes(std::int32_t token) const {
    return token >= 0 && static_cast<std::size_t>(token) < by_token_.size()
               ? by_token_[static_cast<std::size_t>(token)].bytes
               : std::string_view{};
  }
  /// The bytes that are tokens of their own: with these alone any text of them can go on.
  std::bitset<256> single_bytes() const {
    std::bitset<256> out;
    for (const entry& e : entries_)
      if (e.bytes.size() == 1) out.set(static_cast<unsigned char>(e.bytes[0]));
    return out;
  }
  /// Calls `found(token)` for each token whose bytes the automaton takes from this state on.
  template <byte_automaton A, class Found>
  void each_accepted(const A& from, Found&& found) const {
    std::size_t first = 0;
    while (first < entries_.size() && entries_[first].bytes.empty()) ++first;
    visit(from, 0, first, entries_.size(), found);
  }

 private:
  struct entry {
    std::string_view bytes{};
    std::int32_t token = 0;
  };

  // Entries [begin, end) have the same first `depth` bytes, which the state has read, and the shortest come first.
  template <class A, class Found>
  void visit(const A& state, std::size_t depth, std::size_t begin, std::size_t end, Found& found) const {
    for (; begin < end && entries_[begin].bytes.size() == depth; ++begin) found(entries_[begin].token);
    while (begin < end) {
      const char c = entries_[begin].bytes[depth];
      const auto other = [&](const entry& e) { return e.bytes[depth] == c; };
      const auto first = entries_.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = std::partition_point(first, entries_.begin() + static_cast<std::ptrdiff_t>(end), other);
      const auto next = static_cast<std::size_t>(last - entries_.begin());
      A after = state;
      if (after.take(static_cast<unsigned char>(c))) visit(after, depth + 1, begin, next, found);
      begin = next;
    }
  }

  std::string text_{};
  std::vector<entry> by_token_{}, entries_{};
};

namespace detail {

// The mask of `mask_by`: a copy of it has its own sets.
template <byte_automaton A>
class automaton_mask {
 public:
  automaton_mask(A start, std::shared_ptr<const vocabulary_trie> tokens, std::vector<std::int32_t> ends)
      : start_(std::move(start)), tokens_(std::move(tokens)), ends_(std::move(ends)) {}

  void operator()(std::span<const std::int32_t> answer, std::span<double> logits) {
    A state = start_;
    bool goes_on = true;
    for (const std::int32_t t : answer)
      for (const char c : tokens_->bytes(t)) goes_on = goes_on && state.take(static_cast<unsigned char>(c));
    constexpr double never = -std::numeric_limits<double>::infinity();
    if (!goes_on) return std::fill(logits.begin(), logits.end(), never);
    const std::vector<bool>& allowed = after(state, logits.size());
    for (std::size_t t = 0; t < logits.size(); ++t)
      if (!allowed[t]) logits[t] = never;
  }

 private:
  static constexpr std::size_t most_sets = 8;
  struct token_set {
    A state;
    std::vector<bool> allowed{};
  };

  const std::vector<bool>& after(const A& state, std::size_t vocabulary) {
    if constexpr (std::equality_comparable<A>)
      for (const token_set& s : sets_)
        if (s.allowed.size() == vocabulary && s.state == state) return s.allowed;
    token_set made{state, std::vector<bool>(vocabulary)};
    const auto allow = [&](std::int32_t t, bool yes) {
      if (t >= 0 && static_cast<std::size_t>(t) < vocabulary) made.allowed[static_cast<std::size_t>(t)] = yes;
    };
    tokens_->each_accepted(state, [&](std::int32_t t) { allow(t, true); });
    for (const std::int32_t t : ends_) allow(t, state.complete());  // also where such a token has bytes
    if (sets_.size() < (std::equality_comparable<A> ? most_sets : 1)) {
      sets_.push_back(std::move(made));
      return sets_.back().allowed;
    }
    token_set& oldest = sets_[next_++ % sets_.size()];
    oldest = std::move(made);
    return oldest.allowed;
  }

  A start_;
  std::shared_ptr<const vocabulary_trie> tokens_;
  std::vector<std::int32_t> ends_;
  std::vector<token_set> sets_{};
  std::size_t next_ = 0;
};

}  // namespace detail

/// A mask that lets an answer be what the automaton accepts from `start` on: before each token, those whose bytes it takes are left, and the
/// end tokens where the text is complete. An answer that an end token ends is complete; one that ends by its length may not be. Where the vocabulary has
/// no token that goes on, the request ends with an error. Combine it with no stop strings. Where states compare, the mask keeps the tokens of a few of
/// them, a bit for each token, since those of a JSON string are mostly one: then the vocabulary is not looked through again.
template <byte_automaton A>
logits_mask mask_by(A start, std::shared_ptr<const vocabulary_trie> tokens, std::vector<std::int32_t> end_tokens) {
  return detail::automaton_mask<A>(std::move(start), std::move(tokens), std::move(end_tokens));
}

}  // namespace heddle::inline v0::infer
