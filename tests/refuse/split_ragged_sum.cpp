// refuse: heddle: split::ragged<sizes...>: the sizes add up to more than a 64-bit number counts
#include <heddle/core/split.hpp>

constexpr std::int64_t half = std::int64_t{1} << 62;
constexpr bool fits = heddle::split::ragged<half, half>::fits(half, 2);
