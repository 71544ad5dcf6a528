// heddle/compute/check.hpp: checks of a kernel's arguments, with errors that name the mismatch.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/shape.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace heddle::inline v0::compute::detail {

/// Whether kernels check their arguments.
inline constexpr bool checks_arguments = HEDDLE_CHECK_ARGUMENTS != 0;

// Functions of their own, so that the texts take no room and no registers where sizes are compared.
[[noreturn, gnu::noinline, gnu::cold]] inline void mismatch(const char* kernel, const char* what, std::int64_t expected,
                                                            std::int64_t got) {
  throw layout_error("heddle: " + std::string(kernel) + ": " + what + " should be " + std::to_string(expected) +
                     ", got " + std::to_string(got));
}

[[noreturn, gnu::noinline, gnu::cold]] inline void wrong_shape(const char* kernel, const char* what,
                                                               dynamic_shape<2> expected, dynamic_shape<2> got) {
  throw layout_error("heddle: " + std::string(kernel) + ": " + what + " should be " + to_string(expected) + ", got " +
                     to_string(got));
}

inline void expect(const char* kernel, const char* what, std::int64_t expected, std::int64_t got) {
  if constexpr (checks_arguments)
    if (expected != got) [[unlikely]]
      mismatch(kernel, what, expected, got);
}

inline void expect(const char* kernel, const char* what, std::int64_t expected, std::size_t got) {
  expect(kernel, what, expected, static_cast<std::int64_t>(got));
}

}  // namespace heddle::inline v0::compute::detail
