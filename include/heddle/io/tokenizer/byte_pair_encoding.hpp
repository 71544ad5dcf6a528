// heddle/io/tokenizer/byte_pair_encoding.hpp: byte pair encoding by ranked merges.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/tokenizer/content_finder.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// The number of a token, as models take it.
using token_id = std::int32_t;

}  // namespace heddle::inline v0::io

namespace heddle::inline v0::io::detail {

// Byte strings with ids, found by their bytes: open addressing over one array of all bytes.
class byte_strings {
 public:
  static constexpr token_id none = -1;

  // Room for ids below `ids`. All of them are empty and have no token.
  void resize(std::size_t ids) {
    entries_.assign(ids, {});
    std::size_t slots = 16;
    while (slots < 2 * ids) slots *= 2;
    slots_.assign(slots, none);
  }
  // Room for more ids, of tokens that are not found by their bytes.
  void grow(std::size_t ids) { entries_.resize((std::max)(ids, entries_.size())); }
  std::size_t ids() const noexcept { return entries_.size(); }

  // Sets the bytes of an id. With `findable`, `find` finds it, and false says that another id has these bytes.
  bool insert(token_id id, std::string_view bytes, bool findable) {
    entry& e = entries_[static_cast<std::size_t>(id)];
    e = {bytes_.size(), static_cast<std::uint32_t>(bytes.size()), true};
    bytes_ += bytes;
    if (!findable) return true;
    std::size_t at = hash(bytes) & (slots_.size() - 1);
    for (; slots_[at] != none; at = (at + 1) & (slots_.size() - 1))
      if (view(slots_[at]) == bytes) return false;
    slots_[at] = id;
    return true;
  }
  bool has(token_id id) const noexcept {
    return id >= 0 && static_cast<std::size_t>(id) < entries_.size() && entries_[static_cast<std::size_t>(id)].there;
  }
  std::string_view view(token_id id) const noexcept {
    const entry e = entries_[static_cast<std::size_t>(id)];
    return std::string_view(bytes_).substr(e.begin, e.size);
  }
  token_id find(std::string_view bytes) const noexcept {
    if (slots_.empty()) return none;
    for (std::size_t at = hash(bytes) & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      const token_id id = slots_[at];
      if (id == none || view(id) == bytes) return id;
    }
  }

 private:
  struct entry {
    std::size_t begin = 0;
    std::uint32_t size = 0;
    bool there = false;
  };
  static std::size_t hash(std::string_view bytes) noexcept {
    std::uint64_t h = 0xcbf29ce484222325U ^ bytes.size();
    for (const char c : bytes) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    return static_cast<std::size_t>(h ^ h >> 29);
  }

  std::string bytes_;
  std::vector<entry> entries_;
  std::vector<token_id> slots_;
};

// Merges by the pair that they join.
class merge_table {
 public:
  static constexpr std::uint32_t none = (std::numeric_limits<std::uint32_t>::max)();
  struct merge {
    std::uint64_t pair = ~std::uint64_t{0};
    std::uint32_t rank = none;
    token_id to = 0;
  };

  void reserve(std::size_t merges) {
    std::size_t slots = 16;
    while (slots < 2 * merges) slots *= 2;
    slots_.assign(slots, {});
  }
  // A pair that is there already gets the new rank, as in the `tokenizers` package.
  void insert(token_id left, token_id right, std::uint32_t rank, token_id to) {
    const std::uint64_t pair = key(left, right);
    std::size_t at = slot(pair);
    while (slots_[at].rank != none && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {pair, rank, to};
  }
  // `rank` is `none` where the pair is not merged.
  merge find(token_id left, token_id right) const noexcept {
    const std::uint64_t pair = key(left, right);
    for (std::size_t at = slot(pair);; at = (at + 1) & (slots_.size() - 1))
      if (slots_[at].rank == none || slots_[at].pair == pair) return slots_[at];
  }

 private:
  static std::uint64_t key(token_id left, token_id right) noexcept {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t slot(std::uint64_t pair) const noexcept {
    std::uint64_t h = pair * 0x9e3779b97f4a7c15U;
    return static_cast<std::size_t>(h ^ h >> 32) & (slots_.size() - 1);
  }
  std::vector<merge> slots_ = std::vector<merge>(16);
};

// What stands for a character that is no token: the tokens of its bytes, else one token for all such, else nothing.
struct unknown_characters {
  static constexpr token_id none = byte_strings::none;
  std::array<token_id, 256> of_byte = [] {
    std::array<token_id, 256> to{};
    to.fill(none);
    return to;
  }();
  token_id unknown = none;
  bool fuse = false;  // neighbours become one such token

  // The tokens of all bytes, if each has one.
  bool bytes(std::string_view character, std::vector<token_id>& to) const {
    for (const char c : character)
      if (of_byte[static_cast<unsigned char>(c)] == none) return false;
    for (const char c : character) to.push_back(of_byte[static_cast<unsigned char>(c)]);
    return true;
  }
};

// Byte pair encoding of single words: bytes or characters become tokens, then of all neighbours that a merge joins, the
// pair of the lowest rank, and of those the leftmost, is joined, until there is none.
// Source: Sennrich et al. 2016, arXiv:1508.07909; on bytes: Radford et al. 2019 (GPT-2).
class byte_pair_encoding {
 public:
  byte_strings tokens;
  merge_table merges;
  std::array<token_id, 256> of_byte{};
  std::optional<unknown_characters> characters;  // words begin as characters, not as bytes
  content_finder whole_symbols;                  // texts that begin as one symbol, by their ids: SentencePiece's own
  bool ignore_merges = false;                    // a word that is a token is that token, whatever the merges make of it

  // To be called when all of the above is there.
  void finish() {
    whole_.assign(tokens.ids(), 0);
    std::vector<token_id> made;
    for (std::size_t i = 0; i < tokens.ids(); ++i) {
      const auto id = static_cast<token_id>(i);
      if (!tokens.has(id) || tokens.find(tokens.view(id)) != id || tokens.view(id).empty()) continue;
      made.clear();
      if (!ignore_merges) merge_word(tokens.view(id), made);
      whole_[i] = ignore_merges || (made.size() == 1 && made[0] == id);
    }
  }

  void encode_word(std::string_view word, std::vector<token_id>& to) const {
    if (word.empty()) return;
    // Most words are one token, and its own merges lead to it.
    const token_id id = tokens.find(word);
    if (id != byte_strings::none && whole_[static_cast<std::size_t>(id)])
      to.push_back(id);
    else
      merge_word(word, to);
  }

  // By merges alone.
  void merge_word(std::string_view word, std::vector<token_id>& to) const {
    if (characters) {
      std::vector<token_id> symbols;
      character_symbols(word, symbols);
      merge(symbols.size(), [&](std::size_t i) { return symbols[i]; }, to);
    } else {
      merge(word.size(), [&](std::size_t i) { return of_byte[static_cast<unsigned char>(word[i])]; }, to);
    }
  }

  // What a word begins as where it begins as characters.
  void character_symbols(std::string_view word, std::vector<token_id>& to) const {
    bool open = false;  // an unknown token comes before the next known one, as in the `tokenizers` package
    const auto close = [&] {
      if (std::exchange(open, false)) to.push_back(characters->unknown);
    };
    for (std::size_t at = 0, size = 0; at < word.size(); at += size) {
      if (const auto whole = whole_symbols.longest(word, at)) {
        close();
        size = whole->end - at;
        to.push_back(static_cast<token_id>(whole->token));
        continue;
      }
      size = sequence_length(word[at]);
      const std::string_view character = word.substr(at, size);
      if (const token_id id = tokens.find(character); id != byte_strings::none) {
        close();
        to.push_back(id);
      } else if (!characters->bytes(character, to) && characters->unknown != byte_strings::none) {
        if (!characters->fuse) close();
        open = true;
      }
    }
    close();
  }

 private:
  static constexpr std::size_t short_word = 32;

  template <class Symbol>
  void merge(std::size_t n, Symbol&& symbol, std::vector<token_id>& to) const {
    if (n <= short_word)
      merge_short(n, symbol, to);
    else
      merge_long(n, symbol, to);
  }

  // Looks at all pairs for each merge: less work than a queue while there are few.
  template <class Symbol>
  void merge_short(std::size_t n, Symbol& symbol, std::vector<token_id>& to) const {
    std::array<token_id, short_word> ids;
    std::array<merge_table::merge, short_word> next;  // next[i] joins ids[i] and ids[i + 1]
    for (std::size_t i = 0; i < n; ++i) ids[i] = symbol(i);
    for (std::size_t i = 0; i + 1 < n; ++i) next[i] = merges.find(ids[i], ids[i + 1]);
    while (n > 1) {
      std::size_t best = 0;
      for (std::size_t i = 1; i + 1 < n; ++i)
        if (next[i].rank < next[best].rank) best = i;
      if (next[best].rank == merge_table::none) break;
      ids[best] = next[best].to;
      --n;
      for (std::size_t i = best + 1; i < n; ++i) ids[i] = ids[i + 1];
      for (std::size_t i = best + 1; i + 1 < n; ++i) next[i] = next[i + 1];
      if (best + 1 < n) next[best] = merges.find(ids[best], ids[best + 1]);
      if (best > 0) next[best - 1] = merges.find(ids[best - 1], ids[best]);
    }
    to.insert(to.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n));
  }

  // Pairs in a queue by rank, tokens in a list: n log n.
  template <class Symbol>
  void merge_long(std::size_t n, Symbol& symbol, std::vector<token_id>& to) const {
    struct entry {
      token_id id;
      std::size_t before, after;
    };
    struct candidate {
      std::uint32_t rank;
      std::size_t at;
      token_id left, right, to;  // as they were: what has changed since is not merged
      bool operator<(const candidate& o) const noexcept { return rank != o.rank ? rank > o.rank : at > o.at; }
    };
    std::vector<entry> symbols(n);
    for (std::size_t i = 0; i < n; ++i) symbols[i] = {symbol(i), i - 1, i + 1};
    std::vector<candidate> found;
    found.reserve(n);
    const auto look = [&](std::size_t i, auto&& take) {
      const std::size_t j = symbols[i].after;
      if (j >= n) return;
      const merge_table::merge m = merges.find(symbols[i].id, symbols[j].id);
      if (m.rank != merge_table::none) take(candidate{m.rank, i, symbols[i].id, symbols[j].id, m.to});
    };
    for (std::size_t i = 0; i < n; ++i) look(i, [&](const candidate& c) { found.push_back(c); });
    std::priority_queue<candidate> queue(std::less<candidate>{}, std::move(found));
    while (!queue.empty()) {
      const candidate c = queue.top();
      queue.pop();
      entry& left = symbols[c.at];
      if (left.id != c.left || left.after >= n || symbols[left.after].id != c.right) continue;
      symbols[left.after].id = byte_strings::none;
      left.id = c.to;
      left.after = symbols[left.after].after;
      if (left.after < n) symbols[left.after].before = c.at;
      const auto push = [&](const candidate& more) { queue.push(more); };
      look(c.at, push);
      if (c.at > 0) look(left.before, push);
    }
    for (std::size_t i = 0; i < n; i = symbols[i].after) to.push_back(symbols[i].id);
  }

  std::vector<std::uint8_t> whole_;
};

}  // namespace heddle::inline v0::io::detail
