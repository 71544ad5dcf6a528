// examples/token_ids.hpp: reads token ids from a word of a command line.
#pragma once

#include <heddle/core/error.hpp>

#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>
#include <vector>

/// The ids of `--tokens 1,2,3`. Errors: `config_error` for anything but whole numbers with commas between them.
inline std::vector<std::int32_t> parse_tokens(const std::string& text) {
  std::vector<std::int32_t> ids;
  for (const char *at = text.data(), *const end = at + text.size(); at <= end; ++at) {
    std::int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0 || (next != end && *next != ','))
      throw heddle::config_error("heddle: --tokens should be whole numbers with commas between them, got '" + text +
                                 "'");
    ids.push_back(id);
    at = next;
  }
  return ids;
}
