// heddle/infer/json_automaton.hpp: a pushdown automaton of the beginnings of JSON texts.
#pragma once

#include <cstdint>

namespace heddle::inline v0::infer {

/// The state of a JSON text of which some bytes were read. A small value: what comes next is tried on a copy.
/// It accepts a part of JSON (RFC 8259) that every parser reads, so that what is complete always parses: strings are valid UTF-8 and have no
/// escapes of surrogates, numbers are finite (at most 64 characters before the exponent, which has at most two digits), at most 32 levels, and at
/// most 16 characters of white space in turn, so that a text cannot go on with nothing.
class json_automaton {
 public:
  static constexpr int most_levels = 32, most_space = 16, most_digits = 64;

  /// `object`: the text is an object; else any value. `compact`: of white space, a blank at most behind commas and colons.
  explicit constexpr json_automaton(bool object = true, bool compact = false) noexcept
      : object_(object), compact_(compact) {}

  /// Reads one more byte; false, and the state is of no further use, if no JSON text goes on so.
  constexpr bool take(unsigned char c) noexcept {
    switch (at_) {
      case place::text:
      case place::escape:
      case place::hex:
      case place::rest_of_character:
        return in_string(c);
      case place::word:
        return in_word(c);
      case place::minus:
      case place::zero:
      case place::digits:
      case place::point:
      case place::fraction:
      case place::exponent:
      case place::exponent_sign:
      case place::exponent_digits: {
        if (in_number(c)) return true;
        if (!number_may_end()) return false;
        end_value();
        return between(c);
      }
      default:
        return between(c);
    }
  }
  /// Whether what was read is a whole text. Nothing may follow then but, for a number that is no member, more of it.
  constexpr bool complete() const noexcept { return at_ == place::end || (levels_ == 0 && number_may_end()); }
  friend constexpr bool operator==(const json_automaton&, const json_automaton&) noexcept = default;

 private:
  enum class place : std::uint8_t {
    value,          // of the text, of a member, or behind a comma of an array
    first_element,  // a value or ]
    first_name,     // a name or }
    name,
    colon,
    behind,  // a value: a comma or the end of what holds it
    end,
    text,
    escape,
    hex,
    rest_of_character,
    word,  // of true, false and null
    minus,
    zero,
    digits,
    point,
    fraction,
    exponent,
    exponent_sign,
    exponent_digits,
  };

  static constexpr bool is_digit(unsigned char c) noexcept { return c >= '0' && c <= '9'; }
  static constexpr bool is_hex(unsigned char c) noexcept {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  }
  constexpr bool go(place to) noexcept {
    at_ = to;
    return true;
  }
  constexpr bool in_object() const noexcept { return levels_ > 0 && (objects_ >> (levels_ - 1) & 1u) != 0; }
  constexpr void end_value() noexcept { at_ = levels_ == 0 ? place::end : place::behind; }
  constexpr bool open(bool object) noexcept {
    if (levels_ == most_levels) return false;
    objects_ = (objects_ & ((std::uint64_t{1} << levels_) - 1)) | std::uint64_t{object} << levels_;
    ++levels_;
    return go(object ? place::first_name : place::first_element);
  }
  constexpr bool close() noexcept {
    --levels_;
    objects_ &= (std::uint64_t{1} << levels_) - 1;
    end_value();
    return true;
  }
  constexpr bool open_string(bool is_name) noexcept {
    is_name_ = is_name;
    return go(place::text);
  }

  constexpr bool between(unsigned char c) noexcept {
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') return may_be_blank(c) && ++space_ <= most_space;
    space_ = 0;
    switch (at_) {
      case place::value:
        return begin_value(c);
      case place::first_element:
        return c == ']' ? close() : begin_value(c);
      case place::first_name:
        if (c == '}') return close();
        [[fallthrough]];
      case place::name:
        return c == '"' && open_string(true);
      case place::colon:
        return c == ':' && go(place::value);
      case place::behind:
        if (c == ',') return go(in_object() ? place::name : place::value);
        return c == (in_object() ? '}' : ']') && close();
      default:
        return false;
    }
  }
  constexpr bool may_be_blank(unsigned char c) const noexcept {
    if (!compact_) return at_ != place::end;
    return c == ' ' && space_ == 0 && levels_ > 0 && (at_ == place::value || at_ == place::name);
  }
  constexpr bool begin_value(unsigned char c) noexcept {
    if (c == '{') return open(true);
    if (levels_ == 0 && object_) return false;
    count_ = 1;
    switch (c) {
      case '[':
        return open(false);
      case '"':
        return open_string(false);
      case 't':
      case 'f':
      case 'n':
        letter_ = c;
        return go(place::word);
      case '-':
        return go(place::minus);
      case '0':
        return go(place::zero);
      default:
        return is_digit(c) && go(place::digits);
    }
  }
  constexpr bool in_word(unsigned char c) noexcept {
    const char* const word = letter_ == 't' ? "true" : letter_ == 'f' ? "false" : "null";
    if (c != static_cast<unsigned char>(word[count_])) return false;
    ++count_;
    if (word[count_] == '\0') {
      count_ = letter_ = 0;
      end_value();
    }
    return true;
  }
  constexpr bool number_may_end() const noexcept {
    return at_ == place::zero || at_ == place::digits || at_ == place::fraction || at_ == place::exponent_digits;
  }
  constexpr bool in_number(unsigned char c) noexcept {
    const bool digit = is_digit(c), e = c == 'e' || c == 'E';
    switch (at_) {
      case place::minus:
        return digit && go(c == '0' ? place::zero : place::digits);
      case place::zero:
        return (c == '.' && go(place::point)) || begin_exponent(e);
      case place::digits:
        if (digit) return ++count_ <= most_digits;
        return (c == '.' && count_ < most_digits && go(place::point)) || begin_exponent(e);  // a digit must follow
      case place::point:
      case place::fraction:
        if (digit) return go(place::fraction) && ++count_ <= most_digits;
        return at_ == place::fraction && begin_exponent(e);
      case place::exponent:
        if (c == '+' || c == '-') return go(place::exponent_sign);
        [[fallthrough]];
      case place::exponent_sign:
      case place::exponent_digits:
        return digit && go(place::exponent_digits) && ++count_ <= 2;
      default:
        return false;
    }
  }
  constexpr bool begin_exponent(bool e) noexcept {
    if (e) count_ = 0;
    return e && go(place::exponent);
  }
  constexpr bool in_string(unsigned char c) noexcept {
    switch (at_) {
      case place::escape:
        if (c == 'u') {
          count_ = 0;
          return go(place::hex);
        }
        return (c == '"' || c == '\\' || c == '/' || c == 'b' || c == 'f' || c == 'n' || c == 'r' || c == 't') &&
               go(place::text);
      case place::hex:
        if (!is_hex(c)) return false;
        if (count_ == 0) letter_ = c;
        if (count_ == 1 && (letter_ == 'd' || letter_ == 'D') && !(c >= '0' && c <= '7')) return false;  // a surrogate
        if (++count_ < 4) return true;
        count_ = letter_ = 0;
        return go(place::text);
      case place::rest_of_character: {
        if (c < low_ || c > high_) return false;
        low_ = 0x80;
        high_ = 0xBF;
        if (--count_ > 0) return true;
        low_ = high_ = 0;
        return go(place::text);
      }
      default:
        break;
    }
    if (c == '"') {
      if (is_name_)
        at_ = place::colon;
      else
        end_value();
      is_name_ = false;
      return true;
    }
    if (c == '\\') return go(place::escape);
    if (c < 0x80) return c >= 0x20;
    // The second byte of some lead bytes has narrower bounds: no long forms, no surrogates, nothing above U+10FFFF.
    if (c < 0xC2 || c > 0xF4) return false;
    count_ = c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
    low_ = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    high_ = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    return go(place::rest_of_character);
  }

  std::uint64_t objects_ = 0;  // bit l: level l is an object
  place at_ = place::value;
  std::uint8_t levels_ = 0, space_ = 0;
  std::uint8_t count_ = 0;           // of a number, of a word, or what is left of a character
  std::uint8_t letter_ = 0;          // the first of a word, or of an escape's digits
  std::uint8_t low_ = 0, high_ = 0;  // bounds of the next byte of a character
  bool is_name_ = false, object_, compact_;
};

}  // namespace heddle::inline v0::infer
