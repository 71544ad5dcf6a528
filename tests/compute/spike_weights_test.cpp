// Products of weights in 8 bits and rows rounded to counts of spikes: those of spikes one by one, with every kernel and any number of rows.
#include "catch.hpp"
#include "support.hpp"

#include <heddle/compute/host/packed_matrix.hpp>
#include <heddle/compute/spike_weights.hpp>
#include <heddle/core/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace {

namespace spike_cp = heddle::compute;
static_assert(spike_cp::weight_format<spike_cp::spike_weights<>> &&
              spike_cp::rounds_activations<spike_cp::spike_weights<>>);
static_assert(spike_cp::spike_weights<>::block == 128);

template <class T>
heddle::matrix_view<T> spike_view(T* v, std::int64_t rows, std::int64_t columns) {
  return {v, heddle::dynamic_shape<2>(rows, columns)};
}
std::size_t spike_at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

// The row's integers by the definition: in a group with one above 127 multiples of `units` for it.
struct spike_row {
  float threshold = 0;
  std::vector<std::int32_t> integers{};
  std::vector<std::int32_t> units{};
};
spike_row spikes_of_row(const std::vector<float>& x, std::int64_t group, int k) {
  const auto depth = std::ssize(x);
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(std::abs(v));
  spike_row r;
  r.threshold = static_cast<float>(std::clamp(sum / static_cast<double>(depth) / k, 1e-5, 1e4));
  for (std::int64_t first = 0; first < depth; first += group) {
    const std::int64_t end = std::min(depth, first + group);
    std::int32_t unit = 1;
    for (std::int64_t p = first; p < end; ++p)
      while (std::nearbyint(std::abs(x[spike_at(p)] / r.threshold) / static_cast<float>(unit)) > 127) unit *= 2;
    for (std::int64_t p = first; p < end; ++p) {
      const float of = x[spike_at(p)] / r.threshold;
      r.integers.push_back(unit == 1 ? spike_cp::spike_integer(x[spike_at(p)], r.threshold)
                                     : unit * static_cast<std::int32_t>(std::nearbyint(of / static_cast<float>(unit))));
    }
    r.units.push_back(unit);
  }
  return r;
}

template <std::int64_t Group, int K>
void check_spikes(std::int64_t depth, std::int64_t columns, std::uint64_t seed) {
  CAPTURE(Group, K, depth, columns);
  using matrix = spike_cp::packed_matrix<spike_cp::spike_weights<Group, K>>;
  constexpr std::int64_t most = 19;
  spike_cp::team one(1), two(2);
  const heddle::counter_random random(seed, 0);
  std::vector<float> w(spike_at(depth * columns)), x(spike_at(most * depth));
  std::uint64_t draw = 0;
  for (float& v : w) v = static_cast<float>(0.1 * random.normal(draw++));
  for (float& v : x) v = static_cast<float>(2 * random.normal(draw++));
  for (std::int64_t p = 0; p < depth; ++p) x[spike_at(3 * depth + p)] = 0;
  x[spike_at(5 * depth + depth / 2)] = 3000;  // far from the others
  const matrix packed(one, spike_view(w.data(), depth, columns), spike_cp::transpose::no);

  std::vector<float> expected(spike_at(most * columns));
  std::int64_t above = 0, different = 0;
  double worst = 0;
  for (std::int64_t i = 0; i < most; ++i) {
    const std::vector<float> row(x.begin() + i * depth, x.begin() + (i + 1) * depth);
    const spike_row spikes = spikes_of_row(row, Group, K);
    for (const std::int32_t u : spikes.units) above += u > 1;
    std::vector<double> allowed(spike_at(columns), 1e-4), exact(spike_at(columns), 0);
    for (std::int64_t first = 0, b = 0; first < depth; first += Group, ++b) {
      const std::int64_t n = std::min(Group, depth - first);
      const std::span<const std::int32_t> integers(spikes.integers.data() + first, spike_at(n));
      std::vector<std::int8_t> codes;
      for (std::int64_t j = 0; j < columns; ++j)
        for (std::int64_t p = first; p < first + n; ++p) {
          codes.push_back(packed.code(p, j));
          exact[spike_at(j)] += static_cast<double>(row[spike_at(p)]) * packed.weight(p, j);
          allowed[spike_at(j)] += std::abs(packed.weight(p, j)) * static_cast<double>(spikes.threshold) *
                                  spikes.units[spike_at(b)] * 0.5 * (1 + 1e-5);
        }
      std::vector<std::int64_t> sums(spike_at(columns)), bits(sums);
      spike_cp::add_by_spikes<spike_cp::signed_bit_spikes>(codes, integers, sums);
      spike_cp::add_by_spikes<spike_cp::twos_complement_spikes>(codes, integers, bits);
      different += sums != bits;
      for (std::int64_t j = 0; j < columns; ++j) {
        std::int64_t products = 0;
        for (std::int64_t p = 0; p < n; ++p)
          products += std::int64_t{codes[spike_at(j * n + p)]} * integers[spike_at(p)];
        different += products != sums[spike_at(j)];
        float& to = expected[spike_at(i * columns + j)];
        to = std::fma(static_cast<float>(products) * packed.scale(first, j), spikes.threshold, to);
      }
    }
    for (std::int64_t j = 0; j < columns; ++j)
      worst = std::max(worst, std::abs(static_cast<double>(expected[spike_at(i * columns + j)]) - exact[spike_at(j)]) /
                                  allowed[spike_at(j)]);
  }
  CHECK(different == 0);                             // spikes and products of integers
  CHECK(worst <= 1);                                 // half a threshold for each number
  CHECK((depth < 64 || (above > 0 && above <= 2)));  // the one that is far from the others

  std::string wrong;
  for (std::int64_t m = 1; m <= most; ++m) {
    std::vector<float> c(spike_at(m * columns), 7.0f);
    packed.multiply(m % 2 == 0 ? two : one, spike_view<const float>(x.data(), m, depth),
                    spike_view(c.data(), m, columns));
    if (!std::equal(c.begin(), c.end(), expected.begin())) wrong += " " + std::to_string(m);
  }
  CHECK(wrong == "");  // rows
  for (std::int64_t j = 0; j < columns; ++j) different += expected[spike_at(3 * columns + j)] != 0;
  CHECK(different == 0);  // a row of zeros

  // Kernels that are not the fastest here.
  const std::int64_t blocks = (depth + Group - 1) / Group, strips = (columns + 15) / 16;
  std::vector<std::int8_t> codes(spike_at(strips * 16 * blocks * Group));
  std::vector<heddle::bf16> scales(spike_at(strips * 16 * blocks));
  for (std::int64_t j = 0; j < columns; ++j)
    for (std::int64_t p = 0; p < depth; ++p) {
      codes[spike_at(((j / 16 * blocks * Group + p) / 4 * 16 + j % 16) * 4 + p % 4)] = packed.code(p, j);
      scales[spike_at((j / 16 * blocks + p / Group) * 16 + j % 16)] = heddle::bf16(packed.scale(p, j));
    }
  const spike_cp::detail::integer_operand operand{codes.data(), scales.data(), depth, columns};
  using kernels = spike_cp::detail::integer_kernel;
  for (const kernels kernel : {kernels::portable, kernels::avx2, kernels::vnni, kernels::tiles}) {
    if (kernel > spike_cp::detail::fastest_integer_kernel()) continue;
    std::vector<float> c(expected.size(), 7.0f);
    const spike_cp::detail::rounded_rows<Group> rounded(one, most, depth, x.data(),
                                                        &spike_cp::spike_weights<Group, K>::rounding_of);
    spike_cp::detail::multiply_integers<Group>(one, most, rounded, operand, 0.0f, c.data(), kernel);
    CAPTURE(static_cast<int>(kernel));
    CHECK(c == expected);
  }
}

}  // namespace

TEST_CASE("products with weights for spikes are those of spikes one by one, with every kernel and any number of rows",
          "[compute]") {
  const std::uint64_t seed = 5151;
  CAPTURE(seed);
  check_spikes<4, 3>(1, 1, seed);
  check_spikes<4, 2>(96, 17, seed);
  check_spikes<128, 3>(301, 35, seed);
  check_spikes<64, 4>(200, 20, seed);
  check_spikes<32, 32>(75, 18, seed);
}

TEST_CASE("weights for spikes: a row by hand, groups above 127 spikes, limits, and what is not finite stays in its row",
          "[compute]") {
  using format = spike_cp::spike_weights<4, 3>;
  const auto codes_of = [](const std::vector<float>& row, std::int64_t first, float& scale) {
    std::vector<std::int8_t> codes(4);
    std::int32_t sum = 0, all = 0;
    format::rounding_of(row.data(), std::ssize(row))(row.data() + first, codes.data(), &scale, &sum);
    for (const std::int8_t c : codes) all += c;
    CHECK(sum == all);
    return codes;
  };
  using bytes = std::vector<std::int8_t>;
  float scale = 0;
  CHECK(codes_of({1, -2, 2.5f, 6.5f}, 0, scale) == bytes{1, -2, 2, 6});  // a mean of 3: a threshold of 1, ties to even
  CHECK(scale == 1);
  std::vector<float> far(100, 1.0f);
  far[5] = 201;  // a mean of 3 again: 201 spikes are 100 of two
  CHECK(codes_of(far, 0, scale) == bytes{1, 1, 1, 1});
  CHECK(scale == 1);
  CHECK(codes_of(far, 4, scale) == bytes{0, 100, 0, 0});
  CHECK(scale == 2);
  CHECK(codes_of({1e-6f, 0, 2e-5f, 0}, 0, scale) == bytes{0, 0, 2, 0});  // below the least threshold
  CHECK(scale == 1e-5f);
  const float greatest = (std::numeric_limits<float>::max)();
  CHECK(codes_of({greatest, -greatest, 0, 1}, 0, scale)[1] == -codes_of({greatest, -greatest, 0, 1}, 0, scale)[0]);
  CHECK(std::isfinite(scale));

  spike_cp::team one(1);
  constexpr std::int64_t depth = 10, columns = 3, rows = 4;
  const std::vector<float> w = compute_test::between_one(depth * columns, 8);
  std::vector<float> x = compute_test::between_one(rows * depth, 9);
  const spike_cp::packed_matrix<format> packed(one, spike_view(w.data(), depth, columns), spike_cp::transpose::no);
  const auto product = [&] {
    std::vector<float> c(spike_at(rows * columns));
    packed.multiply(one, spike_view<const float>(x.data(), rows, depth), spike_view(c.data(), rows, columns));
    return c;
  };
  const std::vector<float> before = product();
  x[9] = std::numeric_limits<float>::infinity();
  x[spike_at(2 * depth)] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> after = product();
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < after.size(); ++i)
    wrong += i / 3 % 2 == 0 ? !std::isnan(after[i]) : after[i] != before[i];
  CHECK(wrong == 0);
}
