#include "catch.hpp"
#include "support.hpp"

#include <utility>

using namespace compute_test;

TEST_CASE("embedding: rows held here, zeros elsewhere, and shards add up", "[compute][embedding]") {
  const int64_t vocabulary = 11, width = 37;
  const auto table = normal<double>(vocabulary * width, 1);
  const auto ids = tokens(50, 11, 2);
  hc::host<> backend(2);
  std::vector<double> whole(50 * 37), sum(whole.size()), part(whole.size());
  hc::run<hc::ops::embedding>(backend, ids, matrix(table, vocabulary, width), 0, matrix(whole, 50, width));
  for (std::size_t i = 0; i < 50; ++i)
    CHECK(std::equal(whole.begin() + static_cast<std::ptrdiff_t>(i * 37),
                     whole.begin() + static_cast<std::ptrdiff_t>(i * 37 + 37),
                     table.begin() + static_cast<std::ptrdiff_t>(ids[i]) * 37));
  for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 4}, {4, 4}, {8, 3}, {11, 0}}) {
    const std::vector<double> shard(table.begin() + first * width, table.begin() + (first + rows) * width);
    hc::run<hc::ops::embedding>(backend, ids, matrix(shard, rows, width), first, matrix(part, 50, width));
    hc::run<hc::ops::add>(backend, vec(std::as_const(sum)), vec(std::as_const(part)), vec(sum));
  }
  CHECK(same_bits(sum, whole));
}

TEST_CASE("embedding's backward adds each token's gradient to its row, for any number of threads",
          "[compute][embedding]") {
  const int64_t width = 300;
  const auto dout = normal<double>(200 * width, 1);
  auto ids = tokens(200, 13, 2);
  ids[7] = -100;  // no such row
  for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 13}, {5, 4}, {0, 0}}) {
    std::vector<double> want(static_cast<std::size_t>(rows * width), 0.5);
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (int64_t j = 0; j < width; ++j)
        if (ids[i] >= first && ids[i] < first + rows)
          want[static_cast<std::size_t>((ids[i] - first) * width + j)] += dout[i * 300 + static_cast<std::size_t>(j)];
    for (const int threads : {1, 2, 5}) {
      hc::host<> backend(threads);
      std::vector<double> got(want.size(), 0.5);
      hc::run<hc::ops::embedding_backward>(backend, ids, matrix(dout, 200, width), first, matrix(got, rows, width));
      CHECK(same_bits(got, want));
    }
  }
}

TEST_CASE("positions are added to every sequence; their gradient is the sum over sequences", "[compute][embedding]") {
  const int64_t batch = 3, sequence = 9, width = 70, context = 12;
  const auto x = normal<double>(batch * sequence * width, 1), wpe = normal<double>(context * width, 2);
  for (const int threads : {1, 4}) {
    hc::host<> backend(threads);
    auto y = x, want = x;
    std::vector<double> dwpe(wpe.size(), 1.0), want_gradient(wpe.size(), 1.0);
    for (int64_t i = 0; i < batch * sequence; ++i)
      for (int64_t j = 0; j < width; ++j) {
        const auto at = static_cast<std::size_t>(i * width + j), p = static_cast<std::size_t>(i % sequence * width + j);
        want[at] += wpe[p];
        want_gradient[p] += x[at];
      }
    hc::run<hc::ops::add_positions>(backend, matrix(y, batch * sequence, width), matrix(wpe, context, width), sequence);
    hc::run<hc::ops::add_positions_backward>(backend, matrix(x, batch * sequence, width), sequence,
                                             matrix(dwpe, context, width));
    CHECK(same_bits(y, want));
    CHECK(same_bits(dwpe, want_gradient));
  }
  hc::host<> backend;
  auto y = x;
  CHECK_THROWS_WITH(hc::run<hc::ops::add_positions>(backend, matrix(y, 27, width), matrix(wpe, context, width), 13),
                    "heddle: add_positions: 27 rows are not whole sequences of 13");
  CHECK_THROWS_WITH(hc::run<hc::ops::add_positions>(backend, matrix(y, 27, width), matrix(wpe, context, width), 27),
                    "heddle: add_positions: a sequence of 27 does not fit a position table of 12 rows");
}
