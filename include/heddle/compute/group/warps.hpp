// heddle/compute/group/warps.hpp: warp instructions, and tiles of 16-bit elements for them.
//
// Bodies take a warp `w` of a block. A value that every lane has of its own is `registers<E, N>`: `x(lane, i)` is register i of a lane, and
// `w.each_lane(f)` calls f(lane). On a GPU a thread is a lane and calls f once; on the host one thread has all 32 lanes, so that a body is
// run there with the layouts that the PTX ISA gives to fragments. Of a warp:
// - `index()`: its number in the block; `sync()`: all warps of the block wait for each other; `sync_lanes()`: the lanes of this one do;
// - `copy(to, from, is_there)`: 16 bytes into the block's memory, zeros if they are not there, without waiting (`cp.async`); `copy_number`: 4 bytes, of
//   float; `commit()` ends a group of copies, `wait<N>()` waits until no more than the last N groups of this thread are under way;
// - `load_matrices<Transposed>(x, memory, at, turn, step)`: four matrices of 8 x 8 elements, whose row r of matrix m begins at memory[(at(8 m + r) ^ turn) + step]
//   (`ldmatrix.x4`). Lane l has elements 2 (l % 4) and the next of row l / 4 of matrix m in register m; transposed, of column l / 4. `memory` lies so that bits of
//   `turn` are not set in its address, in elements: loads whose `at` is the same share it in a register;
// - `multiply_add<T>(c, a, b, half)`: c[16, 8] += a[16, 16] b[16, 8] in float, b in registers 2 half and 2 half + 1 (`mma.m16n8k16`). Lane l has, with g = l / 4 and
//   t = 2 (l % 4): of a rows g (registers 0 and 2) and g + 8 (1 and 3), columns t, t + 1 (0 and 1) and 8 more (2 and 3); of b rows t, t + 1 and 8 more of column
//   g; of c rows g (numbers 0 and 1) and g + 8 (2 and 3), columns t and t + 1;
// - `packed<T>(x, y)`: two floats rounded to T, x in the lower half; `over_quads(x, op)`: each register combined over lanes 4 i to 4 i + 3; `over_lanes(x, op)`: over all lanes;
//   `any(x)`: whether a register of any lane is not 0;
// - `forget()`, `forget(x)`: addresses, of lanes or that depend on x, are computed anew behind it, where compilers would keep them in registers through a loop; `power_of_two(x)`: 2^x; `reciprocal(x)`: 1 / x; `store(to, from)`: 16 bytes from the block's memory.
// Source: PTX ISA 9.0, sections 9.7.15.5 (fragments of mma.m16n8k16, ldmatrix) and 9.7.9.25 (cp.async).
#pragma once

#include <heddle/core/config.hpp>

#include <cstdint>
#include <utility>

namespace heddle::inline v0::compute::detail::in_groups {

/// Lanes of a warp.
inline constexpr int warp_lanes = 32;

template <class W, class E, int N>
using registers_of = typename W::template registers<E, N>;

/// An integer that is known when code is compiled; `std::integral_constant` converts on the host alone.
template <int Index>
struct constant {
  HEDDLE_HD constexpr operator int() const { return Index; }
};
/// f(0), ..., f(N - 1), each with a constant: arrays that it indexes stay in registers.
template <int N, class F>
HEDDLE_HD void each_constant(const F& f) {
  [&]<int... Index>(std::integer_sequence<int, Index...>) {
    (f(constant<Index>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

/// Rows of `Width` elements of 16 bits in the memory of a block. Chunks of 16 bytes change places within a row, by a rule that depends on the row, so
/// that eight rows' chunks of one column, and a row's chunks, are in different banks.
template <class T, int Width>
struct swizzled_tile {
  static_assert(sizeof(T) == 2 && Width % 16 == 0, "heddle: tiles have rows of a multiple of 16 elements of 16 bits");
  static constexpr int chunks = Width / 8;
  static constexpr int together = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : 2;  // chunks that change places
  T* data;

  HEDDLE_HD static int at(int row, int chunk) { return at(0, row, 0, chunk); }
  /// Of row first_row + row and chunk first + chunk, where 16 divides first_row, 2 divides first and chunk is 0 or 1, or both firsts are 0. What is first
  /// adds a constant, but for a few places of `first`: compilers keep few addresses.
  HEDDLE_HD static int at(int first_row, int row, int first, int chunk) {
    constexpr int same = 8 / together;  // rows of one order
    return first_row * Width + first / together * together * 8 + row * Width +
           ((first % together + chunk) ^ (row / same % together)) * 8;
  }
  /// Chunk first + chunk of a row is at (at(row, chunk) ^ turn(first)) + step(first), where 2 divides first and chunk is 0 or 1.
  HEDDLE_HD static constexpr int turn(int first) { return first % together * 8; }
  HEDDLE_HD static constexpr int step(int first) { return first / together * together * 8; }
};

/// The left operand of a product: rows [row, row + 16) and columns [16 k, 16 k + 16) of a tile. 16 divides `row` here and below.
template <class W, class T, int Width>
HEDDLE_HD void load_left(W& w, registers_of<W, std::uint32_t, 4>& x, const swizzled_tile<T, Width>& from, int row,
                         int k) {
  using tile = swizzled_tile<T, Width>;
  w.template load_matrices<false>(
      x, from.data, [](int l) { return tile::at(l % 16, l / 16); }, tile::turn(2 * k), row * Width + tile::step(2 * k));
}
/// The right operands of two products with the transpose of a tile: its rows [row, row + 16) are columns, its columns [16 k, 16 k + 16) terms.
template <class W, class T, int Width>
HEDDLE_HD void load_right_transposed(W& w, registers_of<W, std::uint32_t, 4>& x, const swizzled_tile<T, Width>& from,
                                     int row, int k) {
  using tile = swizzled_tile<T, Width>;
  w.template load_matrices<false>(
      x, from.data, [](int l) { return tile::at(l % 8 + l / 16 * 8, l / 8 % 2); }, tile::turn(2 * k),
      row * Width + tile::step(2 * k));
}
/// The right operands of two products with a tile: its rows [row, row + 16) are terms, its columns [16 n, 16 n + 16) columns.
template <class W, class T, int Width>
HEDDLE_HD void load_right(W& w, registers_of<W, std::uint32_t, 4>& x, const swizzled_tile<T, Width>& from, int row,
                          int n) {
  using tile = swizzled_tile<T, Width>;
  w.template load_matrices<true>(
      x, from.data, [](int l) { return tile::at(l % 16, l / 16); }, tile::turn(2 * n), row * Width + tile::step(2 * n));
}

/// Sums of a warp: `Down` times 16 rows of 8 `Across` columns.
template <class W, int Down, int Across>
struct warp_sums {
  registers_of<W, float, 4> x[Down][Across];

  HEDDLE_HD void clear(W& w) {
    each_constant<Down>([&](auto m) {
      each_constant<Across>([&](auto n) {
        w.each_lane([&](int l) {
          for (int i = 0; i < 4; ++i) x[m][n](l, i) = 0.0f;
        });
      });
    });
  }
};

/// sums += a b', with a rows [row, row + 16 Down) of a tile and b the rows of another.
template <class W, int Down, int Across, class T, int Width>
HEDDLE_HD void add_product_of_rows(W& w, warp_sums<W, Down, Across>& sums, const swizzled_tile<T, Width>& a, int row,
                                   const swizzled_tile<T, Width>& b) {
  static_assert(Across % 2 == 0, "heddle: two products share what is loaded");
  w.forget();
  const swizzled_tile<T, Width> rows{a.data + row * Width};
  each_constant<Width / 16>([&](auto k) {
    registers_of<W, std::uint32_t, 4> left[Down];
    each_constant<Down>([&](auto m) { load_left(w, left[m], rows, 16 * m, k); });
    each_constant<Across / 2>([&](auto n) {
      registers_of<W, std::uint32_t, 4> right;
      load_right_transposed(w, right, b, 16 * n, k);
      each_constant<Down>([&](auto m) {
        w.template multiply_add<T>(sums.x[m][2 * n], left[m], right, 0);
        w.template multiply_add<T>(sums.x[m][2 * n + 1], left[m], right, 1);
      });
    });
  });
}
/// sums += shares b, with shares rounded to T and b a tile. Sums of a warp are laid out as left operands of products are.
template <class W, int Down, int Across, int Terms, class T, int Width>
HEDDLE_HD void add_product(W& w, warp_sums<W, Down, Across>& sums, const warp_sums<W, Down, Terms>& shares,
                           const swizzled_tile<T, Width>& b) {
  static_assert(Across == Width / 8 && Terms % 2 == 0, "heddle: the sums should have the columns of the tile");
  w.forget();
  each_constant<Terms / 2>([&](auto k) {
    registers_of<W, std::uint32_t, 4> left[Down];
    each_constant<Down>([&](auto m) {
      w.each_lane([&](int l) {
        for (int i = 0; i < 4; ++i) {
          const auto& from = shares.x[m][2 * k + i / 2];
          left[m](l, i) = w.template packed<T>(from(l, 2 * (i % 2)), from(l, 2 * (i % 2) + 1));
        }
      });
    });
    each_constant<Across / 2>([&](auto n) {
      registers_of<W, std::uint32_t, 4> right;
      load_right(w, right, b, 16 * k, n);
      each_constant<Down>([&](auto m) {
        w.template multiply_add<T>(sums.x[m][2 * n], left[m], right, 0);
        w.template multiply_add<T>(sums.x[m][2 * n + 1], left[m], right, 1);
      });
    });
  });
}

/// Copies `Rows` rows into a tile by all `Warps` warps, without waiting: row i from where at(i) points to, for i < rows and the first `columns` columns (a
/// multiple of 8); zeros elsewhere, where nothing is read. `RowsAt`: `strided_rows`, or what else has rows by number.
template <int Warps, int Rows, class W, class T, int Width, class RowsAt>
HEDDLE_HD void copy_rows(W& w, const swizzled_tile<T, Width>& to, int rows, int columns, const RowsAt& from) {
  using tile = swizzled_tile<T, Width>;
  // Lanes lie so that all chunks of one have the same place among those that change places: their addresses differ by constants.
  constexpr int down = Warps * warp_lanes / tile::together, groups = tile::chunks / tile::together;
  static_assert(Rows % down == 0 && down % 8 == 0, "heddle: every lane copies as many chunks");
  w.forget();
  w.each_lane([&](int l) {
    const unsigned thread = static_cast<unsigned>(w.index() * warp_lanes + l), together = tile::together;
    const int row = static_cast<int>(thread / together), chunk = static_cast<int>(thread % together);
    T* const begin = to.data + tile::at(row, chunk);
    auto at = from.begin(row, down);
    each_constant<Rows / down>([&](auto i) {
      const T* const of_row = at.next();
      each_constant<groups>([&](auto j) {
        const int column = 8 * (chunk + tile::together * j);
        const bool is_there = row + down * i < rows && column < columns;
        w.copy(begin + down * i * Width + 8 * tile::together * j, of_row + column, is_there);
      });
    });
  });
}
/// Rows that are `stride` elements apart, from number `row` on. A stride of 32 bits takes one instruction where one of 64 takes four.
template <class T, class Stride = std::int64_t>
struct strided_rows {
  const T* first;
  Stride stride;
  int row = 0;
  struct each {
    const T* at;
    std::int64_t step;
    HEDDLE_HD const T* next() {
      const T* const now = at;
      at += step;
      return now;
    }
  };
  HEDDLE_HD each begin(int i, int step) const {
    return {first + static_cast<std::int64_t>(row + i) * stride, static_cast<std::int64_t>(step) * stride};
  }
};
/// Stores sums times factor(m, lane, i), rounded to T, through rows [row, row + 16 Down) of a tile that no other warp uses: row r to where row_at(r) points
/// to, for rows below `rows` and the first `columns` columns.
template <class W, int Down, int Across, class T, int Width, class Factor, class F>
HEDDLE_HD void store_sums(W& w, const warp_sums<W, Down, Across>& sums, const swizzled_tile<T, Width>& through, int row,
                          int rows, int columns, const Factor& factor, const F& row_at) {
  constexpr int chunks = swizzled_tile<T, Width>::chunks;
  w.sync_lanes();
  each_constant<Down>([&](auto m) {
    each_constant<Across>([&](auto n) {
      w.each_lane([&](int l) {
        for (int i = 0; i < 2; ++i) {
          const float f = factor(m, l, i);
          T* const to = through.data + through.at(row + 16 * m + l / 4 + 8 * i, n) + 2 * (l % 4);
          const auto& x = sums.x[m][n];
          w.store_pair(to, w.template packed<T>(x(l, 2 * i) * f, x(l, 2 * i + 1) * f));
        }
      });
    });
  });
  w.sync_lanes();
  static_assert(16 * Down * chunks % warp_lanes == 0);
  each_constant<16 * Down * chunks / warp_lanes>([&](auto i) {
    w.each_lane([&](int l) {
      const int e = i * warp_lanes + l, r = row + e / chunks, chunk = e % chunks;
      if (r < rows && 8 * chunk < columns) w.store(row_at(r) + 8 * chunk, through.data + through.at(r, chunk));
    });
  });
}

}  // namespace heddle::inline v0::compute::detail::in_groups
