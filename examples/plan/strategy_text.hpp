// examples/plan/strategy_text.hpp: a strategy as text: "mesh dp=2 pp=2 tp=2; schedule 1f1b; microbatches 8; zero 1; recompute full".
#pragma once

#include <heddle/core/error.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

/// What the text leaves out is as here.
struct strategy_text {
  std::string mesh = "dp=1";
  std::string schedule = "1f1b";
  int microbatches = 1;
  int zero = 1;
  std::string recompute = "none";
  std::vector<int> layers;  ///< blocks of each stage; empty: as even as can be
};

/// Reads keys with values, each key behind a semicolon or on a line of its own.
/// Errors: `config_error` naming the key, what is expected and what it got.
inline strategy_text parse_strategy(std::string_view text) {
  const auto trimmed = [](std::string_view s) {
    const auto first = s.find_first_not_of(" \t\r"), last = s.find_last_not_of(" \t\r");
    return first == s.npos ? std::string_view() : s.substr(first, last - first + 1);
  };
  const auto fail = [](std::string_view key, const std::string& expected, std::string_view got) {
    throw heddle::config_error("heddle: a strategy's '" + std::string(key) + "': expected " + expected + ", got '" +
                               std::string(got) + "'");
  };
  strategy_text s;
  std::vector<std::string> seen;
  while (!text.empty()) {
    const std::size_t end = (std::min)(text.find_first_of(";\n"), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix((std::min)(end + 1, text.size()));
    if (line.empty()) continue;
    const std::size_t space = (std::min)(line.find(' '), line.size());
    const std::string key(line.substr(0, space));
    const std::string_view value = trimmed(line.substr(space));
    const auto number = [&](std::string_view digits, int least, int most) {
      int n = 0;
      const auto [last, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
      if (problem != std::errc{} || last != digits.data() + digits.size() || n < least || n > most)
        fail(key, "a whole number from " + std::to_string(least) + " to " + std::to_string(most), digits);
      return n;
    };
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) fail(key, "it once", value);
    seen.push_back(key);
    if (value.empty()) fail(key, "a value", value);
    if (key == "mesh") {
      s.mesh = value;
      std::replace(s.mesh.begin(), s.mesh.end(), ' ', ',');
    } else if (key == "schedule") {
      s.schedule = value;
    } else if (key == "microbatches") {
      s.microbatches = number(value, 1, 1 << 20);
    } else if (key == "zero") {
      s.zero = number(value, 0, 3);
    } else if (key == "recompute") {
      s.recompute = value;
    } else if (key == "layers") {
      for (std::string_view rest = value; !rest.empty();) {
        const std::size_t comma = (std::min)(rest.find(','), rest.size());
        s.layers.push_back(number(rest.substr(0, comma), 0, 1 << 20));
        rest.remove_prefix((std::min)(comma + 1, rest.size()));
      }
    } else {
      fail(key, "one of mesh, schedule, microbatches, zero, recompute, layers", value);
    }
  }
  return s;
}
