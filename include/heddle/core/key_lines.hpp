// heddle/core/key_lines.hpp: a strict reader of text with a key and a value per line.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {

/// A line of such a text.
struct key_line {
  std::string_view key, value;
  int line = 0;  ///< of the text, from 1
};

/// Reads lines `key value`; the first is `version <n>`. Blank lines and those that begin with # are left out, spaces
/// around a value, too. The result refers to `text` and has no `version`.
/// Errors: `config_error` naming source, line, what was expected and what came: another version, a key that is not
/// `known` or comes twice, a key without a value, a control character.
HEDDLE_INLINE std::vector<key_line> read_key_lines(std::string_view text, std::string_view source, int version,
                                                   std::span<const std::string_view> known);

/// The whole number of a line, from `least` to `most`. Errors: `config_error` naming source, line, key and value.
HEDDLE_INLINE int number_of(const key_line& line, std::string_view source, int least, int most);
/// The whole numbers of a line, separated by commas. Errors: as above.
HEDDLE_INLINE std::vector<int> numbers_of(const key_line& line, std::string_view source, int least, int most);

/// What is wrong with a line: "heddle: plan.txt, line 3: zero: expected 0 to 3, got \"4\"".
[[noreturn]] HEDDLE_INLINE void refuse_key_line(const key_line& line, std::string_view source,
                                                std::string_view expected);

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/core/impl/key_lines.hpp>
#endif
