// The learned monoid: golden cell, the same bits on any number of ranks, gradients against differences and one rank's.
#include <heddle/collective/collectives.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/associativity.hpp>
#include <heddle/model/learned_monoid.hpp>
#include <heddle/model/recurrent_fold.hpp>
#ifdef HEDDLE_GEMM_HEADER
#include HEDDLE_GEMM_HEADER
#endif

#include "catch.hpp"
#include "model/support.hpp"
#include "transport.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace {
namespace hd = heddle;
namespace md = heddle::model;
using line = hd::mesh<hd::axis<hd::dp>>;
using host = hd::compute::host<hd::compute::portable>;
#ifdef HEDDLE_GEMM
using library = hd::compute::host<HEDDLE_GEMM>;
#else
using library = host;
#endif

/// A group of one rank.
struct alone {
  struct request {
    void wait() {}
  };
  int rank() const noexcept { return 0; }
  int size() const noexcept { return 1; }
  request isend(std::span<const double>, int, int) { return {}; }
  request irecv(std::span<double>, int, int) { return {}; }
  request isend(std::span<const float>, int, int) { return {}; }
  request irecv(std::span<float>, int, int) { return {}; }
};

// The definition of the cell for one number, as the paper's implementation writes it.
struct scalar_gru {
  double w_ir = .5, w_iz = -.3, w_in = .8, w_hr = .2, w_hz = .4, w_hn = -.6;
  double b_ir = .1, b_iz = 0, b_in = .05, b_hr = 0, b_hz = -.1, b_hn = .2;
  double cell(double x, double h) const {
    const auto s = [](double v) { return 1 / (1 + std::exp(-v)); };
    const double r = s(w_ir * x + b_ir + w_hr * h + b_hr), z = s(w_iz * x + b_iz + w_hz * h + b_hz);
    const double n = std::tanh(w_in * x + b_in + r * (w_hn * h + b_hn));
    return (1 - z) * n + z * h;
  }
  std::vector<double> weight() const { return {w_ir, w_iz, w_in, w_hr, w_hz, w_hn}; }
  std::vector<double> bias() const { return {b_ir, b_iz, b_in, b_hr, b_hz, b_hn}; }
};

template <class T>
void set_random(md::learned_monoid<T>& m, std::uint64_t stream) {
  for (std::size_t i = 0; i < m.parameters().table().size(); ++i) {
    const auto& p = m.parameters().table()[i];
    const auto values = model_test::random_vector(p.count, stream + i, p.decay ? 0.5 : 0.3);
    std::transform(values.begin(), values.end(), m.parameters().weight(i).begin(),
                   [](double v) { return static_cast<T>(v); });
  }
}

template <class T>
std::vector<T> random_leaves(std::int64_t n, std::uint64_t stream) {
  const auto values = model_test::random_vector(n, stream);
  return std::vector<T>(values.begin(), values.end());
}

std::vector<std::int64_t> random_bounds(std::int64_t n, int p, std::uint64_t stream) {
  const hd::counter_random random(2024, stream);
  std::vector<std::int64_t> bounds(static_cast<std::size_t>(p) + 1, 0);
  for (std::size_t r = 1; r < bounds.size(); ++r)
    bounds[r] = static_cast<std::int64_t>(random.integer(r) % static_cast<std::uint64_t>(n + 1));
  bounds.back() = n;
  std::sort(bounds.begin(), bounds.end());
  return bounds;
}

// The textbook tree, one application at a time.
template <class T, class Op>
std::vector<T> tree(std::vector<std::vector<T>> level, const Op& op, bool swapped = false) {
  while (level.size() > 1) {
    std::vector<std::vector<T>> up;
    for (std::size_t i = 0; i < level.size(); i += 2) {
      if (i + 1 == level.size()) {
        up.push_back(level[i]);
        continue;
      }
      std::vector<T> result(level[i].size());
      op(std::span<const T>(level[swapped ? i + 1 : i]), std::span<const T>(level[swapped ? i : i + 1]),
         std::span<T>(result));
      up.push_back(result);
    }
    level = up;
  }
  return level[0];
}
template <class T>
std::vector<std::vector<T>> rows_of(const std::vector<T>& x, std::int64_t width) {
  std::vector<std::vector<T>> rows;
  for (auto at = x.begin(); at != x.end(); at += width) rows.emplace_back(at, at + width);
  return rows;
}
template <class T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// The roots of `trees` on p ranks, cut at random: "" or what differs from `want`.
template <class Rows, class Backend, class T>
std::string fold_on_ranks(md::learned_monoid<T>& monoid, const std::vector<std::int64_t>& trees,
                          const std::vector<T>& leaves, std::int64_t leaf_width, int p, std::uint64_t stream,
                          const std::vector<std::optional<std::vector<T>>>& want) {
  const auto bounds = random_bounds(trees.back(), p, stream);
  std::string found;
  std::mutex mutex;
  transport_test::launch(line{p}, [&](auto& world) {
    Backend compute;
    typename md::learned_monoid<T>::saved s(hd::dyadic_plan(trees, bounds, world.rank()), monoid.config());
    const auto& plan = s.fold.plan();
    const hd::matrix_view<const T> own(leaves.data() + plan.begin() * leaf_width,
                                       hd::dynamic_shape<2>(plan.leaves(), leaf_width));
    monoid.template forward<Rows>(compute, world.all(), s, own);
    for (std::int64_t t = 0; t < plan.trees(); ++t) {
      const auto& expected = want[static_cast<std::size_t>(t)];
      const auto got = s.fold.root(t);
      if (got.has_value() == expected.has_value() && (!got || same_bits<T>(*got, *expected))) continue;
      const std::lock_guard lock(mutex);
      found += "rank " + std::to_string(world.rank()) + " tree " + std::to_string(t) + "; ";
    }
  });
  transport_test::merge(found);
  return found;
}
}  // namespace

TEST_CASE("the learned operator's cell, tree and defect have their golden numbers", "[model][monoid]") {
  host compute;
  md::learned_monoid<double> monoid({.width = 1});
  const scalar_gru golden;
  std::ranges::copy(golden.weight(), monoid.parameters().weight(0).begin());
  std::ranges::copy(golden.bias(), monoid.parameters().weight(1).begin());
  const auto op = monoid.op(compute);
  const auto apply = [&](double a, double b) {
    double r = 0;
    op(std::span<const double>(&a, 1), std::span<const double>(&b, 1), std::span<double>(&r, 1));
    return r;
  };
  CHECK(std::abs(apply(.1, -.4) - -0.010216912397661215) < 1e-14);
  CHECK(apply(.1, -.4) == apply(-.4, .1));
  CHECK(std::abs(apply(.1, -.4) - (golden.cell(.1, -.4) + golden.cell(-.4, .1)) / 2) < 1e-15);
  const std::vector<double> x{.1, -.4, .7, .2, -.9};
  alone self;
  hd::dyadic_fold<double> fold(hd::dyadic_plan(std::vector<std::int64_t>{0, 5}, 0), 1);
  fold.run(self, std::span<const double>(x), op);
  CHECK(std::abs((*fold.root())[0] - -0.05096746975818209) < 1e-14);
  double left = x[0];
  for (std::size_t i = 1; i < x.size(); ++i) left = apply(left, x[i]);
  CHECK(std::abs(left - -0.027114426151356744) < 1e-14);
  const std::span<const double> s(x);
  const double defect = md::associativity_defect(op, 1, s.subspan(0, 1), s.subspan(1, 1), s.subspan(2, 1));
  CHECK(std::abs(std::sqrt(defect) - 0.13769338741067624) < 1e-14);
  STATIC_REQUIRE(hd::op_traits<decltype(op)>::commutative);
  STATIC_REQUIRE_FALSE(hd::op_traits<decltype(op)>::associative);
  STATIC_REQUIRE_FALSE(hd::op_traits<decltype(op)>::elementwise);
  STATIC_REQUIRE(hd::differentiable_fold_operator<std::remove_const_t<decltype(op)>, double>);
}

TEST_CASE("a learned fold has the same bits on any number of ranks", "[model][monoid][ranks]") {
  md::learned_monoid<float> monoid({.width = 8});
  set_random(monoid, 10);
  host compute;
  for (std::int64_t n = 1; n <= 64; n += n < 6 ? 1 : 13) {
    const auto leaves = random_leaves<float>(n * 8, static_cast<std::uint64_t>(n));
    const std::vector<std::optional<std::vector<float>>> want{tree(rows_of(leaves, 8), monoid.op(compute))};
    for (const int p : transport_test::rank_counts({1, 2, 3, 5, 8})) {
      INFO("leaves " << n << ", ranks " << p);
      CHECK(fold_on_ranks<md::rows_together, host>(monoid, {0, n}, leaves, 8, p,
                                                   static_cast<std::uint64_t>(100 * n + p), want) == "");
    }
  }
}

TEST_CASE("a learned fold has the same bits on any number of ranks, all sizes to 64", "[model][monoid][slow][ranks]") {
  md::learned_monoid<double> monoid({.width = 5});
  set_random(monoid, 20);
  host compute;
  for (std::int64_t n = 1; n <= 64; ++n) {
    const auto leaves = random_leaves<double>(n * 5, static_cast<std::uint64_t>(n));
    const std::vector<std::optional<std::vector<double>>> want{tree(rows_of(leaves, 5), monoid.op(compute))};
    for (const int p : transport_test::rank_counts({1, 2, 3, 4, 5, 8, 16})) {
      INFO("leaves " << n << ", ranks " << p);
      CHECK(fold_on_ranks<md::rows_together, host>(monoid, {0, n}, leaves, 5, p,
                                                   static_cast<std::uint64_t>(100 * n + p), want) == "");
    }
  }
}

TEST_CASE("with rows alone any library of products gives the same bits on any number of ranks",
          "[model][monoid][ranks]") {
  md::learned_monoid<float> monoid({.width = 16, .inputs = 4});
  set_random(monoid, 30);
  const std::vector<std::int64_t> trees{0, 7, 7, 20};
  const auto leaves = random_leaves<float>(20 * 4, 31);
  std::vector<std::optional<std::vector<float>>> want(3);
  {
    library compute;
    alone self;
    md::learned_monoid<float>::saved s(hd::dyadic_plan(trees, std::vector<std::int64_t>{0, 20}, 0), monoid.config());
    monoid.forward<md::rows_alone>(compute, self, s, {leaves.data(), hd::dynamic_shape<2>(20, 4)});
    for (std::int64_t t = 0; t < 3; ++t)
      if (const auto root = s.fold.root(t)) want[static_cast<std::size_t>(t)].emplace(root->begin(), root->end());
  }
  CHECK_FALSE(want[1].has_value());
  for (const int p : transport_test::rank_counts({2, 3, 4, 7})) {
    INFO("ranks " << p);
    CHECK(fold_on_ranks<md::rows_alone, library>(monoid, trees, leaves, 4, p, static_cast<std::uint64_t>(p), want) ==
          "");
  }
}

TEST_CASE("swapping the operands of every node changes no bit of a symmetrised cell, and a plain one",
          "[model][monoid]") {
  host compute;
  md::learned_monoid<float> monoid({.width = 12});
  set_random(monoid, 40);
  for (const std::int64_t n : {2, 3, 7, 16, 33}) {
    const auto rows = rows_of(random_leaves<float>(n * 12, static_cast<std::uint64_t>(40 + n)), 12);
    CHECK(tree(rows, monoid.op(compute)) == tree(rows, monoid.op(compute), true));
    CHECK(tree(rows, monoid.op<md::one_order>(compute)) != tree(rows, monoid.op<md::one_order>(compute), true));
  }
  STATIC_REQUIRE_FALSE(decltype(monoid.op<md::one_order>(compute))::commutative);
}

TEST_CASE("a set's value does not depend on the sets beside it", "[model][monoid]") {
  host compute;
  alone self;
  md::learned_monoid<float> monoid({.width = 6});
  set_random(monoid, 50);
  const auto leaves = random_leaves<float>(3 * 6 + 40 * 6, 51);
  const auto root = [&](std::vector<std::int64_t> trees) {
    const std::vector<std::int64_t> bounds{0, trees.back()};
    md::learned_monoid<float>::saved s(hd::dyadic_plan(trees, bounds, 0), monoid.config());
    monoid.forward(compute, self, s, {leaves.data(), hd::dynamic_shape<2>(trees.back(), 6)});
    return std::vector<float>(s.fold.root(0)->begin(), s.fold.root(0)->end());
  };
  CHECK(root({0, 3}) == root({0, 3, 43}));
}

TEST_CASE("gradients of a learned fold are those of central differences, on any number of ranks",
          "[model][monoid][ranks]") {
  const std::vector<std::int64_t> trees{0, 5, 5, 6, 13};
  const std::int64_t leaves_count = 13, inputs = 3, width = 4;
  for (const bool projected : {false, true}) {
    const md::learned_monoid_config config{.width = width, .inputs = projected ? inputs : 0};
    const std::int64_t leaf = projected ? inputs : width;
    auto x = random_leaves<double>(leaves_count * leaf, 60);
    const auto d_roots = random_leaves<double>(4 * width, 61);
    md::learned_monoid<double> serial(config);
    set_random(serial, 62);
    host compute;
    alone self;
    md::learned_monoid<double>::saved s(hd::dyadic_plan(trees, std::vector<std::int64_t>{0, leaves_count}, 0), config);
    const auto value = [&] {
      serial.forward(compute, self, s, {x.data(), hd::dynamic_shape<2>(leaves_count, leaf)});
      double sum = 0;
      for (std::int64_t t = 0; t < 4; ++t)
        if (const auto root = s.fold.root(t))
          for (std::size_t j = 0; j < root->size(); ++j)
            sum += (*root)[j] * d_roots[static_cast<std::size_t>(t * width) + j];
      return sum;
    };
    value();
    std::vector<double> d_x(x.size());
    serial.backward(compute, s, d_roots, {d_x.data(), hd::dynamic_shape<2>(leaves_count, leaf)});
    CHECK_THROWS_AS(serial.backward(compute, s, d_roots, {d_x.data(), hd::dynamic_shape<2>(leaves_count, leaf)}),
                    hd::comm_error);  // once after each forward
    CHECK(model_test::difference_error(x, d_x, value) < 1e-6);
    for (std::size_t i = 0; i < serial.parameters().table().size(); ++i) {
      INFO(serial.parameters().table()[i].name);
      CHECK(model_test::difference_error(serial.parameters().weight(i), serial.parameters().gradient(i), value) < 1e-6);
    }

    for (const int p : transport_test::rank_counts({1, 2, 3, 4, 5, 7, 8})) {
      const auto bounds = random_bounds(leaves_count, p, static_cast<std::uint64_t>(70 + p));
      std::vector<double> all_d_x(x.size()), gradients;
      std::int64_t sent = 0;
      transport_test::launch(line{p}, [&](auto& world) {
        host mine;
        md::learned_monoid<double> monoid(config);
        set_random(monoid, 62);
        md::learned_monoid<double>::saved own(hd::dyadic_plan(trees, bounds, world.rank()), config);
        const auto& plan = own.fold.plan();
        const hd::dynamic_shape<2> shape(plan.leaves(), leaf);
        monoid.forward(mine, world.all(), own, {x.data() + plan.begin() * leaf, shape});
        const std::int64_t before = world.all().counters().messages_sent();
        monoid.backward(mine, own, d_roots, {all_d_x.data() + plan.begin() * leaf, shape});
        if (world.rank() == 0) sent = world.all().counters().messages_sent() - before;
        world.all().all_reduce(monoid.parameters().gradients(), hd::plus{});
        if (world.rank() == 0)
          gradients.assign(monoid.parameters().gradients().begin(), monoid.parameters().gradients().end());
      });
      transport_test::tell(sent, 0);
      transport_test::tell(gradients, 0);
      transport_test::merge(all_d_x, [](auto& all, const auto& other) {
        for (std::size_t i = 0; i < all.size(); ++i) all[i] += other[i];
      });
      INFO("ranks " << p << ", projected " << projected);
      CHECK(sent == 0);
      CHECK(model_test::relative_error(all_d_x, d_x) < 1e-12);
      CHECK(model_test::relative_error(gradients, serial.parameters().gradients()) < 1e-12);
    }
  }
}

TEST_CASE("gradients of a plain cell and of the associativity loss are those of central differences",
          "[model][monoid]") {
  host compute;
  md::learned_monoid<double> monoid({.width = 3});
  set_random(monoid, 80);
  const auto a = random_leaves<double>(4 * 3, 81), b = random_leaves<double>(4 * 3, 82),
             c = random_leaves<double>(4 * 3, 83);
  const std::span<const double> sa(a), sb(b), sc(c);
  const auto check = [&](auto op) {
    std::ranges::fill(monoid.parameters().gradients(), 0.0);
    const double defect = md::associativity_loss(op, 3, sa, sb, sc, 0.7);
    CHECK(defect == Approx(md::associativity_defect(op, 3, sa, sb, sc)).epsilon(1e-14));
    CHECK(defect > 0);
    for (std::size_t i = 0; i < 2; ++i)
      CHECK(model_test::difference_error(monoid.parameters().weight(i), monoid.parameters().gradient(i),
                                         [&] { return 0.7 * md::associativity_defect(op, 3, sa, sb, sc); }) < 1e-6);
    std::ranges::fill(monoid.parameters().gradients(), 0.0);
    CHECK(md::associativity_loss(op, 3, sa, sb, sc, 0.0) == defect);
    CHECK(std::ranges::all_of(monoid.parameters().gradients(), [](double g) { return g == 0; }));
  };
  check(monoid.op(compute));
  check(monoid.op<md::one_order>(compute));
  CHECK_THROWS_AS(md::associativity_defect(monoid.op(compute), 3, sa, sb, sc.first(9)), hd::layout_error);
}

TEST_CASE("an all_reduce with the learned operator keeps the tree over the ranks", "[model][monoid][ranks]") {
  host compute;
  md::learned_monoid<float> monoid({.width = 6});
  set_random(monoid, 90);
  for (const int p : transport_test::rank_counts(8)) {
    const auto x = random_leaves<float>(p * 12, static_cast<std::uint64_t>(90 + p));  // two elements on each rank
    const auto want = tree(rows_of(x, 12), monoid.op(compute));
    std::vector<int> right(static_cast<std::size_t>(p), 0);
    transport_test::launch(line{p}, [&](auto& world) {
      host mine;
      const auto r = static_cast<std::size_t>(world.rank());
      std::vector<float> y(x.begin() + world.rank() * 12, x.begin() + (world.rank() + 1) * 12);
      hd::all_reduce<hd::algo::dyadic>(world.all(), y, monoid.op(mine));
      right[r] = y == want ? 1 : 0;
    });
    transport_test::share(right);
    INFO("ranks " << p);
    CHECK(std::ranges::count(right, 1) == p);
  }
}

TEST_CASE("values are those of PyTorch Geometric on sets of one size, and stay so beside a larger set",
          "[model][monoid]") {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/lcm_golden.txt");
  std::map<std::string, std::vector<double>> golden;
  int cases = 0;
  for (std::string text; std::getline(in, text);) {
    std::istringstream words(text);
    std::string name;
    words >> name;
    golden[name].assign(std::istream_iterator<double>(words), {});
    if (name != "beside_larger") continue;
    ++cases;
    const auto& n = golden["sizes"];
    const auto sets = static_cast<std::int64_t>(n[0]), size = static_cast<std::int64_t>(n[1]),
               inputs = static_cast<std::int64_t>(n[2]), width = static_cast<std::int64_t>(n[3]),
               more = static_cast<std::int64_t>(n[4]);
    md::learned_monoid<float> monoid({.width = width, .inputs = inputs});
    const auto fill = [&](std::size_t at, std::vector<double> first, const std::vector<double>& second = {}) {
      first.insert(first.end(), second.begin(), second.end());
      REQUIRE(first.size() == monoid.parameters().weight(at).size());
      std::ranges::transform(first, monoid.parameters().weight(at).begin(),
                             [](double v) { return static_cast<float>(v); });
    };
    fill(0, golden["weight_ih"], golden["weight_hh"]);
    fill(1, golden["bias_ih"], golden["bias_hh"]);
    std::vector<double> turned;  // PyTorch's weights have a row for each output
    for (std::int64_t i = 0; i < inputs; ++i)
      for (std::int64_t o = 0; o < width; ++o)
        turned.push_back(golden["projection"][static_cast<std::size_t>(o * inputs + i)]);
    fill(2, turned);
    fill(3, golden["projection_bias"]);
    std::vector<float> x(golden["x"].begin(), golden["x"].end());
    x.insert(x.end(), golden["larger"].begin(), golden["larger"].end());
    const auto values = [&](bool beside) {
      std::vector<std::int64_t> trees;
      for (std::int64_t t = 0; t <= sets; ++t) trees.push_back(t * size);
      if (beside) trees.push_back(trees.back() + more);
      host compute;
      alone self;
      md::learned_monoid<float>::saved s(hd::dyadic_plan(trees, std::vector<std::int64_t>{0, trees.back()}, 0),
                                         monoid.config());
      monoid.forward(compute, self, s, {x.data(), hd::dynamic_shape<2>(trees.back(), inputs)});
      std::vector<float> all;
      for (std::int64_t t = 0; t < sets; ++t) all.insert(all.end(), s.fold.root(t)->begin(), s.fold.root(t)->end());
      return all;
    };
    CHECK(model_test::relative_error(values(false), golden["values"]) < 1e-5);
    CHECK(values(true) == values(false));
    CHECK(model_test::relative_error(golden["beside_larger"], golden["values"]) > 0.01);  // theirs pads with zeros
  }
  CHECK(cases == 2);
}

TEST_CASE("a recurrent fold is the loop over a set's elements, with gradients of central differences",
          "[model][monoid]") {
  host compute;
  alone self;
  const std::vector<std::int64_t> trees{0, 3, 3, 4, 9, 11};
  const auto plan = [&] { return hd::dyadic_plan(trees, std::vector<std::int64_t>{0, 11}, 0); };
  md::learned_monoid<double> golden({.width = 1});
  const scalar_gru cell;
  std::ranges::copy(cell.weight(), golden.parameters().weight(0).begin());
  std::ranges::copy(cell.bias(), golden.parameters().weight(1).begin());
  const auto numbers = random_leaves<double>(11, 95);
  md::recurrent_fold<double> one(plan(), 1);
  one.forward(self, std::span<const double>(numbers), golden.op<md::one_order>(compute));
  for (std::size_t t = 0; t < 5; ++t) {
    double state = 0;
    for (auto i = static_cast<std::size_t>(trees[t]); i < static_cast<std::size_t>(trees[t + 1]); ++i)
      state = cell.cell(numbers[i], state);
    const auto root = one.root(static_cast<std::int64_t>(t));
    CHECK(root.has_value() == (t != 1));
    if (root) CHECK(std::abs((*root)[0] - state) < 1e-14);
  }

  md::learned_monoid<double> monoid({.width = 3});
  set_random(monoid, 96);
  auto x = random_leaves<double>(33, 97);
  const auto d_roots = random_leaves<double>(15, 98);
  const auto op = monoid.op<md::one_order>(compute);
  md::recurrent_fold<double> fold(plan(), 3);
  const auto value = [&] {
    fold.forward(self, std::span<const double>(x), op);
    double sum = 0;
    for (std::int64_t t = 0; t < 5; ++t)
      if (const auto root = fold.root(t))
        for (std::size_t j = 0; j < 3; ++j) sum += (*root)[j] * d_roots[static_cast<std::size_t>(3 * t) + j];
    return sum;
  };
  value();
  std::vector<double> d_x(33);
  fold.backward(op, d_roots, std::span<double>(d_x));
  CHECK(model_test::difference_error(x, d_x, value) < 1e-6);
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(model_test::difference_error(monoid.parameters().weight(i), monoid.parameters().gradient(i), value) < 1e-6);
  CHECK_THROWS_WITH(md::recurrent_fold<double>(hd::dyadic_plan(trees, std::vector<std::int64_t>{0, 5, 11}, 0), 1),
                    Catch::Matchers::Contains("ranks: expected 1, got 2"));
  CHECK_THROWS_WITH(fold.forward(self, std::span<const double>(x).first(30), op),
                    Catch::Matchers::Contains("scalars of the leaves: expected 33, got 30"));
}

TEST_CASE("a learned monoid that does not fit says so", "[model][monoid]") {
  host compute;
  alone self;
  CHECK_THROWS_AS(md::learned_monoid<float>({.width = 0}), hd::config_error);
  md::learned_monoid<float> monoid({.width = 2});
  md::learned_monoid<float>::saved s(hd::dyadic_plan(std::vector<std::int64_t>{0, 3}, 0), monoid.config());
  const std::vector<float> x(9);
  CHECK_THROWS_WITH(monoid.forward(compute, self, s, {x.data(), hd::dynamic_shape<2>(3, 3)}),
                    Catch::Matchers::Contains("expected 3 leaves of 2 numbers, got 3 of 3"));
  md::weight_views<float> none;
  CHECK_THROWS_AS((md::gru_operator<float, host>(compute, none)), hd::layout_error);
}
