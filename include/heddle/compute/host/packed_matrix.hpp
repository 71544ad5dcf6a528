// heddle/compute/host/packed_matrix.hpp: a weight matrix packed in a storage format.
#pragma once

#include <heddle/compute/host/integer_products.hpp>
#include <heddle/compute/host/packed_kernel.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/weight_formats.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

namespace heddle::inline v0::compute {

/// A matrix w [depth, columns] that products x w read many times, stored in `Format`: strips of a few columns, and in each strip the
/// codes row by row, so that a product reads memory once, from front to end. A column's weights have a scale per `Format::block` rows
/// where the format has scales.
/// `multiply` adds up in one order per element of the result, whatever the number of rows of x and of threads; with formats without
/// scales that of `compute::portable`, whose product with the rounded weights has the same bits.
template <weight_format Format>
class packed_matrix {
 public:
  using code_type = typename Format::code;

  packed_matrix() = default;
  /// Converts w, which lies as [depth, columns], or as [columns, depth] with `transpose::yes`. Errors: `layout_error` for weights that are not
  /// finite where the format has scales; `memory_error`.
  packed_matrix(team& workers, matrix_view<const float> w, transpose how)
      : depth_(w.extent(how == transpose::yes ? 1 : 0)),
        columns_(w.extent(how == transpose::yes ? 0 : 1)),
        width_(in_integers ? detail::integer_columns : detail::gemm_vector_bytes() / 2),
        blocks_((depth_ + Format::block - 1) / Format::block),
        words_(in_integers ? blocks_ * Format::block / together : (depth_ + together - 1) / together) {
    const std::int64_t strips = (columns_ + width_ - 1) / width_;
    codes_ = buffer<code_type>(strips * width_ * words_ * together, "packed weights");
    if constexpr (Format::has_scales)
      scales_ = buffer<scale_type>(strips * width_ * blocks_, "scales of packed weights");
    const bool across = how == transpose::yes;
    const std::int64_t ld = w.extent(1);
    if (depth_ == 0) return;
    workers.split(columns_, 1, width_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t j = begin; j < end; ++j)
        pack_column(j, across ? w.data() + j * ld : w.data() + j, across ? 1 : ld);
    });
  }

  std::int64_t depth() const noexcept { return depth_; }
  std::int64_t columns() const noexcept { return columns_; }
  /// Bytes that a product reads.
  std::int64_t bytes() const noexcept {
    return static_cast<std::int64_t>(codes_.size() * sizeof(code_type) + scales_.size() * sizeof(scale_type));
  }
  code_type code(std::int64_t row, std::int64_t column) const { return codes_.data()[place(row, column)]; }
  /// 1 where the format has no scales.
  float scale(std::int64_t row, std::int64_t column) const {
    if constexpr (Format::has_scales)
      return static_cast<float>(
          scales_.data()[(column / width_ * blocks_ + row / Format::block) * width_ + column % width_]);
    else
      return 1;
  }
  /// The weight that products use, scale * code, exact in double.
  double weight(std::int64_t row, std::int64_t column) const {
    return static_cast<double>(scale(row, column)) * static_cast<double>(static_cast<float>(code(row, column)));
  }

  /// c = x w + beta c. Shapes: x [rows, depth], c [rows, columns]. Errors: `layout_error` if they do not fit.
  void multiply(team& workers, matrix_view<const float> x, matrix_view<float> c, float beta = 0) const {
    if (x.extent(1) != depth_ || c.extent(1) != columns_ || x.extent(0) != c.extent(0)) [[unlikely]]
      throw layout_error("heddle: a packed matrix of " + std::to_string(depth_) + " x " + std::to_string(columns_) +
                         " cannot make a result of " + std::to_string(c.extent(0)) + " x " +
                         std::to_string(c.extent(1)) + " from an operand of " + std::to_string(x.extent(0)) + " x " +
                         std::to_string(x.extent(1)));
    if (x.extent(0) == 0 || columns_ == 0) return;
    if constexpr (in_integers) {
      const detail::integer_operand w{codes_.data(), scales_.data(), depth_, columns_};
      if constexpr (requires { Format::rounding_of(x.data(), depth_); }) {
        const detail::rounded_rows<Format::block> rounded(workers, x.extent(0), depth_, x.data(), &Format::rounding_of);
        detail::multiply_integers<Format::block>(workers, x.extent(0), rounded, w, beta, c.data());
      } else {
        detail::multiply_integers<Format::block>(workers, x.extent(0), x.data(), w, beta, c.data());
      }
    } else {
      const detail::packed_operand<code_type> w{codes_.data(), scales_.data(), depth_, columns_, Format::block};
      detail::multiply_packed<Format::has_scales>(workers, x.extent(0), x.data(), w, beta, c.data());
    }
  }

 private:
  using scale_type = typename detail::scale_of_format<Format>::type;
  static constexpr bool in_integers = rounds_activations<Format>;
  static constexpr std::int64_t together = detail::codes_per_word<code_type>;
  static_assert(Format::block % together == 0, "heddle: a block of a weight format has whole 32-bit words of codes");

  std::int64_t place(std::int64_t row, std::int64_t column) const noexcept {
    return ((column / width_ * words_ + row / together) * width_ + column % width_) * together + row % together;
  }
  void pack_column(std::int64_t j, const float* from, std::int64_t stride) {
    for (std::int64_t b = 0; b < blocks_; ++b) {
      const std::int64_t first = b * Format::block, end = (std::min)(depth_, first + Format::block);
      if constexpr (Format::has_scales) {
        q8_scale scale = q8_scale_of(from + first * stride, end - first, stride);
        if constexpr (!std::is_same_v<scale_type, float>) scale = scale.rounded_up_to_bf16();
        scales_.data()[(j / width_ * blocks_ + b) * width_ + j % width_] = scale_type(scale.scale);
        for (std::int64_t p = first; p < end; ++p) codes_.data()[place(p, j)] = scale.code(from[p * stride]);
      } else {
        for (std::int64_t p = first; p < end; ++p) codes_.data()[place(p, j)] = code_type(from[p * stride]);
      }
    }
  }

  std::int64_t depth_ = 0, columns_ = 0;
  std::int64_t width_ = 1;  // of a strip: two vectors of float, or what tiles have
  std::int64_t blocks_ = 0;
  std::int64_t words_ = 0;  // of a column
  buffer<code_type> codes_{};
  buffer<scale_type> scales_{};
};

}  // namespace heddle::inline v0::compute
