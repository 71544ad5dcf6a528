// heddle/io/safetensors/dtype.hpp: element types of safetensors files, and conversion of elements.
#pragma once

#include <heddle/core/half_precision.hpp>
#include <heddle/io/dtype.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

namespace heddle::inline v0::io {

/// An element type of the safetensors format. `order` is where the reference writer puts tensors of the type: greatest
/// first.
struct safetensors_dtype {
  std::string_view name;
  int bits = 0;
  int order = 0;
  friend bool operator==(const safetensors_dtype& a, const safetensors_dtype& b) noexcept { return a.name == b.name; }
};

/// Every element type of the format, in the order of the reference implementation.
/// Source: safetensors 0.8, `enum Dtype`.
inline constexpr std::array<safetensors_dtype, 22> safetensors_dtypes{{
    {"BOOL", 8, 0},         {"F4", 4, 1},      {"F6_E2M3", 6, 2}, {"F6_E3M2", 6, 3}, {"U8", 8, 4},
    {"I8", 8, 5},           {"F8_E5M2", 8, 6}, {"F8_E4M3", 8, 7}, {"F8_E8M0", 8, 8}, {"F8_E4M3FNUZ", 8, 9},
    {"F8_E5M2FNUZ", 8, 10}, {"I16", 16, 11},   {"U16", 16, 12},   {"F16", 16, 13},   {"BF16", 16, 14},
    {"I32", 32, 15},        {"U32", 32, 16},   {"F32", 32, 17},   {"C64", 64, 18},   {"F64", 64, 19},
    {"I64", 64, 20},        {"U64", 64, 21},
}};

/// The element type of this name, or null.
constexpr const safetensors_dtype* find_safetensors_dtype(std::string_view name) noexcept {
  for (const safetensors_dtype& t : safetensors_dtypes)
    if (t.name == name) return &t;
  return nullptr;
}

/// The name that the format has for a type of C++.
template <class T>
constexpr std::string_view safetensors_dtype_name() noexcept {
  if constexpr (std::is_same_v<T, bool>) {
    return "BOOL";
  } else {
    constexpr std::string_view name = dtype_name<T>();
    for (const safetensors_dtype& t : safetensors_dtypes) {
      bool same = t.name.size() == name.size();
      for (std::size_t i = 0; same && i < name.size(); ++i)
        same = t.name[i] == (name[i] >= 'a' && name[i] <= 'z' ? static_cast<char>(name[i] - 'a' + 'A') : name[i]);
      if (same) return t.name;
    }
    return {};
  }
}

namespace detail {

template <class U>
U load_as(const std::byte* from) noexcept {
  U value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// A float of 8 bits with `Exponent` bits of exponent, in the manner of the OCP formats: E5M2 has infinities, E4M3 none
/// and one NaN of either sign.
template <int Exponent>
inline float float_of_8_bits(std::uint8_t bits) noexcept {
  constexpr int mantissa = 7 - Exponent, bias = (1 << (Exponent - 1)) - 1;
  const int e = (bits & 0x7f) >> mantissa, m = bits & ((1 << mantissa) - 1);
  const float sign = (bits & 0x80) != 0 ? -1.0f : 1.0f;
  if (e == (1 << Exponent) - 1) {
    if constexpr (Exponent == 5)
      return m == 0 ? sign * (std::numeric_limits<float>::infinity)()
                    : std::copysign((std::numeric_limits<float>::quiet_NaN)(), sign);
    else if (m == (1 << mantissa) - 1)
      return std::copysign((std::numeric_limits<float>::quiet_NaN)(), sign);
  }
  if (e == 0) return sign * std::ldexp(static_cast<float>(m), 1 - bias - mantissa);
  return sign * std::ldexp(static_cast<float>(m + (1 << mantissa)), e - bias - mantissa);
}

template <class T>
inline constexpr bool is_real_element = std::is_floating_point_v<T> || is_half_precision<T>;

}  // namespace detail

/// Whether elements of `dtype` can be read as T: the same type; BOOL as bytes of 0 and 1 (`std::uint8_t`); where T is a
/// floating-point type, every floating-point type of 8, 16, 32 and 64 bits but the scales and FNUZ forms.
template <class T>
constexpr bool converts_to(std::string_view dtype) noexcept {
  if (dtype == safetensors_dtype_name<T>()) return true;
  if constexpr (std::is_same_v<T, std::uint8_t>)
    return dtype == "BOOL";
  else if constexpr (detail::is_real_element<T>)
    return dtype == "F64" || dtype == "F32" || dtype == "F16" || dtype == "BF16" || dtype == "F8_E4M3" ||
           dtype == "F8_E5M2";
  else
    return false;
}

/// Converts `count` elements: exactly where T has the number, otherwise to the nearest, ties to even, once. `from` need
/// not be aligned. Elements of BOOL are true, or 1, where the file has any other byte than 0. Returns whether `dtype`
/// converts to T (`converts_to`); nothing is written otherwise.
template <class T>
bool convert_elements(std::string_view dtype, const std::byte* from, T* to, std::int64_t count) noexcept {
  static_assert(std::endian::native == std::endian::little, "heddle: safetensors are read on little-endian machines");
  if (!converts_to<T>(dtype)) return false;
  if (count <= 0) return true;
  if constexpr (std::is_same_v<T, bool>) {  // other bytes than 0 and 1 are no bool
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i] != std::byte{0};
    return true;
  }
  if constexpr (std::is_same_v<T, std::uint8_t>)
    if (dtype == "BOOL") {
      for (std::int64_t i = 0; i < count; ++i) to[i] = from[i] != std::byte{0} ? 1 : 0;
      return true;
    }
  if (dtype == safetensors_dtype_name<T>()) {
    std::memcpy(static_cast<void*>(to), from, static_cast<std::size_t>(count) * sizeof(T));
    return true;
  }
  if constexpr (detail::is_real_element<T>) {
    const auto each = [&](std::size_t bytes, auto&& value) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = converted<T>(value(from + static_cast<std::size_t>(i) * bytes));
    };
    if (dtype == "F64") each(8, [](const std::byte* p) { return detail::load_as<double>(p); });
    if (dtype == "F32") each(4, [](const std::byte* p) { return detail::load_as<float>(p); });
    const auto half = [](const std::byte* p) { return detail::load_as<std::uint16_t>(p); };
    if (dtype == "F16") each(2, [&](const std::byte* p) { return static_cast<float>(f16::from_bits(half(p))); });
    if (dtype == "BF16") each(2, [&](const std::byte* p) { return static_cast<float>(bf16::from_bits(half(p))); });
    const auto byte = [](const std::byte* p) { return std::to_integer<std::uint8_t>(*p); };
    if (dtype == "F8_E4M3") each(1, [&](const std::byte* p) { return detail::float_of_8_bits<4>(byte(p)); });
    if (dtype == "F8_E5M2") each(1, [&](const std::byte* p) { return detail::float_of_8_bits<5>(byte(p)); });
  }
  return true;
}

}  // namespace heddle::inline v0::io
