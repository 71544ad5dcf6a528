// Products that overlap with their communication, against the product of whole matrices, for many cuts and ranks.
#include "catch.hpp"
#include "support.hpp"
#include "transport.hpp"

#include <heddle/compute/overlapped_matmul.hpp>

#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

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

TEST_CASE("rows are multiplied while they are gathered", "[compute][overlap][ranks]") {
  constexpr int64_t k = 5, n = 6;
  for (const int p : transport_test::rank_counts({1, 2, 3, 4, 5}))
    for (const int kind : {0, 1, 2})
      for (const int pieces : {1, 3}) {
        CAPTURE(p, kind, pieces);
        const auto rows = rows_for(p, kind);
        int64_t all = 0;
        for (const int64_t r : rows) all += r;
        const auto x = normal<double>(all * k, 1), w = normal<double>(k * n, 2);
        const auto expected = product(x, w, all, k, n);
        const auto wt = turned(w, k, n);
        const auto results = transport_test::on_ranks(line{p}, [&](auto& world) {
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

TEST_CASE("sums are scattered while they are made", "[compute][overlap][ranks]") {
  constexpr int64_t k = 3, n = 4;  // k per rank
  for (const int p : transport_test::rank_counts({1, 2, 3, 4, 5}))
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
        const auto results = transport_test::on_ranks(line{p}, [&](auto& world) {
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

namespace {

// A communicator that keeps a list of what it has begun to receive and send, and whether that is done.
template <class Comm>
struct watched {
  using inner = typename Comm::request;
  struct message {
    inner request;
    bool done = false;
    bool test() { return done = done || request.test(); }
  };
  struct request {
    std::shared_ptr<message> m;
    explicit request(std::shared_ptr<message> of) : m(std::move(of)) {}
    request(request&&) = default;
    request& operator=(request&&) = default;
    void wait() {
      if (!m->done) m->request.wait();
      m->done = true;
    }
    bool test() { return m->test(); }
  };

  Comm* comm;
  std::vector<std::shared_ptr<message>> received{}, sent{};

  explicit watched(Comm& c) : comm(&c) {}
  int rank() const { return comm->rank(); }
  int size() const { return comm->size(); }
  template <class T>
  request isend(std::span<T> x, int to, int tag) {
    sent.push_back(std::make_shared<message>(message{comm->isend(x, to, tag)}));
    return request(sent.back());
  }
  template <class T>
  request irecv(std::span<T> x, int from, int tag) {
    received.push_back(std::make_shared<message>(message{comm->irecv(x, from, tag)}));
    return request(received.back());
  }
  // The rest of the concept.
  template <class T>
  void send(std::span<T> x, int to, int tag) {
    comm->send(x, to, tag);
  }
  template <class T>
  void recv(std::span<T> x, int from, int tag) {
    comm->recv(x, from, tag);
  }
  void barrier() { comm->barrier(); }
  void broadcast(auto x, int root) { comm->broadcast(x, root); }
  void all_reduce(auto x, hd::plus op) { comm->all_reduce(x, op); }
  void all_reduce(auto x, auto y, hd::plus op) { comm->all_reduce(x, y, op); }
  void reduce(auto x, auto y, hd::plus op, int root) { comm->reduce(x, y, op, root); }
  void reduce_scatter(auto x, auto y, hd::plus op) { comm->reduce_scatter(x, y, op); }
  void reduce_scatter_v(auto x, auto y, auto c, hd::plus op) { comm->reduce_scatter_v(x, y, c, op); }
  void all_gather(auto x, auto y) { comm->all_gather(x, y); }
  void all_gather_v(auto x, auto y, auto c) { comm->all_gather_v(x, y, c); }
  void all_to_all(auto x, auto y) { comm->all_to_all(x, y); }
  void all_to_all_v(auto x, auto c, auto y, auto d) { comm->all_to_all_v(x, c, y, d); }
  void gather(auto x, auto y, int root) { comm->gather(x, y, root); }
  void gather_v(auto x, auto y, auto c, int root) { comm->gather_v(x, y, c, root); }
  void scatter(auto x, auto y, int root) { comm->scatter(x, y, root); }
  void scatter_v(auto x, auto c, auto y, int root) { comm->scatter_v(x, c, y, root); }
  watched split(int, int) { return *this; }
  auto counters() const { return comm->counters(); }
};

// Products that last until `wanted(product)` messages have arrived: without overlap they would last for ever.
template <class Comm, class Wanted>
struct waiting_backend {
  watched<Comm>& comm;
  Wanted wanted;
  hc::host<hc::portable> own{};
  std::size_t products = 0, arrived_before_last = 0, sent_before_last = 0;
  bool late = false;

  template <std::derived_from<hc::ops::product_operation> Op, class T, class... V>
  void run(const V&... v) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    const std::size_t need = wanted(products++);
    std::size_t done = 0;
    for (;; std::this_thread::yield()) {
      done = 0;
      for (const auto& m : comm.received) done += m->test();
      if (done >= need) break;
      if (std::chrono::steady_clock::now() < end) continue;
      late = true;
      break;
    }
    arrived_before_last = done;
    sent_before_last = comm.sent.size();
    hc::run<Op>(own, v...);
  }
  auto& launcher() { return own.launcher(); }
};

struct overlap {
  bool late = false, same = false;
  std::size_t products = 0, arrived = 0, sent = 0;
};

}  // namespace

TEST_CASE("while a product runs the messages of the next ones finish", "[compute][overlap][ranks]") {
  constexpr int64_t k = 5, n = 3, each = 4;
  for (const int p : transport_test::rank_counts({2, 3, 5, 8}))
    for (const std::size_t pieces : {1u, 2u}) {
      CAPTURE(p, pieces);
      const std::vector<int64_t> rows(static_cast<std::size_t>(p), each);
      const int64_t all = each * p;
      const auto x = normal<double>(all * k, 1), w = normal<double>(k * n, 2);
      std::vector<double> whole(static_cast<std::size_t>(all * n));
      hc::host<hc::portable> plain;
      hc::matmul(plain, look(x, all, k), look(w, k, n), fill_in(whole, all, n));
      const auto messages = static_cast<std::size_t>(p - 1) * pieces;
      const auto results = transport_test::on_ranks(line{p}, [&](auto& world) {
        watched comm(world.all());
        // Product i waits for the message of product i + 1: it left the neighbour before the neighbour's product i.
        const auto next = [=](std::size_t i) { return i < pieces ? i + 1 : (std::min)(messages, i + 2 - pieces); };
        waiting_backend backend{comm, next};
        std::vector<double> gathered(x.size()), y(whole.size());
        const std::vector<double> own(x.begin() + comm.rank() * each * k, x.begin() + (comm.rank() + 1) * each * k);
        hc::all_gather_matmul(backend, comm, look(own, each, k), rows, look(w, k, n), fill_in(gathered, all, k),
                              fill_in(y, all, n), {static_cast<int>(pieces)});
        return overlap{backend.late, y == whole, backend.products, backend.arrived_before_last,
                       backend.sent_before_last};
      });
      REQUIRE(results.error == "");
      for (int r = 0; r < p; ++r) {
        CHECK_FALSE(results[r].late);
        CHECK(results[r].same);  // to the bit
        CHECK(results[r].products == messages + pieces);
        CHECK(results[r].arrived == messages);
        CHECK(results[r].sent == messages);
      }
    }
}

TEST_CASE("while a product runs the sum that is added to it arrives", "[compute][overlap][ranks]") {
  constexpr int64_t k = 2, n = 3, each = 4;
  for (const int p : transport_test::rank_counts({2, 3, 5, 8}))
    for (const std::size_t pieces : {1u, 2u}) {
      CAPTURE(p, pieces);
      const std::vector<int64_t> rows(static_cast<std::size_t>(p), each);
      const int64_t all = each * p;
      const auto messages = static_cast<std::size_t>(p - 1) * pieces;
      const auto results = transport_test::on_ranks(line{p}, [&](auto& world) {
        watched comm(world.all());
        // Product i of later steps waits for the sum it is added to.
        const auto own_sum = [=](std::size_t i) { return i < pieces ? 0 : i + 1 - pieces; };
        waiting_backend backend{comm, own_sum};
        const std::vector<double> x(static_cast<std::size_t>(all * k), comm.rank() + 1.0),
            w(static_cast<std::size_t>(k * n), 1.0);
        std::vector<double> y(static_cast<std::size_t>(each * n));
        hc::matmul_reduce_scatter(backend, comm, look(x, all, k), rows, look(w, k, n), fill_in(y, each, n),
                                  {static_cast<int>(pieces)});
        const double sum = static_cast<double>(k) * comm.size() * (comm.size() + 1) / 2;
        return overlap{backend.late, std::all_of(y.begin(), y.end(), [&](double v) { return v == sum; }),
                       backend.products, backend.arrived_before_last, backend.sent_before_last};
      });
      REQUIRE(results.error == "");
      for (int r = 0; r < p; ++r) {
        CHECK_FALSE(results[r].late);
        CHECK(results[r].same);
        CHECK(results[r].products == messages + pieces);
        CHECK(results[r].arrived == messages);
        CHECK(results[r].sent == messages);
      }
    }
}

TEST_CASE("overlapped products say what does not fit", "[compute][overlap][ranks]") {
  const auto message = [](auto call) {
    return transport_test::on_ranks(line{2},
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
