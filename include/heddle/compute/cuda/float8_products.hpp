// heddle/compute/cuda/float8_products.hpp: products in 8 bits on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/ops/scaled_products.hpp>
#include <heddle/compute/ops/sums.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/float8.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/cuda/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail::on_cuda {

/// parts[b] = the greatest magnitude of elements [b block, (b + 1) block) of n; NaN are passed over.
struct greatest_of_part {
  std::int64_t n;
  const float* x;
  float* parts;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t b) const {
    const std::int64_t begin = b * sum_block, rest = n - begin;
    const float* const from = x + begin;
    float most = 0;
    for_each_of(g, rest < sum_block ? rest : sum_block, [&](std::int64_t i) {
      const float v = from[i] < 0 ? -from[i] : from[i];
      most = v > most ? v : most;
    });
    most = g.largest(most);
    if (g.leads()) parts[b] = most;
  }
};
template <launcher L>
void launch_greatest(const L& on, std::int64_t n, const float* x, float* out) {
  const std::int64_t parts = sum_blocks(n);
  if (parts <= 1) return on.each_row(1, n, greatest_of_part{n, x, out});
  auto between = on.template room<float>(parts);
  on.each_row(parts, sum_block, greatest_of_part{n, x, between.address()});
  launch_greatest(on, parts, between.address(), out);
}

/// most[i] = the greatest magnitude of row i of x; NaN are passed over.
struct greatest_of_row {
  std::int64_t columns;
  const float* x;
  float* most;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const float* const from = x + i * columns;
    float greatest = 0;
    for_each_of(g, columns, [&](std::int64_t j) {
      const float v = from[j] < 0 ? -from[j] : from[j];
      greatest = v > greatest ? v : greatest;
    });
    greatest = g.largest(greatest);
    if (g.leads()) most[i] = greatest;
  }
};
/// out[p, j] = the greatest magnitude of column j among rows [p block, (p + 1) block) of x.
struct greatest_of_columns {
  static constexpr std::int64_t block = 256;
  std::int64_t rows, columns;
  const float* x;
  float* out;
  HEDDLE_HD void operator()(std::int64_t at) const {
    const std::int64_t part = at / columns, j = at - part * columns, begin = part * block;
    const std::int64_t end = begin + block < rows ? begin + block : rows;
    float greatest = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const float x_ij = x[i * columns + j], v = x_ij < 0 ? -x_ij : x_ij;
      greatest = v > greatest ? v : greatest;
    }
    out[at] = greatest;
  }
};
template <launcher L>
void launch_greatest_of_columns(const L& on, std::int64_t rows, std::int64_t columns, const float* x, float* out) {
  const std::int64_t parts = (rows + greatest_of_columns::block - 1) / greatest_of_columns::block;
  if (parts <= 1) return on.each(columns, greatest_of_columns{rows, columns, x, out});
  auto between = on.template room<float>(parts * columns);
  on.each(parts * columns, greatest_of_columns{rows, columns, x, between.address()});
  launch_greatest_of_columns(on, parts, columns, between.address(), out);
}

/// What rows of a tensor are multiplied by before they are rounded, powers of two, and that the product is multiplied by; 1 behind the last row.
template <class Format>
struct float8_row_factors {
  std::int64_t rows;
  const float* greatest;
  float *scales, *backs;
  HEDDLE_HD void operator()(std::int64_t i) const {
    const double most = i < rows ? static_cast<double>(greatest[i]) : static_cast<double>(Format::largest);
    const auto scale = static_cast<float>(static_cast<double>(Format::largest) / (most > 1e-12 ? most : 1e-12));
    scales[i] = heddle::v0::detail::bits_float(heddle::v0::detail::float_bits(scale) & 0x7f800000u);
    backs[i] = 1 / scales[i];
  }
};

/// factors[0]: what the tensor is multiplied by before it is rounded; factors[1]: by that the product is multiplied.
template <class Format>
struct float8_factors {
  const float* greatest;
  float* factors;
  HEDDLE_HD void operator()(std::int64_t) const {
    const double most = static_cast<double>(*greatest);
    const auto scale = static_cast<float>(static_cast<double>(Format::largest) / (most > 1e-12 ? most : 1e-12));
    factors[0] = scale;
    factors[1] = 1 / scale;
  }
};

/// out[rows, depth] = x or its transpose, scaled and rounded to `Format`, stored as `Stored`, which holds its numbers; zeros behind `rows_of_x` and `depth_of_x`.
/// `ByRows`: each row has a factor, else all have one.
template <class Format, class Stored, bool Transposed, bool ByRows>
struct float8_rounded {
  std::int64_t rows_of_x, depth_of_x, depth;
  const float *x, *factors;
  Stored* out;
  HEDDLE_HD void operator()(std::int64_t at) const {
    const std::int64_t i = at / depth, p = at - i * depth;
    const bool inside = i < rows_of_x && p < depth_of_x;
    const float v = inside ? x[Transposed ? p * rows_of_x + i : i * depth_of_x + p] * factors[ByRows ? i : 0] : 0.0f;
    if constexpr (std::is_same_v<Format, Stored>)
      out[at] = Format(v);
    else
      out[at] = Stored(static_cast<float>(Format(v)));
  }
};

/// c[i, j] = beta c[i, j] + d[i, j], of the columns that c has; d times both factors (`ByRows`: of row i and of column j) where it has them not yet.
template <class Out, class Sum, bool ByRows>
struct add_float8_product {
  std::int64_t columns, columns_of_d;
  const Sum* d;
  const float *factors_a, *factors_b;  // null: d is complete
  float beta;
  Out* c;
  HEDDLE_HD void operator()(std::int64_t at) const {
    const std::int64_t i = at / columns, j = at - i * columns;
    float v = static_cast<float>(d[i * columns_of_d + j]);
    if (factors_a != nullptr) v *= factors_a[ByRows ? i : 0] * factors_b[ByRows ? j : 0];
    c[at] = Out(beta == 0 ? v : beta * static_cast<float>(c[at]) + v);
  }
};

// What operands are multiplied by, and what the product is multiplied by: one of each, or one for each row.
struct float8_product_factors {
  const float *scales_a, *backs_a, *scales_b, *backs_b;
};
constexpr std::int64_t whole_of_16(std::int64_t x) noexcept {
  return (x + 15) / 16 * 16;
}

// By products in 8 bits of the library of the launcher, or, where the launcher says so, by products of bf16, which holds the same numbers.
// cuBLASLt multiplies 8 bits where both operands lie along what is added up, and sizes are multiples of 16: operands are rounded into that order, with zeros.
// Factors of rows it takes where it has such products (sm_90); elsewhere the product is added to c, or becomes it, times them.
template <bool TA, bool TB, class A, class B, class StoredA, class StoredB, bool ByRows, launcher L, class Out>
void multiply_rounded_to_8_bits(const L& on, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                                const float* a, const float* b, Out* c, const float8_product_factors& with,
                                float beta) {
  constexpr bool in_8_bits = sizeof(StoredA) == 1;
  const std::int64_t m = whole_of_16(rows), n = whole_of_16(columns), k = whole_of_16(depth < 1 ? 1 : depth);
  auto left_room = on.template room<StoredA>(m * k);
  auto right_room = on.template room<StoredB>(n * k);
  on.each(m * k, float8_rounded<A, StoredA, TA, ByRows>{rows, depth, k, a, with.scales_a, left_room.address()});
  on.each(n * k, float8_rounded<B, StoredB, !TB, ByRows>{columns, depth, k, b, with.scales_b, right_room.address()});
  const StoredA* const left = left_room.address();
  const StoredB* const right = right_room.address();
  const auto add = [&](const auto* sum, bool complete) {
    using sum_type = std::remove_const_t<std::remove_pointer_t<decltype(sum)>>;
    on.each(rows * columns, add_float8_product<Out, sum_type, ByRows>{
                                columns, n, sum, complete ? nullptr : with.backs_a, with.backs_b, beta, c});
  };
  if constexpr (in_8_bits) {
    // c = beta c + the product with its factors, if the library has that.
    const auto multiply = [&](Out* to, float beta_of_it) {
      if constexpr (ByRows)
        return on.multiply_float8_rows(m, n, k, left, right, to, beta_of_it, with.backs_a, with.backs_b);
      on.multiply_float8(m, n, k, left, right, to, beta_of_it, with.backs_a, with.backs_b);
      return true;
    };
    if (m == rows && n == columns && reinterpret_cast<std::uintptr_t>(c) % 16 == 0) {
      if (multiply(c, beta)) return;
    } else {
      auto sum = on.template room<Out>(m * n);
      if (multiply(sum.address(), 0.0f)) return add(static_cast<const Out*>(sum.address()), true);
    }
  }
  auto sum = on.template room<float>(m * n);
  if constexpr (in_8_bits)
    on.multiply_float8(m, n, k, left, right, sum.address(), 0.0f, static_cast<const float*>(nullptr),
                       static_cast<const float*>(nullptr));
  else
    on.template multiply<false, true>(m, n, k, left, right, sum.address(), 0.0f);
  add(static_cast<const float*>(sum.address()), false);
}

template <launcher L>
void body(ops::find_greatest, const L& on, std::int64_t rows, std::int64_t columns, std::int64_t, const float* x,
          float* most) {
  launch_greatest(on, rows * columns, x, most);
}
template <launcher L, transpose TA, transpose TB, class A, class B, class Out>
  requires(std::is_same_v<Out, float> || std::is_same_v<Out, bf16>)
void body(ops::scaled_product<TA, TB, A, B, Out>, const L& on, std::int64_t m, std::int64_t n, std::int64_t k,
          std::int64_t, std::int64_t, const float* a, const float* b, Out* c, const float* greatest_a,
          const float* greatest_b, float beta) {
  constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
  if (m == 0 || n == 0) return;
  const bool in_8_bits = on.multiplies_float8();
  auto room = on.template room<float>(4);
  float* const f = room.address();
  on.each(1, float8_factors<A>{greatest_a, f});
  on.each(1, float8_factors<B>{greatest_b, f + 2});
  const float8_product_factors with{f, f + 1, f + 2, f + 3};
  if (in_8_bits)
    multiply_rounded_to_8_bits<ta, tb, A, B, A, B, false>(on, m, n, k, a, b, c, with, beta);
  else
    multiply_rounded_to_8_bits<ta, tb, A, B, bf16, bf16, false>(on, m, n, k, a, b, c, with, beta);
}
template <launcher L, transpose TX>
void body(ops::find_greatest_of_rows<TX>, const L& on, std::int64_t rows, std::int64_t columns, const float* x,
          float* most) {
  if constexpr (TX == transpose::yes)
    launch_greatest_of_columns(on, columns, rows, x, most);
  else
    on.each_row(rows, columns, greatest_of_row{columns, x, most});
}
template <launcher L, transpose TA, transpose TB, class A, class B, class Out>
  requires(std::is_same_v<Out, float> || std::is_same_v<Out, bf16>)
void body(ops::row_scaled_product<TA, TB, A, B, Out>, const L& on, std::int64_t m, std::int64_t n, std::int64_t k,
          const float* a, const float* b, Out* c, const float* greatest_a, const float* greatest_b, float beta) {
  constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
  if (m == 0 || n == 0) return;
  const bool in_8_bits = on.multiplies_float8();
  const std::int64_t rows = whole_of_16(m), columns = whole_of_16(n);
  auto room = on.template room<float>(2 * (rows + columns));
  float* const f = room.address();
  const float8_product_factors with{f, f + rows, f + 2 * rows, f + 2 * rows + columns};
  on.each(rows, float8_row_factors<A>{m, greatest_a, f, f + rows});
  on.each(columns, float8_row_factors<B>{n, greatest_b, f + 2 * rows, f + 2 * rows + columns});
  if (in_8_bits)
    multiply_rounded_to_8_bits<ta, tb, A, B, A, B, true>(on, m, n, k, a, b, c, with, beta);
  else
    multiply_rounded_to_8_bits<ta, tb, A, B, bf16, bf16, true>(on, m, n, k, a, b, c, with, beta);
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
