// heddle/version.hpp: the version of these headers, for the preprocessor and CMake.
#pragma once

#if defined(HEDDLE_SINGLE_HEADER) && defined(HEDDLE_VERSION_MAJOR)
#error "heddle: a header of heddle meets the single header in one unit: include one of them"
#endif

/// The first number of the version.
#define HEDDLE_VERSION_MAJOR 0
/// The second number of the version.
#define HEDDLE_VERSION_MINOR 1
/// The third number of the version.
#define HEDDLE_VERSION_PATCH 0
/// The version as one number that grows with it: 10000 major + 100 minor + patch.
#define HEDDLE_VERSION (HEDDLE_VERSION_MAJOR * 10000 + HEDDLE_VERSION_MINOR * 100 + HEDDLE_VERSION_PATCH)

#if defined(HEDDLE_SINGLE_HEADER) && defined(HEDDLE_DIGITS)  // a macro of the single header, behind its own version
static_assert(false, "heddle: this header is of version " HEDDLE_DIGITS(HEDDLE_VERSION_MAJOR) "." HEDDLE_DIGITS(
                         HEDDLE_VERSION_MINOR) "." HEDDLE_DIGITS(HEDDLE_VERSION_PATCH) ", the single header of version " HEDDLE_SINGLE_HEADER);
#endif
