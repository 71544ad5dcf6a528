// heddle/core/impl/key_lines.hpp: bodies of heddle/core/key_lines.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/key_lines.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace heddle::inline v0 {

[[noreturn]] HEDDLE_INLINE void refuse_key_line(const key_line& line, std::string_view source,
                                                std::string_view expected) {
  throw config_error(text_of({"heddle: ", source, ", line ", line.line, ": ", line.key, ": expected ", expected,
                              ", got \"", line.value.substr(0, 80), "\""}));
}

HEDDLE_INLINE std::vector<key_line> read_key_lines(std::string_view text, std::string_view source, int version,
                                                   std::span<const std::string_view> known) {
  std::vector<key_line> all;
  bool versioned = false;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    const auto trim = [](std::string_view& of) {
      const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
      while (!of.empty() && blank(of.front())) of.remove_prefix(1);
      while (!of.empty() && blank(of.back())) of.remove_suffix(1);
    };
    trim(line);
    if (line.empty() || line.front() == '#') continue;
    for (const char c : line)
      if (static_cast<unsigned char>(c) < 32)
        throw config_error(text_of({"heddle: ", source, ", line ", number, " has a control character"}));
    key_line one{line.substr(0, line.find(' ')), {}, number};
    one.value = line.substr(one.key.size());
    trim(one.value);
    if (!versioned) {
      const std::string wanted = "version " + std::to_string(version);
      if (one.key != "version" || number_of(one, source, 0, 1 << 30) != version)
        throw config_error(text_of(
            {"heddle: ", source, ", line ", number, ": expected \"", wanted, "\", got \"", line.substr(0, 80), "\""}));
      versioned = true;
      continue;
    }
    if (std::find(known.begin(), known.end(), one.key) == known.end()) {
      std::string keys;
      for (const std::string_view k : known) (keys += keys.empty() ? "" : ", ") += k;
      throw config_error(text_of({"heddle: ", source, ", line ", number, ": there is no key \"", one.key.substr(0, 80),
                                  "\"; there are ", keys}));
    }
    for (const key_line& other : all)
      if (other.key == one.key)
        throw config_error(text_of({"heddle: ", source, ", line ", number, ": ", one.key, " is given twice"}));
    if (one.value.empty()) refuse_key_line(one, source, "a value");
    all.push_back(one);
  }
  if (!versioned) throw config_error(text_of({"heddle: ", source, " is empty; expected \"version ", version, "\""}));
  return all;
}

HEDDLE_INLINE int number_of(const key_line& line, std::string_view source, int least, int most) {
  const std::vector<int> all = numbers_of(line, source, least, most);
  if (all.size() != 1) refuse_key_line(line, source, "one number");
  return all.front();
}

HEDDLE_INLINE std::vector<int> numbers_of(const key_line& line, std::string_view source, int least, int most) {
  std::vector<int> all;
  const char* at = line.value.data();
  const char* const end = at + line.value.size();
  for (bool more = true; more;) {
    int n = 0;
    const auto [stopped, problem] = std::from_chars(at, end, n);
    more = stopped != end && *stopped == ',';
    if (problem != std::errc{} || (stopped != end && !more) || n < least || n > most)
      refuse_key_line(line, source, text_of({"whole numbers from ", least, " to ", most, " between commas"}));
    all.push_back(n);
    at = stopped + (more ? 1 : 0);
  }
  return all;
}

}  // namespace heddle::inline v0
