// Neighbourhoods of pixels, means of rows and squared errors, against their definitions.
#include "catch.hpp"
#include "support.hpp"

#include <string>
#include <vector>

using namespace compute_test;

namespace {
using backend = hc::host<>;

struct sizes {
  int64_t images, height, width, radius, channels;
};
// Values next to what the definition says: x[image, y + i - r, x + j - r, c], or zero outside.
template <class T>
std::vector<T> neighbours(const sizes& s, const std::vector<T>& x) {
  const int64_t side = 2 * s.radius + 1;
  std::vector<T> y;
  for (int64_t n = 0; n < s.images; ++n)
    for (int64_t row = 0; row < s.height; ++row)
      for (int64_t column = 0; column < s.width; ++column)
        for (int64_t i = 0; i < side; ++i)
          for (int64_t j = 0; j < side; ++j)
            for (int64_t c = 0; c < s.channels; ++c) {
              const int64_t at = row + i - s.radius, left = column + j - s.radius;
              const bool inside = at >= 0 && at < s.height && left >= 0 && left < s.width;
              const int64_t from = ((n * s.height + at) * s.width + left) * s.channels + c;
              y.push_back(inside ? x[static_cast<std::size_t>(from)] : T(0));
            }
  return y;
}
}  // namespace

TEMPLATE_TEST_CASE("unfolded images hold the neighbours of each pixel", "[compute][images]", float, double) {
  using T = TestType;
  for (const int threads : {1, 3}) {
    backend b(threads);
    for (const sizes& s : {sizes{2, 4, 3, 1, 5}, sizes{1, 1, 6, 2, 1}, sizes{3, 2, 2, 0, 2}, sizes{0, 3, 3, 1, 2}}) {
      const hc::image_window window{s.height, s.width, s.radius};
      const int64_t rows = s.images * window.pixels(), columns = window.taps() * s.channels;
      const auto x = normal<T>(rows * s.channels, 1);
      auto y = normal<T>(rows * columns, 2);
      hc::run<hc::ops::unfold>(b, matrix(x, rows, s.channels), window, matrix(y, rows, columns));
      CHECK(same_bits(y, neighbours(s, x)));
    }
  }
}

TEST_CASE("what goes back through unfolding is its transpose", "[compute][images]") {
  backend b(2);
  const hc::image_window window{3, 4, 1};
  const int64_t rows = 2 * window.pixels(), channels = 3, columns = window.taps() * channels;
  const auto x = normal<double>(rows * channels, 3), dy = normal<double>(rows * columns, 4);
  std::vector<double> y(dy.size()), dx = normal<double>(rows * channels, 5);
  hc::run<hc::ops::unfold>(b, matrix(x, rows, channels), window, matrix(y, rows, columns));
  hc::run<hc::ops::unfold_backward>(b, matrix(dy, rows, columns), window, matrix(dx, rows, channels));
  // dx is the gradient of dot(y, dy), which is linear in x.
  auto changed = x;
  const auto expected = finite_differences(
      changed,
      [&] {
        hc::run<hc::ops::unfold>(b, matrix(std::as_const(changed), rows, channels), window, matrix(y, rows, columns));
        return dot(y, dy);
      },
      0.5);
  CHECK(distance(dx, expected) < 1e-13);
}

TEST_CASE("means of rows, and back", "[compute][images]") {
  backend b(1);
  const std::vector<double> x{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15};
  std::vector<double> y(4), dx(12, -1);
  hc::run<hc::ops::mean_of_rows>(b, matrix(x, 6, 2), 3, matrix(y, 2, 2));
  CHECK(y == std::vector<double>{3, 4, 9, 11});
  hc::run<hc::ops::mean_of_rows_backward>(b, matrix(std::as_const(y), 2, 2), 3, matrix(dx, 6, 2));
  CHECK(distance(dx, std::vector<double>{1, 4.0 / 3, 1, 4.0 / 3, 1, 4.0 / 3, 3, 11.0 / 3, 3, 11.0 / 3, 3, 11.0 / 3}) <
        1e-15);
}

TEST_CASE("squared errors add to a number, and become their gradient", "[compute][images]") {
  backend b(1);
  std::vector<double> x{1, -2, 0.5};
  const std::vector<double> target{0, 1, 0.5};
  double sum = 3;
  hc::run<hc::ops::squared_error>(b, vec(x), vec(target), &sum);
  CHECK(sum == 3 + 1 + 9);
  hc::run<hc::ops::squared_error_backward>(b, vec(x), vec(target), 0.5);
  CHECK(x == std::vector<double>{1, -3, 0});
}

TEST_CASE("kernels of images say what does not fit", "[compute][images]") {
  backend b(1);
  std::vector<double> x(24), y(24 * 9);
  CHECK_THROWS_WITH(hc::run<hc::ops::unfold>(b, matrix(x, 8, 3), hc::image_window{3, 2, 1}, matrix(y, 8, 27)),
                    Catch::Matchers::Contains("unfold: rows should be whole images of 3 x 2 pixels, got 8 rows"));
  CHECK_THROWS_WITH(hc::run<hc::ops::unfold>(b, matrix(x, 8, 3), hc::image_window{4, 2, 1}, matrix(y, 12, 18)),
                    Catch::Matchers::Contains("unfold: rows of y should be 8, got 12"));
  CHECK_THROWS_WITH(hc::run<hc::ops::unfold_backward>(b, matrix(y, 8, 27), hc::image_window{4, 2, 2}, matrix(x, 8, 3)),
                    Catch::Matchers::Contains("columns of dy (taps times channels) should be 75, got 27"));
  CHECK_THROWS_WITH(hc::run<hc::ops::mean_of_rows>(b, matrix(x, 8, 3), 0, matrix(y, 72, 3)),
                    Catch::Matchers::Contains("a group should have at least 1 row, got 0"));
  CHECK_THROWS_WITH(hc::run<hc::ops::mean_of_rows>(b, matrix(x, 8, 3), 3, matrix(y, 72, 3)),
                    Catch::Matchers::Contains("mean_of_rows: rows (groups times their rows) should be 216, got 8"));
  double sum = 0;
  CHECK_THROWS_WITH(hc::run<hc::ops::squared_error>(b, vec(x), vec(y), &sum),
                    Catch::Matchers::Contains("squared_error: elements of target should be 24, got 216"));
}
