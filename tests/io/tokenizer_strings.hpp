// tests/io/tokenizer_strings.hpp: random and adversarial strings, made alike in tests/golden/tokenizer/strings.py: change both or neither.
#pragma once

#include <heddle/io/tokenizer/utf8.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace tokenizer_strings {

// splitmix64
class random {
 public:
  explicit random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
    z = (z ^ z >> 27) * 0x94d049bb133111ebU;
    return z ^ z >> 31;
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }

 private:
  std::uint64_t state_;
};

inline std::string string(std::uint64_t seed, const std::vector<std::string>& marks) {
  static const std::uint32_t white[] = {0x09,   0x0A,   0x0B,   0x0C,   0x0D,   0x85,   0xA0,   0x1680, 0x180E, 0x2000,
                                        0x2009, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0x200B, 0xFEFF, 0x1C,   0x00};
  static const std::string contractions[] = {"'s",  "'S", "'t",  "'T",      "'re",     "'Re",   "'VE",
                                             "'ve", "'m", "'M",  "'ll",     "'LL",     "'lL",   "'d",
                                             "'D",  "'x", "''s", "\u2019s", "'\u017f", "don't", "I'LL've"};
  static const std::uint32_t digits[] = {0x30,    0x660,  0x6F0, 0x966,  0xE50,  0xFF10,
                                         0x1D7CE, 0x2460, 0xB9,  0x2160, 0x10D40};
  static const struct {
    std::uint32_t base, count;
  } letters[] = {{0xC0, 0x180},    {0x370, 0x80},    {0x400, 0x100},  {0x5D0, 0x1B},   {0x620, 0x2B},   {0x905, 0x35},
                 {0xE01, 0x2E},    {0x3041, 0x56},   {0x30A1, 0x5A},  {0x4E00, 0x400}, {0xAC00, 0x400}, {0x10400, 0x50},
                 {0x1D400, 0x100}, {0x20000, 0x100}, {0x1E030, 0x40}, {0x31350, 0x40}, {0x2B0, 0x40}};
  static const std::string emoji[] = {"\U0001F468\u200D\U0001F469\u200D\U0001F467",
                                      "\U0001F44D\U0001F3FD",
                                      "\U0001F1E9\U0001F1EA",
                                      "\u2764\uFE0F",
                                      "\U0001F600",
                                      "1\uFE0F\u20E3",
                                      "\U0001F3F4\u200D\u2620\uFE0F"};
  static const std::string composed[] = {
      "e\u0301",       "\u00e9",      "\u1100\u1161\u11a8", "\uac00\u11a8",       "A\u030a",
      "\u212b",        "\u2126",      "q\u0323\u0307",      "q\u0307\u0323",      "\u0958",
      "\u1e9b\u0323",  "\u0f73",      "\u0345\u0301",       "\u03b1\u0345\u0301", "\ufb01",
      "\U0001d15e",    "\u2f71",      "\U0002f800",         "a\u0897\u0301",      "\U00011935\U00011930",
      "a\u07fd\u0301", "\u0b47\u0b56"};
  static const std::string pieces[] = {"<|",     "|>",     "</s>",       "<s>",    "\\n",    "://",      "...",
                                       "==",     "\u2026", "\u20ac",     "\u00bd", "_",      "__init__", "\u0130",
                                       "\u00df", "\ufffd", "\U0010ffff", "\ue000", "\ud7ff", "\ufdd0"};
  const auto put = [](std::string& to, std::size_t c) {
    heddle::io::detail::append_code_point(to, static_cast<std::uint32_t>(c));
  };
  random r(seed * 0x2545f4914f6cdd1dU);
  std::string out;
  const std::size_t parts = r.below(24);
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t kind = r.below(18);
    if (kind <= 1) {
      for (std::size_t n = 1 + r.below(8), have = 0; have < n; ++have) put(out, 97 + r.below(26));
    } else if (kind == 2) {
      for (std::size_t n = 1 + r.below(4), have = 0; have < n; ++have) put(out, 65 + r.below(26));
    } else if (kind == 3) {
      std::uint32_t base = 0x30;
      if (r.below(2) != 0) base = digits[r.below(std::size(digits))];
      for (std::size_t n = 1 + r.below(6), have = 0; have < n; ++have) put(out, base + r.below(9));
    } else if (kind == 4) {
      out.append(1 + r.below(4), ' ');
    } else if (kind == 5) {
      for (std::size_t n = 1 + r.below(4), have = 0; have < n; ++have) put(out, white[r.below(std::size(white))]);
    } else if (kind == 6) {
      for (std::size_t n = 1 + r.below(6), have = 0; have < n; ++have) out += "\r\n \n\t\r"[r.below(6)];
    } else if (kind == 7) {
      out += contractions[r.below(std::size(contractions))];
    } else if (kind == 8 || kind == 9) {
      const std::size_t c = r.below((kind == 8 ? 0x110000U : 0x10000U) - 0x800U);
      put(out, c < 0xd800 ? c : c + 0x800);
    } else if (kind == 10) {
      for (std::size_t n = 1 + r.below(3), have = 0; have < n; ++have) put(out, 0x300 + r.below(0x70));
    } else if (kind == 11) {
      out += emoji[r.below(std::size(emoji))];
    } else if (kind == 12) {
      out += marks[r.below(marks.size())];
    } else if (kind == 13) {
      out += composed[r.below(std::size(composed))];
    } else if (kind == 14) {
      for (std::size_t n = 1 + r.below(4), have = 0; have < n; ++have) put(out, 0x21 + r.below(15));
    } else if (kind == 15) {
      const auto l = letters[r.below(std::size(letters))];
      for (std::size_t n = 1 + r.below(6), have = 0; have < n; ++have) put(out, l.base + r.below(l.count));
    } else if (kind == 16) {
      out += pieces[r.below(std::size(pieces))];
    } else {
      const std::size_t c = r.below(0x2fff), n = 1 + r.below(40);
      for (std::size_t have = 0; have < n; ++have) put(out, c);
    }
  }
  return out;
}

inline std::vector<std::int32_t> token_ids(std::uint64_t seed, std::int32_t vocabulary) {
  random r(seed * 0x2545f4914f6cdd1dU + 1);
  std::vector<std::int32_t> ids(r.below(20));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(r.below(static_cast<std::size_t>(vocabulary)));
  return ids;
}

// FNV-1a of bytes, 64 bits.
class hash {
 public:
  void bytes(std::string_view data) {
    for (const char b : data) value_ = (value_ ^ static_cast<unsigned char>(b)) * 0x100000001b3U;
  }
  void number(std::size_t n) {
    for (int k = 0; k < 4; ++k) value_ = (value_ ^ (n >> 8 * k & 0xff)) * 0x100000001b3U;
  }
  void ids(const std::vector<std::int32_t>& all) {
    number(all.size());
    for (const std::int32_t id : all) number(static_cast<std::size_t>(id));
  }
  std::string text() const {
    std::string out;
    for (int k = 60; k >= 0; k -= 4) out += "0123456789abcdef"[value_ >> k & 15];
    return out;
  }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

}  // namespace tokenizer_strings
