// heddle/io/tokenizer/tokenizer.hpp: byte-level byte pair encoding of text, as GPT-2, Llama-3 and Qwen have it.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/tokenizer/added_tokens.hpp>
#include <heddle/io/tokenizer/byte_pair_encoding.hpp>
#include <heddle/io/tokenizer/normalize.hpp>
#include <heddle/io/tokenizer/split_pattern.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// What `tokenizer::encode` does with bytes that are no UTF-8.
enum class invalid_utf8 {
  refuse,   ///< a `text_error` that names the byte
  replace,  ///< U+FFFD for each longest beginning of a sequence and each other byte, as Python's `errors="replace"`
};

/// How `tokenizer::encode` reads a text.
struct encode_options {
  bool add_special_tokens = true;  ///< what the post-processor puts around a text, such as the begin mark of Llama-3
  /// Special tokens that the text spells are text like any other: for text of others, which may hold such marks. No id of a
  /// special token comes of the text then, also where the model's own vocabulary has it.
  bool special_tokens_as_text = false;
  invalid_utf8 invalid = invalid_utf8::refuse;
};

/// What `tokenizer::decode` and `stream_decoder` leave out.
struct decode_options {
  bool skip_special_tokens = false;
  bool skip_unknown_ids = false;  ///< ids without a token, such as those that pad a model's vocabulary, are no error
  std::vector<token_id> kept{};   ///< special tokens that are not skipped
};

namespace detail {

// One step of a pre-tokenizer: cuts each of the pieces that it gets.
struct pre_token_step {
  enum class behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };
  std::optional<split_pattern> pattern;  // none: a space is put before pieces that begin with none
  behavior what = behavior::isolated;
  bool invert = false;
};

// What a post-processor puts where: ids, or the encoded text.
struct template_step {
  bool text = false;
  std::vector<token_id> ids;
};

struct tokenizer_parts {
  byte_pair_encoding model;
  bool normalize = false;  // NFC
  std::vector<pre_token_step> steps;
  std::vector<added_token> added;              // by id
  added_token_splitter of_raw, of_normalized;  // the same, by the text that they are looked for in
  std::vector<template_step> around = {{true, {}}};
  std::vector<bool> special;  // by id
};

// GPT-2's pattern, which `ByteLevel` has where it uses its own.
// Source: Radford et al. 2019, encoder.py of the published code.
inline constexpr std::string_view gpt2_pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// One call of encode.
class encoding {
 public:
  encoding(const tokenizer_parts& parts, std::vector<token_id>& to) : parts_(parts), to_(to) {
    rooms_.reserve(parts.steps.size());
    for (const pre_token_step& s : parts.steps) {
      rooms_.emplace_back();
      if (s.pattern) rooms_.back().emplace(*s.pattern);
    }
  }

  void text(std::string_view all, bool special_as_text) {
    special_as_text_ = special_as_text;
    const auto token = [&](token_id id) { to_.push_back(id); };
    parts_.of_raw.split(
        all, special_as_text,
        [&](std::string_view raw) {
          std::string normalized;
          if (parts_.normalize && !surely_normalized(raw)) {
            normalized = nfc(raw);
            raw = normalized;
          }
          parts_.of_normalized.split(raw, special_as_text, [&](std::string_view piece) { step(0, piece); }, token);
        },
        token);
  }

 private:
  void step(std::size_t k, std::string_view piece) {
    if (piece.empty()) return;
    if (k == parts_.steps.size()) {
      word(piece);
      return;
    }
    const pre_token_step& s = parts_.steps[k];
    if (!s.pattern) {
      if (piece.front() == ' ') return step(k + 1, piece);
      return step(k + 1, " " + std::string(piece));
    }
    using behavior = pre_token_step::behavior;
    if (s.what == behavior::isolated || s.what == behavior::removed) {
      // Nothing is merged, so a part can go on as soon as it is found.
      matches(s, *rooms_[k], piece, [&](std::size_t begin, std::size_t end, bool matched) {
        if (s.what == behavior::isolated || !matched) step(k + 1, piece.substr(begin, end - begin));
      });
      return;
    }
    struct part {
      std::size_t begin, end;
      bool matched;
    };
    std::vector<part> found, merged;
    matches(s, *rooms_[k], piece,
            [&](std::size_t begin, std::size_t end, bool matched) { found.push_back({begin, end, matched}); });
    const bool backwards = s.what == behavior::merged_with_next;
    if (backwards) std::reverse(found.begin(), found.end());
    bool before = false;  // whether the part before was a match
    for (const part& p : found) {
      const bool joins = s.what == behavior::contiguous ? p.matched == before : p.matched && !before;
      if (joins && !merged.empty())
        merged.back() = {(std::min)(merged.back().begin, p.begin), (std::max)(merged.back().end, p.end), false};
      else
        merged.push_back(p);
      before = p.matched;
    }
    if (backwards) std::reverse(merged.begin(), merged.end());
    for (const part& p : merged) step(k + 1, piece.substr(p.begin, p.end - p.begin));
  }

  // The model's vocabulary may hold a special token, as a whole word or as what merges lead to: where such are text, it
  // comes as what its bytes merge to or, if that is special as well, as its bytes.
  void word(std::string_view piece) {
    const std::size_t begin = to_.size();
    parts_.model.encode_word(piece, to_);
    const auto special = [&](token_id id) { return parts_.special[static_cast<std::size_t>(id)]; };
    const auto from = [&] { return to_.begin() + static_cast<std::ptrdiff_t>(begin); };
    if (!special_as_text_ || std::none_of(from(), to_.end(), special)) return;
    to_.resize(begin);
    parts_.model.merge_word(piece, to_);
    const std::vector<token_id> merged(from(), to_.end());
    to_.resize(begin);
    for (const token_id id : merged) {
      if (!special(id)) {
        to_.push_back(id);
        continue;
      }
      for (const char c : parts_.model.tokens.view(id)) {
        const auto byte = static_cast<unsigned char>(c);
        to_.push_back(parts_.model.of_byte[byte]);
        if (special(to_.back()))
          throw text_error("heddle: the token of byte " + std::to_string(byte) +
                           " is special, so a text with it cannot be encoded without special tokens");
      }
    }
  }

  // Matches, and what is between them, from left to right.
  template <class Take>
  static void matches(const pre_token_step& s, split_pattern::room& room, std::string_view piece, Take&& take) {
    std::size_t done = 0, from = 0;
    std::optional<std::size_t> last;  // the end of the last match: no empty one directly behind it
    while (from <= piece.size()) {
      const auto m = s.pattern->next(piece, from, room);
      if (!m) break;
      const auto [begin, end] = *m;
      if (begin == end && last == end) {
        if (end == piece.size()) break;
        from = end + sequence_length(piece[end]);
        continue;
      }
      if (done != begin) take(done, begin, s.invert);
      take(begin, end, !s.invert);
      done = from = end;
      last = end;
    }
    if (done != piece.size()) take(done, piece.size(), s.invert);
  }

  const tokenizer_parts& parts_;
  std::vector<token_id>& to_;
  std::vector<std::optional<split_pattern::room>> rooms_;
  bool special_as_text_ = false;
};

}  // namespace detail

/// A byte-level BPE tokenizer: text to tokens and back. Made by `load_tokenizer` and its like. Immutable; copies share
/// what they read, and threads may use one at the same time. Ids are those of Hugging Face's `tokenizers` package.
class tokenizer {
 public:
  /// The tokens of a text. Errors: `text_error` for bytes that are no UTF-8, unless `options.invalid` replaces them,
  /// where a pattern of the file's takes too long, and where special tokens are text but the token of a byte is special.
  std::vector<token_id> encode(std::string_view text, const encode_options& options = {}) const {
    std::string repaired;
    if (const std::size_t valid = detail::valid_prefix(text); valid != text.size()) {
      if (options.invalid == invalid_utf8::refuse)
        throw text_error("heddle: a text to encode must be UTF-8; of " + std::to_string(text.size()) + " bytes, byte " +
                         std::to_string(valid) + " (" + std::to_string(static_cast<unsigned char>(text[valid])) +
                         ") begins no whole character");
      if (detail::append_repaired(repaired, text) != text.size()) repaired += detail::replacement_character;
      text = repaired;
    }
    std::vector<token_id> out;
    out.reserve(text.size() / 4 + 4);
    detail::encoding work(*parts_, out);
    for (const detail::template_step& s : parts_->around) {
      if (s.text)
        work.text(text, options.special_tokens_as_text);
      else if (options.add_special_tokens)
        out.insert(out.end(), s.ids.begin(), s.ids.end());
    }
    return out;
  }

  /// The text of tokens; bytes that form no UTF-8 become U+FFFD. Errors: `text_error` for an id without a token, unless
  /// `options` skips it.
  std::string decode(std::span<const token_id> ids, const decode_options& options = {}) const {
    std::string bytes, out;
    for (const token_id id : ids) bytes += decoded(id, options);
    if (detail::append_repaired(out, bytes) != bytes.size()) out += detail::replacement_character;
    return out;
  }

  /// All ids are below this: what a model's table of embeddings needs at least.
  token_id vocabulary() const noexcept { return static_cast<token_id>(parts_->model.tokens.ids()); }
  /// Whether an id has a token.
  bool has(token_id id) const noexcept { return parts_->model.tokens.has(id); }
  /// The bytes that a token stands for; of added tokens their content. Lives as long as the tokenizer or a copy.
  /// Errors: `text_error` for an id without a token.
  std::string_view token_bytes(token_id id) const& {
    if (!has(id))
      throw text_error("heddle: token " + std::to_string(id) + " is not in the vocabulary, whose ids are below " +
                       std::to_string(vocabulary()));
    return parts_->model.tokens.view(id);
  }
  std::string_view token_bytes(token_id id) const&& = delete;  // it would be gone at the end of the line
  /// The token of these bytes, which may be an added one; none if there is none.
  std::optional<token_id> find(std::string_view bytes) const {
    for (const added_token& t : parts_->added)
      if (t.content == bytes) return t.id;
    const token_id id = parts_->model.tokens.find(bytes);
    return id == detail::byte_strings::none ? std::nullopt : std::optional(id);
  }
  /// The id of a special token. Errors: `config_error` that lists the special tokens if it is none of them.
  token_id special(std::string_view content) const {
    std::string known;
    for (const added_token& t : parts_->added) {
      if (!t.special) continue;
      if (t.content == content) return t.id;
      if (known.size() < 200) known += (known.empty() ? "" : " ") + t.content;
    }
    throw config_error("heddle: the tokenizer has no special token '" + std::string(content) + "'; it has: " + known);
  }
  /// Whether a token is special.
  bool is_special(token_id id) const noexcept { return has(id) && parts_->special[static_cast<std::size_t>(id)]; }
  /// All tokens that were added to the merged vocabulary, by id; the special ones are among them.
  const std::vector<added_token>& added_tokens() const& noexcept { return parts_->added; }
  const std::vector<added_token>& added_tokens() const&& = delete;  // they would be gone at the end of the line

  /// What a reader of files made.
  explicit tokenizer(std::shared_ptr<const detail::tokenizer_parts> parts) : parts_(std::move(parts)) {}

 private:
  friend class stream_decoder;

  std::string_view decoded(token_id id, const decode_options& options) const {
    if ((options.skip_unknown_ids && !has(id)) || (options.skip_special_tokens && is_special(id) && std::ranges::count(options.kept, id) == 0))
      return {};
    return token_bytes(id);
  }

  std::shared_ptr<const detail::tokenizer_parts> parts_;
};

/// Decodes tokens one at a time, as a model makes them. What `push` and `finish` return, joined, is what
/// `tokenizer::decode` makes of all tokens; no part ends within a character.
class stream_decoder {
 public:
  explicit stream_decoder(tokenizer t, decode_options options = {}) : tokenizer_(std::move(t)), options_(options) {}

  /// The text that is certain now: may be empty, where a token ends within a character, and holds back at most three
  /// bytes. Errors: as of `tokenizer::decode`; such a token changes nothing.
  std::string push(token_id id) {
    pending_ += tokenizer_.decoded(id, options_);
    std::string out;
    pending_.erase(0, detail::append_repaired(out, pending_));
    return out;
  }
  /// What is left at the end: U+FFFD if the tokens ended within a character. The decoder can be used again.
  std::string finish() {
    const bool open = !pending_.empty();
    pending_.clear();
    return open ? std::string(detail::replacement_character) : std::string();
  }
  /// Bytes that wait for the rest of their character.
  std::size_t pending() const noexcept { return pending_.size(); }

 private:
  tokenizer tokenizer_;
  decode_options options_;
  std::string pending_;
};

}  // namespace heddle::inline v0::io
