// heddle/infer/dfa_mask.hpp: masks of answers by a finite automaton, whose token sets are shared by all requests.
#pragma once

#include <heddle/infer/byte_dfa.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/token_mask.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Lets answers be texts of a `byte_dfa`. The tokens that may follow a state are found once, when an answer first comes to it, and shared by all masks of this set. Any thread may use it.
class dfa_masks : public std::enable_shared_from_this<dfa_masks> {
 public:
  /// Units: `most_bytes` of sets of tokens, a bit for each token and state; beyond them all are forgotten and found again.
  dfa_masks(std::shared_ptr<const byte_dfa> dfa, std::shared_ptr<const vocabulary_trie> tokens,
            std::vector<std::int32_t> end_tokens, std::size_t most_bytes = std::size_t{64} << 20)
      : dfa_(std::move(dfa)), tokens_(std::move(tokens)), ends_(std::move(end_tokens)), most_bytes_(most_bytes) {}

  /// A mask of one request, which holds this set. End tokens are left where the text is complete; where nothing can follow, only they are.
  logits_mask mask() {
    return [self = shared_from_this()](std::span<const std::int32_t> answer, std::span<double> logits) {
      self->apply(answer, logits);
    };
  }
  /// States whose tokens are known.
  std::int64_t known() const {
    const std::scoped_lock lock(mutex_);
    return std::ssize(sets_);
  }

 private:
  using token_set = std::vector<bool>;

  void apply(std::span<const std::int32_t> answer, std::span<double> logits) {
    constexpr double never = -std::numeric_limits<double>::infinity();
    dfa_position at(*dfa_);
    for (const std::int32_t t : answer)
      for (const char c : tokens_->bytes(t))
        if (!at.take(static_cast<unsigned char>(c))) return std::fill(logits.begin(), logits.end(), never);
    const std::shared_ptr<const token_set> allowed = after(at, logits.size());
    for (std::size_t t = 0; t < logits.size(); ++t)
      if (!(*allowed)[t]) logits[t] = never;
  }
  std::shared_ptr<const token_set> after(const dfa_position& at, std::size_t vocabulary) {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<const token_set>& known = sets_[at.state()];
    if (known && known->size() == vocabulary) return known;
    auto made = std::make_shared<token_set>(vocabulary);
    const auto allow = [&](std::int32_t t, bool yes) {
      if (t >= 0 && static_cast<std::size_t>(t) < vocabulary) (*made)[static_cast<std::size_t>(t)] = yes;
    };
    tokens_->each_accepted(at, [&](std::int32_t t) { allow(t, true); });
    for (const std::int32_t t : ends_) allow(t, at.complete());
    if (sets_.size() * (vocabulary / 8 + 64) > most_bytes_) sets_.clear();
    return sets_[at.state()] = std::move(made);
  }

  std::shared_ptr<const byte_dfa> dfa_;
  std::shared_ptr<const vocabulary_trie> tokens_;
  std::vector<std::int32_t> ends_;
  std::size_t most_bytes_;
  mutable std::mutex mutex_{};
  std::map<std::int32_t, std::shared_ptr<const token_set>> sets_{};
};

}  // namespace heddle::inline v0::infer
