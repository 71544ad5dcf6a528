// Products that overlap with their communication, against the product of whole matrices, for many cuts and ranks.
#include "catch.hpp"
#include "support.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/overlapped_matmul.hpp>
#include <heddle/testing/on_ranks.hpp>

using namespace compute_test;

namespace {

using line = hd::mesh<hd::axis<hd::tp>>;

std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, int64_t m, int64_t k,
                            int64_t n) {
  std::vector<double> c(static_cast<std::size_t>(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l)
        c[static_cast<std::size_t>(i * n + j)] +=
            a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(l * n + j)];
  return c;
}
std::vector<double> turned(const std::vector<double>& a, int64_t m, int64_t n) {
  std::vector<double> t(a.size());
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) t[static_cast<std::size_t>(j * m + i)] = a[static_cast<std::size_t>(i * n + j)];
  return t;
}
hd::matrix_view<const double> look(const std::vector<double>& v, int64_t rows, int64_t columns) {
  return {v.data(), {rows, columns}};
}
hd::matrix_view<double> fill_in(std::vector<double>& v, int64_t rows, int64_t columns) {
  return {v.data(), {rows, columns}};
}
double distance(const double* a, const double* b, int64_t n) {
  double most = 0;
  for (int64_t i = 0; i < n; ++i) most = (std::max)(most, std::isnan(a[i]) ? 1e300 : std::abs(a[i] - b[i]));
  return most;
}

// Uneven, with ranks that have nothing.
std::vector<int64_t> rows_for(int ranks, int kind) {
  std::vector<int64_t> rows;
  for (int r = 0; r < ranks; ++r) rows.push_back(kind == 0 ? 4 : kind == 1 ? (3 * r + 5) % 7 : r == ranks - 1 ? 9 : 0);
  return rows;
}

struct counted {
  double error = 0;
  int64_t messages = 0, bytes = 0;
};

}  // namespace

TEST_CASE("rows are multiplied while they are gathered", "[compute][overlap]") {
  constexpr int64_t k = 5, n = 6;
  for (const int p : {1, 2, 3, 4, 5})
    for (const int kind : {0, 1, 2})
      for (const int pieces : {1, 3}) {
        CAPTURE(p, kind, pieces);
        const auto rows = rows_for(p, kind);
        int64_t all = 0;
        for (const int64_t r : rows) all += r;
        const auto x = normal<double>(all * k, 1), w = normal<double>(k * n, 2);
        const auto expected = product(x, w, all, k, n);
        const auto wt = turned(w, k, n);
        const auto results = hd::testing::on_ranks(line{p}, [&](auto& world) {
          auto& comm = world.template along<hd::tp>();
          hc::host<> backend;
          const int me = comm.rank();
          int64_t begin = 0;
          for (int r = 0; r < me; ++r) begin += rows[static_cast<std::size_t>(r)];
          const int64_t mine = rows[static_cast<std::size_t>(me)];
          std::vector<double> gathered(x.size(), std::nan("")), y(expected.size(), std::nan("")), again = y;
          const std::vector<double> own(x.begin() + begin * k, x.begin() + (begin + mine) * k);
          hc::all_gather_matmul(backend, comm, look(own, mine, k), rows, look(w, k, n), fill_in(gathered, all, k),
                                fill_in(y, all, n), {pieces, 3});
          counted found;
          found.messages = comm.counters().messages_sent();
          found.bytes = comm.counters().bytes_sent();
          found.error =
              (std::max)(distance(gathered.data(), x.data(), all * k), distance(y.data(), expected.data(), all * n));
          // In place, and with the weight as its transpose.
          std::fill(gathered.begin(), gathered.end(), std::nan(""));
          std::copy(own.begin(), own.end(), gathered.begin() + begin * k);
          hc::all_gather_matmul<hc::transpose::yes>(
              backend, comm, hd::matrix_view<const double>(gathered.data() + begin * k, {mine, k}), rows,
              look(wt, n, k), fill_in(gathered, all, k), fill_in(again, all, n), {pieces});
          found.error = (std::max)(found.error, distance(again.data(), expected.data(), all * n));
          return found;
        });
        REQUIRE(results.error == "");
        for (int r = 0; r < p; ++r) {
          CHECK(results[r].error < 1e-12);
          // A ring all_gather: every block but the next rank's own passes through.
          int64_t bytes = 0, messages = 0;
          for (int b = 0; b < p; ++b) {
            if (b == (r + 1) % p) continue;
            bytes += rows[static_cast<std::size_t>(b)] * k * 8;
            messages += (std::min)(rows[static_cast<std::size_t>(b)], static_cast<int64_t>(pieces));
          }
          CHECK(results[r].bytes == (p == 1 ? 0 : bytes));
          CHECK(results[r].messages == (p == 1 ? 0 : messages));
        }
      }
}

TEST_CASE("sums are scattered while they are made", "[compute][overlap]") {
  constexpr int64_t k = 3, n = 4;  // k per rank
  for (const int p : {1, 2, 3, 4, 5})
    for (const int kind : {0, 1, 2})
      for (const int pieces : {1, 3}) {
        CAPTURE(p, kind, pieces);
        const auto rows = rows_for(p, kind);
        int64_t all = 0;
        for (const int64_t r : rows) all += r;
        std::vector<double> expected(static_cast<std::size_t>(all * n), 0.0);
        std::vector<std::vector<double>> xs, ws;
        for (int r = 0; r < p; ++r) {
          xs.push_back(normal<double>(all * k, 10 + static_cast<std::uint64_t>(r)));
          ws.push_back(normal<double>(k * n, 20 + static_cast<std::uint64_t>(r)));
          const auto part = product(xs.back(), ws.back(), all, k, n);
          for (std::size_t i = 0; i < part.size(); ++i) expected[i] += part[i];
        }
        const auto results = hd::testing::on_ranks(line{p}, [&](auto& world) {
          auto& comm = world.template along<hd::tp>();
          hc::host<> backend;
          const auto me = static_cast<std::size_t>(comm.rank());
          int64_t begin = 0;
          for (std::size_t r = 0; r < me; ++r) begin += rows[r];
          std::vector<double> y(static_cast<std::size_t>(rows[me] * n), std::nan("")), again = y;
          hc::matmul_reduce_scatter(backend, comm, look(xs[me], all, k), rows, look(ws[me], k, n),
                                    fill_in(y, rows[me], n), {pieces, 1});
          counted found{0, comm.counters().messages_sent(), comm.counters().bytes_sent()};
          const auto wt = turned(ws[me], k, n);
          hc::matmul_reduce_scatter<hc::transpose::yes>(backend, comm, look(xs[me], all, k), rows, look(wt, n, k),
                                                        fill_in(again, rows[me], n), {pieces});
          found.error = (std::max)(distance(y.data(), expected.data() + begin * n, rows[me] * n),
                                   distance(again.data(), expected.data() + begin * n, rows[me] * n));
          return found;
        });
        REQUIRE(results.error == "");
        for (int r = 0; r < p; ++r) {
          CHECK(results[r].error < 1e-12);
          int64_t bytes = 0, messages = 0;
          for (int b = 0; b < p; ++b) {
            if (b == r) continue;
            bytes += rows[static_cast<std::size_t>(b)] * n * 8;
            messages += (std::min)(rows[static_cast<std::size_t>(b)], static_cast<int64_t>(pieces));
          }
          CHECK(results[r].bytes == bytes);
          CHECK(results[r].messages == messages);
        }
      }
}

TEST_CASE("overlapped products say what does not fit", "[compute][overlap]") {
  const auto message = [](auto call) {
    return hd::testing::on_ranks(line{2},
                                 [&](auto& world) {
                                   hc::host<> backend;
                                   call(backend, world.all());
                                 })
        .error;
  };
  std::vector<double> a(64), b(64), c(64);
  const std::vector<int64_t> rows{2, 2}, three{1, 1, 1};
  using Catch::Matchers::Contains;
  CHECK_THAT(message([&](auto& backend, auto& comm) {
               std::vector<double> mine(64);
               hc::all_gather_matmul(backend, comm, look(a, 2, 3), three, look(b, 3, 2), fill_in(mine, 4, 3),
                                     fill_in(mine, 4, 2));
             }),
             Contains("needs the rows of each of 2 ranks, got 3 numbers"));
  CHECK_THAT(message([&](auto& backend, auto& comm) {
               std::vector<double> mine(64);
               hc::matmul_reduce_scatter(backend, comm, look(a, 4, 3), rows, look(b, 2, 2), fill_in(mine, 2, 2));
             }),
             Contains("rows of op(w): expected 3, got 2"));
  CHECK_THAT(message([&](auto& backend, auto& comm) {
               std::vector<double> mine(64);
               hc::matmul_reduce_scatter(backend, comm, look(a, 4, 3), rows, look(b, 3, 2), fill_in(mine, 2, 2), {0});
             }),
             Contains("pieces must be at least 1, got 0"));
}
