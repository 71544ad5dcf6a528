// Pairs (x, y): which sample is which, on any cut of the order, and what is refused.
#include "catch.hpp"

#include <heddle/io/pairs.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <ranges>
#include <set>
#include <vector>

namespace io = heddle::io;

namespace {
const std::vector<double> x{0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61};
const std::vector<int> y{0, 1, 2, 3, 4, 5, 6};
}  // namespace

TEST_CASE("an epoch visits every training pair once, and keeps x with its y", "[io][pairs]") {
  const io::pairs data(x, y, {.inputs = 2, .validation = 0.3, .seed = 5});
  REQUIRE(data.train_samples() == 5);
  REQUIRE(data.validation_samples() == 2);
  std::vector<std::vector<int>> orders;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<double> in(10);
    std::vector<int> out(5);
    data.fill_train({epoch * 5, 5}, std::span(in), std::span(out));
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(in[2 * i] == 10 * out[i]);
      CHECK(in[2 * i + 1] == 10 * out[i] + 1);
    }
    CHECK(std::set<int>(out.begin(), out.end()) == std::set<int>{0, 1, 2, 3, 4});
    orders.push_back(out);
    // In two parts it is the same.
    std::vector<double> in2(10);
    std::vector<int> out2(5);
    data.fill_train({epoch * 5, 2}, std::span(in2), std::span(out2));
    data.fill_train({epoch * 5 + 2, 3}, std::span(in2).subspan(4), std::span(out2).subspan(2));
    CHECK(in2 == in);
    CHECK(out2 == out);
  }
  CHECK((orders[0] != orders[1] || orders[1] != orders[2]));
  std::vector<double> in(4);
  std::vector<int> out(2);
  data.fill_validation({0, 2}, std::span(in), std::span(out));
  CHECK(out == std::vector<int>{5, 6});
  CHECK(in == std::vector<double>{50, 51, 60, 61});
}

TEST_CASE("pairs are converted to the types of a batch", "[io][pairs]") {
  const io::pairs data(x, y, {.inputs = 2, .shuffle = false});
  std::vector<float> in(2);
  std::vector<std::int64_t> out(1);
  data.fill_train({3, 1}, std::span(in), std::span(out));
  CHECK(in == std::vector<float>{30, 31});
  CHECK(out == std::vector<std::int64_t>{3});
  // Numbers that nobody holds on to are not taken.
  STATIC_REQUIRE(!std::ranges::borrowed_range<std::vector<double>>);
}

TEST_CASE("without shuffling the order is that of the data", "[io][pairs]") {
  const io::pairs data(x, y, {.inputs = 2, .shuffle = false});
  std::vector<double> in(6);
  std::vector<int> out(3);
  data.fill_train({6, 3}, std::span(in), std::span(out));
  CHECK(out == std::vector<int>{6, 0, 1});
}

TEST_CASE("pairs that do not fit are refused", "[io][pairs]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(io::pairs(x, y, {.inputs = 3}),
                    Contains("14 inputs and 7 targets are not equally many samples of 3 and 1"));
  CHECK_THROWS_WITH(io::pairs(x, y, {.inputs = 2, .targets = 2}), Contains("samples of 2 and 2"));
  const std::vector<int> no_y;
  CHECK_THROWS_WITH(io::pairs(x, no_y, {.inputs = 2, .targets = std::int64_t{1} << 62}),
                    Contains("14 inputs and 0 targets are not equally many samples"));
  CHECK_THROWS_WITH(io::pairs(x, y, {.inputs = 0}), Contains("at least 1 input and 1 target, got 0 and 1"));
  CHECK_THROWS_WITH(io::pairs(x, y, {.inputs = 2, .validation = 1.0}), Contains("in [0, 1), got 1"));
  const std::vector<double> none;
  const std::vector<int> nothing;
  CHECK_THROWS_WITH(io::pairs(none, nothing, {}), Contains("the data has 0 samples; at least 1 are needed"));
  const io::pairs data(x, y, {.inputs = 2, .validation = 0.3});
  std::vector<double> in(4);
  std::vector<int> out(2);
  CHECK_THROWS_WITH(data.fill_train({0, 3}, std::span(in), std::span(out)),
                    Contains("room for 6 inputs and 3 targets, got 4 and 2"));
  CHECK_THROWS_WITH(data.fill_validation({1, std::numeric_limits<std::int64_t>::max()}, std::span(in), std::span(out)),
                    Contains("validation samples from 1 on"));
  CHECK_THROWS_WITH(data.fill_validation({1, 2}, std::span(in), std::span(out)),
                    Contains("2 validation samples from 1 on asked, there are 2"));
}
