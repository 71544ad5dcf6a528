#include "catch.hpp"
#include "gemms.hpp"
#include "support.hpp"

#include <heddle/compute/gemm_peak.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

using namespace compute_test;
using hc::transpose;

namespace {
/// op(a) op(b) by the definition, in long double.
template <class T>
std::vector<long double> product(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const std::vector<T>& a,
                                 const std::vector<T>& b) {
  std::vector<long double> out(static_cast<std::size_t>(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      long double sum = 0;
      for (int64_t p = 0; p < k; ++p)
        sum += static_cast<long double>(a[static_cast<std::size_t>(ta ? p * m + i : i * k + p)]) *
               static_cast<long double>(b[static_cast<std::size_t>(tb ? j * k + p : p * n + j)]);
      out[static_cast<std::size_t>(i * n + j)] = sum;
    }
  return out;
}

/// product + beta c.
template <class T>
std::vector<T> plus_scaled(const std::vector<long double>& product, T beta, const std::vector<T>& c) {
  std::vector<T> out(c.size());
  for (std::size_t i = 0; i < c.size(); ++i)
    out[i] = static_cast<T>(product[i] +
                            (beta == T(0) ? 0 : static_cast<long double>(beta) * static_cast<long double>(c[i])));
  return out;
}

template <transpose TA, transpose TB, class Backend, class T>
std::vector<T> multiplied(Backend& backend, int64_t m, int64_t n, int64_t k, const std::vector<T>& a,
                          const std::vector<T>& b, T beta, std::vector<T> c) {
  constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
  hc::matmul<TA, TB>(backend, ta ? matrix(a, k, m) : matrix(a, m, k), tb ? matrix(b, n, k) : matrix(b, k, n),
                     matrix(c, m, n), beta);
  return c;
}

/// On each of the backends; the definition is computed once for all of them.
template <transpose TA, transpose TB, class T, class Backends>
void check_product(Backends& backends, int64_t m, int64_t n, int64_t k) {
  const auto a = normal<T>(m * k, 1), b = normal<T>(k * n, 2), c = normal<T>(m * n, 3);
  const auto sums = product(TA == transpose::yes, TB == transpose::yes, m, n, k, a, b);
  const double size = std::sqrt(static_cast<double>((std::max)(k, int64_t{1})));
  for (const T beta : {T(0), T(1), T(-0.5)}) {
    const auto want = plus_scaled(sums, beta, c);
    for (auto& backend : backends) {
      CAPTURE(backend.gemm_name(), backend.threads(), m, n, k, beta, TA == transpose::yes, TB == transpose::yes);
      CHECK(distance(multiplied<TA, TB>(backend, m, n, k, a, b, beta, c), want) <= tolerance<T> * size);
    }
  }
}

template <class T, class Backends>
void check_all_transposes(Backends& backends, int64_t m, int64_t n, int64_t k) {
  check_product<transpose::no, transpose::no, T>(backends, m, n, k);
  check_product<transpose::no, transpose::yes, T>(backends, m, n, k);
  check_product<transpose::yes, transpose::no, T>(backends, m, n, k);
  check_product<transpose::yes, transpose::yes, T>(backends, m, n, k);
}

struct extents {
  int64_t m, n, k;
};
}  // namespace

TEMPLATE_TEST_CASE("products equal the definition for every library, transpose and beta", "[compute][gemm]",
                   HEDDLE_TEST_GEMMS) {
  std::array backends{hc::host<TestType>(1), hc::host<TestType>(2), hc::host<TestType>(3)};
  for (const extents e : {extents{1, 1, 1},
                          {3, 5, 7},
                          {13, 33, 2},
                          {1, 130, 65},
                          {129, 1, 64},
                          {64, 64, 64},
                          {61, 97, 131},
                          {37, 70, 300},
                          {12, 32, 257}}) {
    check_all_transposes<float>(backends, e.m, e.n, e.k);
    check_all_transposes<double>(backends, e.m, e.n, e.k);
  }
  // Large enough to be shared, and to cross the borders of every block.
  check_product<transpose::no, transpose::yes, float>(backends, 203, 260, 261);
  check_product<transpose::yes, transpose::no, double>(backends, 100, 1100, 40);
}

TEMPLATE_TEST_CASE("empty products are legal, and an empty sum is beta c", "[compute][gemm]", HEDDLE_TEST_GEMMS) {
  hc::host<TestType> backend(2);
  const std::vector<float> none;
  for (const extents e : {extents{0, 5, 3}, {5, 0, 3}, {0, 0, 0}}) {
    std::vector<float> c;
    const auto a = normal<float>(e.m * e.k, 1), b = normal<float>(e.k * e.n, 2);
    hc::matmul(backend, matrix(a, e.m, e.k), matrix(b, e.k, e.n), matrix(c, e.m, e.n), 0.0f);
  }
  std::vector<float> c{1, 2, 3, 4, 5, 6};
  hc::matmul(backend, matrix(none, 2, 0), matrix(none, 0, 3), matrix(c, 2, 3), 2.0f);
  CHECK(c == std::vector<float>{2, 4, 6, 8, 10, 12});
  c[1] = std::numeric_limits<float>::quiet_NaN();
  hc::matmul(backend, matrix(none, 2, 0), matrix(none, 0, 3), matrix(c, 2, 3), 0.0f);
  CHECK(c == std::vector<float>(6, 0.0f));
}

TEMPLATE_TEST_CASE("beta 0 overwrites NaN, and NaN in an operand is not lost", "[compute][gemm]", HEDDLE_TEST_GEMMS) {
  hc::host<TestType> backend(2);
  const auto check = [&]<class T>(T) {
    constexpr T nan = std::numeric_limits<T>::quiet_NaN();
    for (const int64_t n : {3, 40, 200}) {
      auto a = normal<T>(n * n, 1);
      const auto b = normal<T>(n * n, 2);
      std::vector<T> c(static_cast<std::size_t>(n * n), nan);
      c = multiplied<transpose::no, transpose::no>(backend, n, n, n, a, b, T(0), c);
      CHECK(hc::all_finite(backend, vec(c)));
      a[static_cast<std::size_t>(n + 1)] = nan;  // row 1 of a: row 1 of c, and no other
      c = multiplied<transpose::no, transpose::no>(backend, n, n, n, a, b, T(0), c);
      int wrong = 0;
      for (int64_t i = 0; i < n * n; ++i) wrong += std::isnan(c[static_cast<std::size_t>(i)]) != (i / n == 1);
      CHECK(wrong == 0);
    }
  };
  check(float{});
  check(double{});
}

TEMPLATE_TEST_CASE("heddle's own product is right with every width of vectors", "[compute][gemm]", float, double) {
  using T = TestType;
  const auto check = [&]<int Bytes>(std::integral_constant<int, Bytes>) {
    if (hc::detail::gemm_vector_bytes() < Bytes) return;
    for (const extents e : {extents{1, 1, 1}, {6, 8, 4}, {25, 67, 300}, {401, 20, 30}, {20, 1050, 12}}) {
      const auto a = normal<T>(e.m * e.k, 1), b = normal<T>(e.k * e.n, 2), c = normal<T>(e.m * e.n, 3);
      auto got = c;
      hc::detail::multiply_blocked<hc::detail::gemm_tile<T, Bytes>>(e.m, e.n, e.k, a.data(), e.k, 1, b.data(), e.n, 1,
                                                                    T(1), got.data(), e.n);
      CAPTURE(Bytes, e.m, e.n, e.k);
      CHECK(distance(got, plus_scaled(product(false, false, e.m, e.n, e.k, a, b), T(1), c)) <=
            tolerance<T> * std::sqrt(static_cast<double>(e.k)));
    }
  };
  check(std::integral_constant<int, 16>{});
#if defined(__x86_64__)
  check(std::integral_constant<int, 32>{});
  check(std::integral_constant<int, 64>{});
#endif
}

TEMPLATE_TEST_CASE("a row of heddle's own product has the same bits in a product of any number of rows",
                   "[compute][gemm]", float, double) {
  using T = TestType;
  const auto check = [](auto tile, std::int64_t n, std::int64_t k, bool transposed) {
    using tile_type = decltype(tile);
    constexpr std::int64_t most = 29;
    const auto a = normal<T>(most * k, 31), b = normal<T>(n * k, 32);
    std::vector<T> all(static_cast<std::size_t>(most * n)), few(all.size());
    const auto multiply = [&](std::int64_t m, std::vector<T>& c) {
      hc::detail::multiply_blocked<tile_type>(m, n, k, a.data(), k, 1, b.data(), transposed ? 1 : n, transposed ? k : 1,
                                              T(0), c.data(), n);
    };
    multiply(most, all);
    for (std::int64_t m = 1; m <= 13; ++m) {
      CAPTURE(tile_type::vector_bytes, m, n, k, transposed);
      multiply(m, few);
      CHECK(std::equal(few.begin(), few.begin() + m * n, all.begin()));
    }
  };
  for (const bool transposed : {false, true})
    for (const auto& [n, k] : {std::pair(67, 40), std::pair(32, 300), std::pair(5, 3), std::pair(128, 16)}) {
      check(hc::detail::gemm_tile<T, 16>{}, n, k, transposed);
#if defined(__x86_64__)
      if (hc::detail::gemm_vector_bytes() >= 32) check(hc::detail::gemm_tile<T, 32>{}, n, k, transposed);
      if (hc::detail::gemm_vector_bytes() >= 64) check(hc::detail::gemm_tile<T, 64>{}, n, k, transposed);
#endif
    }
}

TEST_CASE("heddle's own product does not depend on the number of threads", "[compute][gemm]") {
  for (const extents e : {extents{64, 2304, 96}, {300, 200, 500}, {515, 70, 33}}) {
    const auto a = normal<float>(e.m * e.k, 1), b = normal<float>(e.k * e.n, 2), c = normal<float>(e.m * e.n, 3);
    hc::host<hc::portable> one(1);
    const auto want = multiplied<transpose::no, transpose::no>(one, e.m, e.n, e.k, a, b, 1.0f, c);
    for (const int threads : {2, 3, 5}) {
      hc::host<hc::portable> several(threads);
      CHECK(same_bits(multiplied<transpose::no, transpose::no>(several, e.m, e.n, e.k, a, b, 1.0f, c), want));
    }
  }
}

TEST_CASE("a product is shared by the cut that reads the operands least", "[compute][gemm]") {
  using hc::detail::choose_gemm_grid;
  const auto is = [](hc::detail::gemm_grid g, int rows, int columns) { return g.rows == rows && g.columns == columns; };
  CHECK(is(choose_gemm_grid(2, 256, 2304, 768), 1, 2));
  CHECK(is(choose_gemm_grid(2, 2304, 256, 768), 2, 1));
  CHECK(is(choose_gemm_grid(4, 1024, 1024, 1024), 2, 2));
  CHECK(is(choose_gemm_grid(8, 64, 64, 64), 1, 1));  // too small to share
  CHECK(is(choose_gemm_grid(8, 1, 1, 100000000), 1, 1));
  CHECK(is(choose_gemm_grid(5, 2, 1000000, 100), 1, 5));
}

TEST_CASE("operands that do not fit are refused with both numbers", "[compute][gemm]") {
  hc::host<> backend;
  const std::vector<float> a(6), b(12);
  std::vector<float> c(8);
  CHECK_THROWS_WITH(hc::matmul(backend, matrix(a, 2, 3), matrix(b, 4, 3), matrix(c, 2, 4), 0.0f),
                    "heddle: matmul: rows of op(b) should be 3, got 4");
  CHECK_THROWS_WITH(hc::matmul(backend, matrix(a, 3, 2), matrix(b, 3, 4), matrix(c, 2, 4), 0.0f),
                    "heddle: matmul: rows of op(a) should be 2, got 3");
  CHECK_THROWS_AS(hc::matmul(backend, matrix(a, 2, 3), matrix(b, 3, 4), matrix(c, 4, 2), 0.0f), hd::layout_error);
}

TEST_CASE("the peak is a plausible speed", "[compute][gemm]") {
  hc::host<> backend(1);
  const double peak = hc::measure_gemm_peak<float>(backend, 128, 0.01);
  CHECK(peak > 1e7);
  CHECK(peak < 1e15);
}
