// Weights in storage formats: codes are the nearest ones, products are those with the stored weights, and rows do not depend on each other.
#include "catch.hpp"
#include "support.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/packed_weights.hpp>
#include <heddle/core/random.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace {

namespace hd = heddle;
namespace cp = heddle::compute;
using matrix = hd::matrix_view<const float>;

using compute_test::between_one;

matrix view_of(const std::vector<float>& v, std::int64_t rows, std::int64_t columns) {
  return {v.data(), hd::dynamic_shape<2>(rows, columns)};
}
float at(const std::vector<float>& v, std::int64_t columns, std::int64_t row, std::int64_t column) {
  return v[static_cast<std::size_t>(row * columns + column)];
}

// Each element of x w against a sum in double of the weights that the matrix says it has.
template <class Format>
void check_products(std::int64_t depth, std::int64_t columns, std::uint64_t seed) {
  cp::team one(1), two(2);
  const std::vector<float> w = between_one(depth * columns, seed);
  std::vector<float> across(w.size());
  for (std::int64_t p = 0; p < depth; ++p)
    for (std::int64_t j = 0; j < columns; ++j) across[static_cast<std::size_t>(j * depth + p)] = at(w, columns, p, j);
  const cp::packed_matrix<Format> packed(one, view_of(w, depth, columns), cp::transpose::no);
  const cp::packed_matrix<Format> same(two, view_of(across, columns, depth), cp::transpose::yes);
  const std::int64_t most = 30;
  const std::vector<float> x = between_one(most * depth, seed + 1);
  std::vector<float> all(static_cast<std::size_t>(most * columns));
  packed.multiply(one, view_of(x, most, depth), {all.data(), hd::dynamic_shape<2>(most, columns)});
  double worst = 0;
  for (std::int64_t i = 0; i < most; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0, sizes = 0;
      for (std::int64_t p = 0; p < depth; ++p) {
        const double term = static_cast<double>(at(x, depth, i, p)) * packed.weight(p, j);
        sum += term;
        sizes += std::abs(term);
      }
      const double off = std::abs(static_cast<double>(at(all, columns, i, j)) - sum);
      worst = (std::max)(worst, off / (sizes * static_cast<double>(depth + 2) * 0x1p-24));
    }
  CHECK(worst <= 1);
  for (std::int64_t rows = 1; rows <= 26; ++rows) {
    CAPTURE(rows);
    std::vector<float> few(static_cast<std::size_t>(rows * columns), 2.0f);
    const bool odd = rows % 2 == 1;
    (odd ? same : packed)
        .multiply(odd ? two : one, view_of(x, rows, depth), {few.data(), hd::dynamic_shape<2>(rows, columns)});
    CHECK(few == std::vector<float>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(few.size())));
  }
  std::vector<float> added(static_cast<std::size_t>(columns), 2.0f);
  packed.multiply(one, view_of(x, 1, depth), {added.data(), hd::dynamic_shape<2>(1, columns)}, 0.5f);
  for (std::int64_t j = 0; j < columns; ++j)
    CHECK(std::abs(added[static_cast<std::size_t>(j)] - 1.0f - at(all, columns, 0, j)) <=
          0x1p-22f * (1 + std::abs(at(all, columns, 0, j))));
}

}  // namespace

TEST_CASE("products with packed weights are those with the stored weights", "[compute]") {
  const std::uint64_t seed = 1812;
  CAPTURE(seed);
  for (const auto& [depth, columns] :
       {std::pair(1, 1), std::pair(3, 33), std::pair(32, 31), std::pair(301, 70), std::pair(515, 35)}) {
    CAPTURE(depth, columns);
    check_products<cp::f32_weights>(depth, columns, seed);
    check_products<cp::bf16_weights>(depth, columns, seed);
    check_products<cp::q8_weights<32>>(depth, columns, seed);
  }
}

TEST_CASE("what is added to has the bits of compute::portable, and a product of no depth is zero", "[compute]") {
  const std::uint64_t seed = 23;
  CAPTURE(seed);
  constexpr std::int64_t columns = 37;
  cp::team one(1);
  for (const std::int64_t depth : {0, 40, 301, 700})
    for (const std::int64_t rows : {1, 2, 4, 13, 30})
      for (const float beta : {0.0f, 1.0f, 0.5f}) {
        CAPTURE(depth, rows, beta);
        const std::vector<float> w = between_one(depth * columns, seed), x = between_one(rows * depth, seed + 1);
        std::vector<float> rounded(w);
        for (float& v : rounded) v = hd::bf16(v);
        const std::vector<float> before = between_one(rows * columns, seed + 2);
        const auto packed = [&]<class Format>(Format) {
          std::vector<float> c(before);
          cp::packed_matrix<Format>(one, view_of(w, depth, columns), cp::transpose::no)
              .multiply(one, view_of(x, rows, depth), {c.data(), hd::dynamic_shape<2>(rows, columns)}, beta);
          return c;
        };
        const auto plain = [&](const std::vector<float>& weights) {
          std::vector<float> c(before);
          if (depth == 0)
            for (float& v : c) v *= beta;
          else
            cp::portable::multiply<cp::transpose::no, cp::transpose::no>(
                rows, columns, depth, x.data(), depth, weights.data(), columns, beta, c.data(), columns);
          return c;
        };
        CHECK(packed(cp::f32_weights{}) == plain(w));
        CHECK(packed(cp::bf16_weights{}) == plain(rounded));
        if (depth == 0) CHECK(packed(cp::q8_weights<32>{}) == plain(w));
      }
}

namespace {
// Wrong elements of products with strips of vectors of `Bytes`, which the machine may have wider ones than.
template <int Bytes, bool Scaled, class Code>
std::int64_t wrong_products(std::int64_t depth, std::int64_t columns, std::int64_t block) {
  using tile = cp::detail::gemm_tile<float, Bytes>;
  constexpr std::int64_t width = tile::columns, together = cp::detail::codes_per_word<Code>;
  const std::int64_t words = (depth + together - 1) / together, blocks = (depth + block - 1) / block;
  const std::int64_t strips = (columns + width - 1) / width;
  const hd::counter_random random(11, 2);
  std::uint64_t n = 0;
  const auto whole = [&](int low, int high) {
    return static_cast<int>(random.integer(n++) % static_cast<std::uint64_t>(high - low + 1)) + low;
  };
  std::vector<Code> codes(static_cast<std::size_t>(strips * width * words * together));
  std::vector<float> scales(static_cast<std::size_t>(strips * width * blocks));
  for (Code& c : codes)
    if constexpr (Scaled)
      c = static_cast<Code>(whole(-127, 127));
    else
      c = Code(static_cast<float>(whole(-32, 32)));
  for (float& s : scales) s = static_cast<float>(whole(1, 8)) / 8;
  std::int64_t wrong = 0;
  for (const std::int64_t m : {1, 2, 3, 6, 9, 13, 16, 17, 30}) {
    std::vector<float> x(static_cast<std::size_t>(m * depth)), c(static_cast<std::size_t>(m * columns), 1.0f);
    for (float& v : x) v = static_cast<float>(whole(-8, 8));
    std::vector<float> a(static_cast<std::size_t>(cp::detail::packed_rows_size<tile>(m, depth)));
    cp::detail::pack_rows<tile, Code>(0, m, depth, x.data(), a.data());
    const cp::detail::packed_operand<Code> w{codes.data(), scales.data(), depth, columns, block};
    cp::detail::multiply_strips<tile, Scaled>(m, a.data(), w, 0, strips, 0.5f, c.data());
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < columns; ++j) {
        double sum = 0.5;  // of whole numbers and eighths below 2^20: exact in float
        for (std::int64_t p = 0; p < depth; ++p) {
          const std::int64_t place = ((j / width * words + p / together) * width + j % width) * together + p % together;
          double v = static_cast<double>(static_cast<float>(codes[static_cast<std::size_t>(place)]));
          if (Scaled)
            v *= static_cast<double>(
                scales[static_cast<std::size_t>((j / width * blocks + p / block) * width + j % width)]);
          sum += static_cast<double>(at(x, depth, i, p)) * v;
        }
        wrong += sum != static_cast<double>(at(c, columns, i, j));
      }
  }
  return wrong;
}
template <int Bytes>
void check_width() {
  if (cp::detail::gemm_vector_bytes() < Bytes) return;
  for (const auto& [depth, columns] : {std::pair(3, 33), std::pair(301, 70)}) {
    CAPTURE(Bytes, depth, columns);
    CHECK(wrong_products<Bytes, false, float>(depth, columns, 256) == 0);
    CHECK(wrong_products<Bytes, false, hd::bf16>(depth, columns, 256) == 0);
    CHECK(wrong_products<Bytes, true, std::int8_t>(depth, columns, 32) == 0);
  }
}
}  // namespace

TEST_CASE("products are right with vectors of all widths that the machine has", "[compute]") {
  check_width<16>();
#if defined(__x86_64__)
  check_width<32>();
  check_width<64>();
#endif
}

TEST_CASE("codes of 8 bits are the nearest ones, and a block's greatest weight has code 127", "[compute]") {
  const std::uint64_t seed = 77;
  CAPTURE(seed);
  constexpr std::int64_t depth = 83, columns = 5, block = 16;
  cp::team one(1);
  std::vector<float> w = between_one(depth * columns, seed);
  for (std::int64_t p = 0; p < block; ++p) w[static_cast<std::size_t>(p * columns + 4)] = 0;  // one block of zeros
  const cp::packed_matrix<cp::q8_weights<block>> packed(one, view_of(w, depth, columns), cp::transpose::no);
  std::int64_t not_nearest = 0, out_of_bound = 0, wrong_scales = 0;
  for (std::int64_t j = 0; j < columns; ++j)
    for (std::int64_t first = 0; first < depth; first += block) {
      float greatest = 0;
      int code = 0;
      for (std::int64_t p = first; p < (std::min)(depth, first + block); ++p) {
        const double x = static_cast<double>(at(w, columns, p, j));
        if (std::abs(at(w, columns, p, j)) > greatest) {
          greatest = std::abs(at(w, columns, p, j));
          code = std::abs(int{packed.code(p, j)});
        }
        const double scale = static_cast<double>(packed.scale(p, j)), off = std::abs(packed.weight(p, j) - x);
        for (int other = -127; other <= 127; ++other) not_nearest += std::abs(scale * other - x) < off;
        out_of_bound += off > scale / 2 * (1 + 1e-6);
      }
      wrong_scales += packed.scale(first, j) != static_cast<float>(static_cast<double>(greatest) / 127.0);
      wrong_scales += code != (greatest > 0 ? 127 : 0);
    }
  CHECK(not_nearest == 0);
  CHECK(out_of_bound == 0);
  CHECK(wrong_scales == 0);
  CHECK(cp::q8_scale{1.0f}.code(2.5f) == 2);  // ties to even
  CHECK(cp::q8_scale{1.0f}.code(-3.5f) == -4);
  CHECK(packed.bytes() == 32 * (84 + 6 * 4) / (32 / (cp::detail::gemm_vector_bytes() / 2)));
  w[7] = std::numeric_limits<float>::infinity();
  try {
    const cp::packed_matrix<cp::q8_weights<block>> refused(one, view_of(w, depth, columns), cp::transpose::no);
    FAIL("weights that are not finite have no codes");
  } catch (const hd::layout_error& e) {
    CHECK(std::string(e.what()).find("must be finite, got inf") != std::string::npos);
  }
}

TEST_CASE("a part of a matrix has the codes of the whole where blocks align", "[compute]") {
  const std::uint64_t seed = 5;
  CAPTURE(seed);
  constexpr std::int64_t depth = 64, columns = 48;
  cp::team one(1);
  const std::vector<float> w = between_one(depth * columns, seed);  // as [columns, depth]
  using q8 = cp::q8_weights<16>;
  const cp::packed_matrix<q8> whole(one, view_of(w, columns, depth), cp::transpose::yes);
  std::int64_t different = 0;
  for (std::int64_t part = 0; part < 2; ++part) {
    // Outputs split: the upper or the lower rows as they lie. Inputs split: half of each row.
    const cp::packed_matrix<q8> of_columns(
        one, {w.data() + part * columns / 2 * depth, hd::dynamic_shape<2>(columns / 2, depth)}, cp::transpose::yes);
    std::vector<float> half;
    for (std::int64_t j = 0; j < columns; ++j)
      for (std::int64_t p = 0; p < depth / 2; ++p) half.push_back(at(w, depth, j, part * depth / 2 + p));
    const cp::packed_matrix<q8> of_rows(one, view_of(half, columns, depth / 2), cp::transpose::yes);
    for (std::int64_t p = 0; p < depth; ++p)
      for (std::int64_t j = 0; j < columns / 2; ++j)
        different += of_columns.code(p, j) != whole.code(p, part * columns / 2 + j) ||
                     of_columns.scale(p, j) != whole.scale(p, part * columns / 2 + j);
    for (std::int64_t p = 0; p < depth / 2; ++p)
      for (std::int64_t j = 0; j < columns; ++j)
        different += of_rows.code(p, j) != whole.code(part * depth / 2 + p, j) ||
                     of_rows.scale(p, j) != whole.scale(part * depth / 2 + p, j);
  }
  CHECK(different == 0);
}

TEST_CASE("a backend packs the weights it was told of and no others", "[compute]") {
  const std::uint64_t seed = 9;
  CAPTURE(seed);
  constexpr std::int64_t depth = 300, columns = 40, rows = 3;
  using f32_backend = cp::packed_weights<cp::host<>, cp::f32_weights>;
  using bf16_backend = cp::packed_weights<cp::host<>, cp::bf16_weights>;
  f32_backend exact{2};
  bf16_backend rounding{1};
  cp::host<> plain{1};
  const std::vector<float> w = between_one(depth * columns, seed), x = between_one(rows * depth, seed + 1);
  const auto product = [&](auto& backend, const std::vector<float>& weights) {
    std::vector<float> y(static_cast<std::size_t>(rows * columns));
    cp::matmul<cp::transpose::no, cp::transpose::yes>(
        backend, view_of(x, rows, depth), view_of(weights, columns, depth),
        hd::matrix_view<float>(y.data(), hd::dynamic_shape<2>(rows, columns)));
    return y;
  };
  const auto expected = product(plain, w);
  CHECK(product(exact, w) == expected);
  CHECK(exact.packed_bytes() == 0);
  exact.pack(w);
  CHECK(product(exact, w) == expected);  // the bits of compute::portable
  CHECK(exact.packed_bytes() >= depth * columns * 4);
  rounding.pack({}, w);
  std::vector<float> rounded(w);
  for (float& one : rounded) one = hd::bf16(one);
  CHECK(product(rounding, w) == product(plain, rounded));
  CHECK(product(rounding, rounded) == product(plain, rounded));  // not among the weights: as it is
  CHECK(product(rounding, w) != expected);

  // Experts: one packed matrix each, also where one gets no rows.
  std::vector<float> y(static_cast<std::size_t>(rows * 20)), z(y.size());
  const std::vector<std::int64_t> offsets{0, 2, 2, 3};
  const std::vector<float> stacked = between_one(3 * depth * 20, seed + 2);
  std::vector<float> stacked_rounded(stacked);
  for (float& one : stacked_rounded) one = hd::bf16(one);
  rounding.pack(stacked);
  const auto stack = [&](const std::vector<float>& v) {
    return hd::view<const float, hd::dynamic_shape<3>>(v.data(), hd::dynamic_shape<3>(3, depth, 20));
  };
  const hd::dynamic_shape<2> shape(rows, 20);
  cp::grouped_matmul(rounding, view_of(x, rows, depth), offsets, stack(stacked),
                     hd::matrix_view<float>(y.data(), shape));
  cp::grouped_matmul(plain, view_of(x, rows, depth), offsets, stack(stacked_rounded),
                     hd::matrix_view<float>(z.data(), shape));
  CHECK(y == z);
}

TEST_CASE("grouped products with packed weights refuse offsets and sizes as those with stored weights do",
          "[compute][error]") {
  const std::vector<float> w = compute_test::normal<float>(8, 1), x = compute_test::normal<float>(6, 2);
  std::vector<float> y(6);
  cp::packed_weights<cp::host<>, cp::f32_weights> packed{1};
  cp::host<> plain{1};
  packed.pack(w);
  const cp::stack_view<const float> experts{w.data(), hd::dynamic_shape<3>(2, 2, 2)};
  const auto text = [&](auto& backend, const std::vector<std::int64_t>& offsets, std::int64_t rows_of_y) {
    try {
      cp::grouped_matmul(backend, view_of(x, 3, 2), std::span<const std::int64_t>(offsets), experts,
                         hd::matrix_view<float>{y.data(), hd::dynamic_shape<2>(rows_of_y, 2)});
    } catch (const hd::layout_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  for (const std::vector<std::int64_t>& offsets :
       {std::vector<std::int64_t>{0, 2, 5}, {0, 4, 2}, {0, 3}, {0, 1, 2, 3}, {0, 2, 3}})
    for (const std::int64_t rows : {3, 2}) {
      CAPTURE(offsets, rows);
      CHECK(text(packed, offsets, rows) == text(plain, offsets, rows));
      CHECK(text(packed, offsets, rows).empty() == (rows == 3 && offsets == std::vector<std::int64_t>{0, 2, 3}));
    }
}
