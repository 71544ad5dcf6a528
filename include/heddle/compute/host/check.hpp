// heddle/compute/host/check.hpp: checks of a kernel's arguments, with errors that name the mismatch.
#pragma once

#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace heddle::inline v0::compute::detail {

[[noreturn]] inline void mismatch(const char* kernel, const char* what, std::int64_t expected, std::int64_t got) {
  throw layout_error("heddle: " + std::string(kernel) + ": " + what + " should be " + std::to_string(expected) +
                     ", got " + std::to_string(got));
}

inline void expect(const char* kernel, const char* what, std::int64_t expected, std::int64_t got) {
  if (expected != got) [[unlikely]]
    mismatch(kernel, what, expected, got);
}

inline void expect(const char* kernel, const char* what, std::int64_t expected, std::size_t got) {
  expect(kernel, what, expected, static_cast<std::int64_t>(got));
}

}  // namespace heddle::inline v0::compute::detail
