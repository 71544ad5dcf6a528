// heddle/core/fixed_string.hpp: text as a template argument, for host-only code.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <string_view>

namespace heddle::inline v0 {

/// A string literal that can be a template argument: `propagate<"bi,io->bo", ...>`.
/// Not for anything that reaches a kernel: nvcc cannot emit launch stubs for such template arguments.
template <std::size_t N>
struct fixed_string {
  char text[N] = {};

  constexpr fixed_string(const char (&literal)[N]) noexcept {
    for (std::size_t i = 0; i < N; ++i) text[i] = literal[i];
  }
  constexpr std::string_view view() const noexcept { return {text, N - 1}; }
  constexpr std::size_t size() const noexcept { return N - 1; }
};

}  // namespace heddle::inline v0
