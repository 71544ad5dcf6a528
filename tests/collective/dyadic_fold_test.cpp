// Folds and scans in the dyadic tree: the bits of one rank on any number of ranks, counted messages, gradients.
#include <heddle/collective/dyadic_fold.hpp>
#include <heddle/core/random.hpp>

#include "comm/support.hpp"

#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace {
namespace hd = heddle;
using comm_test::line;

constexpr std::uint64_t seed = 20221208;

// A nonlinear operator on rows of `width`, neither commutative nor associative; mixes all scalars of a row.
struct swirl {
  static constexpr bool associative = false;
  static constexpr bool elementwise = false;
  std::int64_t width = 1;
  std::int64_t* calls = nullptr;
  std::int64_t* rows = nullptr;

  template <class T>
  void operator()(std::span<const T> a, std::span<const T> b, std::span<T> result) const {
    const auto w = static_cast<std::size_t>(width);
    if (calls != nullptr) ++*calls, *rows += static_cast<std::int64_t>(result.size() / w);
    for (std::size_t r = 0; r < result.size(); r += w)
      for (std::size_t i = 0; i < w; ++i)
        result[r + i] = a[r + i] * T(0.7) - b[r + (i + 1) % w] * T(0.4) + a[r + (i + 2) % w] * b[r + i] * T(0.1);
  }
};

// The definition, element by element: pairs of neighbours, an odd last one moves up.
template <class T, class Op>
std::optional<std::vector<T>> tree(std::vector<std::vector<T>> level, const Op& op) {
  if (level.empty()) return std::nullopt;
  while (level.size() > 1) {
    std::vector<std::vector<T>> up;
    for (std::size_t i = 0; i < level.size(); i += 2) {
      if (i + 1 == level.size()) {
        up.push_back(level[i]);
        continue;
      }
      std::vector<T> result(level[i].size());
      if constexpr (hd::op_traits<Op>::elementwise)
        for (std::size_t k = 0; k < result.size(); ++k) result[k] = op(level[i][k], level[i + 1][k]);
      else
        op(std::span<const T>(level[i]), std::span<const T>(level[i + 1]), std::span<T>(result));
      up.push_back(result);
    }
    level = up;
  }
  return level[0];
}

// The definition of the exclusive scan: down the tree.
template <class T, class Op>
void down(const std::vector<std::vector<T>>& leaves, std::size_t begin, std::size_t end,
          const std::optional<std::vector<T>>& before, const Op& op, std::vector<std::optional<std::vector<T>>>& out) {
  if (end - begin == 1) {
    out[begin] = before;
    return;
  }
  const std::size_t middle = begin + static_cast<std::size_t>(hd::dyadic_split(static_cast<std::int64_t>(end - begin)));
  down(leaves, begin, middle, before, op, out);
  std::vector<T> left = *tree(std::vector<std::vector<T>>(leaves.begin() + static_cast<std::ptrdiff_t>(begin),
                                                          leaves.begin() + static_cast<std::ptrdiff_t>(middle)),
                              op);
  if (before) {
    std::vector<T> joined(left.size());
    if constexpr (hd::op_traits<Op>::elementwise)
      for (std::size_t k = 0; k < left.size(); ++k) joined[k] = op((*before)[k], left[k]);
    else
      op(std::span<const T>(*before), std::span<const T>(left), std::span<T>(joined));
    left = joined;
  }
  down(leaves, middle, end, std::optional(left), op, out);
}

template <class T>
std::vector<std::vector<T>> elements(std::int64_t count, std::int64_t width, std::uint64_t stream) {
  const hd::counter_random random(seed, stream);
  std::vector<std::vector<T>> all(static_cast<std::size_t>(count), std::vector<T>(static_cast<std::size_t>(width)));
  std::uint64_t at = 0;
  for (auto& e : all)
    for (T& x : e) x = static_cast<T>(random.normal(at++));
  return all;
}

// A random cut of n into p parts, empty ones among them.
std::vector<std::int64_t> random_bounds(std::int64_t n, int p, std::uint64_t stream) {
  const hd::counter_random random(seed + 1, stream);
  std::vector<std::int64_t> bounds(static_cast<std::size_t>(p) + 1, 0);
  for (std::size_t r = 1; r < bounds.size(); ++r)
    bounds[r] = static_cast<std::int64_t>(random.integer(r) % static_cast<std::uint64_t>(n + 1));
  bounds.back() = n;
  std::sort(bounds.begin(), bounds.end());
  return bounds;
}

template <class T>
std::vector<T> flat(const std::vector<std::vector<T>>& all, std::int64_t begin, std::int64_t end) {
  std::vector<T> x;
  for (std::int64_t i = begin; i < end; ++i)
    x.insert(x.end(), all[static_cast<std::size_t>(i)].begin(), all[static_cast<std::size_t>(i)].end());
  return x;
}

template <class T>
bool same_bits(const std::optional<std::span<const T>>& got, const std::optional<std::vector<T>>& want) {
  if (got.has_value() != want.has_value()) return false;
  return !got || (got->size() == want->size() && std::memcmp(got->data(), want->data(), want->size() * sizeof(T)) == 0);
}

// One forest of trees on p ranks, cut at random: every rank's roots and prefixes against the definitions.
template <class T, class Op>
void check_forest(const std::vector<std::int64_t>& trees, int p, std::int64_t width, const Op& op,
                  std::uint64_t stream) {
  const std::int64_t n = trees.back();
  const auto all = elements<T>(n, width, stream);
  const auto bounds = random_bounds(n, p, stream);
  std::vector<std::optional<std::vector<T>>> roots, prefixes(static_cast<std::size_t>(n));
  for (std::size_t t = 0; t + 1 < trees.size(); ++t) {
    std::vector<std::vector<T>> own(all.begin() + trees[t], all.begin() + trees[t + 1]);
    roots.push_back(tree(own, op));
    std::vector<std::optional<std::vector<T>>> before(own.size());
    if (!own.empty()) down<T>(own, 0, own.size(), std::nullopt, op, before);
    std::copy(before.begin(), before.end(), prefixes.begin() + trees[t]);
  }
  comm_test::notes notes(p);
  transport_test::launch(line{p}, comm_test::options_ms(20000), [&](auto& world) {
    const int r = world.rank();
    hd::dyadic_fold<T> fold(hd::dyadic_plan(trees, bounds, r), width);
    const auto& plan = fold.plan();
    const auto own = flat(all, plan.begin(), plan.end());
    fold.run(world.all(), std::span<const T>(own), op);
    for (std::int64_t t = 0; t < plan.trees(); ++t)
      notes.expect(r, same_bits(fold.root(t), roots[static_cast<std::size_t>(t)]), "root " + std::to_string(t));
    fold.exclusive_scan(op);
    for (std::int64_t i = 0; i < plan.leaves(); ++i)
      notes.expect(r, same_bits(fold.before(i), prefixes[static_cast<std::size_t>(plan.begin() + i)]),
                   "before leaf " + std::to_string(plan.begin() + i));
  });
  INFO("n = " << n << ", p = " << p << ", width = " << width << ", trees = " << trees.size() - 1 << ", stream "
              << stream << ", seed " << seed);
  notes.report();
}

void check_ranks(const std::vector<int>& ranks, std::int64_t step) {
  std::uint64_t stream = 0;
  for (const int p : transport_test::rank_counts(ranks))
    for (std::int64_t n = 0; n <= 64; n += n < 9 ? 1 : step) {
      check_forest<float>({0, n}, p, 1, hd::plus{}, ++stream);
      check_forest<double>({0, n}, p, 3, swirl{3}, ++stream);
    }
}
}  // namespace

TEST_CASE("a dyadic fold and its scan give one rank's bits on any number of ranks", "[comm][dyadic]") {
  STATIC_REQUIRE_FALSE(hd::op_traits<swirl>::associative);
  check_ranks({1, 2, 3, 5, 8, 16}, 11);
}

TEST_CASE("a dyadic fold and its scan give one rank's bits, all sizes to 64", "[comm][dyadic][slow]") {
  check_ranks({1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16}, 1);
}

TEST_CASE("ragged trees fold independently of each other and of the cut", "[comm][dyadic]") {
  const std::vector<std::int64_t> trees{0, 0, 3, 4, 4, 17, 18, 31, 31};
  std::uint64_t stream = 100;
  for (const int p : transport_test::rank_counts({1, 2, 3, 4, 6, 7, 8}))
    for (int repeat = 0; repeat < 3; ++repeat) {
      check_forest<double>(trees, p, 4, swirl{2}, ++stream);  // two rows to an element
      check_forest<float>(trees, p, 2, hd::plus{}, ++stream);
    }
}

TEST_CASE("more ragged trees than leaves, and random ones", "[comm][dyadic]") {
  for (std::uint64_t stream = 200; stream < 212; ++stream) {
    const hd::counter_random random(seed, stream);
    std::vector<std::int64_t> trees{0};
    for (std::uint64_t t = 0; t < 20; ++t)
      trees.push_back(trees.back() + static_cast<std::int64_t>(random.integer(t) % 7) % 5);
    check_forest<double>(trees, (std::min)(1 + static_cast<int>(random.integer(99) % 9), transport_test::most_ranks()),
                         1, swirl{1}, stream);
  }
}

TEST_CASE("a dyadic fold of the aligned case sends log2 p messages of one element from each rank", "[comm][dyadic]") {
  for (const int p : transport_test::rank_counts({1, 2, 4, 8, 16}))
    for (const std::int64_t each : {1, 4}) {
      const std::int64_t n = p * each, width = 6, log = hd::dyadic_depth(p);
      std::vector<std::int64_t> bounds;
      for (int r = 0; r <= p; ++r) bounds.push_back(r * each);
      const auto all = elements<double>(n, width, 300);
      struct counted {
        std::int64_t messages, bytes, calls, rows, first;
      };
      std::vector<counted> by_rank(static_cast<std::size_t>(p));
      transport_test::launch(line{p}, comm_test::options_ms(20000), [&](auto& world) {
        hd::dyadic_fold<double> fold(hd::dyadic_plan(bounds, world.rank()), width);
        const auto own = flat(all, fold.plan().begin(), fold.plan().end());
        std::int64_t calls = 0, rows = 0;
        fold.run(world.all(), std::span<const double>(own), swirl{width, &calls, &rows});
        const hd::comm_counters c = world.all().counters();
        by_rank[static_cast<std::size_t>(world.rank())] = {c.messages_sent(), c.bytes_sent(), calls, rows,
                                                           fold.plan().computed_first()};
        std::int64_t scan_calls = 0, scan_rows = 0;
        fold.exclusive_scan(swirl{width, &scan_calls, &scan_rows});
        if (scan_calls > hd::dyadic_depth(n) || scan_rows > each + log)  // down the tree, once
          by_rank[static_cast<std::size_t>(world.rank())].calls = -1;
        const hd::comm_counters after = world.all().counters();
        if (after.messages_sent() != c.messages_sent()) by_rank[static_cast<std::size_t>(world.rank())].messages = -1;
      });
      transport_test::share(by_rank);
      std::int64_t first = 0;
      for (const counted& c : by_rank) {
        CHECK(c.messages == log);
        CHECK(c.bytes == log * width * 8);
        CHECK(c.rows == each - 1 + log);        // operator applications
        CHECK(c.calls == hd::dyadic_depth(n));  // one after the other
        first += c.first;
      }
      CHECK(first == n - 1);  // distinct nodes
    }
}

TEST_CASE("a dyadic plan computes each node first on one rank, in the fewest rounds", "[comm][dyadic]") {
  for (int p = 1; p <= 20; ++p)
    for (const std::int64_t n : {0, 1, 5, 64, 77}) {
      const auto bounds = random_bounds(n, p, static_cast<std::uint64_t>(n * 100 + p));
      std::int64_t first = 0, sent = 0, received = 0;
      bool short_lists = true;
      std::vector<std::vector<hd::dyadic_node>> nodes;
      for (int r = 0; r < p; ++r) {
        const hd::dyadic_plan plan(bounds, r);
        first += plan.computed_first();
        sent += plan.elements_sent();
        std::size_t exchanges = plan.stages().size() - 1;
        CHECK(exchanges <= static_cast<std::size_t>(hd::dyadic_depth(p)));
        for (const auto& s : plan.stages()) {
          received += s.received;
          short_lists = short_lists && s.received <= (std::max)(std::int64_t{1}, 2 * hd::dyadic_depth(n));
        }
      }
      INFO("p = " << p << ", n = " << n << ", seed " << seed);
      CHECK(first == (std::max)(std::int64_t{0}, n - 1));
      CHECK(sent == received);
      CHECK(short_lists);
    }
}

TEST_CASE("a dyadic reduction of elements nobody counted, and of none", "[comm][dyadic]") {
  constexpr int p = 5;
  if (transport_test::most_ranks() < p) return;
  comm_test::notes notes(p);
  std::vector<std::int64_t> bounds{0, 2, 2, 5, 6, 9};
  const auto all = elements<float>(9, 2, 400);
  const auto want = tree(all, swirl{2});
  transport_test::launch(line{p}, comm_test::options_ms(20000), [&](auto& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    const auto own = flat(all, bounds[r], bounds[r + 1]);
    const auto got = hd::dyadic_reduce(world.all(), own, 2, swirl{2});
    notes.expect(world.rank(), got == want, "value");
    const auto none = hd::dyadic_reduce(world.all(), std::span<const float>(), 2, hd::plus{});
    notes.expect(world.rank(), !none.has_value(), "of nothing");
  });
  notes.report();
}

TEST_CASE("a dyadic fold takes no message that is for somebody else", "[comm][dyadic]") {
  if (transport_test::most_ranks() < 2) return;
  comm_test::notes notes(2);
  transport_test::launch(line{2}, comm_test::options_ms(20000), [&](auto& world) {
    auto& c = world.all();
    const int r = c.rank(), peer = 1 - r;
    float got = 0;
    const float mine = r == 0 ? 100 : 200, leaf = r == 0 ? 1 : 2;
    auto arriving = c.irecv(std::span(&got, 1), peer);  // on its way while the fold runs
    hd::dyadic_fold<float> fold(hd::dyadic_plan(std::vector<std::int64_t>{0, 1, 2}, r), 1);
    fold.run(c, std::span<const float>(&leaf, 1), hd::plus{});
    c.send(std::span<const float>(&mine, 1), peer);
    arriving.wait();
    notes.expect(r, got == (r == 0 ? 200 : 100), "message: " + std::to_string(got));
    notes.expect(r, (*fold.root())[0] == 3, "root: " + std::to_string((*fold.root())[0]));
  });
  notes.report();
}

TEST_CASE("the nodes of several trees are as many as their leaves but one each, empty trees aside", "[comm][dyadic]") {
  const std::vector<std::int64_t> trees{0, 0, 3, 4, 4, 17, 17};  // three trees have leaves
  for (int p = 1; p <= 6; ++p) {
    std::int64_t first = 0;
    const auto bounds = random_bounds(17, p, static_cast<std::uint64_t>(500 + p));
    for (int r = 0; r < p; ++r) first += hd::dyadic_plan(trees, bounds, r).computed_first();
    CHECK(first == 17 - 3);
  }
}

TEST_CASE("trees of leaves that are sorted by tree", "[comm][dyadic]") {
  using numbers = std::vector<std::int64_t>;
  CHECK(hd::dyadic_trees(numbers{1, 1, 2, 5}, 7) == numbers{0, 0, 2, 3, 3, 3, 4, 4});
  CHECK(hd::dyadic_trees(numbers{0, 0}, 1) == numbers{0, 2});
  CHECK(hd::dyadic_trees(numbers{}, 2) == numbers{0, 0, 0});
  CHECK(hd::dyadic_trees(numbers{}, 0) == numbers{0});
  CHECK_THROWS_WITH(hd::dyadic_trees(numbers{0, 2, 1}, 3), Catch::Matchers::Contains("leaf 2 is of tree 1"));
  CHECK_THROWS_AS(hd::dyadic_trees(numbers{0, 3}, 3), hd::comm_error);
  CHECK_THROWS_AS(hd::dyadic_trees(numbers{-1}, 3), hd::comm_error);
  CHECK_THROWS_AS(hd::dyadic_trees(numbers{0}, -1), hd::comm_error);
}

TEST_CASE("a dyadic plan or fold that does not fit says so", "[comm][dyadic][threads]") {
  using bounds = std::vector<std::int64_t>;
  CHECK_THROWS_AS(hd::dyadic_plan(bounds{}, 0), hd::comm_error);
  CHECK_THROWS_AS(hd::dyadic_plan(bounds{0, 3, 2}, 0), hd::comm_error);
  CHECK_THROWS_AS(hd::dyadic_plan(bounds{1, 3}, 0), hd::comm_error);
  CHECK_THROWS_AS(hd::dyadic_plan(bounds{0, 3}, 1), hd::comm_error);
  CHECK_THROWS_WITH(hd::dyadic_plan(bounds{0, 2}, bounds{0, 3}, 0), Catch::Matchers::Contains("trees' bounds"));
  CHECK_THROWS_AS(hd::dyadic_fold<float>(hd::dyadic_plan(bounds{0, 3}, 0), 0), hd::comm_error);
  hd::dyadic_fold<float> idle(hd::dyadic_plan(bounds{0, 3}, 0), 2);
  CHECK_THROWS_WITH(idle.root(), Catch::Matchers::Contains("`root` needs `run` or `forward` first"));
  CHECK_THROWS_WITH(idle.root(1), Catch::Matchers::Contains("tree: expected one of 1, got 1"));
  CHECK_THROWS_AS(idle.exclusive_scan(hd::plus{}), hd::comm_error);
  CHECK_THROWS_AS(idle.before(0), hd::comm_error);
  const auto end = comm_test::run_to_the_end(2, comm_test::options_ms(5000), [](auto& world) {
    hd::dyadic_fold<float> fold(hd::dyadic_plan(bounds{0, 1, 2}, world.rank()), 2);
    const std::vector<float> one(1);
    fold.run(world.all(), std::span<const float>(one), hd::plus{});
  });
  CHECK(comm_test::contains(end.thrown, "scalars of this rank's leaves: expected 2, got 1"));
}
