// heddle/infer/dfa_mask.hpp: answer masks by an automaton, with bounded sets of tokens.
#pragma once

#include <heddle/infer/byte_dfa.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/token_mask.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// The tokens that may follow states of any number of automata, a bit for each token. Law: they never take more than `most_bytes` together; the longest unused ones go first. Any thread may use it.
class token_set_cache {
 public:
  using token_set = std::vector<bool>;
  static constexpr std::size_t default_bytes = std::size_t{64} << 20;

  explicit token_set_cache(std::size_t most_bytes = default_bytes) : most_bytes_(most_bytes) {}
  token_set_cache(const token_set_cache&) = delete;
  token_set_cache& operator=(const token_set_cache&) = delete;

  /// A number that no other owner of sets has.
  std::uint64_t new_owner() {
    const std::scoped_lock lock(mutex_);
    return ++owners_;
  }
  /// The set of an owner's state for so many tokens. `make()` finds it if it is not here; meanwhile others may use the cache. One that takes more than `most_bytes` is not kept.
  template <class Make>
  std::shared_ptr<const token_set> get(std::uint64_t owner, std::int32_t state, std::size_t vocabulary, Make&& make) {
    const key of{owner, state};
    if (auto known = find(of, vocabulary)) return known;
    const auto made = std::make_shared<const token_set>(make());
    std::list<entry> gone;  // freed behind the lock
    const std::scoped_lock lock(mutex_);
    if (const auto at = places_.find(of); at != places_.end())
      drop(at, gone);  // of another thread, or for other tokens
    const std::size_t size = bytes_of(*made);
    if (size > most_bytes_) return made;
    while (bytes_ + size > most_bytes_) drop(places_.find(entries_.front().of), gone);
    std::list<entry> one{{of, made}};
    places_.emplace(of, one.begin());
    entries_.splice(entries_.end(), one);
    bytes_ += size;
    return made;
  }
  /// Forgets the sets of an owner.
  void forget(std::uint64_t owner) {
    std::list<entry> gone;
    const std::scoped_lock lock(mutex_);
    for (auto at = places_.lower_bound({owner, (std::numeric_limits<std::int32_t>::min)()});
         at != places_.end() && at->first.owner == owner;)
      drop(at++, gone);
  }
  /// Sets of an owner.
  std::int64_t sets(std::uint64_t owner) const {
    const std::scoped_lock lock(mutex_);
    return std::distance(places_.lower_bound({owner, (std::numeric_limits<std::int32_t>::min)()}),
                         places_.lower_bound({owner + 1, (std::numeric_limits<std::int32_t>::min)()}));
  }
  /// Memory of all sets, with what it takes to find them.
  std::size_t bytes() const {
    const std::scoped_lock lock(mutex_);
    return bytes_;
  }
  std::size_t most_bytes() const noexcept { return most_bytes_; }

 private:
  struct key {
    std::uint64_t owner = 0;
    std::int32_t state = 0;
    friend auto operator<=>(const key&, const key&) = default;
  };
  struct entry {
    key of{};
    std::shared_ptr<const token_set> set{};
  };
  using places = std::map<key, std::list<entry>::iterator>;

  static std::size_t bytes_of(const token_set& s) {
    constexpr std::size_t blocks =
        3 * 16 + sizeof(entry) + sizeof(typename places::value_type) + 8 * sizeof(void*) +
        sizeof(token_set);  // of the list, the map and the set, each with what an allocation adds
    return blocks + s.capacity() / 8;
  }
  std::shared_ptr<const token_set> find(const key& of, std::size_t vocabulary) {
    const std::scoped_lock lock(mutex_);
    const auto at = places_.find(of);
    if (at == places_.end() || at->second->set->size() != vocabulary) return nullptr;
    entries_.splice(entries_.end(), entries_, at->second);
    return at->second->set;
  }
  void drop(typename places::iterator at, std::list<entry>& gone) {
    bytes_ -= bytes_of(*at->second->set);
    gone.splice(gone.end(), entries_, at->second);
    places_.erase(at);
  }

  std::size_t most_bytes_;
  mutable std::mutex mutex_{};
  std::uint64_t owners_ = 0;
  std::size_t bytes_ = 0;
  std::list<entry> entries_{};  // the longest unused first
  places places_{};
};

/// Lets answers be texts of a `byte_dfa`. The tokens that may follow a state are found once, when an answer first
/// comes to it, and shared by all masks of this set as long as `sets` keeps them. Any thread
/// may use it.
class dfa_masks : public std::enable_shared_from_this<dfa_masks> {
 public:
  /// `sets`: keeps the tokens of states, and may be that of other automata, too; by default one of its own.
  dfa_masks(std::shared_ptr<const byte_dfa> dfa, std::shared_ptr<const vocabulary_trie> tokens,
            std::vector<std::int32_t> end_tokens,
            std::shared_ptr<token_set_cache> sets = std::make_shared<token_set_cache>())
      : dfa_(std::move(dfa)),
        tokens_(std::move(tokens)),
        ends_(std::move(end_tokens)),
        sets_(std::move(sets)),
        owner_(sets_->new_owner()) {}
  dfa_masks(const dfa_masks&) = delete;
  dfa_masks& operator=(const dfa_masks&) = delete;
  ~dfa_masks() { sets_->forget(owner_); }

  /// A mask of one request, which holds this set. End tokens are left where the text is complete; where nothing can follow, only they are.
  logits_mask mask() {
    return [self = shared_from_this()](std::span<const std::int32_t> answer, std::span<double> logits) {
      self->apply(answer, logits);
    };
  }
  /// States whose tokens are known.
  std::int64_t known() const { return sets_->sets(owner_); }

 private:
  void apply(std::span<const std::int32_t> answer, std::span<double> logits) {
    constexpr double never = -std::numeric_limits<double>::infinity();
    dfa_position at(*dfa_);
    for (const std::int32_t t : answer)
      for (const char c : tokens_->bytes(t))
        if (!at.take(static_cast<unsigned char>(c))) return std::fill(logits.begin(), logits.end(), never);
    const auto allowed =
        sets_->get(owner_, at.state(), logits.size(), [&] { return allowed_after(at, logits.size()); });
    for (std::size_t t = 0; t < logits.size(); ++t)
      if (!(*allowed)[t]) logits[t] = never;
  }
  token_set_cache::token_set allowed_after(const dfa_position& at, std::size_t vocabulary) const {
    token_set_cache::token_set out(vocabulary);
    const auto allow = [&](std::int32_t t, bool yes) {
      if (t >= 0 && static_cast<std::size_t>(t) < vocabulary) out[static_cast<std::size_t>(t)] = yes;
    };
    tokens_->each_accepted(at, [&](std::int32_t t) { allow(t, true); });
    for (const std::int32_t t : ends_) allow(t, at.complete());
    return out;
  }

  std::shared_ptr<const byte_dfa> dfa_;
  std::shared_ptr<const vocabulary_trie> tokens_;
  std::vector<std::int32_t> ends_;
  std::shared_ptr<token_set_cache> sets_;
  std::uint64_t owner_;
};

}  // namespace heddle::inline v0::infer
