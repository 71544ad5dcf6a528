// heddle/compute/host/cast.hpp: conversion between element types, nearest or stochastic.
#pragma once

#include <heddle/compute/host/elementwise.hpp>
#include <heddle/compute/host/round_bf16.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail {

/// Elements per block of a conversion: the same for both types.
inline constexpr int cast_block = 64;
static_assert(cast_block == round_bf16_lanes);

/// y[i] = x[i] for i in [0, n), on the calling thread.
template <class From, class To>
void cast_lanes(std::int64_t n, const From* x, To* y) {
  std::int64_t i = 0;
  const bool by_processor = std::is_same_v<From, float> && std::is_same_v<To, bf16> && n >= cast_block && rounds_bf16();
  for (; i + cast_block <= n; i += cast_block) {
    if constexpr (std::is_same_v<From, float> && std::is_same_v<To, bf16>)
      if (by_processor && round_bf16_block(x + i, y + i)) continue;
    To block[cast_block];
    for (int l = 0; l < cast_block; ++l) block[l] = converted<To>(x[i + l]);
    for (int l = 0; l < cast_block; ++l) y[i + l] = block[l];
  }
  const int rest = static_cast<int>(n - i);
  for (int l = 0; l < rest; ++l) y[i + l] = converted<To>(x[i + l]);
}

template <class From, class To>
void body(ops::cast<To>, team& workers, std::int64_t n, const From* x, To* y) {
  workers.split(n, elementwise_grain, cast_block,
                [&](std::int64_t begin, std::int64_t end) { cast_lanes(end - begin, x + begin, y + begin); });
}

/// Element i takes 16 of the 128 bits that the generator has for index (first + i) / 8.
template <class From>
void cast_stochastic_lanes(std::int64_t n, const From* x, const counter_random& random, std::uint64_t first, bf16* y) {
  for (std::int64_t i = 0; i < n;) {
    const std::uint64_t at = first + static_cast<std::uint64_t>(i);
    const auto bits = random.bits(at / 8);
    for (auto part = static_cast<unsigned>(at % 8); part < 8 && i < n; ++part, ++i)
      y[i] = round_stochastically(static_cast<float>(x[i]), (bits[part / 2] >> (16 * (part % 2))) & 0xffffu);
  }
}

inline void body(ops::stochastic_cast, team& workers, std::int64_t n, const float* x, bf16* y,
                 const stochastic& rounding) {
  workers.split(n, elementwise_grain / 4, cast_block, [&](std::int64_t begin, std::int64_t end) {
    cast_stochastic_lanes(end - begin, x + begin, rounding.random, rounding.first + static_cast<std::uint64_t>(begin),
                          y + begin);
  });
}

}  // namespace heddle::inline v0::compute::detail
