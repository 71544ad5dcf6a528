// heddle/comm/poison.hpp: NaN in results of started collectives until they are there.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <string>

namespace heddle::inline v0::detail {

// Types of which a value of ones only is no number: all that have a NaN.
template <class T>
inline constexpr bool has_poison = std::numeric_limits<T>::has_quiet_NaN;

inline void poison(void* result, std::size_t bytes) noexcept {
  if (bytes > 0) std::memset(result, 0xff, bytes);
}

// The input, if it shares no element with the result, or a copy of it, which `kept` holds.
inline const void* kept_input(const void* in, std::size_t bytes, const void* result, std::size_t result_bytes,
                              std::string& kept) {
  const auto* const from = static_cast<const std::byte*>(in);
  const auto* const to = static_cast<const std::byte*>(result);
  if (bytes == 0 || from + bytes <= to || to + result_bytes <= from) return in;
  kept.reserve(bytes + 64);  // not in the object: memory of `new` is aligned. Every program has this class already
  kept.assign(static_cast<const char*>(in), bytes);
  return kept.data();
}

}  // namespace heddle::inline v0::detail
