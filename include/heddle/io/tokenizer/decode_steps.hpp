// heddle/io/tokenizer/decode_steps.hpp: decodes spelled tokens one at a time.
#pragma once

#include <heddle/io/tokenizer/byte_pair_encoding.hpp>
#include <heddle/io/tokenizer/replaced_text.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace heddle::inline v0::io::detail {

inline constexpr std::string_view space_mark = "\xe2\x96\x81";  // U+2581, SentencePiece's space

// The byte of a token such as <0x0A>; none for others.
inline std::optional<char> spelled_byte(std::string_view token) noexcept {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : token.substr(3, 2)) {
    if (c >= '0' && c <= '9')
      value = value * 16 + static_cast<unsigned>(c - '0');
    else if (c >= 'A' && c <= 'F')
      value = value * 16 + static_cast<unsigned>(c - 'A' + 10);
    else if (c >= 'a' && c <= 'f')
      value = value * 16 + static_cast<unsigned>(c - 'a' + 10);
    else
      return std::nullopt;
  }
  return static_cast<char>(static_cast<unsigned char>(value));
}

// Steps of a decoder. Each takes tokens and gives tokens.
struct byte_runs {};      // neighbours such as <0x0A> are bytes of UTF-8; each is U+FFFD where all together are none
struct joined_tokens {};  // all are one from here on
struct stripped_marks {   // so many marks of a token's begin and end are left out
  std::string mark;
  std::size_t start = 0, stop = 0;
};
struct marked_spaces {  // marks are spaces; with a prefix, those of the first token are nothing
  std::string mark;
  bool prefix = false;
};
using decode_step = std::variant<replaced_text, byte_runs, joined_tokens, stripped_marks, marked_spaces>;

// How SentencePiece decodes.
struct piece_decoder {
  enum class kind : std::uint8_t { text, control, unknown, byte, added };
  std::vector<kind> kinds;  // by id; those behind them are added tokens
  std::string unknown;
  bool strips_first = false, strips_more = false;  // the mark that the first piece begins with; those behind it as well
};

// `std::monostate`: tokens are bytes, and their bytes are the text.
using token_decoder = std::variant<std::monostate, std::vector<decode_step>, piece_decoder>;

// Text of tokens that come one after another. It never ends within a character.
class decoded_text {
 public:
  explicit decoded_text(const token_decoder& by) : by_(&by) {
    if (const auto* steps = std::get_if<std::vector<decode_step>>(by_)) states_.resize(steps->size());
  }

  void push(token_id id, std::string_view token, std::string& out) {
    if (std::holds_alternative<std::monostate>(*by_)) {
      bytes_ += token;
      bytes_.erase(0, append_repaired(out, bytes_));
    } else if (const auto* pieces = std::get_if<piece_decoder>(by_)) {
      piece(*pieces, id, token, out);
    } else {
      feed(0, token, true, out);
    }
  }
  // What is left at the end.
  void finish(std::string& out) {
    if (std::holds_alternative<std::monostate>(*by_)) {
      if (!bytes_.empty()) out += replacement_character;
    } else if (std::holds_alternative<piece_decoder>(*by_)) {
      piece_bytes(true, out);
    } else {
      for (std::size_t k = 0; k < states_.size(); ++k) flush(k, out);
    }
    *this = decoded_text(*by_);
  }
  // Bytes that wait for others.
  std::size_t pending() const noexcept {
    std::size_t all = bytes_.size();
    for (const state& s : states_) all += s.bytes.size();
    return all;
  }

 private:
  struct state {
    std::string bytes;     // of the run
    std::size_t left = 0;  // marks that the token may still begin with
    bool begun = false;    // a token came
    bool first = false;    // and it is the first
  };

  // A part of a token, which `begins` one or goes on with it.
  void feed(std::size_t k, std::string_view part, bool begins, std::string& out) {
    if (k == states_.size()) {
      out += part;
      return;
    }
    state& s = states_[k];
    const decode_step& step = std::get<std::vector<decode_step>>(*by_)[k];
    if (const auto* replaced = std::get_if<replaced_text>(&step)) {
      feed(k + 1, (*replaced)(part), begins, out);
    } else if (std::holds_alternative<byte_runs>(step)) {
      if (const auto byte = spelled_byte(part)) {
        s.bytes += *byte;
      } else {
        flush(k, out);
        feed(k + 1, part, true, out);
      }
    } else if (std::holds_alternative<joined_tokens>(step)) {
      feed(k + 1, part, !std::exchange(s.begun, true), out);
    } else if (const auto* strip = std::get_if<stripped_marks>(&step)) {
      if (begins) s.left = strip->start;
      while (s.left > 0 && !part.empty()) {
        --s.left;
        if (part.starts_with(strip->mark))
          part.remove_prefix(strip->mark.size());
        else
          s.left = 0;
      }
      for (std::size_t i = 0; i < strip->stop && part.ends_with(strip->mark); ++i)
        part.remove_suffix(strip->mark.size());
      feed(k + 1, part, begins, out);
    } else {
      const auto& marks = std::get<marked_spaces>(step);
      if (begins) s.first = !std::exchange(s.begun, true);
      const replaced_text spaces{std::nullopt, marks.mark, marks.prefix && s.first ? "" : " "};
      feed(k + 1, spaces(part), begins, out);
    }
  }
  void flush(std::size_t k, std::string& out) {
    const std::string bytes = std::exchange(states_[k].bytes, {});
    if (bytes.empty()) return;
    if (valid_prefix(bytes) == bytes.size()) return feed(k + 1, bytes, true, out);
    for (std::size_t i = 0; i < bytes.size(); ++i) feed(k + 1, replacement_character, true, out);
  }

  // Source: SentencePieceProcessor::Decode of the published code, 0.2.
  void piece(const piece_decoder& by, token_id id, std::string_view token, std::string& out) {
    using kind = piece_decoder::kind;
    const kind what =
        static_cast<std::size_t>(id) < by.kinds.size() ? by.kinds[static_cast<std::size_t>(id)] : kind::added;
    if (what == kind::byte) {
      bytes_ += spelled_byte(token).value_or('\0');
      return piece_bytes(false, out);
    }
    piece_bytes(true, out);
    if (seen_mark_ || any_text_) at_begin_ = false;
    seen_mark_ = false;
    const std::size_t before = out.size();
    if (what == kind::unknown) {
      out += by.unknown;
    } else if (what == kind::added) {
      out += token;
    } else if (what == kind::text) {
      if (at_begin_ && by.strips_first && token.starts_with(space_mark)) {
        token.remove_prefix(space_mark.size());
        seen_mark_ = !by.strips_more;
      }
      out += replaced_text{std::nullopt, std::string(space_mark), " "}(token);
    }
    any_text_ = any_text_ || out.size() != before;
  }
  // Characters of the run of bytes; each byte that begins none is U+FFFD.
  void piece_bytes(bool all, std::string& out) {
    std::size_t at = 0;
    while (at < bytes_.size()) {
      const utf8_sequence s = first_sequence(std::string_view(bytes_).substr(at));
      if (s.open && !all) break;
      const std::size_t size = s.whole ? static_cast<std::size_t>(s.length) : 1;
      if (s.whole)
        out.append(bytes_, at, size);
      else
        out += replacement_character;
      at += size;
      any_text_ = true;
    }
    bytes_.erase(0, at);
  }

  const token_decoder* by_;
  std::vector<state> states_;
  std::string bytes_;
  bool at_begin_ = true, seen_mark_ = false, any_text_ = false;
};

}  // namespace heddle::inline v0::io::detail
