#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/layout/merge_monoids.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace hd = heddle;
namespace hc = heddle::compute;

namespace {

constexpr std::int64_t rows = 5, heads = 3, dim = 4, out_stride = heads * dim + 2;
constexpr double nothing = -std::numeric_limits<double>::infinity();

// Attention to some keys of one number each: outputs with a stride, and lse by heads, as kernels write it.
struct partial {
  std::vector<double> out = std::vector<double>(rows * out_stride, 0), lse = std::vector<double>(rows * heads, nothing);
  hc::head_rows<double> values() { return {out.data(), rows, heads, dim, out_stride}; }
  hc::head_numbers<double> numbers() { return {lse.data(), rows, heads, 1, rows}; }
  friend bool operator==(const partial&, const partial&) = default;
};

partial random_partial(std::mt19937& random, double scale = 1) {
  std::normal_distribution<double> normal;
  partial p;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t h = 0; h < heads; ++h) {
      if (random() % 5 == 0) continue;  // no keys
      *p.numbers().at(r, h) = scale * normal(random);
      for (std::int64_t i = 0; i < dim; ++i) p.values().row(r, h)[i] = normal(random);
    }
  return p;
}

partial merged(partial a, partial b, int threads = 1) {
  hc::host<> backend(threads);
  merge_partials(backend, a.values(), a.numbers(), hc::head_rows<const double>(b.values()),
                 hc::head_numbers<const double>(b.numbers()));
  return a;
}

// Outputs and the exponentials of lse, relative to numbers above 1.
double distance(partial a, partial b) {
  double worst = 0;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t h = 0; h < heads; ++h) {
      const double x = *a.numbers().at(r, h), y = *b.numbers().at(r, h);
      worst = (std::max)(worst, x == y ? 0 : std::abs(x - y) / (std::max)(1.0, std::abs(y)));
      for (std::int64_t i = 0; i < dim; ++i)
        worst = (std::max)(worst, std::abs(a.values().row(r, h)[i] - b.values().row(r, h)[i]));
    }
  return worst;
}

}  // namespace

static_assert(hc::offers<hc::host<>, float, hc::context_facet> && hc::offers<hc::host<>, double, hc::context_facet> &&
              hc::offers<hc::host<>, hd::bf16, hc::context_facet>);
static_assert(!hc::offers<int, float, hc::context_facet>);

TEST_CASE("merging partial results is a commutative monoid, up to rounding", "[compute][context][law]") {
  std::mt19937 random(3);
  for (const double scale : {1.0, 1e4}) {
    for (int trial = 0; trial < 50; ++trial) {
      const partial a = random_partial(random, scale), b = random_partial(random, scale),
                    c = random_partial(random, scale);
      CHECK(merged(a, partial{}) == a);
      CHECK(distance(merged(partial{}, a), a) == 0);
      CHECK(distance(merged(a, b), merged(b, a)) < 1e-14);
      CHECK(distance(merged(merged(a, b), c), merged(a, merged(b, c))) < 1e-13);
      CHECK(merged(a, b, 3) == merged(a, b));
    }
  }
}

TEST_CASE("merging is what the unnormalised softmax sums give", "[compute][context]") {
  std::mt19937 random(9);
  for (int trial = 0; trial < 50; ++trial) {
    partial a = random_partial(random, 30), b = random_partial(random, 30), both = merged(a, b);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < dim; ++i) {
          const auto state = [&](partial& p) {
            const double lse = *p.numbers().at(r, h);
            return lse == nothing ? hd::softmax_state<double>{}
                                  : hd::softmax_state<double>{lse, 1, p.values().row(r, h)[i]};
          };
          const auto expected = hd::merge_softmax{}(state(a), state(b));
          if (expected.sum == 0) {
            CHECK(*both.numbers().at(r, h) == nothing);
            CHECK(both.values().row(r, h)[i] == 0);
            continue;
          }
          CHECK(both.values().row(r, h)[i] == Approx(expected.value / expected.sum).epsilon(1e-12));
          CHECK(*both.numbers().at(r, h) == Approx(expected.largest + std::log(expected.sum)).epsilon(1e-12));
        }
  }
}

TEST_CASE("partial results of 16 bits are merged into floats", "[compute][context]") {
  std::vector<float> out{1, 2}, lse{0.5F};
  std::vector<hd::bf16> more{hd::bf16(3.0F), hd::bf16(4.0F)};
  std::vector<float> more_lse{0.5F};
  hc::host<> backend(1);
  merge_partials(backend, hc::head_rows<float>{out.data(), 1, 1, 2, 2}, hc::head_numbers<float>{lse.data(), 1, 1, 1, 1},
                 hc::head_rows<const hd::bf16>{more.data(), 1, 1, 2, 2},
                 hc::head_numbers<const float>{more_lse.data(), 1, 1, 1, 1});
  CHECK(out[0] == Approx(2));
  CHECK(out[1] == Approx(3));
  CHECK(lse[0] == Approx(0.5 + std::log(2.0)));
}

TEST_CASE("partial results of other sizes are refused", "[compute][context]") {
  hc::host<> backend(1);
  std::vector<double> x(100);
  const hc::head_rows<double> out{x.data(), 4, 2, 3, 6};
  const hc::head_numbers<double> lse{x.data(), 4, 2, 2, 1};
  hc::head_rows<const double> more = out;
  hc::head_numbers<const double> more_lse = lse;
  more.rows = 3;
  CHECK_THROWS_AS(merge_partials(backend, out, lse, more, more_lse), hd::layout_error);
  more = out;
  more.head_dim = 2;
  CHECK_THROWS_AS(merge_partials(backend, out, lse, more, more_lse), hd::layout_error);
  more = out;
  more_lse.heads = 1;
  CHECK_THROWS_AS(merge_partials(backend, out, lse, more, more_lse), hd::layout_error);
}
