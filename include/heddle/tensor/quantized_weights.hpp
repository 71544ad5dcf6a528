// heddle/tensor/quantized_weights.hpp: matrices that files hold in fewer bits.
#pragma once

#include <cstdint>
#include <limits>

namespace heddle::inline v0 {

/// Sizes of the blocks of a matrix of 8-bit elements that have a scale each; those at the end of rows and columns may be smaller.
/// Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2.
struct scale_blocks {
  static constexpr std::int64_t most = std::int64_t{1} << 20;  ///< of either size
  static constexpr std::int64_t whole =
      (std::numeric_limits<std::int64_t>::max)();  ///< as many as there are: {1, whole} is a scale for each row
  std::int64_t rows = 128, columns = 128;
  friend constexpr bool operator==(const scale_blocks&, const scale_blocks&) = default;
};

/// What the files of a quantised model have in the place of a matrix [out, in]. A source that is opened with it reads each element as its number
/// times its scale, rounded once. Which matrices are quantised, the files say: those that are not are read as they are.
struct quantized_weights {
  enum class form : unsigned char {
    scaled,  ///< `weight` of F8_E4M3 or I8, and `weight_scale_inv` or `weight_scale` with one number for each of `blocks`
    gptq,  ///< `qweight` of I32 packed along `in`, [in, out]; `qzeros` along `out`; `scales`; perhaps `g_idx`, the group of each column
    awq,   ///< `qweight` of I32 packed along `out`, [in, out], its columns interleaved; `qzeros` the same; `scales`
    packed,  ///< `weight_packed` of I32 along `in`, [out, in], `weight_scale`, perhaps `weight_zero_point`, `weight_g_idx`
    stacked_mxfp4,  ///< of all experts of a block, as GPT-OSS is published: NAME_blocks of U8 [experts, out, in / 32, 16] and NAME_scales [experts, out, in / 32], as `mxfp4`
    mxfp4,  ///< `weight_packed` of U8, two numbers of E2M1 along `in` in each, and `weight_scale` of U8, the exponent (E8M0) of each 32
  };
  constexpr quantized_weights() = default;
  constexpr quantized_weights(scale_blocks each) noexcept
      : blocks(each) {}  // NOLINT(*-explicit-*): 8 bits and nothing else
  constexpr quantized_weights(form of, int each, std::int64_t together) noexcept
      : how(of), bits(each), group(together) {}

  form how = form::scaled;
  scale_blocks blocks{};
  int bits = 8;
  std::int64_t group = 0;       ///< columns that share a scale; 0: all of a row
  bool zeros_one_less = false;  ///< of `gptq`: files have each zero point less one
  friend constexpr bool operator==(const quantized_weights&, const quantized_weights&) = default;
};

}  // namespace heddle::inline v0
