// Products of weights and activations in 8 bits: every kernel has the bits of a serial reference, for any rows beside a row.
#include "catch.hpp"
#include "support.hpp"

#include <heddle/compute/host/packed_matrix.hpp>
#include <heddle/core/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace {

namespace hd = heddle;
namespace cp = heddle::compute;

using compute_test::between_one;

template <class T>
hd::matrix_view<T> view_of(T* v, std::int64_t rows, std::int64_t columns) {
  return {v, hd::dynamic_shape<2>(rows, columns)};
}
std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

// A row of x in 8 bits, by the definition.
struct rounded_row {
  std::vector<int> codes{};
  std::vector<float> scales{};
};
rounded_row round_row(const float* x, std::int64_t depth, std::int64_t block) {
  rounded_row r;
  for (std::int64_t first = 0; first < depth; first += block) {
    float greatest = 0;
    for (std::int64_t p = first; p < (std::min)(depth, first + block); ++p)
      greatest = (std::max)(greatest, std::abs(x[p]));
    r.scales.push_back(greatest / 127.0f);
    const float inverse = 127.0f / greatest;
    for (std::int64_t p = first; p < (std::min)(depth, first + block); ++p)
      r.codes.push_back(greatest == 0 ? 0 : static_cast<int>(std::nearbyint(x[p] * inverse)));
  }
  return r;
}

template <std::int64_t Block>
void check(std::int64_t depth, std::int64_t columns, std::uint64_t seed) {
  CAPTURE(Block, depth, columns);
  using matrix = cp::packed_matrix<cp::w8a8_weights<Block>>;
  constexpr std::int64_t most = 41;
  cp::team one(1), two(2);
  const std::vector<float> w = between_one(depth * columns, seed), x = between_one(most * depth, seed + 1);
  std::vector<float> across(w.size());
  for (std::int64_t p = 0; p < depth; ++p)
    for (std::int64_t j = 0; j < columns; ++j) across[at(j * depth + p)] = w[at(p * columns + j)];
  const matrix packed(one, view_of(w.data(), depth, columns), cp::transpose::no);
  const matrix same(two, view_of(across.data(), columns, depth), cp::transpose::yes);

  std::vector<float> expected(at(most * columns));
  double worst = 0;
  for (std::int64_t i = 0; i < most; ++i) {
    const rounded_row row = round_row(x.data() + i * depth, depth, Block);
    for (std::int64_t j = 0; j < columns; ++j) {
      float sum = 0;
      double exact = 0, allowed = 0;
      for (std::int64_t b = 0; b * Block < depth; ++b) {
        std::int32_t part = 0;
        for (std::int64_t p = b * Block; p < (std::min)(depth, (b + 1) * Block); ++p) {
          part += row.codes[at(p)] * packed.code(p, j);
          const double v = static_cast<double>(x[at(i * depth + p)]), u = static_cast<double>(w[at(p * columns + j)]);
          const double off_v = static_cast<double>(row.scales[at(b)]) / 2, off_u = packed.scale(p, j) / 2.0;
          exact += v * u;
          allowed += (std::abs(v) * off_u + std::abs(u) * off_v + off_u * off_v) * (1 + 1e-5);
        }
        const float scaled = static_cast<float>(part) * packed.scale(b * Block, j);
        sum = std::fma(scaled, row.scales[at(b)], sum);
      }
      expected[at(i * columns + j)] = sum;
      worst = (std::max)(worst, std::abs(static_cast<double>(sum) - exact) / (allowed + 1e-6));
    }
  }
  CHECK(worst <= 1);  // half a scale for each factor

  // The operand as the kernels read it, whatever kernel is the fastest here.
  const std::int64_t blocks = (depth + Block - 1) / Block, strips = (columns + 15) / 16;
  std::vector<std::int8_t> codes(at(strips * 16 * blocks * Block));
  std::vector<hd::bf16> scales(at(strips * 16 * blocks));
  for (std::int64_t j = 0; j < columns; ++j)
    for (std::int64_t p = 0; p < depth; ++p) {
      codes[at(((j / 16 * blocks * Block + p) / 4 * 16 + j % 16) * 4 + p % 4)] = packed.code(p, j);
      scales[at((j / 16 * blocks + p / Block) * 16 + j % 16)] = hd::bf16(packed.scale(p, j));
    }
  const cp::detail::integer_operand operand{codes.data(), scales.data(), depth, columns};
  int kernels = 0;
  for (const auto kernel : {cp::detail::integer_kernel::portable, cp::detail::integer_kernel::avx2,
                            cp::detail::integer_kernel::vnni, cp::detail::integer_kernel::tiles}) {
    if (kernel > cp::detail::fastest_integer_kernel()) continue;
    std::string wrong;
    for (std::int64_t m = 1; m <= most; m += m < 18 ? 1 : 23) {
      std::vector<float> c(at(m * columns), 7.0f);
      cp::detail::multiply_integers<Block>(m % 2 == 0 ? two : one, m, x.data(), operand, 0.0f, c.data(), kernel);
      if (!std::equal(c.begin(), c.end(), expected.begin())) wrong += " " + std::to_string(m);
    }
    CAPTURE(static_cast<int>(kernel));
    CHECK(wrong == "");  // rows
    ++kernels;
  }
  CHECK(kernels == 1 + static_cast<int>(cp::detail::fastest_integer_kernel()));

  std::vector<float> c(at(most * columns)), added(at(columns), 2.0f);
  same.multiply(two, view_of(x.data(), most, depth), view_of(c.data(), most, columns));
  CHECK(c == expected);
  packed.multiply(one, view_of(x.data(), 1, depth), view_of(added.data(), 1, columns), 0.5f);
  std::int64_t wrong = 0;
  for (std::int64_t j = 0; j < columns; ++j) wrong += added[at(j)] != expected[at(j)] + 1.0f;
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("integer products have the bits of the serial reference, with every kernel and any number of rows",
          "[compute]") {
  const std::uint64_t seed = 2718;
  CAPTURE(seed);
  for (const auto& [depth, columns] : {std::pair(1, 1), std::pair(96, 17), std::pair(301, 70)}) {
    check<4>(depth, columns, seed);
    check<32>(depth, columns, seed);
    check<64>(depth, columns, seed);
  }
  check<96>(301, 70, seed);
  check<16>(301, 35, seed);
}

TEST_CASE("rows are rounded alike by vectors of all widths, and what is not finite stays in its row", "[compute]") {
  const std::uint64_t seed = 31;
  CAPTURE(seed);
  constexpr std::int64_t depth = 75, columns = 20, rows = 18;
  cp::team one(1);
  std::vector<float> x = between_one(rows * depth, seed);
  const std::vector<float> w = between_one(depth * columns, seed + 1);
  for (std::int64_t p = 0; p < 40; ++p) x[at(2 * depth + p)] = static_cast<float>(p % 9) * 0.5f;  // ties
  const auto product = [&](const std::vector<float>& of) {
    std::vector<float> c(at(rows * columns));
    cp::packed_matrix<cp::w8a8_weights<32>>(one, view_of(w.data(), depth, columns), cp::transpose::no)
        .multiply(one, view_of(of.data(), rows, depth), view_of(c.data(), rows, columns));
    return c;
  };
  const std::vector<float> finite = product(x);
  for (std::int64_t p = 0; p < depth; ++p) x[at(5 * depth + p)] = 0, x[at(6 * depth + p)] = 0x1p-120f;
  x[at(3 * depth + 70)] = std::numeric_limits<float>::infinity();
  x[at(4 * depth + 1)] = -std::numeric_limits<float>::quiet_NaN();
  x[at(17 * depth + 33)] = -std::numeric_limits<float>::infinity();
  const std::vector<float> found = product(x);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      const float f = found[at(i * columns + j)];
      if (i == 3 || i == 4 || i == 17)
        wrong += !std::isnan(f);
      else
        wrong += f != (i == 5 || i == 6 ? 0.0f : finite[at(i * columns + j)]);
    }
  CHECK(wrong == 0);

  const cp::detail::rounded_rows<32> plain(one, rows, depth, x.data(), 16);
  for (const int bytes : {32, 64}) {
    if (cp::detail::gemm_vector_bytes() < bytes) continue;
    const cp::detail::rounded_rows<32> by_vectors(one, rows, depth, x.data(), bytes);
    std::int64_t different = 0;
    for (std::int64_t r = 0; r < 32; ++r)
      for (std::int64_t b = 0; b < plain.blocks(); ++b) {
        const std::int64_t next = b * plain.high();
        different += std::memcmp(plain.codes(r) + next * 32, by_vectors.codes(r) + next * 32, 32) != 0;
        different += std::memcmp(plain.scales(r) + next, by_vectors.scales(r) + next, 4) != 0;
        different += plain.sums(r)[next] != by_vectors.sums(r)[next];
      }
    CAPTURE(bytes);
    CHECK(different == 0);
  }
}

TEST_CASE("scales of weights for integer products are bf16, not below those in float", "[compute]") {
  const std::uint64_t seed = 12;
  CAPTURE(seed);
  constexpr std::int64_t depth = 70, columns = 19;
  cp::team one(1);
  std::vector<float> w = between_one(depth * columns, seed);
  for (std::int64_t p = 0; p < 32; ++p) w[at(p * columns + 4)] = 0;  // a block of zeros
  const cp::packed_matrix<cp::w8a8_weights<32>> packed(one, view_of(w.data(), depth, columns), cp::transpose::no);
  std::int64_t wrong = 0;
  for (std::int64_t j = 0; j < columns; ++j)
    for (std::int64_t p = 0; p < depth; ++p) {
      const std::int64_t first = p / 32 * 32;
      const float scale = packed.scale(p, j),
                  least = cp::q8_scale_of(w.data() + first * columns + j, (std::min)(std::int64_t{32}, depth - first),
                                          columns)
                              .scale;
      wrong += scale != static_cast<float>(hd::bf16(scale)) || scale < least || scale > least * (1 + 0x1p-7f);
      wrong += std::abs(packed.weight(p, j) - static_cast<double>(w[at(p * columns + j)])) >
               static_cast<double>(scale) / 2 * (1 + 1e-6);
    }
  CHECK(wrong == 0);
  CHECK(packed.bytes() == 2 * 16 * 3 * (32 + 2));  // two strips of 16 columns, three blocks
  CHECK(cp::q8_scale{1.0f}.rounded_up_to_bf16().scale == 1.0f);
  CHECK(cp::q8_scale{std::nextafter(1.0f, 2.0f)}.rounded_up_to_bf16().scale == 1.0f + 0x1p-7f);
}
