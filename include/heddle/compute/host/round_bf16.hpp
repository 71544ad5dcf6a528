// heddle/compute/host/round_bf16.hpp: float to bf16 by the processor's instruction.
#pragma once

#include <heddle/core/half_precision.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail {

/// Elements that `round_bf16_block` takes at a time.
inline constexpr int round_bf16_lanes = 64;

// nvcc reads neither the vectors nor the instructions. They are in assembly because gcc and clang have different intrinsics for them, in a
// header that takes long to compile.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__CUDACC__)

/// Whether the processor rounds sixteen floats at a time (AVX-512 BF16).
inline bool rounds_bf16() noexcept {
  static const bool does = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512dq");
  return does;
}

/// y = x rounded to the nearest, ties to even, as `bf16(x)` has it, for 64 elements. False, and y is as it was, where one of
/// them is subnormal, which the instruction would take for zero. Requires `rounds_bf16()`.
__attribute__((target("avx512f,avx512dq,avx512vl,avx512bf16"))) inline bool round_bf16_block(const float* x,
                                                                                             bf16* y) noexcept {
  using floats = float __attribute__((vector_size(64)));
  using halves = std::uint16_t __attribute__((vector_size(32)));
  constexpr int parts = round_bf16_lanes / 16;
  floats from[parts];
  std::uint16_t subnormal[parts];
  __builtin_memcpy(from, x, sizeof from);
  for (int p = 0; p < parts; ++p) __asm__("vfpclassps $0x20, %1, %0" : "=k"(subnormal[p]) : "v"(from[p]));
  if ((subnormal[0] | subnormal[1] | subnormal[2] | subnormal[3]) != 0) return false;
  for (int p = 0; p < parts; ++p) {
    halves to;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(to) : "v"(from[p]));
    __builtin_memcpy(y + 16 * p, &to, sizeof to);
  }
  return true;
}

#else

inline bool rounds_bf16() noexcept {
  return false;
}
inline bool round_bf16_block(const float*, bf16*) noexcept {
  return false;
}

#endif

}  // namespace heddle::inline v0::compute::detail
