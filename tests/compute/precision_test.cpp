#include "catch.hpp"
#include "gemms.hpp"
#include "support.hpp"

#include <heddle/compute/bf16_products.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

using namespace compute_test;

namespace {

template <class To, class From>
std::vector<To> rounded(const std::vector<From>& x) {
  std::vector<To> y;
  for (const From v : x) y.push_back(To(static_cast<float>(v)));
  return y;
}

/// n of 4001 normal numbers, which are drawn once.
std::vector<double> numbers(int64_t n, std::size_t first) {
  static const auto pool = normal<double>(4001, 1);
  std::vector<double> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = pool[(i + first) % pool.size()];
  return x;
}

template <class T>
double to_double(T x) {
  return static_cast<double>(x);
}

// A library whose products of bf16 leave -1 in c, and are slower than conversion from 32 rows.
struct marked_bf16 : hc::portable {
  static bool has_bf16_products() { return true; }
  static bool converts_bf16_products(int64_t rows) { return rows >= 32; }
  template <hc::transpose TA, hc::transpose TB>
  static void multiply_bf16(int64_t m, int64_t n, int64_t, const hd::bf16*, int64_t, const hd::bf16*, int64_t, float,
                            float* c, int64_t ldc) {
    for (int64_t i = 0; i < m; ++i) std::fill(c + i * ldc, c + i * ldc + n, -1.0f);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("casts convert every element, for any length and number of threads", "[compute][precision]",
                   hd::bf16, hd::f16) {
  using H = TestType;
  for (const int64_t n : {0, 1, 63, 64, 65, 1000, 40001}) {
    auto x = normal<float>(n, 1, 3.0);
    if (n > 60) x[60] = INFINITY, x[3] = std::numeric_limits<float>::quiet_NaN(), x[5] = 1e-41f;
    const auto want = rounded<H>(x);
    for (const int threads : {1, 3}) {
      hc::host<> backend(threads);
      std::vector<H> y(x.size());
      hc::cast(backend, vec(std::as_const(x)), vec(y));
      CHECK(same_bits(y, want));
      std::vector<float> back(x.size()), want_back(want.begin(), want.end());
      hc::cast(backend, vec(y), vec(back));
      CHECK(same_bits(back, want_back));
      std::vector<double> wide(x.size()), want_wide(want_back.begin(), want_back.end());
      hc::cast(backend, vec(y), vec(wide));
      CHECK(same_bits(wide, want_wide));
    }
  }
  hc::host<> backend;
  std::vector<float> x(3);
  std::vector<H> y(2);
  CHECK_THROWS_WITH(hc::cast(backend, vec(x), vec(y)), "heddle: cast: elements of y should be 3, got 2");
}

// Every border: the middle of two neighbours goes to the even one, the doubles next to it to the nearer one.
TEMPLATE_TEST_CASE("doubles are rounded once", "[compute][precision]", hd::bf16, hd::f16) {
  using H = TestType;
  using limits = std::numeric_limits<H>;
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<double> x{1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-11 + 0x1p-40, 1e300, 5e-324, inf};
  const bool is_bf16 = limits::digits == 8;
  std::vector<H> want{H(is_bf16 ? 1.0078125f : 1.00390625f), H(is_bf16 ? 1.0f : 1.0009765625f), limits::infinity(),
                      H(0.0f), limits::infinity()};
  const auto last = limits::infinity().bits;
  for (std::uint16_t bits = 0; bits < last; ++bits) {
    const auto here = H::from_bits(bits), next = H::from_bits(static_cast<std::uint16_t>(bits + 1));
    const double low = to_double(static_cast<float>(here));
    const double high = bits + 1 == last ? std::ldexp(1.0, limits::max_exponent) : to_double(static_cast<float>(next));
    const double middle = (low + high) / 2;
    for (const double v : {low, std::nextafter(middle, 0.0), middle, std::nextafter(middle, inf)}) {
      x.push_back(v);
      want.push_back(v < middle || (v == middle && bits % 2 == 0) ? here : next);
    }
  }
  for (std::size_t i = 0, n = x.size(); i < n; ++i) {
    x.push_back(-x[i]);
    want.push_back(H::from_bits(static_cast<std::uint16_t>(want[i].bits | 0x8000u)));
  }
  hc::host<> backend(2);
  std::vector<H> y(x.size());
  hc::cast(backend, vec(std::as_const(x)), vec(y));
  CHECK(same_bits(y, want));
  const std::vector<double> none{std::numeric_limits<double>::quiet_NaN()};
  hc::cast(backend, vec(none), vec(y).first(1));
  CHECK(std::isnan(static_cast<float>(y[0])));
}

TEST_CASE("stochastic rounding draws by the index in the whole tensor, and its mean is the number",
          "[compute][precision]") {
  const hc::stochastic rounding{hd::counter_random(seed, 3), 0};
  const auto x = normal<float>(20011, 7);
  std::vector<hd::bf16> want(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {  // 16 of the 128 bits of index i / 8, from the low end
    const std::uint32_t word = rounding.random.bits(i / 8)[i % 8 / 2];
    want[i] = hd::round_stochastically(x[i], i % 2 == 0 ? word & 0xffffu : word >> 16);
  }
  for (const int threads : {1, 3}) {
    hc::host<> backend(threads);
    std::vector<hd::bf16> y(x.size());
    hc::run<hc::ops::stochastic_cast>(backend, vec(x), vec(y), rounding);
    CHECK(same_bits(y, want));
    for (const std::size_t cut : {1u, 7u, 64u, 5001u}) {  // two parts, each told where it begins
      std::vector<hd::bf16> parts(x.size());
      hc::run<hc::ops::stochastic_cast>(backend, vec(x).first(cut), vec(parts).first(cut), rounding);
      hc::run<hc::ops::stochastic_cast>(backend, vec(x).subspan(cut), vec(parts).subspan(cut),
                                        hc::stochastic{rounding.random, cut});
      CHECK(same_bits(parts, want));
    }
  }
  // n draws of one number: the mean of n steps of size s with variance at most s^2 / 4 is within 6 s / (2 sqrt(n)) of it, but
  // for two cases in 10^9; the seed is fixed.
  constexpr int64_t n = 1 << 16;
  hc::host<> backend;
  std::uint64_t stream = 50;
  for (const float value : {1.0f + 0x1p-10f, -3.14159265f, 1.7e-20f, 0.1f, 255.9f}) {
    const std::vector<float> same(n, value);
    std::vector<hd::bf16> y(n);
    hc::run<hc::ops::stochastic_cast>(backend, vec(same), vec(y),
                                      hc::stochastic{hd::counter_random(seed, stream++), 0});
    double sum = 0;
    for (const hd::bf16 v : y) sum += to_double(static_cast<float>(v));
    const double step = std::ldexp(1.0, std::ilogb(value) - 7);
    CAPTURE(value, seed);
    CHECK(std::abs(sum / n - to_double(value)) <= 6 * step / (2 * std::sqrt(static_cast<double>(n))));
  }
}

// Bounds: a sum of k products in float is within g = (k + 1) 2^-24 / (1 - (k + 1) 2^-24) times sum |a b| of the exact one,
// whatever the order (Higham, "Accuracy and Stability", section 3.1; exact products of 8- or 11-bit numbers only help);
// rounding both operands first adds 2 u + u^2 times the same sum, and rounding the result u times its size.
TEMPLATE_TEST_CASE("products of bf16 and f16 stay within the bound of their roundings", "[compute][precision]",
                   HEDDLE_TEST_GEMMS) {
  const auto check = [&]<class H>(H, double u) {
    const auto one = [&]<hc::transpose TA, hc::transpose TB>(int64_t m, int64_t n, int64_t k, float beta) {
      CAPTURE(m, n, k, beta);
      const auto a = numbers(m * k, 0), b = numbers(k * n, 1234);
      const auto ha = rounded<H>(a), hb = rounded<H>(b);
      constexpr bool ta = TA == hc::transpose::yes, tb = TB == hc::transpose::yes;
      const auto old = rounded<H>(numbers(m * n, 2345));
      std::vector<float> c(old.begin(), old.end());
      auto hc16 = old;
      if (beta == 0.0f) {  // what is overwritten is not read
        std::fill(c.begin(), c.end(), NAN);
        std::fill(hc16.begin(), hc16.end(), (std::numeric_limits<H>::quiet_NaN)());
      }
      hc::host<TestType> backend(2);
      const auto left = matrix(ha, ta ? k : m, ta ? m : k), right = matrix(hb, tb ? n : k, tb ? k : n);
      hc::matmul<TA, TB>(backend, left, right, matrix(c, m, n), beta);
      hc::matmul<TA, TB>(backend, left, right, matrix(hc16, m, n), beta);
      const double terms = static_cast<double>(k + 2) * 0x1p-24, g = terms / (1 - terms);
      int wrong = 0;
      for (int64_t e = 0; e < m * n; e += 1 + m * n / 500) {
        const int64_t i = e / n, j = e % n;
        const double before =
            static_cast<double>(beta) * to_double(static_cast<float>(old[static_cast<std::size_t>(e)]));
        double exact = beta == 0.0f ? 0.0 : before, size = std::abs(exact), held = exact;
        for (int64_t p = 0; p < k; ++p) {
          const auto x = static_cast<std::size_t>(ta ? p * m + i : i * k + p);
          const auto y = static_cast<std::size_t>(tb ? j * k + p : p * n + j);
          exact += a[x] * b[y];
          held += to_double(static_cast<float>(ha[x])) * to_double(static_cast<float>(hb[y]));
          size += std::abs(a[x] * b[y]);
        }
        const double sums = g * size * (1 + u) * (1 + u) + 1e-37, got = to_double(c[static_cast<std::size_t>(e)]);
        const double got16 = to_double(static_cast<float>(hc16[static_cast<std::size_t>(e)]));
        wrong += std::abs(got - held) <= sums ? 0 : 1;                            // operands as they are
        wrong += std::abs(got - exact) <= sums + (2 * u + u * u) * size ? 0 : 1;  // and before their rounding
        wrong += std::abs(got16 - held) <= (1 + u) * sums + u * std::abs(held) + 1e-7 ? 0 : 1;  // rounded once
      }
      CHECK(wrong == 0);
    };
    const auto no = hc::transpose::no, yes = hc::transpose::yes;
    const auto all = [&](int64_t m, int64_t n, int64_t k, float beta) {
      one.template operator()<no, no>(m, n, k, beta);
      one.template operator()<no, yes>(m, n, k, beta);
      one.template operator()<yes, no>(m, n, k, beta);
    };
    for (const float beta : {0.0f, 1.0f, -0.5f}) {
      all(1, 1, 1, beta);
      all(7, 5, 3, beta);
      all(33, 65, 129, beta);
      all(3, 4, 0, beta);
    }
    all(0, 4, 3, 0.0f);
    all(3, 0, 4, 1.0f);
    one.template operator()<yes, yes>(9, 11, 13, 0.5f);
    all(515, 3, 7, 0.5f);  // over the borders of the panels, in each direction
    all(5, 6, 515, 1.0f);
    all(3, 1027, 4, 0.5f);
    one.template operator()<yes, no>(514, 5, 514, 0.5f);
    one.template operator()<no, yes>(4, 1026, 513, 0.0f);
  };
  check(hd::bf16{}, 0x1p-8);
  check(hd::f16{}, 0x1p-11);
}

TEST_CASE("a backend says how it multiplies bf16, and the two paths agree to their bound", "[compute][precision]") {
  CHECK(hc::host<>().half_product_name() == std::string("float after conversion"));
  STATIC_REQUIRE_FALSE(hc::bf16_gemm_library<hc::portable>);
#if __has_include(<dnnl.h>)
  STATIC_REQUIRE(hc::bf16_gemm_library<hc::onednn>);
  hc::host<hc::onednn> library;
  const std::string name = library.half_product_name();
  CHECK(name.starts_with("bf16 of the library") == hc::onednn::has_bf16_products());
  CHECK_FALSE(hc::onednn::converts_bf16_products(31));
  CHECK(name.ends_with("float after conversion for others") == hc::onednn::converts_bf16_products(32));
  CHECK(name.ends_with("rounded floats in heddle's tile registers (AMX)") == library.rounds_operands());
  hc::host<> own;
  const auto a = rounded<hd::bf16>(normal<double>(50 * 70, 1)), b = rounded<hd::bf16>(normal<double>(70 * 60, 2));
  std::vector<float> first(50 * 60), second(50 * 60);
  hc::matmul(library, matrix(a, 50, 70), matrix(b, 70, 60), matrix(first, 50, 60));
  hc::matmul(own, matrix(a, 50, 70), matrix(b, 70, 60), matrix(second, 50, 60));
  CHECK(distance(first, second) <= 2 * 72 * 0x1p-24 * 70);
#endif
}

TEST_CASE("all rows of a product of bf16 are multiplied in one way, whatever the threads", "[compute][precision]") {
  const auto one = [](auto c, int64_t m, int64_t n, int64_t k, float want) {
    const std::vector<hd::bf16> a(static_cast<std::size_t>(m * k), hd::bf16(1.0f)),
        b(static_cast<std::size_t>(k * n), hd::bf16(1.0f));
    for (const int threads : {1, 4}) {
      hc::host<marked_bf16> backend(threads);
      c.assign(static_cast<std::size_t>(m * n), {});
      hc::matmul(backend, matrix(a, m, k), matrix(b, k, n), matrix(c, m, n));
      CAPTURE(m, threads);
      CHECK(std::all_of(c.begin(), c.end(), [&](auto x) { return static_cast<float>(x) == want; }));
    }
  };
  const std::vector<float> sums;
  const std::vector<hd::bf16> halves;  // which are multiplied in blocks of 512 rows
  one(sums, 100, 128, 512, 512.0f);    // cut among threads by rows, fewer than 32 each or not
  one(halves, 100, 128, 512, 512.0f);
  one(sums, 31, 512, 128, -1.0f);
  one(halves, 31, 512, 128, -1.0f);
  one(halves, 520, 16, 8, 8.0f);
}

// Whole numbers up to 8 and their sums are exact: any order gives the same bits. With k = 1 there is no sum, and the rounding shows.
TEMPLATE_TEST_CASE(
    "products of floats rounded to bf16 are exact where sums are, of any shape and with weights that stay",
    "[compute][precision]", HEDDLE_TEST_GEMMS) {
  const auto one = []<hc::transpose TA, hc::transpose TB>(int64_t m, int64_t n, int64_t k, float beta) {
    constexpr bool ta = TA == hc::transpose::yes, tb = TB == hc::transpose::yes;
    const auto whole = [](std::vector<float> x) {
      for (float& v : x) v = (std::max)(-8.0f, (std::min)(8.0f, std::round(3 * v)));
      return x;
    };
    auto a = normal<float>(m * k, 3), b = normal<float>(k * n, 4);
    const auto old = whole(normal<float>(m * n, 5));
    if (k > 1)
      a = whole(a), b = whole(b);
    else if (k == 1)
      a[0] = 1.0f + 0x1p-8f, b[0] = 1.0f + 3 * 0x1p-8f;  // ties
    std::vector<float> want(old.size()), c = old, kept = old;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        float sum = 0;
        for (int64_t p = 0; p < k; ++p)
          sum += static_cast<float>(hd::bf16(a[static_cast<std::size_t>(ta ? p * m + i : i * k + p)])) *
                 static_cast<float>(hd::bf16(b[static_cast<std::size_t>(tb ? j * k + p : p * n + j)]));
        const auto e = static_cast<std::size_t>(i * n + j);
        want[e] = beta == 0.0f ? sum : sum + beta * old[e];
      }
    if (beta == 0.0f) std::fill(c.begin(), c.end(), NAN);  // what is overwritten is not read
    hc::bf16_products<hc::host<TestType>> backend(2);
    const auto left = matrix(std::as_const(a), ta ? k : m, ta ? m : k);
    const auto right = matrix(std::as_const(b), tb ? n : k, tb ? k : n);
    hc::matmul<TA, TB>(backend, left, right, matrix(c, m, n), beta);
    backend.weights_stay(vec(std::as_const(b)));
    hc::matmul<TA, TB>(backend, left, right, matrix(kept, m, n), beta);
    backend.weights_go(vec(std::as_const(b)));
    CAPTURE(m, n, k, beta, ta, tb, backend.half_product_name(), seed);
    CHECK(distance(c, want) == 0.0);
    CHECK(same_bits(kept, c));
  };
  constexpr auto no = hc::transpose::no, yes = hc::transpose::yes;
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                                {32, 16, 32},
                                {33, 65, 129},
                                {47, 31, 1},
                                {64, 33, 31},
                                {300, 20, 70},
                                {1030, 261, 9},
                                {40, 7, 1100},
                                {100, 288, 96},  // cut among threads by columns
                                {70, 513, 33}})
    for (const float beta : {0.0f, 1.0f, -0.5f}) {
      one.template operator()<no, no>(m, n, k, beta);
      one.template operator()<no, yes>(m, n, k, beta);
      one.template operator()<yes, no>(m, n, k, beta);
    }
  one.template operator()<yes, yes>(50, 19, 37, 1.0f);
  one.template operator()<no, yes>(40, 3, 0, 0.0f);
}

#if __has_include(<dnnl.h>)
TEST_CASE("tile registers are used where processor and oneDNN say so, and put back", "[compute][precision]") {
  hc::host<hc::onednn> library(1);
  CHECK(library.rounds_operands() == hc::onednn::has_tile_products());
  CHECK(hc::host<>(1).rounds_operands() == false);
  if (!hc::onednn::has_tile_products()) return;
  CHECK(hc::detail::has_tiles());
  CHECK(hc::onednn::has_bf16_products());  // oneDNN's own products of bf16, before and after ours
  const auto a = normal<float>(100 * 70, 1), b = normal<float>(70 * 60, 2);
  const auto ha = rounded<hd::bf16>(a), hb = rounded<hd::bf16>(b);
  std::vector<float> before(100 * 60), after(100 * 60), own(100 * 60), part(40 * 60);
  hc::matmul(library, matrix(ha, 100, 70), matrix(hb, 70, 60), matrix(before, 100, 60));
  hc::run<hc::ops::matmul_rounded<hc::transpose::no, hc::transpose::no, float>>(
      library, matrix(a, 100, 70), matrix(b, 70, 60), matrix(own, 100, 60), 0.0f);
  hc::matmul(library, matrix(ha, 100, 70), matrix(hb, 70, 60), matrix(after, 100, 60));
  CHECK(same_bits(before, after));
  CHECK(distance(own, before) <= 2 * 72 * 0x1p-24 * 70);
  // An element is the same bits wherever it stands.
  const std::vector<float> rows(a.begin() + 37 * 70, a.begin() + 77 * 70);
  hc::run<hc::ops::matmul_rounded<hc::transpose::no, hc::transpose::no, float>>(
      library, matrix(rows, 40, 70), matrix(b, 70, 60), matrix(part, 40, 60), 0.0f);
  CHECK(same_bits(part, std::vector<float>(own.begin() + 37 * 60, own.begin() + 77 * 60)));
}
#endif

TEST_CASE("AdamW with master weights rounds them into the weights and reads gradients of any type",
          "[compute][precision]") {
  const hc::adamw_step step{3e-2, 0.9, 0.95, 1e-8, 0.1, 7, 0.5};
  for (const int64_t n : {0, 1, 31, 64, 65, 1000, 40001}) {
    const auto start = normal<float>(n, 1), g = normal<float>(n, 2), m0 = normal<float>(n, 3, 0.1);
    auto v0 = normal<float>(n, 4, 0.1);
    for (float& x : v0) x *= x;
    const auto g16 = rounded<hd::bf16>(g);
    const std::vector<float> g16_in_float(g16.begin(), g16.end());
    for (const int threads : {1, 3}) {
      CAPTURE(n, threads);
      hc::host<> backend(threads);
      const auto plain = [&](const std::vector<float>& gradients) {
        auto p = start, m = m0, v = v0;
        hc::run<hc::ops::adamw>(backend, vec(p), vec(gradients), vec(m), vec(v), step);
        return std::array{p, m, v};
      };
      const auto mixed = [&]<class W, class G>(std::vector<W>& weights, const std::vector<G>& gradients,
                                               auto... rounding) {
        auto p = start, m = m0, v = v0;
        weights.assign(start.size(), W(0.0f));
        if constexpr (sizeof...(rounding) > 0)
          hc::run<hc::ops::stochastic_adamw<G>>(backend, vec(p), vec(weights), vec(gradients), vec(m), vec(v), step,
                                                rounding...);
        else
          hc::run<hc::ops::master_adamw<W, G>>(backend, vec(p), vec(weights), vec(gradients), vec(m), vec(v), step);
        return std::array{p, m, v};
      };
      const auto same = [](const auto& x, const auto& y) {
        return same_bits(x[0], y[0]) && same_bits(x[1], y[1]) && same_bits(x[2], y[2]);
      };
      const auto want = plain(g), want16 = plain(g16_in_float);
      std::vector<float> weights;
      CHECK(same(mixed(weights, g), want));  // all of float: today's kernel
      CHECK(same_bits(weights, want[0]));
      std::vector<hd::bf16> low;
      CHECK(same(mixed(low, g), want));
      CHECK(same_bits(low, rounded<hd::bf16>(want[0])));
      CHECK(same(mixed(low, g16), want16));
      CHECK(same_bits(low, rounded<hd::bf16>(want16[0])));
      std::vector<hd::f16> half;
      CHECK(same(mixed(half, g16), want16));
      CHECK(same_bits(half, rounded<hd::f16>(want16[0])));
      const hc::stochastic rounding{hd::counter_random(seed, 9), 13};
      CHECK(same(mixed(low, g16, rounding), want16));
      std::vector<hd::bf16> drawn(low.size());
      hc::run<hc::ops::stochastic_cast>(backend, vec(want16[0]), vec(drawn), rounding);
      CHECK(same_bits(low, drawn));
    }
  }
  hc::host<> backend;
  std::vector<float> p(3), m(3), v(3), g(3);
  std::vector<hd::bf16> w(2);
  using masters = hc::ops::master_adamw<hd::bf16, float>;
  CHECK_THROWS_WITH(hc::run<masters>(backend, vec(p), vec(w), vec(g), vec(m), vec(v), step),
                    "heddle: adamw: elements of weights should be 3, got 2");
}
