// examples/number_given.hpp: reads the number of an option, for examples whose command line is pairs of options and numbers.
#pragma once

#include <charconv>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

/// The number of `word` goes to `to` if it is one of least to most; otherwise a line says what is expected and got. Returns whether it is.
/// Whole numbers go to integers.
template <class T>
bool number_given(const char* program, const char* option, std::string_view word, T least, T most, T& to) {
  T value{};
  const auto [last, problem] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (problem == std::errc{} && last == word.data() + word.size() && value >= least && value <= most) {
    to = value;
    return true;
  }
  const auto shown = [](T of) {
    char text[40];
    return std::string(text, std::to_chars(text, text + sizeof text, of).ptr);
  };
  std::string expected = std::numeric_limits<T>::is_integer ? "a whole number" : "a number";
  expected += most < (std::numeric_limits<T>::max)() ? " from " + shown(least) + " to " + shown(most)
                                                     : " of at least " + shown(least);
  std::fprintf(stderr, "%s: %s must be %s, got %.*s\n", program, option, expected.c_str(),
               static_cast<int>(word.size()), word.data());
  return false;
}
