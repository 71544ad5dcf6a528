// heddle/core/line_reader.hpp: a strict reader of lines of words; errors name source and line.
#pragma once

#include <heddle/core/text.hpp>

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace heddle::inline v0 {

/// Reads lines of words parted by spaces and tabs; `#` begins a comment. `Error` is what is thrown: "heddle: <source>, line <n>: <why>". The text
/// and the source must live as long as the reader.
template <class Error>
class line_reader {
 public:
  line_reader(std::string_view text, std::string_view source) : rest_(text), source_(source) {}

  // The next line, which may be empty; false behind the last.
  bool next_line() {
    if (rest_.empty()) return false;
    ++line_;
    const std::size_t end = rest_.find('\n');
    std::string_view text = rest_.substr(0, end);
    rest_ = end == std::string_view::npos ? std::string_view{} : rest_.substr(end + 1);
    text = text.substr(0, text.find('#'));
    words_.clear();
    while (true) {
      const std::size_t begin = text.find_first_not_of(" \t\r");
      if (begin == std::string_view::npos) return true;
      text.remove_prefix(begin);
      const std::size_t length = text.find_first_of(" \t\r");
      words_.push_back(text.substr(0, length));
      text = length == std::string_view::npos ? std::string_view{} : text.substr(length);
    }
  }
  // The next line that has words.
  bool next() {
    while (next_line())
      if (!words_.empty()) return true;
    return false;
  }
  // The next line that has words, which must begin with `key`.
  void require(std::string_view key, std::size_t words, std::string_view form) {
    if (!next()) fail(text_of({"the text ends here; expected ", form}));
    if (words_[0] != key) fail(text_of({"expected ", form}));
    expect(words, form);
  }

  std::size_t words() const noexcept { return words_.size(); }
  std::string_view word(std::size_t i) const { return words_[i]; }

  void expect(std::size_t words, std::string_view form) {
    if (words_.size() != words) fail(text_of({"expected ", form}));
  }
  template <class T>
  T parsed(std::size_t word, const char* what) {
    T value{};
    const char* end = words_[word].data() + words_[word].size();
    const auto [stopped, problem] = std::from_chars(words_[word].data(), end, value);
    if (problem == std::errc{} && stopped == end) return value;
    fail(text_of({"\"", words_[word], "\" is no ", what}));
  }
  int integer(std::size_t word) { return parsed<int>(word, "whole number"); }
  double number(std::size_t word) { return parsed<double>(word, "number"); }
  // A number from `least` to `most`.
  template <class T>
  T between(std::size_t word, T least, T most) {
    const T value = parsed<T>(word, std::is_integral_v<T> ? "whole number" : "number");
    if (!(value >= least && value <= most))
      fail(text_of({words_[word], " is not from ", number_text(least), " to ", number_text(most)}));
    return value;
  }
  template <class Names>
  std::size_t position(std::size_t word, const Names& names, const char* what) {
    for (std::size_t i = 0; i < names.size(); ++i)
      if (names[i] == words_[word]) return i;
    std::string text = text_of({"\"", words_[word], "\" is no ", what, "; known are"});
    for (const std::string_view name : names) text.append(" ").append(name);
    fail(text);
  }

  [[noreturn]] void fail(std::string_view why) {
    failed_ = true;
    throw Error(text_of({"heddle: ", source_, ", line ", line_, ": ", why}));
  }
  // Whether this reader has thrown.
  bool failed() const noexcept { return failed_; }

 protected:
  std::vector<std::string_view> words_;  // of the line

 private:
  std::string_view rest_;
  std::string_view source_;
  int line_ = 0;
  bool failed_ = false;
};

}  // namespace heddle::inline v0
