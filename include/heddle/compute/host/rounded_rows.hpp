// heddle/compute/host/rounded_rows.hpp: rows rounded to 8-bit integers with block scales.
#pragma once

#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/host/team.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>

namespace heddle::inline v0::compute::detail {

/// How a block of a row is rounded, by its greatest magnitude: x is about `scale` times the integer nearest to x * `inverse`. With
/// `inverse` 0 all codes are 0, and `scale` says why: 0 for a block below 2^-100, not a number for one that has such a number or an infinite one.
struct row_scale {
  float scale = 0;
  float inverse = 0;
};
inline row_scale row_scale_of(std::int32_t greatest_bits) noexcept {
  if (greatest_bits >= 0x7f800000) return {std::numeric_limits<float>::quiet_NaN(), 0};
  const float greatest = std::bit_cast<float>(greatest_bits);
  if (greatest < 0x1p-100f) return {0, 0};
  return {greatest / 127.0f, 127.0f / greatest};
}

/// Where the codes of a block go, `*scale` and `*sum`, of the codes. All versions give the same bits.
template <std::int64_t Block>
void round_block(const float* x, std::int8_t* codes, float* scale, std::int32_t* sum) {
  std::int32_t greatest = 0, all = 0;
  for (std::int64_t i = 0; i < Block; ++i)
    greatest = (std::max)(greatest, std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff);
  const row_scale by = row_scale_of(greatest);
  *scale = by.scale;
  *sum = 0;
  if (by.inverse == 0.0f) return void(std::memset(codes, 0, Block));
  for (std::int64_t i = 0; i < Block; ++i) {
    const auto code = static_cast<std::int32_t>(std::nearbyint(x[i] * by.inverse));
    codes[i] = static_cast<std::int8_t>(code);
    all += code;
  }
  *sum = all;
}

// nvcc does not read the instructions.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__CUDACC__)
#define HEDDLE_ROUND_BLOCK(Name, Target, Lanes)                                                                    \
  template <std::int64_t Block>                                                                                    \
  __attribute__((target(Target))) void Name(const float* x, std::int8_t* codes, float* scale, std::int32_t* sum) { \
    typedef float number __attribute__((vector_size(Lanes * 4)));                                                  \
    typedef std::int32_t whole __attribute__((vector_size(Lanes * 4)));                                            \
    typedef std::int8_t bytes __attribute__((vector_size(Lanes)));                                                 \
    whole most{}, total{};                                                                                         \
    for (std::int64_t i = 0; i < Block; i += Lanes) {                                                              \
      whole v;                                                                                                     \
      __builtin_memcpy(&v, x + i, sizeof v);                                                                       \
      v &= 0x7fffffff;                                                                                             \
      most = v > most ? v : most;                                                                                  \
    }                                                                                                              \
    std::int32_t lanes[Lanes], greatest = 0, all = 0;                                                              \
    __builtin_memcpy(lanes, &most, sizeof most);                                                                   \
    for (int l = 0; l < Lanes; ++l) greatest = lanes[l] > greatest ? lanes[l] : greatest;                          \
    const row_scale by = row_scale_of(greatest);                                                                   \
    *scale = by.scale;                                                                                             \
    *sum = 0;                                                                                                      \
    if (by.inverse == 0.0f) return void(std::memset(codes, 0, Block));                                             \
    for (std::int64_t i = 0; i < Block; i += Lanes) {                                                              \
      number v;                                                                                                    \
      whole nearest;                                                                                               \
      __builtin_memcpy(&v, x + i, sizeof v);                                                                       \
      v *= by.inverse;                                                                                             \
      __asm__("vcvtps2dq %1, %0" : "=v"(nearest) : "v"(v));                                                        \
      total += nearest;                                                                                            \
      const bytes narrow = __builtin_convertvector(nearest, bytes);                                                \
      __builtin_memcpy(codes + i, &narrow, sizeof narrow);                                                         \
    }                                                                                                              \
    __builtin_memcpy(lanes, &total, sizeof total);                                                                 \
    for (int l = 0; l < Lanes; ++l) all += lanes[l];                                                               \
    *sum = all;                                                                                                    \
  }
HEDDLE_ROUND_BLOCK(round_block_32, "avx2,fma", 8)
HEDDLE_ROUND_BLOCK(round_block_64, "avx512f", 16)
#undef HEDDLE_ROUND_BLOCK
#endif

/// `round_block` by vectors of at most `vector_bytes`.
template <std::int64_t Block>
void round_block(int vector_bytes, const float* x, std::int8_t* codes, float* scale, std::int32_t* sum) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__CUDACC__)
  if constexpr (Block % 16 == 0)
    if (vector_bytes == 64) return round_block_64<Block>(x, codes, scale, sum);
  if constexpr (Block % 8 == 0)
    if (vector_bytes >= 32) return round_block_32<Block>(x, codes, scale, sum);
#endif
  static_cast<void>(vector_bytes);
  round_block<Block>(x, codes, scale, sum);
}

/// Rows of x [m, depth], m > 0, in blocks of `Block` codes, in groups of `high` rows, 1, 2, 4, 8 or 16: codes[group][block][row][Block],
/// scales and sums of codes [group][block][row]. What the last block and the last group have less is zero.
template <std::int64_t Block>
class rounded_rows {
 public:
  static constexpr std::int64_t most_high = 16;

  /// Each block by its greatest magnitude.
  rounded_rows(team& workers, std::int64_t m, std::int64_t depth, const float* x,
               int vector_bytes = gemm_vector_bytes())
      : rounded_rows(workers, m, depth, x, [vector_bytes](const float*, std::int64_t) {
          return [vector_bytes](const float* from, std::int8_t* codes, float* scale, std::int32_t* sum) {
            round_block<Block>(vector_bytes, from, codes, scale, sum);
          };
        }) {}
  /// `rounding_of(row, depth)` gives what rounds each block of the row as `round_block` does; rows behind the last one are of depth 0.
  template <std::invocable<const float*, std::int64_t> Rounding>
  rounded_rows(team& workers, std::int64_t m, std::int64_t depth, const float* x, Rounding rounding_of)
      : high_(m > most_high / 2 ? most_high : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(m)))),
        blocks_((depth + Block - 1) / Block),
        rows_((m + high_ - 1) / high_ * high_),
        codes_(rows_ * blocks_ * Block),
        scales_(rows_ * blocks_),
        sums_(rows_ * blocks_) {
    workers.split(rows_, (std::int64_t{1} << 15) / (depth + 1) + 1, 1, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t r = first; r < end; ++r)
        if (r < m)
          round_row(r, x + r * depth, depth, rounding_of(x + r * depth, depth));
        else
          round_row(r, nullptr, depth, rounding_of(nullptr, 0));
    });
  }

  std::int64_t high() const noexcept { return high_; }
  std::int64_t blocks() const noexcept { return blocks_; }
  const std::int8_t* codes(std::int64_t row) const noexcept { return codes_.data + place(row) * Block; }
  const float* scales(std::int64_t row) const noexcept { return scales_.data + place(row); }
  const std::int32_t* sums(std::int64_t row) const noexcept { return sums_.data + place(row); }

 private:
  std::int64_t place(std::int64_t row) const noexcept { return row / high_ * blocks_ * high_ + row % high_; }
  template <class Round>
  void round_row(std::int64_t r, const float* x, std::int64_t depth, const Round& round) {
    for (std::int64_t b = 0; b < blocks_; ++b) {
      const std::int64_t at = place(r) + b * high_, count = (std::min)(Block, depth - b * Block);
      std::int8_t* const codes = codes_.data + at * Block;
      if (x != nullptr && count == Block) {
        round(x + b * Block, codes, scales_.data + at, sums_.data + at);
      } else {
        float rest[Block] = {};
        if (x != nullptr) std::copy_n(x + b * Block, count, rest);
        round(rest, codes, scales_.data + at, sums_.data + at);
      }
    }
  }

  std::int64_t high_, blocks_, rows_;
  gemm_panel<std::int8_t> codes_;
  gemm_panel<float> scales_;
  gemm_panel<std::int32_t> sums_;
};

}  // namespace heddle::inline v0::compute::detail
