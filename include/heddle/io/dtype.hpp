// heddle/io/dtype.hpp: names of element types in files.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/half_precision.hpp>

#include <string_view>
#include <type_traits>

namespace heddle::inline v0::io {

namespace detail {
template <class T>
inline constexpr bool has_dtype = is_half_precision<T> || (std::is_arithmetic_v<T> && !std::is_same_v<T, bool> &&
                                                           (std::is_integral_v<T> || sizeof(T) == 4 || sizeof(T) == 8));
}  // namespace detail

/// The name of an element type in a file: bf16 f16 f32 f64, i8 to i64, u8 to u64.
template <class T>
constexpr std::string_view dtype_name() noexcept {
  static_assert(detail::has_dtype<T>,
                "heddle: files hold bf16, f16, float, double and the integers of 8 to 64 bits; convert first");
  if constexpr (is_half_precision<T>) {
    return std::is_same_v<T, bf16> ? "bf16" : "f16";
  } else if constexpr (std::is_floating_point_v<T>) {
    return sizeof(T) == 4 ? "f32" : "f64";
  } else if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 1 ? "i8" : sizeof(T) == 2 ? "i16" : sizeof(T) == 4 ? "i32" : "i64";
  } else {
    return sizeof(T) == 1 ? "u8" : sizeof(T) == 2 ? "u16" : sizeof(T) == 4 ? "u32" : "u64";
  }
}

/// Bytes of one element, or 0 for a name that is not known.
constexpr int dtype_bytes(std::string_view name) noexcept {
  if (name == "i8" || name == "u8") return 1;
  if (name == "i16" || name == "u16" || name == "bf16" || name == "f16") return 2;
  if (name == "f32" || name == "i32" || name == "u32") return 4;
  if (name == "f64" || name == "i64" || name == "u64") return 8;
  return 0;
}

}  // namespace heddle::inline v0::io
