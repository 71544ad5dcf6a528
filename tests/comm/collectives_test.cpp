// Every collective against its definition, for many numbers of ranks, counts and operators.
#include "definitions.hpp"

using namespace comm_test;

TEMPLATE_TEST_CASE("collectives give what their definitions say", "[comm][law]", (std::pair<int, heddle::plus>),
                   (std::pair<float, heddle::plus>), (std::pair<double, heddle::maximum>),
                   (std::pair<std::uint8_t, right>), (std::pair<word, join>), (std::pair<matrix2, product2>)) {
  using T = typename TestType::first_type;
  using Op = typename TestType::second_type;
  for (const int p : rank_counts(9)) {
    notes notes(p);
    for (const hd::checking check : {hd::checking::on, hd::checking::off})
      launch(line{p}, options_ms(20'000, check), [&](auto& world) {
        auto& c = world.all();
        for (const std::int64_t n : {0, 1, p - 1, p, p + 1, 1000}) {
          c.barrier();
          everything<T>(c, n, Op{}, notes);
        }
      });
    notes.report();
  }
}

TEST_CASE("large collectives are shared among the ranks and give the same", "[comm][law]") {
  for (const int p : rank_counts({2, 7})) {
    notes notes(p);
    launch(line{p}, options_ms(60'000), [&](auto& world) {
      everything<float>(world.all(), 40'003, hd::plus{}, notes);
      everything<std::uint8_t>(world.all(), 90'001, right{}, notes);
      reductions<matrix2>(world.all(), 3'001, product2{}, notes);
    });
    notes.report();
  }
}

TEST_CASE("floating sums have the same bits on every rank and in every run", "[comm][law]") {
  const int p = (std::min)(7, most_ranks());
  std::vector<std::vector<float>> sums(static_cast<std::size_t>(p));
  for (int run = 0; run < 3; ++run) {
    launch(line{p}, [&](auto& world) {
      auto x = buffer<float>(world.rank(), 50'000);
      for (auto& e : x) e *= 1e-3f;
      world.all().all_reduce(x, hd::plus{});
      sums[static_cast<std::size_t>(world.rank())] = x;
    });
    share(sums);
    static std::vector<float> first;
    if (run == 0) first = sums[0];
    for (const auto& sum : sums) CHECK(sum == first);
  }
}

TEST_CASE("collectives relate as the catalogue says", "[comm][law]") {
  for (const int p : rank_counts({1, 2, 5, 8})) {
    notes notes(p);
    launch(line{p}, [&](auto& world) {
      auto& c = world.all();
      const int r = c.rank();
      for (const std::int64_t n : {1, 13, 2000}) {
        const auto x = buffer<std::int64_t>(r, n * p);
        const auto block = static_cast<std::size_t>(n);
        std::vector<std::int64_t> sum(x.size()), mine(block), other(x.size());
        c.all_reduce(x, sum, hd::plus{});
        c.reduce_scatter(x, mine, hd::plus{});
        c.all_gather(mine, other);
        notes.expect(r, other == sum, "all_gather of reduce_scatter is all_reduce");
        c.reduce(x, other, hd::plus{}, p - 1);
        c.broadcast(other, p - 1);
        notes.expect(r, other == sum, "broadcast of reduce is all_reduce");
        other = x;
        c.scatter(x, mine, 0);
        c.all_gather(mine, other);
        notes.expect(r, other == buffer<std::int64_t>(0, n * p), "all_gather of scatter is broadcast");
        // <A x, y> = <x, A' y>: all_gather and reduce_scatter are adjoint.
        const auto u = buffer<std::int64_t>(r + 3, n);
        std::vector<std::int64_t> gathered(x.size()), scattered(block);
        c.all_gather(u, gathered);
        c.reduce_scatter(x, scattered, hd::plus{});
        std::int64_t dots[2] = {std::inner_product(gathered.begin(), gathered.end(), x.begin(), std::int64_t{0}),
                                std::inner_product(u.begin(), u.end(), scattered.begin(), std::int64_t{0})};
        c.all_reduce(dots, hd::plus{});
        notes.expect(r, dots[0] == dots[1], "all_gather is adjoint to reduce_scatter");
      }
    });
    notes.report();
  }
}

namespace {
struct pair_of_sums {
  double a;
  std::int32_t b;
};
struct add {
  template <class T>
  static T identity() {
    return {};
  }
  pair_of_sums operator()(const pair_of_sums& x, const pair_of_sums& y) const { return {x.a + y.a, x.b + y.b}; }
};
}  // namespace

TEST_CASE("all_reduce takes one variable, of any communicator", "[comm][law]") {
  for (const int p : rank_counts(6)) {
    notes notes(p);
    launch(line{p}, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      const int r = c.rank();
      int sum = r;
      c.all_reduce(sum, hd::plus{});
      notes.expect(r, sum == p * (p - 1) / 2, "int");
      double most = 0.5 * r;
      c.all_reduce(most, hd::maximum{});
      notes.expect(r, most == 0.5 * (p - 1), "double");
      pair_of_sums own{1.5, r};
      c.all_reduce(own, add{});
      notes.expect(r, own.a == 1.5 * p && own.b == p * (p - 1) / 2, "struct");
      auto part = c.split(r % 2, r);
      int ones = 1;
      part.all_reduce(ones, hd::plus{});
      notes.expect(r, ones == (r % 2 == 0 ? (p + 1) / 2 : p / 2), "part of the ranks");
    });
    notes.report();
  }
}

TEST_CASE("counts that are negative or add up to too much are refused before anything moves", "[comm][failure]") {
  constexpr std::int64_t half = std::int64_t{1} << 62;
  const std::string sum = "the counts add up to more than 9223372036854775807 elements";
  for (const int p : rank_counts(4))
    for (const auto check : {hd::checking::on, hd::checking::off}) {
      notes notes(p);
      launch(line{p}, options_ms(20'000, check), [&](auto& world) {
        auto& c = world.all();
        const int r = c.rank();
        std::vector<char> x(2, 'x'), y(2, 'y');
        const auto ranks = static_cast<std::size_t>(p);
        const auto refused = [&](const char* what, const std::string& why, const auto& call) {
          std::string text = "nothing";
          try {
            call();
          } catch (const hd::comm_error& e) {
            text = e.what();
          }
          const std::string expected = std::string(what) + ": " + why;
          notes.expect(r, text.find("heddle: rank " + std::to_string(r)) == 0 && text.find(expected) != text.npos,
                       "expected " + expected + ", got " + text);
        };
        // The sum modulo 2^64 is the 2 elements that are there, as it is of counts that are 0 or 2 and fit.
        std::vector<std::int64_t> much(ranks, 0), negative(ranks, 0), fitting(ranks, 0);
        negative[0] = -1;
        fitting[0] = 2;
        if (p > 1) negative[1] = 3;
        if (p == 4) much = {half, half, half, half + 2};
        if (p >= 2 && p < 4) much[0] = much[1] = half;
        using counts = std::vector<std::int64_t>;
        const auto each = [&](const counts& wrong, const std::string& why) {
          refused("all_gather_v", why, [&] { c.all_gather_v(x, y, wrong); });
          refused("all_to_all_v", why, [&] { c.all_to_all_v(x, wrong, y, fitting); });
          refused("all_to_all_v", why, [&] { c.all_to_all_v(x, fitting, y, wrong); });
          refused("reduce_scatter_v", why, [&] { c.reduce_scatter_v(x, y, wrong, hd::maximum{}); });
          if (r == 0) {
            refused("gather_v", why, [&] { c.gather_v(x, y, wrong, 0); });
            refused("scatter_v", why, [&] { c.scatter_v(x, wrong, y, 0); });
          }
        };
        if (p > 1) each(much, sum);
        each(negative, "a count of -1");
        notes.expect(r, x == std::vector<char>(2, 'x') && y == std::vector<char>(2, 'y'), "something has moved");
        c.barrier();
      });
      notes.report();
    }
}

TEST_CASE("counters count calls and bytes", "[comm]") {
  if (most_ranks() < 3) return;
  std::vector<hd::comm_counters> counters(3);
  launch(line{3}, [&](auto& world) {
    auto& c = world.all();
    std::vector<float> x(10), y(30);
    c.barrier();
    c.all_reduce(x, hd::plus{});
    c.all_reduce(x, hd::plus{});
    c.all_gather(x, y);
    if (c.rank() == 0) c.send(std::span(x).first(4), 1);
    if (c.rank() == 1) c.recv(std::span(x).first(4), 0);
    c.barrier();
    counters[static_cast<std::size_t>(c.rank())] = c.counters();
  });
  share(counters);
  std::int64_t moved = 0;
  for (const auto& c : counters) {
    CHECK(c[hd::comm_operation::all_reduce].calls == 2);
    CHECK(c[hd::comm_operation::all_reduce].bytes == 80);
    CHECK(c[hd::comm_operation::all_gather].bytes == 40);
    CHECK(c[hd::comm_operation::barrier].calls == 2);
    CHECK(c.collectives() == 5);
    moved += c.bytes_moved;
  }
  if (on_threads) CHECK(moved == 3 * 40 * 2 + 3 * 3 * 40);  // every rank's result, written once
  CHECK(counters[0].messages_sent() == 1);
  CHECK(counters[0].bytes_sent() == 16);
  CHECK(counters[1].messages_received() == 1);
  CHECK(counters[1].bytes_received() == 16);
  CHECK(counters[2].messages_sent() + counters[2].messages_received() == 0);
}
