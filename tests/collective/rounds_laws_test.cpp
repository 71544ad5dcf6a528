// Laws between the rounds of collectives, on numbers: a plain interpreter that follows a table word by word.
#include <heddle/collective/algorithm/bidirectional_ring.hpp>
#include <heddle/collective/algorithm/binomial.hpp>
#include <heddle/collective/algorithm/bruck.hpp>
#include <heddle/collective/algorithm/direct.hpp>
#include <heddle/collective/algorithm/double_tree.hpp>
#include <heddle/collective/algorithm/grid_all_to_all.hpp>
#include <heddle/collective/algorithm/hierarchical.hpp>
#include <heddle/collective/algorithm/pairwise.hpp>
#include <heddle/collective/algorithm/pat.hpp>
#include <heddle/collective/algorithm/rabenseifner.hpp>
#include <heddle/collective/algorithm/recursive_doubling.hpp>
#include <heddle/collective/algorithm/recursive_halving.hpp>
#include <heddle/collective/algorithm/ring.hpp>
#include <heddle/collective/algorithm/scatter_all_gather.hpp>
#include <heddle/collective/algorithm/swing.hpp>
#include <heddle/collective/algorithm/torus.hpp>
#include <heddle/collective/rounds_check.hpp>
#include <heddle/collective/rounds_reverse.hpp>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

namespace {
namespace hd = heddle;
namespace algo = hd::algo;
using hd::comm_operation, hd::fold_order;
constexpr auto all_reduce = comm_operation::all_reduce;
constexpr auto reduce_scatter = comm_operation::reduce_scatter;
constexpr auto all_gather = comm_operation::all_gather;
constexpr auto all_to_all = comm_operation::all_to_all;

// What the ranks hold: value[{rank, item}].
template <class T>
using held = std::map<std::pair<int, int>, T>;

template <class T, class Op>
held<T> follow(hd::round_view view, held<T> values, Op op) {
  for (int k = 0; k < view.rounds(); ++k) {
    const held<T> before = values;
    for (const auto& t : view.round(k))
      for (const int i : view.items_of(t)) {
        const T came = before.at({t.from, i});
        T& own = values[{t.to, i}];
        own = t.how == hd::arrival::store ? came : t.how == hd::arrival::fold_before ? op(came, own) : op(own, came);
      }
  }
  return values;
}
const auto add = [](std::int64_t a, std::int64_t b) { return a + b; };

held<std::int64_t> random_vectors(hd::round_view view, std::mt19937& random) {
  held<std::int64_t> x;
  for (int r = 0; r < view.ranks(); ++r)
    for (int i = 0; i < view.items(); ++i) x[{r, i}] = static_cast<int>(random() % 2001) - 1000;
  return x;
}
held<std::int64_t> random_blocks(hd::round_view view, std::mt19937& random) {  // of each rank its own
  held<std::int64_t> x;
  for (int i = 0; i < view.items(); ++i) x[{i / view.parts(), i}] = static_cast<int>(random() % 2001) - 1000;
  return x;
}

// gather and scatter are tables on the same ranks and items.
void adjoint(hd::round_view gather, hd::round_view scatter, std::mt19937& random) {
  REQUIRE(gather.items() == scatter.items());
  const auto x = random_blocks(gather, random);
  const auto y = random_vectors(scatter, random);
  const auto gathered = follow(gather, x, add), scattered = follow(scatter, y, add);
  std::int64_t left = 0, right = 0;
  for (const auto& [at, value] : y) left += gathered.at(at) * value;    // <AG x, y>
  for (const auto& [at, value] : x) right += value * scattered.at(at);  // <x, RS y>
  CHECK(left == right);
}

template <class A>
void gather_and_scatter(int p) {
  if (!A::template offers<all_gather>(p) || !A::template offers<reduce_scatter>(p)) return;
  INFO(std::string_view(A::name) << " on " << p);
  const unsigned seed = 7u + static_cast<unsigned>(p);
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto gather = A::template rounds<all_gather>(p, 0), scatter = A::template rounds<reduce_scatter>(p, 0);
  adjoint(gather, scatter, random);
  // Backwards each is an algorithm of the other collective, of the same messages and items.
  const auto back = hd::reversed_rounds(gather), forth = hd::reversed_rounds(scatter);
  CHECK(to_string(hd::check_rounds(back, fold_order::any)) == "the rounds do what the collective promises");
  CHECK(to_string(hd::check_rounds(forth, fold_order::none)) == "the rounds do what the collective promises");
  CHECK(back.transfers.size() == gather.transfers.size());
  CHECK(back.items.size() == gather.items.size());
  adjoint(gather, back, random);
  adjoint(forth, scatter, random);
  // AG o RS = AR, and AR is linear.
  const auto x = random_vectors(scatter, random);
  const auto reduced = follow(gather, follow(scatter, x, add), add);
  for (int i = 0; i < scatter.view().items(); ++i) {
    std::int64_t sum = 0;
    for (int r = 0; r < p; ++r) sum += x.at({r, i});
    for (int r = 0; r < p; ++r) CHECK(reduced.at({r, i}) == sum);
  }
  if (!A::template offers<all_reduce>(p)) return;
  const auto whole = A::template rounds<all_reduce>(p, 0);
  const auto u = random_vectors(whole, random), v = random_vectors(whole, random);
  auto mixed = u;
  for (auto& [at, value] : mixed) value = 3 * value - 5 * v.at(at);
  const auto au = follow(whole, u, add), av = follow(whole, v, add), am = follow(whole, mixed, add);
  for (const auto& [at, value] : am) CHECK(value == 3 * au.at(at) - 5 * av.at(at));
  // It does not matter which rank has which contribution.
  auto turned = u;
  for (auto& [at, value] : turned) value = u.at({(at.first + 1) % p, at.second});
  CHECK(follow(whole, turned, add) == au);
}

template <class A>
void keeps_rank_order(int p) {
  if (!A::template offers<all_reduce>(p)) return;
  const auto table = A::template rounds<all_reduce>(p, 0);
  held<std::string> x;
  std::string serial;
  for (int r = 0; r < p; ++r) {
    const std::string letter(1, static_cast<char>('a' + r));
    serial += letter;
    for (int i = 0; i < table.view().items(); ++i) x[{r, i}] = letter;
  }
  const auto joined = follow(table.view(), x, [](const std::string& a, const std::string& b) { return a + b; });
  for (const auto& [at, text] : joined) CHECK(text == serial);
}
}  // namespace

TEST_CASE("reduce_scatter is the adjoint of all_gather, and all_reduce is both", "[comm][rounds][law]") {
  for (int p = 1; p <= 16; ++p) {
    gather_and_scatter<algo::ring>(p);
    gather_and_scatter<algo::bidirectional_ring>(p);
    gather_and_scatter<algo::recursive_doubling>(p);
    gather_and_scatter<algo::bruck>(p);
    gather_and_scatter<algo::pat>(p);
    gather_and_scatter<algo::bounded_pat<2>>(p);
    gather_and_scatter<algo::swing>(p);
    gather_and_scatter<algo::hierarchical<2>>(p);
    gather_and_scatter<algo::hierarchical<3, algo::pat, algo::bruck>>(p);
  }
  gather_and_scatter<algo::torus<3, 4>>(12);
  gather_and_scatter<algo::torus<2, 2, 3>>(12);
  gather_and_scatter<algo::swing_torus<4, 4>>(16);
}

TEST_CASE("halving backwards is doubling", "[comm][rounds][law]") {
  for (const int p : {1, 2, 4, 8, 16}) {
    const auto halving = algo::recursive_halving::rounds<reduce_scatter>(p, 0);
    const auto doubling = algo::recursive_doubling::rounds<all_gather>(p, 0);
    auto back = hd::reversed_rounds(halving);
    const auto sends = [](hd::round_view view) {
      std::map<std::pair<int, int>, std::pair<int, std::vector<int>>> made;  // (round, from) -> to, items
      for (const auto& t : view.transfers()) {
        const auto items = view.items_of(t);
        made[{t.round, t.from}] = {t.to, {items.begin(), items.end()}};
      }
      return made;
    };
    CHECK(sends(back) == sends(doubling));
    const auto twice = hd::reversed_rounds(back);
    CHECK(twice.transfers == halving.transfers);
    CHECK(twice.items == halving.items);
    // Rabenseifner's all_reduce is one after the other.
    const auto whole = hd::detail::all_reduce_of(halving, doubling);
    CHECK(sends(whole) == sends(algo::rabenseifner::rounds<all_reduce>(p, 0)));
  }
}

namespace {
template <class A>
void exchanges_twice(int p) {
  if (!A::template offers<all_to_all>(p)) return;
  INFO(std::string_view(A::name) << " on " << p);
  const auto table = A::template rounds<all_to_all>(p, 0);
  held<int> mine;
  for (int s = 0; s < p; ++s)
    for (int d = 0; d < p; ++d) mine[{s, s * p + d}] = 100 * s + d;
  const auto transposed = [&](const held<int>& all) {  // what came from rank s goes back to it
    held<int> next;
    for (int s = 0; s < p; ++s)
      for (int d = 0; d < p; ++d) next[{d, d * p + s}] = all.at({d, s * p + d});
    return next;
  };
  const auto store = [](int, int b) { return b; };
  const auto once = transposed(follow(table.view(), mine, store));
  for (int s = 0; s < p; ++s)
    for (int d = 0; d < p; ++d) CHECK(once.at({d, d * p + s}) == 100 * s + d);
  CHECK(transposed(follow(table.view(), once, store)) == mine);
  CHECK(to_string(hd::check_rounds(hd::reversed_rounds(table), fold_order::none)) ==
        "the rounds do what the collective promises");
}

// A collective without folds and its reverse, for every root.
template <class A, comm_operation What>
void adjoint_at_every_root(int p) {
  for (int root = 0; root < p; ++root) {
    INFO(std::string_view(A::name) << " on " << p << ", root " << root);
    const unsigned seed = 11u + static_cast<unsigned>(p * p + root);
    std::mt19937 random(seed);
    const auto down = A::template rounds<What>(p, root);
    const auto up = hd::reversed_rounds(down);
    CHECK(to_string(hd::check_rounds(up, fold_order::any)) == "the rounds do what the collective promises");
    CHECK(up.root == root);
    CHECK(up.items.size() == down.items.size());
    const auto again = hd::reversed_rounds(up);
    CHECK(hd::check_rounds(again, fold_order::none).ok());
    CHECK(again.transfers.size() == down.transfers.size());
    // <D x, y> = <x, U y>: x at the root; y everywhere, or a block at each rank.
    const hd::round_view view = down.view();
    held<std::int64_t> x, y;
    for (int i = 0; i < view.items(); ++i) x[{root, i}] = static_cast<int>(random() % 2001) - 1000;
    for (int r = 0; r < p; ++r)
      for (int i = 0; i < view.items(); ++i)
        if (What == comm_operation::broadcast || i / view.parts() == r)
          y[{r, i}] = static_cast<int>(random() % 2001) - 1000;
    const auto dx = follow(view, x, add), uy = follow(up.view(), y, add);
    std::int64_t left = 0, right = 0;
    for (const auto& [at, value] : y) left += dx.at(at) * value;
    for (const auto& [at, value] : x) right += value * uy.at(at);
    CHECK(left == right);
  }
}
}  // namespace

TEST_CASE("all_to_all twice is nothing, and backwards it is one again", "[comm][rounds][law]") {
  for (int p = 1; p <= 16; ++p) {
    exchanges_twice<algo::bruck>(p);
    exchanges_twice<algo::direct>(p);
    exchanges_twice<algo::scattered<3>>(p);
    exchanges_twice<algo::pairwise>(p);
    exchanges_twice<algo::grid_all_to_all>(p);
    exchanges_twice<algo::hierarchical_all_to_all<2>>(p);
    exchanges_twice<algo::hierarchical_all_to_all<3>>(p);
  }
}

TEST_CASE("reduce is the adjoint of broadcast, and gather that of scatter", "[comm][rounds][law]") {
  for (int p = 1; p <= 13; ++p) {
    adjoint_at_every_root<algo::binomial, comm_operation::broadcast>(p);
    adjoint_at_every_root<algo::binomial, comm_operation::scatter>(p);
    adjoint_at_every_root<algo::double_tree<2>, comm_operation::broadcast>(p);
  }
  // Where ranks get items that they have already, the reverse counts contributions twice; the checker says so.
  const auto twice = hd::reversed_rounds(algo::scatter_all_gather<>::rounds<comm_operation::broadcast>(4, 0));
  CHECK(hd::check_rounds(twice, fold_order::any).what == hd::round_problem::twice);
}

TEST_CASE("what claims rank order folds texts in rank order", "[comm][rounds][law]") {
  for (int p = 1; p <= 16; ++p) {
    keeps_rank_order<algo::recursive_doubling>(p);
    keeps_rank_order<algo::hierarchical<2, algo::recursive_doubling, algo::recursive_doubling>>(p);
    keeps_rank_order<algo::hierarchical<4, algo::recursive_doubling, algo::recursive_doubling>>(p);
  }
}

TEST_CASE("rounds that are no trees cannot be reversed", "[comm][rounds]") {
  CHECK_THROWS_AS(hd::reversed_rounds(algo::recursive_doubling::rounds<all_reduce>(4, 0)), hd::comm_error);
}
