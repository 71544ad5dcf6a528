// heddle/compute/group/matrix_products.hpp: grouped 16-bit products by instructions of warps.
#pragma once

#include <heddle/compute/group/grouped_operands.hpp>
#include <heddle/compute/group/tiles.hpp>
#include <heddle/compute/group/warps.hpp>
#include <heddle/core/half_precision.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail::in_groups {

/// The left operand of a product, which is the transpose of a tile: its columns [column, column + 16) are rows, its rows [row, row + 16) terms.
template <class W, class T, int Width>
HEDDLE_HD void load_left_transposed(W& w, registers_of<W, std::uint32_t, 4>& x, const swizzled_tile<T, Width>& from,
                                    int row, int column) {
  w.template load_matrices<true>(
      x, from.data, [=](int l) { return swizzled_tile<T, Width>::at(row, l % 8 + l / 16 * 8, column / 8, l / 8 % 2); },
      0, 0);
}

/// c = op(a) op(b) + beta c of row-major matrices without gaps: c is m x n, the contraction has length k. Sums are of float, and are rounded
/// once; with beta 0, c is not read. A block has `size` rows and `columns` columns of c, each of its warps 32 of the rows, and goes over the
/// contraction by `terms`, whose next tiles are copied while it multiplies. Rows of a and b are multiples of 8 elements, at addresses of 16 bytes, and so
/// are those of c where its elements have 16 bits.
template <bool TA, bool TB, class T, class Out>
struct warp_product {
  static constexpr int warps = 4, down = 2, size = 16 * down * warps, columns = 64, terms = 64;
  static constexpr std::int64_t elements = 2 * (size + columns) * terms;
  using left_tile = swizzled_tile<T, TA ? size : terms>;
  using right_tile = swizzled_tile<T, TB ? terms : columns>;
  std::int64_t m, n, k;
  const T *a, *b;
  Out* c;
  float beta;

  /// The elements of c from (row, column) on.
  template <class W>
  HEDDLE_HD void block(W& w, std::int64_t row, std::int64_t column, T* memory) const {
    const int rows = m - row < size ? static_cast<int>(m - row) : size;
    const int across = n - column < columns ? static_cast<int>(n - column) : columns;
    const auto left = [memory](int stage) { return left_tile{memory + stage * size * terms}; };
    const auto right = [memory](int stage) { return right_tile{memory + 2 * size * terms + stage * columns * terms}; };
    const auto copy = [&](int stage, std::int64_t p) {
      const int count = k - p < terms ? static_cast<int>(k - p) : terms;
      if constexpr (TA)
        copy_rows<warps, terms>(w, left(stage), count, rows, strided_rows<T>{a + p * m + row, m});
      else
        copy_rows<warps, size>(w, left(stage), rows, count, strided_rows<T>{a + row * k + p, k});
      if constexpr (TB)
        copy_rows<warps, columns>(w, right(stage), across, count, strided_rows<T>{b + column * k + p, k});
      else
        copy_rows<warps, terms>(w, right(stage), count, across, strided_rows<T>{b + p * n + column, n});
    };
    warp_sums<W, down, columns / 8> sum;
    sum.clear(w);
    w.sync();  // the last item is done with the memory
    if (k > 0) copy(0, 0);
    w.commit();
    int stage = 0;
    for (std::int64_t p = 0; p < k; p += terms, stage = 1 - stage) {
      w.template wait<0>();
      w.sync();  // all copies of these tiles are there, and all warps are done with the tiles before
      if (p + terms < k) copy(1 - stage, p + terms);
      w.commit();
      multiply(w, sum, left(stage), right(stage));
    }
    w.template wait<0>();
    w.sync();
    put(w, sum, row, column, rows, across, memory);
  }

 private:
  template <class W>
  HEDDLE_HD void multiply(W& w, warp_sums<W, down, columns / 8>& sum, const left_tile& x, const right_tile& y) const {
    const int first = 16 * down * w.index();
    w.forget();
    each_constant<terms / 16>([&](auto p) {
      registers_of<W, std::uint32_t, 4> of_left[down];
      each_constant<down>([&](auto i) {
        if constexpr (TA)
          load_left_transposed(w, of_left[i], x, 16 * p, first + 16 * i);
        else
          load_left(w, of_left[i], x, first + 16 * i, p);
      });
      each_constant<columns / 16>([&](auto j) {
        registers_of<W, std::uint32_t, 4> of_right;
        if constexpr (TB)
          load_right_transposed(w, of_right, y, 16 * j, p);
        else
          load_right(w, of_right, y, 16 * p, j);
        each_constant<down>([&](auto i) {
          w.template multiply_add<T>(sum.x[i][2 * j], of_left[i], of_right, 0);
          w.template multiply_add<T>(sum.x[i][2 * j + 1], of_left[i], of_right, 1);
        });
      });
    });
  }

  /// f(sum, element of c) for each sum of a lane whose element is there.
  template <class W, class F>
  HEDDLE_HD void each_sum(W& w, warp_sums<W, down, columns / 8>& sum, std::int64_t row, std::int64_t column, int rows,
                          int across, const F& f) const {
    const int first = 16 * down * w.index();
    each_constant<down>([&](auto i) {
      w.each_lane([&](int l) {
        for (int half = 0; half < 2; ++half) {
          const int r = first + 16 * i + l / 4 + 8 * half;
          if (r >= rows) continue;
          Out* const of_row = c + (row + r) * n + column;
          each_constant<columns / 8>([&](auto j) {
            for (int e = 0; e < 2; ++e) {
              const int at = 8 * j + 2 * (l % 4) + e;
              if (at < across) f(sum.x[i][j](l, 2 * half + e), of_row[at]);
            }
          });
        }
      });
    });
  }
  template <class W>
  HEDDLE_HD void put(W& w, warp_sums<W, down, columns / 8>& sum, std::int64_t row, std::int64_t column, int rows,
                     int across, T* memory) const {
    if (beta != 0.0f)
      each_sum(w, sum, row, column, rows, across,
               [this](float& s, const Out& old) { s += beta * static_cast<float>(old); });
    if constexpr (is_half_precision<Out>)
      store_sums(
          w, sum, swizzled_tile<T, columns>{memory}, 16 * down * w.index(), rows, across,
          [](int, int, int) { return 1.0f; }, [&](int r) { return c + (row + r) * n + column; });
    else
      each_sum(w, sum, row, column, rows, across, [](float& s, Out& to) { to = s; });
  }
};

/// As `grouped_product_tile`.
template <bool TB, class T, class Out>
struct warp_grouped_product {
  using product = warp_product<false, TB, T, Out>;
  static constexpr int warps = product::warps, blocks = 2;
  static constexpr std::int64_t elements = product::elements;
  grouped_product_operands<T, Out, float> operands;

  std::int64_t items() const { return operands.items(product::size, product::columns); }
  template <class W>
  HEDDLE_HD void operator()(W& warp, std::int64_t item, T* memory) const {
    operands.template with_tile<product>(item, product::size, product::columns,
                                         [&](const product& of_rows, std::int64_t row, std::int64_t column) {
                                           of_rows.block(warp, row, column, memory);
                                         });
  }
};
/// As `grouped_weight_tile`.
template <class T, class Out>
struct warp_grouped_weight {
  using product = warp_product<true, false, T, Out>;
  static constexpr int warps = product::warps, blocks = 2;
  static constexpr std::int64_t elements = product::elements;
  grouped_weight_operands<T, Out, float> operands;

  std::int64_t items() const { return operands.items(product::size, product::columns); }
  template <class W>
  HEDDLE_HD void operator()(W& warp, std::int64_t item, T* memory) const {
    operands.template with_tile<product>(item, product::size, product::columns,
                                         [&](const product& of_rows, std::int64_t row, std::int64_t column) {
                                           of_rows.block(warp, row, column, memory);
                                         });
  }
};

/// Whether the kernels above take these operands; matrices of 16 bits begin at addresses of 16 bytes, as their rows do then.
template <class... Address>
bool fits_matrix_products(std::int64_t from_width, std::int64_t to_width, const Address*... at) {
  const auto is_aligned = [](auto* p) { return sizeof(*p) != 2 || reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  return from_width > 0 && to_width > 0 && from_width % 8 == 0 && to_width % 8 == 0 && (is_aligned(at) && ...);
}
/// Launches `body`, whose operands are of T, if T has 16 bits, the device has matrix instructions and they take these operands (`fits`); else
/// nothing is done, and false returned.
template <class T, class L, class Body>
bool multiply_by_matrices(const L& on, const Body& body, bool fits) {
  if constexpr (requires { on.multiplies_matrices(); }) {
    if (!fits || !on.multiplies_matrices()) return false;
    on.template each_item_of_warps<T>(body.items(), body);
    return true;
  } else {
    return false;
  }
}

}  // namespace heddle::inline v0::compute::detail::in_groups
