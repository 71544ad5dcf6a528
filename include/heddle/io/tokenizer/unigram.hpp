// heddle/io/tokenizer/unigram.hpp: the tokens of a text whose scores have the highest sum.
#pragma once

#include <heddle/io/tokenizer/byte_pair_encoding.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

// Texts in order, narrowed to those that begin as a text does, byte by byte.
class sorted_texts {
 public:
  void insert(std::string text, token_id id) { all_.emplace_back(std::move(text), id); }
  void finish() {
    std::sort(all_.begin(), all_.end());
    std::size_t at = 0;
    for (std::size_t b = 0; b < 256; ++b) {
      while (at < all_.size() && byte(at, 0) < b) ++at;
      first_[b] = at;
    }
    first_[256] = all_.size();
  }
  // Calls `take(length, id)` for each that `text` begins with, the shortest first.
  template <class Take>
  void prefixes(std::string_view text, Take&& take) const {
    if (text.empty()) return;
    const auto lead = static_cast<unsigned char>(text[0]);
    std::size_t low = first_[lead], high = first_[lead + 1U];
    for (std::size_t depth = 1; low < high; ++depth) {
      if (all_[low].first.size() == depth) {
        take(depth, all_[low].second);
        ++low;
      }
      if (depth == text.size()) return;
      const auto next = static_cast<unsigned char>(text[depth]);
      const auto bound = [&](std::size_t from, unsigned value) {  // of the first whose byte is not below
        std::size_t to = high;
        while (from < to) {
          const std::size_t middle = from + (to - from) / 2;
          if (byte(middle, depth) < value)
            from = middle + 1;
          else
            to = middle;
        }
        return from;
      };
      low = bound(low, next);
      high = bound(low, next + 1U);
    }
  }

 private:
  unsigned byte(std::size_t i, std::size_t depth) const { return static_cast<unsigned char>(all_[i].first[depth]); }
  std::vector<std::pair<std::string, token_id>> all_;
  std::array<std::size_t, 257> first_{};
};

// Tokens with the highest sum of scores. `Sum` is what sums are kept in: float in SentencePiece, double in the
// `tokenizers` package, and what is rounded decides between paths.
// Source: Kudo 2018, arXiv:1804.10959; ties as EncodeOptimized of SentencePiece's published code.
template <class Sum>
class unigram {
 public:
  sorted_texts texts;
  std::vector<double> scores;  // by id
  Sum unknown_score = 0;       // of a character that is no token
  unknown_characters unknown;

  std::string unknown_text;  // a text that is the unknown token, where the vocabulary has it among the others

  // Of tokens for which `allowed(id)`.
  template <class Allowed>
  void encode_word(std::string_view word, std::vector<token_id>& to, Allowed&& allowed) const {
    struct node {
      token_id id = byte_strings::none;  // none: unknown
      Sum score = 0;
      std::size_t begin = nowhere;
    };
    std::vector<node> best(word.size() + 1);
    const auto offer = [&](std::size_t begin, std::size_t end, token_id id, auto score) {
      if (node& n = best[end]; n.begin == nowhere || score > n.score) n = {id, static_cast<Sum>(score), begin};
    };
    for (std::size_t at = 0, size = 0; at < word.size(); at += size) {
      size = sequence_length(word[at]);
      bool single = false;
      const Sum here = best[at].score;
      texts.prefixes(word.substr(at), [&](std::size_t length, token_id id) {
        if (!allowed(id)) return;
        offer(at, at + length, id, static_cast<Sum>(scores[static_cast<std::size_t>(id)] + here));
        single = single || length == size;
      });
      if (!single) offer(at, at + size, byte_strings::none, static_cast<Sum>(unknown_score + here));
    }
    std::vector<std::size_t> ends;  // backwards
    for (std::size_t end = word.size(); end > 0; end = best[end].begin) ends.push_back(end);
    while (!ends.empty()) {
      std::size_t end = ends.back();
      ends.pop_back();
      const std::size_t begin = best[end].begin;
      if (!is_unknown(best[end].id)) {
        to.push_back(best[end].id);
        continue;
      }
      while (!ends.empty() && is_unknown(best[ends.back()].id)) end = ends.back(), ends.pop_back();
      const std::string_view run = word.substr(begin, end - begin);
      if (run == unknown_text || !unknown.bytes(run, to)) to.push_back(unknown.unknown);
    }
  }

 private:
  bool is_unknown(token_id id) const noexcept { return id == byte_strings::none || id == unknown.unknown; }
  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
};

}  // namespace heddle::inline v0::io::detail
