// heddle/infer/regex.hpp: parses regular expressions and appends them to a grammar over bytes.
#pragma once

#include <heddle/infer/byte_dfa.hpp>
#include <heddle/infer/byte_grammar.hpp>

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::infer {

/// A regular expression over code points, as a tree. Syntax, of that of ECMAScript and RE2: characters, `.` (all but line feed and carriage return), classes `[a-z]`, `[^a-z]`, `\d \w \s \D \W \S`
/// (ASCII), escapes `\n \r \t \f \v \0 \xHH \uHHHH \u{H...}` and of punctuation, groups `( )` and `(?: )`, `|`,
/// `* + ?`, `{m}`, `{m,}`, `{m,n}` with at most 1000, each with a `?` behind it that changes
/// nothing, `^` as the first and `$` as the last character of an expression without alternatives outside groups. Refused by name: back references, looking around, `\b`, other groups.
class regex {
 public:
  static constexpr std::size_t most_bytes = 16384;
  /// Levels of groups, of all of the tree (a repetition, a choice and a sequence are one each), and times that something is repeated.
  static constexpr int most_levels = 100, most_depth = 400, most_repeats = 1000;

  /// Errors: `grammar_error` that says what is wrong at which byte.
  explicit regex(std::string_view pattern);

  /// Appends texts that match the whole expression. `in_json`: as they stand between the quotes of a JSON string.
  std::int32_t append(byte_grammar& g, std::int32_t from, bool in_json = false) const;
  /// Whether the expression began with `^`, or ended with `$`.
  bool begins() const noexcept { return begins_; }
  bool ends() const noexcept { return ends_; }

 private:
  enum class kind : std::uint8_t { nothing, set, sequence, choice, repeat };
  struct node {
    kind what = kind::nothing;
    std::vector<code_points> set{};
    std::vector<std::size_t> parts{};
    std::int64_t least = 0, most = 0;
    int depth = 0;  // of what is below
  };

  [[noreturn]] void wrong(const std::string& what) const;
  [[noreturn]] void wrong_at(std::size_t at, const std::string& what) const;
  bool at_end() const noexcept { return at_ == pattern_.size(); }
  bool skip(std::string_view text) noexcept;
  std::uint32_t code_point();
  std::uint32_t hex(int digits);
  std::uint32_t escaped(std::vector<code_points>& set);
  std::size_t add(node n);
  std::size_t choice(int level);
  std::size_t sequence(int level);
  std::size_t repeated(std::size_t part);
  std::size_t atom(int level);
  std::vector<code_points> character_class();
  bool numbers(std::int64_t& least, std::int64_t& most);
  std::int32_t append_node(byte_grammar& g, std::int32_t from, std::size_t n, bool in_json) const;

  std::string pattern_;
  std::size_t at_ = 0, root_ = 0;
  bool begins_ = false, ends_ = false, alternatives_ = false;
  std::vector<node> nodes_{};
};

/// The automaton of the texts that match a whole regular expression. `bytes`: those that are tokens of a vocabulary. Errors: `grammar_error`.
std::shared_ptr<const byte_dfa> compile_regex(std::string_view pattern,
                                              const std::bitset<256>& bytes = std::bitset<256>().set(),
                                              grammar_limits limits = {});

}  // namespace heddle::inline v0::infer

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/infer/impl/regex.hpp>
#endif
