#include "catch.hpp"
#include "support.hpp"

#include <heddle/compute/chunked_cross_entropy.hpp>

#include <cmath>
#include <limits>
#include <utility>

using namespace compute_test;

namespace {
/// Cross-entropy over `parts` slices of the vocabulary, combined as the ranks of a tensor-parallel group would.
template <class T>
struct sliced {
  std::vector<T> losses, dlogits;
  sliced(hc::host<>& backend, const std::vector<T>& logits, int64_t rows, int64_t vocabulary,
         const std::vector<std::int32_t>& targets, int64_t parts, T scale)
      : losses(static_cast<std::size_t>(rows)), dlogits(logits.size()) {
    const auto n = static_cast<std::size_t>(rows);
    const hd::balanced_split cut{vocabulary, parts};
    std::vector<T> top(n, -std::numeric_limits<T>::infinity()), total(n), picked(n), part(n);
    const auto slice = [&](int64_t p) {
      std::vector<T> x(static_cast<std::size_t>(rows * cut.size(p)));
      for (int64_t i = 0; i < rows; ++i)
        std::copy_n(logits.begin() + i * vocabulary + cut.offset(p), cut.size(p), x.begin() + i * cut.size(p));
      return x;
    };
    for (int64_t p = 0; p < parts; ++p) {
      const auto x = slice(p);
      hc::run<hc::ops::row_max>(backend, matrix(x, rows, cut.size(p)), vec(part));
      for (std::size_t i = 0; i < n; ++i) top[i] = (std::max)(top[i], part[i]);
    }
    for (int64_t p = 0; p < parts; ++p) {
      const auto x = slice(p);
      hc::run<hc::ops::row_sum_exp>(backend, matrix(x, rows, cut.size(p)), vec(std::as_const(top)), vec(part));
      hc::run<hc::ops::add>(backend, vec(std::as_const(total)), vec(std::as_const(part)), vec(total));
      hc::run<hc::ops::pick_target>(backend, matrix(x, rows, cut.size(p)), targets, cut.offset(p), vec(part));
      hc::run<hc::ops::add>(backend, vec(std::as_const(picked)), vec(std::as_const(part)), vec(picked));
    }
    for (std::size_t i = 0; i < n; ++i) losses[i] = targets[i] < 0 ? T(0) : top[i] + std::log(total[i]) - picked[i];
    for (int64_t p = 0; p < parts; ++p) {
      auto x = slice(p);
      hc::run<hc::ops::cross_entropy_backward>(backend, matrix(x, rows, cut.size(p)), vec(std::as_const(top)),
                                               vec(std::as_const(total)), targets, cut.offset(p), scale);
      for (int64_t i = 0; i < rows; ++i)
        std::copy_n(x.begin() + i * cut.size(p), cut.size(p), dlogits.begin() + i * vocabulary + cut.offset(p));
    }
  }
};
}  // namespace

TEMPLATE_TEST_CASE("cross-entropy equals its definition, whole or sliced over the vocabulary",
                   "[compute][cross_entropy]", float, double) {
  using T = TestType;
  for (const int64_t vocabulary : {1, 7, 64, 257, 1000}) {
    hc::host<> backend(2);
    const int64_t rows = 9;
    const auto logits = normal<T>(rows * vocabulary, 1, 4.0);
    auto targets = tokens(rows, static_cast<std::int32_t>(vocabulary), 2);
    targets[3] = -100;
    std::vector<long double> losses(9), gradient(logits.size());
    for (int64_t i = 0; i < rows; ++i) {
      if (targets[static_cast<std::size_t>(i)] < 0) continue;
      long double sum = 0;
      const auto at = [&](int64_t j) { return static_cast<std::size_t>(i * vocabulary + j); };
      for (int64_t j = 0; j < vocabulary; ++j) sum += std::exp(static_cast<long double>(logits[at(j)]));
      const int64_t target = targets[static_cast<std::size_t>(i)];
      losses[static_cast<std::size_t>(i)] = std::log(sum) - logits[at(target)];
      for (int64_t j = 0; j < vocabulary; ++j)
        gradient[at(j)] = (std::exp(static_cast<long double>(logits[at(j)])) / sum - (j == target)) * 0.25L;
    }
    for (const int64_t parts : {1, 2, 3, 8}) {
      const sliced<T> got(backend, logits, rows, vocabulary, targets, parts, T(0.25));
      CAPTURE(vocabulary, parts);
      CHECK(distance(got.losses, losses) <= tolerance<T> * 8);
      CHECK(distance(got.dlogits, gradient) <= tolerance<T>);
    }
  }
}

TEST_CASE("cross-entropy's backward equals finite differences", "[compute][cross_entropy]") {
  hc::host<> backend(2);
  auto logits = normal<double>(4 * 19, 1);
  const std::vector<std::int32_t> targets{3, -1, 18, 0};
  const auto value = [&] {
    double sum = 0;
    for (const double loss : sliced<double>(backend, logits, 4, 19, targets, 2, 1.0).losses) sum += loss / 3;
    return sum;
  };
  const auto got = sliced<double>(backend, logits, 4, 19, targets, 2, 1.0 / 3).dlogits;
  CHECK(distance(got, finite_differences(logits, value)) <= 1e-8);
}

TEST_CASE("no columns: the maximum is -inf, the sum 0, nothing picked", "[compute][cross_entropy]") {
  hc::host<> backend;
  const std::vector<float> none, m(2, 1.0f);
  std::vector<float> r(2, 7.0f);
  hc::run<hc::ops::row_max>(backend, matrix(none, 2, 0), vec(r));
  CHECK(r == std::vector<float>(2, -std::numeric_limits<float>::infinity()));
  hc::run<hc::ops::row_sum_exp>(backend, matrix(none, 2, 0), vec(m), vec(r));
  CHECK(r == std::vector<float>(2, 0.0f));
  hc::run<hc::ops::pick_target>(backend, matrix(none, 2, 0), std::vector<std::int32_t>{0, 1}, 0, vec(r));
  CHECK(r == std::vector<float>(2, 0.0f));
}

TEST_CASE("a logit of -inf has no probability; a NaN spoils its row and no other", "[compute][cross_entropy]") {
  hc::host<> backend;
  std::vector<float> logits(2 * 100, 0.0f);
  logits[5] = -std::numeric_limits<float>::infinity();
  logits[150] = std::numeric_limits<float>::quiet_NaN();
  const sliced<float> got(backend, logits, 2, 100, {1, 1}, 1, 1.0f);
  CHECK(got.losses[0] == Approx(std::log(99.0)));
  CHECK(got.dlogits[5] == 0.0f);
  CHECK(std::isnan(got.losses[1]));
}

TEMPLATE_TEST_CASE("the summed loss is added to a number, row by row and without ignored targets",
                   "[compute][cross_entropy]", float, double) {
  using T = TestType;
  for (const int64_t rows : {0, 1, 9, 130}) {
    const int64_t vocabulary = 37;
    const auto n = static_cast<std::size_t>(rows);
    const auto logits = normal<T>(rows * vocabulary, 1, 3.0);
    auto targets = tokens(rows, static_cast<std::int32_t>(vocabulary), 2);
    for (std::size_t i = 3; i < n; i += 7) targets[i] = -100;
    hc::host<> backend(2);
    std::vector<T> top(n), sum(n), picked(n);
    hc::run<hc::ops::row_max>(backend, matrix(logits, rows, vocabulary), vec(top));
    hc::run<hc::ops::row_sum_exp>(backend, matrix(logits, rows, vocabulary), vec(std::as_const(top)), vec(sum));
    hc::run<hc::ops::pick_target>(backend, matrix(logits, rows, vocabulary), targets, 0, vec(picked));
    double loss = 0, in_order = 0;
    hc::run<hc::ops::cross_entropy_loss>(backend, vec(top), vec(std::as_const(sum)), vec(std::as_const(picked)),
                                         targets, &loss);
    long double want = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (targets[i] < 0) continue;
      long double z = 0;
      for (int64_t j = 0; j < vocabulary; ++j)
        z += std::exp(
            static_cast<long double>(logits[i * static_cast<std::size_t>(vocabulary) + static_cast<std::size_t>(j)]));
      want +=
          std::log(z) - static_cast<long double>(
                            logits[i * static_cast<std::size_t>(vocabulary) + static_cast<std::size_t>(targets[i])]);
      in_order +=
          std::log(static_cast<double>(sum[i])) + (static_cast<double>(top[i]) - static_cast<double>(picked[i]));
    }
    CHECK(loss == Approx(static_cast<double>(want)).epsilon(std::is_same_v<T, float> ? 1e-6 : 1e-13));
    CHECK(loss == in_order);  // bit for bit: the order is part of the promise
    hc::run<hc::ops::cross_entropy_loss>(backend, vec(top), vec(std::as_const(sum)), vec(std::as_const(picked)),
                                         targets, &loss);
    CHECK(loss == in_order + in_order);
  }
}

TEMPLATE_TEST_CASE("logits in chunks of columns have the greatest, the sum and the target of all columns",
                   "[compute][cross_entropy]", float, double) {
  using T = TestType;
  constexpr T inf = std::numeric_limits<T>::infinity();
  const int64_t rows = 9, vocabulary = 257;
  const auto n = static_cast<std::size_t>(rows);
  auto logits = normal<T>(rows * vocabulary, 1, 4.0);
  for (int64_t j = 0; j < vocabulary; ++j) {  // chunks of -inf alone, first and last
    if (j < 100) logits[static_cast<std::size_t>(2 * vocabulary + j)] = -inf;
    if (j > 90) logits[static_cast<std::size_t>(4 * vocabulary + j)] = -inf;
  }
  auto targets = tokens(rows, static_cast<std::int32_t>(vocabulary), 2);
  targets[3] = -100;
  hc::host<> backend(2);
  std::vector<T> top(n), sum(n), picked(n);
  hc::run<hc::ops::row_max>(backend, matrix(logits, rows, vocabulary), vec(top));
  hc::run<hc::ops::row_sum_exp>(backend, matrix(logits, rows, vocabulary), vec(std::as_const(top)), vec(sum));
  hc::run<hc::ops::pick_target>(backend, matrix(logits, rows, vocabulary), targets, 0, vec(picked));
  for (const int64_t chunk : {1, 7, 64, 257}) {
    CAPTURE(chunk);
    std::vector<T> m(n, -inf), s(n), target(n);
    for (int64_t first = 0; first < vocabulary; first += chunk) {
      const int64_t columns = (std::min)(chunk, vocabulary - first);
      std::vector<T> part(static_cast<std::size_t>(rows * columns));
      for (int64_t i = 0; i < rows; ++i)
        std::copy_n(logits.begin() + i * vocabulary + first, columns, part.begin() + i * columns);
      hc::run<hc::ops::add_to_softmax>(backend, matrix(part, rows, columns), targets, first, vec(m), vec(s),
                                       vec(target));
    }
    CHECK(m == top);
    CHECK(target == picked);
    for (std::size_t i = 0; i < n; ++i) CHECK(s[i] == Approx(sum[i]).epsilon(std::is_same_v<T, float> ? 1e-5 : 1e-12));
  }
  // Sums in units of another greatest logit; what is 0 stays 0, whatever the units.
  std::vector<T> before{0, -1, -inf, 3}, after{0, 1, 5, 3}, sums{1, 2, 0, 4};
  hc::run<hc::ops::rescale_softmax>(backend, vec(std::as_const(before)), vec(std::as_const(after)), vec(sums));
  CHECK(sums[1] == Approx(2 * std::exp(-2.0)));
  CHECK((sums[0] == 1 && sums[2] == 0 && sums[3] == 4));
  CHECK_THROWS_AS(
      hc::run<hc::ops::rescale_softmax>(backend, vec(std::as_const(top)), vec(std::as_const(after)), vec(sums)),
      hd::layout_error);
  std::vector<T> m(n), room(n - 1), x(n), words{T(1)};
  CHECK_THROWS_WITH(hc::chunked_cross_entropy<T>(backend, matrix(x, rows, 1), matrix(words, 1, 1), targets, 0,
                                                 vec(room), vec(m), vec(sum), vec(picked)),
                    Catch::Contains("chunked_cross_entropy") && Catch::Contains("9") && Catch::Contains("8"));
  CHECK_THROWS_AS(hc::run<hc::ops::add_to_softmax>(backend, matrix(std::as_const(x), rows, 1), targets, 0, vec(room),
                                                   vec(sum), vec(picked)),
                  hd::layout_error);
}

TEMPLATE_TEST_CASE("the gradient of cross-entropies with a factor for each row is that of one row with this factor",
                   "[compute][cross_entropy]", float, double) {
  using T = TestType;
  hc::host<> backend(2);
  const int64_t rows = 9, vocabulary = 37;
  const auto logits = normal<T>(rows * vocabulary, 7, 4.0), factors = normal<T>(rows, 8, 2.0);
  auto targets = tokens(rows, static_cast<std::int32_t>(vocabulary), 9);
  targets[3] = -100;
  std::vector<T> top(9), total(9);
  hc::run<hc::ops::row_max>(backend, matrix(logits, rows, vocabulary), vec(top));
  hc::run<hc::ops::row_sum_exp>(backend, matrix(logits, rows, vocabulary), vec(std::as_const(top)), vec(total));
  auto got = logits, expected = logits;
  hc::run<hc::ops::weighted_cross_entropy_backward>(backend, matrix(got, rows, vocabulary), vec(std::as_const(top)),
                                                    vec(std::as_const(total)), targets, 0, vec(factors));
  for (std::size_t i = 0; i < 9; ++i) {
    const std::span<T> row(expected.data() + i * 37, 37);
    hc::run<hc::ops::cross_entropy_backward>(
        backend, hd::matrix_view<T>(row.data(), hd::dynamic_shape<2>(1, vocabulary)),
        std::span<const T>(top).subspan(i, 1), std::span<const T>(total).subspan(i, 1),
        std::span<const std::int32_t>(targets).subspan(i, 1), 0, factors[i]);
  }
  CHECK(got == expected);
  CHECK(got != logits);
  CHECK_THROWS_AS(hc::run<hc::ops::weighted_cross_entropy_backward>(backend, matrix(got, rows, vocabulary),
                                                                    vec(std::as_const(top)), vec(std::as_const(total)),
                                                                    targets, 0, std::span<const T>(factors).first(8)),
                  hd::layout_error);
}
