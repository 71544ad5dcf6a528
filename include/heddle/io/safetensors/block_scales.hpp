// heddle/io/safetensors/block_scales.hpp: applies block scales to 8-bit matrices.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/float8.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/safetensors/dtype.hpp>
#include <heddle/tensor/quantized_weights.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

// The names of the scales of a tensor: as DeepSeek's published files and transformers' `quant_method: fp8` have it, and those of others.
inline constexpr const char* ends_of_scales[] = {"_scale_inv", "_scale"};
// Numbers that activations were to be divided by. They are not: nothing is computed from these.
inline constexpr const char* ends_of_other_scales[] = {".input_scale", ".activation_scale", ".output_scale"};

// f(row, begin, end) for the columns [begin, end) of each row that elements [first, first + count) of a matrix are.
template <class F>
void for_each_row_piece(std::int64_t first, std::int64_t count, std::int64_t columns, F&& f) {
  while (count > 0) {
    const std::int64_t begin = first % columns, end = begin + (std::min)(count, columns - begin);
    f(first / columns, begin, end);
    first += end - begin;
    count -= end - begin;
  }
}

// Which scales are there: of those of one row of blocks, as elements come row by row.
class kept_scales {
 public:
  explicit kept_scales(std::int64_t across) : here_(static_cast<std::size_t>(across), false) {}
  // f(from, to) for runs of those of the scales [begin, end) of a row of blocks that are not there; then they are.
  template <class F>
  void keep(std::int64_t row, std::int64_t begin, std::int64_t end, F&& f) {
    if (row != row_) {
      here_.assign(here_.size(), false);
      row_ = row;
    }
    for (std::int64_t from = begin; from < end;) {
      std::int64_t to = from;
      while (to < end && !here_[static_cast<std::size_t>(to)]) ++to;
      if (to > from) {
        f(from, to);
        std::fill(here_.begin() + from, here_.begin() + to, true);
      }
      from = (std::max)(to, from + 1);
    }
  }

 private:
  std::int64_t row_ = -1;
  std::vector<bool> here_;
};

// Scales of a matrix of F8_E4M3 or I8, one for each block, or a single number for all. A scale is read when the first element of its block is asked for; those of one row of
// blocks are kept, as elements come row by row. `Tensor`: the tensor of scales.
template <class Tensor>
class block_scales {
 public:
  // `where` is the matrix, for errors. Errors: `io_error` if it is no matrix, if there is not one scale for each block, or if their type is none
  // that float holds.
  block_scales(Tensor scales, scale_blocks blocks, std::span<const std::int64_t> shape, std::string where,
               bool integers)
      : scales_(std::move(scales)), blocks_(blocks), where_(std::move(where)), integers_(integers) {
    const auto parts = [](std::int64_t extent, std::int64_t block) { return extent / block + (extent % block != 0); };
    if (shape.size() != 2)
      throw io_error("heddle: " + where_ + ": a tensor with scales for blocks should be a matrix, it has the shape " +
                     shown_extents(shape));
    columns_ = shape[1];
    const std::span<const std::int64_t> found = scales_.shape();
    const bool single = found.empty() || (found.size() == 1 && found[0] == 1);
    if (single) blocks_ = {scale_blocks::whole, scale_blocks::whole};
    across_ = parts(columns_, blocks_.columns);
    const std::vector<std::int64_t> wanted{parts(shape[0], blocks_.rows), across_};
    if (!single && !std::equal(wanted.begin(), wanted.end(), found.begin(), found.end()))
      throw io_error("heddle: " + scales_.where() + ": the scales of blocks of " + text_of(blocks_.rows) + " x " +
                     text_of(blocks_.columns) + " elements of a matrix of shape " + shown_extents(shape) +
                     " should have the shape " + shown_extents(wanted) + ", they have " + shown_extents(found));
    if (const auto type = scales_.dtype(); type != "F32" && type != "BF16" && type != "F16")
      throw io_error("heddle: " + scales_.where() + ": scales should be F32, BF16 or F16, they are " +
                     std::string(type));
    kept_ = kept_scales(across_);
    values_.resize(static_cast<std::size_t>(across_));
  }

  const Tensor& scales() const noexcept { return scales_; }
  scale_blocks blocks() const noexcept { return blocks_; }

  // Elements [first, first + count) from their bytes: each number times its scale, rounded once. Any number of threads.
  // Errors: `io_error` with the place for a NaN, which no quantizer means, and for a scale that is not finite.
  template <class T>
  void convert(std::int64_t first, const std::byte* from, T* to, std::int64_t count) {
    const std::scoped_lock lock(mutex_);
    for_each_row_piece(first, count, columns_, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
      read_scales(row / blocks_.rows, begin / blocks_.columns, (end - 1) / blocks_.columns + 1);
      for (std::int64_t at = begin; at < end;) {
        const std::int64_t block = at / blocks_.columns;
        const std::int64_t until = blocks_.columns < end ? (std::min)(end, (block + 1) * blocks_.columns) : end;
        const auto scale = static_cast<double>(values_[static_cast<std::size_t>(block)]);
        for (; at < until; ++at, ++from, ++to) {
          const auto code = std::to_integer<std::uint8_t>(*from);
          if (!integers_ && (code & 0x7f) == 0x7f)
            throw io_error("heddle: " + where_ + ": row " + std::to_string(row) + ", column " + std::to_string(at) +
                           " is NaN");
          // Of at most 8 and 24 bits: exact in double.
          const float number = integers_ ? static_cast<float>(static_cast<std::int8_t>(code))
                                         : static_cast<float>(float8_e4m3::from_bits(code));
          *to = converted<T>(static_cast<double>(number) * scale);
        }
      }
    });
  }

  // f(count) for runs of scales that `convert` of these elements reads, where those that `kept` has are there.
  template <class F>
  void for_each_read(kept_scales& kept, std::int64_t first, std::int64_t count, F&& f) const {
    for_each_row_piece(first, count, columns_, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
      kept.keep(row / blocks_.rows, begin / blocks_.columns, (end - 1) / blocks_.columns + 1,
                [&](std::int64_t from, std::int64_t to) { f(to - from); });
    });
  }
  std::int64_t across() const noexcept { return across_; }

 private:
  void read_scales(std::int64_t row, std::int64_t begin, std::int64_t end) {
    kept_.keep(row, begin, end, [&](std::int64_t from, std::int64_t to) {
      scales_.read(row * across_ + from,
                   std::span(values_).subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from)));
      for (std::int64_t i = from; i < to; ++i)
        if (const float scale = values_[static_cast<std::size_t>(i)]; !std::isfinite(scale))
          throw io_error("heddle: " + scales_.where() + ": row " + std::to_string(row) + ", column " +
                         std::to_string(i) + ": a scale should be finite, got " + number_text(scale));
    });
  }

  static std::string text_of(std::int64_t size) { return size == scale_blocks::whole ? "all" : std::to_string(size); }

  Tensor scales_;
  scale_blocks blocks_;
  std::string where_;
  bool integers_;
  std::int64_t columns_ = 0, across_ = 0;  // of elements and of blocks
  std::mutex mutex_;
  kept_scales kept_{0};
  std::vector<float> values_;
};

}  // namespace heddle::inline v0::io::detail
