// heddle/io/tokenizer/tokenizer.hpp: text to tokens and back, by BPE or unigrams.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/tokenizer/added_tokens.hpp>
#include <heddle/io/tokenizer/byte_pair_encoding.hpp>
#include <heddle/io/tokenizer/decode_steps.hpp>
#include <heddle/io/tokenizer/normalizers.hpp>
#include <heddle/io/tokenizer/split_pattern.hpp>
#include <heddle/io/tokenizer/unigram.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
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
  enum class prefixed { each, first, none };
  std::optional<split_pattern> pattern;  // none: a space is put before pieces that begin with none
  behavior what = behavior::isolated;
  bool invert = false;
  // Without a pattern: the mark that spaces become, and which pieces get one before them: the first begins the text.
  std::string mark = " ";
  prefixed prefix = prefixed::each;
};

// What a post-processor puts where: ids, or the encoded text.
struct template_step {
  bool text = false;
  std::vector<token_id> ids;
};

struct tokenizer_parts {
  byte_pair_encoding model;
  std::variant<std::monostate, unigram<float>, unigram<double>> unigrams;  // where there are some, no pairs are merged
  token_decoder decode;
  byte_strings shown;  // the bytes that tokens stand for, where they are not what `model.tokens` has
  std::vector<normalizer> normalizers;
  std::vector<pre_token_step> steps;
  std::vector<added_token> added;              // by id
  added_token_splitter of_raw, of_normalized;  // the same, by the text that they are looked for in
  std::vector<template_step> around = {{true, {}}};
  std::vector<bool> special;  // by id
};

// The bytes that tokens stand for within a text, where the decoder makes other bytes of their spelling.
inline void show_tokens(tokenizer_parts& parts) {
  if (std::holds_alternative<std::monostate>(parts.decode)) return;
  const byte_strings& tokens = parts.model.tokens;
  parts.shown.resize(tokens.ids());
  std::vector<bool> added(tokens.ids(), false);
  for (const added_token& t : parts.added) added[static_cast<std::size_t>(t.id)] = true;
  const auto* steps = std::get_if<std::vector<decode_step>>(&parts.decode);
  const auto* pieces = std::get_if<piece_decoder>(&parts.decode);
  for (std::size_t i = 0; i < tokens.ids(); ++i) {
    const auto id = static_cast<token_id>(i);
    if (!tokens.has(id)) continue;
    std::string text(tokens.view(id));
    std::optional<char> byte;
    if (pieces) {
      if (i < pieces->kinds.size() && pieces->kinds[i] == piece_decoder::kind::byte) byte = spelled_byte(text);
      if (!added[i]) text = replaced_text{std::nullopt, std::string(space_mark), " "}(text);
    } else if (!added[i]) {
      for (const decode_step& step : *steps) {
        if (const auto* replaced = std::get_if<replaced_text>(&step)) text = (*replaced)(text);
        if (const auto* marks = std::get_if<marked_spaces>(&step))
          text = replaced_text{std::nullopt, marks->mark, " "}(text);
        if (std::holds_alternative<byte_runs>(step) && !byte) byte = spelled_byte(text);
      }
    }
    if (byte) text = std::string(1, *byte);
    parts.shown.insert(id, text, !byte && !added[i] && parts.shown.find(text) == byte_strings::none);
  }
}

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
          const bool begins = raw.data() == all.data();
          std::string room;
          raw = normalized(parts_.normalizers, raw, begins, room);
          parts_.of_normalized.split(
              raw, special_as_text,
              [&](std::string_view piece) { step(0, piece, begins && piece.data() == raw.data()); }, token);
        },
        token);
  }

 private:
  // A piece, which may begin the text.
  void step(std::size_t k, std::string_view piece, bool begins) {
    if (piece.empty()) return;
    if (k == parts_.steps.size()) {
      word(piece);
      return;
    }
    const pre_token_step& s = parts_.steps[k];
    if (!s.pattern) {
      std::string marked;
      if (s.mark != " ") piece = marked = replaced_text{std::nullopt, " ", s.mark}(piece);
      using prefixed = pre_token_step::prefixed;
      const bool wants = s.prefix == prefixed::each || (s.prefix == prefixed::first && begins);
      if (!wants || piece.starts_with(s.mark)) return step(k + 1, piece, begins);
      return step(k + 1, s.mark + std::string(piece), begins);
    }
    const auto next = [&](std::size_t begin, std::size_t end) {
      step(k + 1, piece.substr(begin, end - begin), begins && begin == 0);
    };
    const auto parts = [&](auto&& take) {
      each_match(*s.pattern, *rooms_[k], piece,
                 [&](std::size_t begin, std::size_t end, bool matched) { take(begin, end, matched != s.invert); });
    };
    using behavior = pre_token_step::behavior;
    if (s.what == behavior::isolated || s.what == behavior::removed) {
      // Nothing is merged, so a part can go on as soon as it is found.
      parts([&](std::size_t begin, std::size_t end, bool matched) {
        if (s.what == behavior::isolated || !matched) next(begin, end);
      });
      return;
    }
    struct part {
      std::size_t begin, end;
      bool matched;
    };
    std::vector<part> found, merged;
    parts([&](std::size_t begin, std::size_t end, bool matched) { found.push_back({begin, end, matched}); });
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
    for (const part& p : merged) next(p.begin, p.end);
  }

  // The model's vocabulary may hold a special token, as a whole word or as what merges lead to: where such are text, it
  // comes as what its bytes merge to or, if that is special as well, as its bytes.
  void word(std::string_view piece) {
    const std::size_t begin = to_.size();
    const auto allowed = [&](token_id id) {
      return !special_as_text_ || !parts_.special[static_cast<std::size_t>(id)];
    };
    if (const auto* small = std::get_if<unigram<float>>(&parts_.unigrams))
      return small->encode_word(piece, to_, allowed);
    if (const auto* large = std::get_if<unigram<double>>(&parts_.unigrams))
      return large->encode_word(piece, to_, allowed);
    parts_.model.encode_word(piece, to_);
    const bool characters = parts_.model.characters.has_value();
    const auto special = [&](token_id id) {
      return parts_.special[static_cast<std::size_t>(id)] && !(characters && id == parts_.model.characters->unknown);
    };
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
      if (characters) {
        const std::size_t from_here = to_.size();
        const std::string_view spelled = parts_.model.tokens.view(id);
        parts_.model.character_symbols(spelled, to_);
        if (std::any_of(to_.begin() + static_cast<std::ptrdiff_t>(from_here), to_.end(), special))
          throw text_error("heddle: a token of the characters of '" + std::string(spelled) +
                           "' is special, so a text with them cannot be encoded without special tokens");
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

  const tokenizer_parts& parts_;
  std::vector<token_id>& to_;
  std::vector<std::optional<split_pattern::room>> rooms_;
  bool special_as_text_ = false;
};

}  // namespace detail

/// A tokenizer: text to tokens and back. Made by `load_tokenizer` and its like. Immutable; copies share
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
    std::string out;
    detail::decoded_text text(parts_->decode);
    for (const token_id id : ids)
      if (const auto token = spelled(id, options)) text.push(id, *token, out);
    text.finish(out);
    return out;
  }

  /// All ids are below this: what a model's table of embeddings needs at least.
  token_id vocabulary() const noexcept { return static_cast<token_id>(parts_->model.tokens.ids()); }
  /// Whether an id has a token.
  bool has(token_id id) const noexcept { return parts_->model.tokens.has(id); }
  /// The bytes that a token stands for within a text; of added tokens their content. Lives as long as the tokenizer or a
  /// copy. Errors: `text_error` for an id without a token.
  std::string_view token_bytes(token_id id) const& {
    require(id);
    return by_bytes().view(id);
  }
  std::string_view token_bytes(token_id id) const&& = delete;  // it would be gone at the end of the line
  /// The token of these bytes, which may be an added one; none if there is none.
  std::optional<token_id> find(std::string_view bytes) const {
    for (const added_token& t : parts_->added)
      if (t.content == bytes) return t.id;
    const token_id id = by_bytes().find(bytes);
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

  void require(token_id id) const {
    if (!has(id))
      throw text_error("heddle: token " + std::to_string(id) + " is not in the vocabulary, whose ids are below " +
                       std::to_string(vocabulary()));
  }
  const detail::byte_strings& by_bytes() const noexcept {
    return parts_->shown.ids() > 0 ? parts_->shown : parts_->model.tokens;
  }
  // What the decoder gets of a token; nothing if it is left out.
  std::optional<std::string_view> spelled(token_id id, const decode_options& options) const {
    if ((options.skip_unknown_ids && !has(id)) ||
        (options.skip_special_tokens && is_special(id) && std::ranges::count(options.kept, id) == 0))
      return std::nullopt;
    require(id);
    return parts_->model.tokens.view(id);
  }

  std::shared_ptr<const detail::tokenizer_parts> parts_;
};

/// Decodes tokens one at a time, as a model makes them. What `push` and `finish` return, joined, is what
/// `tokenizer::decode` makes of all tokens; no part ends within a character.
class stream_decoder {
 public:
  explicit stream_decoder(tokenizer t, decode_options options = {})
      : tokenizer_(std::move(t)), options_(std::move(options)), text_(tokenizer_.parts_->decode) {}

  /// The text that is certain now. It is empty within a character, which holds back at most three bytes, and within the
  /// tokens of single bytes where others decide whether all of them are UTF-8. Errors: as of `tokenizer::decode`; such a
  /// token changes nothing.
  std::string push(token_id id) {
    std::string out;
    if (const auto token = tokenizer_.spelled(id, options_)) text_.push(id, *token, out);
    return out;
  }
  /// What is left at the end: U+FFFD if the tokens ended within a character. The decoder can be used again.
  std::string finish() {
    std::string out;
    text_.finish(out);
    return out;
  }
  /// Bytes that wait for others.
  std::size_t pending() const noexcept { return text_.pending(); }

 private:
  tokenizer tokenizer_;
  decode_options options_;
  detail::decoded_text text_;
};

}  // namespace heddle::inline v0::io
