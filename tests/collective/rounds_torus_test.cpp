// Collectives that know how ranks are connected: Swing, rings of a torus, nodes; proofs, formulas, loads of links.
#include <heddle/collective/algorithm/bidirectional_ring.hpp>
#include <heddle/collective/algorithm/hierarchical.hpp>
#include <heddle/collective/algorithm/pat.hpp>
#include <heddle/collective/algorithm/rabenseifner.hpp>
#include <heddle/collective/algorithm/recursive_doubling.hpp>
#include <heddle/collective/algorithm/recursive_halving.hpp>
#include <heddle/collective/algorithm/scatter_all_gather.hpp>
#include <heddle/collective/algorithm/swing.hpp>
#include <heddle/collective/algorithm/torus.hpp>
#include <heddle/collective/round_cost.hpp>
#include <heddle/collective/rounds_check.hpp>

#include <algorithm>
#include <set>
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

static_assert(hd::check_rounds<algo::swing, all_reduce>(8).ok());
static_assert(hd::check_rounds<algo::swing, reduce_scatter>(4).ok());
static_assert(hd::check_rounds<algo::swing, all_gather>(8).ok());
static_assert(hd::check_rounds<algo::swing_torus<2, 4>, all_reduce>(8).ok());
static_assert(hd::check_rounds<algo::torus<2, 3>, all_reduce>(6).ok());
static_assert(hd::check_rounds<algo::torus<2, 2, 2>, reduce_scatter>(8).ok());
static_assert(hd::check_rounds<algo::hierarchical<2>, all_reduce>(8).ok());
static_assert(hd::check_rounds<algo::hierarchical<3>, all_gather>(6).ok());
static_assert(algo::torus<4, 16>::name == "torus<4, 16>");
static_assert(algo::swing_torus<8>::name == "swing_torus<8>");
static_assert(algo::bounded_pat<4>::name == "bounded_pat<4>");
static_assert(algo::hierarchical<8, algo::ring, algo::rabenseifner>::name == "hierarchical<8, ring, rabenseifner>");
// Names that are too long for their place end early.
using in_order = algo::hierarchical<2, algo::recursive_doubling, algo::recursive_doubling>;
static_assert(algo::scatter_all_gather<algo::hierarchical<4, in_order, in_order>>::name.starts_with(
    "scatter_all_gather<hierarchical<4, hierarchical<2, recursive_doubling"));

template <class A, comm_operation What>
void proves(int p) {
  INFO(std::string_view(A::name) << " on " << p);
  REQUIRE(A::template offers<What>(p));
  CHECK(to_string(hd::check_rounds<A, What>(p)) == "the rounds do what the collective promises");
}
template <class A>
void proves_all(int p) {
  proves<A, all_reduce>(p);
  proves<A, reduce_scatter>(p);
  proves<A, all_gather>(p);
}

// The loads of a ring's links in a round: a message goes the shorter way, half each way where both are as short.
// Two directions of p links; twice the number of messages over each, so that halves stay whole.
std::vector<int> loads_on_ring(hd::round_view view, int round) {
  const int p = view.ranks();
  std::vector<int> twice(static_cast<std::size_t>(2 * p), 0);
  for (const auto& t : view.round(round)) {
    const int right = (t.to - t.from + p) % p, left = p - right;
    for (int i = 0; i < right && right <= left; ++i)
      twice[static_cast<std::size_t>((t.from + i) % p)] += right == left ? 1 : 2;
    for (int i = 0; i < left && left <= right; ++i)
      twice[static_cast<std::size_t>(p + (t.from - i + p) % p)] += right == left ? 1 : 2;
  }
  return twice;
}
std::vector<int> congestions_on_ring(hd::round_view view) {
  std::vector<int> most;
  for (int k = 0; k < view.rounds(); ++k) {
    const auto loads = loads_on_ring(view, k);
    most.push_back(*std::max_element(loads.begin(), loads.end()) / 2);
  }
  return most;
}
// The sum over rounds of the bytes of a message times the messages over the busiest link, in units of the vector.
double bytes_times_congestion(hd::round_view view) {
  double sum = 0;
  const auto most = congestions_on_ring(view);
  for (int k = 0; k < view.rounds(); ++k)
    sum += static_cast<double>(most[static_cast<std::size_t>(k)]) * view.round(k).front().items / view.items();
  return sum;
}

constexpr hd::hockney net{3e-6, 2e-10, 7e-11};
Approx exactly(double t) {
  return Approx(t).epsilon(1e-12);
}
}  // namespace

TEST_CASE("Swing ends with what its collectives promise", "[comm][rounds][law]") {
  proves_all<algo::swing>(1);
  for (int p = 2; p <= 24; p += 2) proves_all<algo::swing>(p);
  for (const int p : {32, 46, 64, 100}) proves_all<algo::swing>(p);
  proves_all<algo::swing_torus<1>>(1);
  proves_all<algo::swing_torus<2>>(2);
  proves_all<algo::swing_torus<16>>(16);
  proves_all<algo::swing_torus<4, 4>>(16);
  proves_all<algo::swing_torus<2, 8>>(16);
  proves_all<algo::swing_torus<8, 8>>(64);
  proves_all<algo::swing_torus<16, 4>>(64);
  proves_all<algo::swing_torus<4, 2, 8>>(64);
  proves_all<algo::swing_torus<6, 10>>(60);
  proves_all<algo::swing_torus<1, 6>>(6);
  CHECK_FALSE(algo::swing::offers<all_reduce>(11));
  CHECK_FALSE(algo::swing_torus<4, 4>::offers<all_reduce>(8));
}

TEST_CASE("Swing: hops and congestion on a ring of 128", "[comm][rounds][formula]") {
  const auto scatter = algo::swing::rounds<reduce_scatter>(128, 0);
  const auto view = scatter.view();
  REQUIRE(view.rounds() == 7);
  const std::vector<int> hops{1, 1, 3, 5, 11, 21, 43}, congestion{1, 1, 2, 3, 6, 11, 22};
  for (int k = 0; k < 7; ++k) {
    std::vector<int> partner(128, -1);
    for (const auto& t : view.round(k)) {
      const int right = (t.to - t.from + 128) % 128;
      CHECK((std::min)(right, 128 - right) == hops[static_cast<std::size_t>(k)]);
      CHECK(t.items == 64 >> k);
      partner[static_cast<std::size_t>(t.from)] = t.to;
    }
    for (int r = 0; r < 128; ++r)  // ranks meet in pairs
      CHECK(partner[static_cast<std::size_t>(partner[static_cast<std::size_t>(r)])] == r);
  }
  CHECK(congestions_on_ring(view) == congestion);
  const auto mirror = algo::swing::rounds<all_gather>(128, 0);
  CHECK(congestions_on_ring(mirror) == std::vector<int>(congestion.rbegin(), congestion.rend()));

  CHECK(bytes_times_congestion(view) == exactly(1.71875));
  CHECK(bytes_times_congestion(algo::recursive_halving::rounds<reduce_scatter>(128, 0)) == Approx(26.66).epsilon(1e-3));
  CHECK(bytes_times_congestion(algo::recursive_doubling::rounds<reduce_scatter>(128, 0)) == exactly(3.25));
  CHECK(bytes_times_congestion(algo::ring::rounds<reduce_scatter>(128, 0)) == exactly(127.0 / 128));
}

TEST_CASE("Swing: log2 p messages, p / 2, p / 4, ... blocks", "[comm][rounds][formula]") {
  for (int p = 2; p <= 64; p += 2) {  // no block twice, whatever the even number of ranks
    const auto gather = algo::swing::rounds<all_gather>(p, 0);
    for (int r = 0; r < p; ++r) {
      CHECK(hd::messages_sent(gather, r) == gather.view().rounds());
      CHECK(hd::items_sent(gather, r) == p - 1);
    }
    CHECK(1 << gather.view().rounds() >= p);
    CHECK(1 << gather.view().rounds() < 2 * p);
  }
  for (const int p : {1, 2, 4, 8, 16}) {
    const auto reduce = algo::swing::rounds<all_reduce>(p, 0);
    int l = 0;
    while (1 << l < p) ++l;
    CHECK(reduce.view().rounds() == 2 * l);
    for (const auto& t : reduce.transfers) CHECK(t.items == (t.round < l ? p >> (t.round + 1) : 1 << (t.round - l)));
    for (int r = 0; r < p; ++r) {
      CHECK(hd::messages_sent(reduce, r) == 2 * l);
      CHECK(hd::bytes_sent(reduce, r, 10 * p, 4) == 2 * (p - 1) * 40);
    }
    const double m = 40.0 * p;
    CHECK(hd::seconds(reduce, net, 10 * p, 4) ==
          exactly(2 * l * net.alpha + 2.0 * (p - 1) / p * m * net.beta + (p - 1.0) / p * m * net.gamma));
  }
}

TEST_CASE("Swing on tori uses every port of a rank, with the same bytes on each", "[comm][rounds][formula]") {
  const auto check = [](const auto& table, std::vector<int> extents) {
    const hd::round_view view = table.view();
    const int p = view.ranks(), dims = static_cast<int>(extents.size());
    CHECK(view.parts() == 2 * dims);
    CHECK(hd::total_bytes(view, p * view.parts(), 1) == static_cast<std::int64_t>(p) * (p - 1) * view.parts());
    for (int k = 0; k < view.rounds(); ++k)
      for (int r = 0; r < p; ++r) {
        std::set<std::pair<int, bool>> ports;
        std::set<int> sizes;
        bool tie = false;
        for (const auto& t : view.round(k)) {
          if (t.from != r) continue;
          sizes.insert(t.items);
          int changed = 0;
          for (int d = dims - 1, a = t.from, b = t.to; d >= 0; --d) {
            const int x = extents[static_cast<std::size_t>(d)], way = (b % x - a % x + x) % x;
            if (way != 0) {
              ++changed;
              ports.insert({d, way < x - way});
              tie = tie || way == x - way;
            }
            a /= x;
            b /= x;
          }
          CHECK(changed == 1);
        }
        CHECK(sizes.size() == 1);
        if (!tie) CHECK(static_cast<int>(ports.size()) == 2 * dims);
      }
  };
  check(algo::swing_torus<16>::rounds<all_gather>(16, 0), {16});
  check(algo::swing_torus<4, 4>::rounds<all_gather>(16, 0), {4, 4});
  check(algo::swing_torus<8, 8>::rounds<reduce_scatter>(64, 0), {8, 8});
  check(algo::swing_torus<4, 4, 4>::rounds<all_gather>(64, 0), {4, 4, 4});
}

TEST_CASE("a torus of rings: neighbours only, as many bytes as the ring, fewer rounds", "[comm][rounds][formula]") {
  proves_all<algo::torus<1>>(1);
  proves_all<algo::torus<7>>(7);
  proves_all<algo::torus<1, 5>>(5);
  proves_all<algo::torus<3, 5>>(15);
  proves_all<algo::torus<4, 4>>(16);
  proves_all<algo::torus<8, 4>>(32);
  proves_all<algo::torus<2, 3, 4>>(24);
  proves_all<algo::torus<4, 4, 4>>(64);
  CHECK_FALSE(algo::torus<4, 4>::offers<all_reduce>(15));
  CHECK_FALSE(algo::torus<4, 4>::offers<comm_operation::broadcast>(16));

  const auto check = [](const auto& table, int x_ranks, int y_ranks) {
    const hd::round_view view = table.view();
    const int p = x_ranks * y_ranks;
    CHECK(view.rounds() == 2 * (x_ranks + y_ranks - 2));
    for (int r = 0; r < p; ++r) {
      CHECK(hd::messages_sent(view, r) == 2 * 2 * (x_ranks + y_ranks - 2));
      CHECK(hd::bytes_sent(view, r, 2 * p * 5, 4) == 2 * (p - 1) * 40);
    }
    for (const auto& t : view.transfers()) {
      const int dx = (t.to / y_ranks - t.from / y_ranks + x_ranks) % x_ranks;
      const int dy = (t.to % y_ranks - t.from % y_ranks + y_ranks) % y_ranks;
      CHECK((std::min)(dx, x_ranks - dx) + (std::min)(dy, y_ranks - dy) == 1);
    }
    // In a round no rank sends two messages the same way.
    for (int k = 0; k < view.rounds(); ++k)
      for (int r = 0; r < p; ++r) {
        std::multiset<int> to;
        for (const auto& t : view.round(k))
          if (t.from == r) to.insert(t.to);
        for (const int peer : to) CHECK((x_ranks != y_ranks || to.count(peer) == 1));
      }
  };
  check(algo::torus<4, 4>::rounds<all_reduce>(16, 0), 4, 4);
  check(algo::torus<3, 3>::rounds<all_reduce>(9, 0), 3, 3);
  check(algo::torus<3, 5>::rounds<all_reduce>(15, 0), 3, 5);
  check(algo::torus<2, 8>::rounds<all_reduce>(16, 0), 2, 8);

  // A square torus, a port per dimension: half of the bytes of the two-level form in each.
  for (const auto& [table, x] : {std::pair{algo::torus<4, 4>::rounds<all_reduce>(16, 0), 4},
                                 std::pair{algo::torus<3, 3>::rounds<all_reduce>(9, 0), 3}}) {
    const std::int64_t n = 2 * x * x * 6;
    const double m = 4.0 * static_cast<double>(n), p = x * x;
    hd::hockney ports = net;
    ports.gamma = 0;
    ports.ports = 2;
    CHECK(hd::seconds(table, ports, n, 4) ==
          exactly(2 * (2 * x - 2) * net.alpha + 2 * ((x - 1.0) / x + (x - 1) / p) * m / 2 * net.beta));
  }
}

TEST_CASE("nodes: least bytes between them", "[comm][rounds][formula]") {
  for (int p = 1; p <= 16; ++p) {
    if (algo::hierarchical<1>::offers<all_reduce>(p)) proves_all<algo::hierarchical<1>>(p);
    if (algo::hierarchical<2>::offers<all_reduce>(p)) proves_all<algo::hierarchical<2>>(p);
    if (algo::hierarchical<3>::offers<all_reduce>(p)) proves_all<algo::hierarchical<3>>(p);
    if (algo::hierarchical<4>::offers<all_reduce>(p)) proves_all<algo::hierarchical<4>>(p);
    CHECK(algo::hierarchical<4>::offers<all_reduce>(p) == (p % 4 == 0));
  }
  proves_all<algo::hierarchical<8>>(64);
  // Any pair of algorithms, also such as cut blocks into parts.
  proves_all<algo::hierarchical<4, algo::bidirectional_ring, algo::pat>>(20);
  proves_all<algo::hierarchical<4, algo::bidirectional_ring, algo::bidirectional_ring>>(24);
  proves_all<algo::hierarchical<4, algo::torus<2, 2>, algo::swing_torus<2, 4>>>(32);
  proves<algo::hierarchical<4, algo::ring, algo::rabenseifner>, all_reduce>(28);
  proves_all<algo::hierarchical<2, algo::ring, algo::hierarchical<3>>>(12);
  CHECK_FALSE(algo::hierarchical<4, algo::ring, algo::rabenseifner>::offers<all_gather>(28));
  CHECK_FALSE(algo::hierarchical<3, algo::swing>::offers<all_reduce>(12));

  // Ranks keep their order if both algorithms do.
  using ordered = algo::hierarchical<4, algo::recursive_doubling, algo::recursive_doubling>;
  STATIC_REQUIRE(ordered::order<all_reduce> == fold_order::rank);
  STATIC_REQUIRE(algo::hierarchical<4>::order<all_reduce> == fold_order::any);
  for (const int p : {4, 8, 12, 20, 28, 64}) proves<ordered, all_reduce>(p);
  proves_all<ordered>(32);

  const auto check = [](const auto& table, int g) {
    const hd::round_view view = table.view();
    const int p = view.ranks(), nodes = p / g;
    CHECK(view.rounds() == 2 * (g + nodes - 2));
    const std::int64_t n = p * 10;
    for (int r = 0; r < p; ++r) {
      std::int64_t between = 0, inside = 0;
      for (const auto& t : view.transfers()) {
        if (t.from != r) continue;
        CHECK((t.from / g == t.to / g || t.from % g == t.to % g));
        (t.from / g == t.to / g ? inside : between) += hd::elements_of(view, t, n);
      }
      CHECK(between == 2 * (nodes - 1) * n / nodes / g);
      CHECK(inside == 2 * (g - 1) * n / g);
    }
    const double m = 4.0 * static_cast<double>(n), x = g, y = nodes;
    CHECK(hd::seconds(view, net, n, 4) ==
          exactly(2 * (x + y - 2) * net.alpha + 2 * ((x - 1) / x + (y - 1) / (x * y)) * m * net.beta +
                  ((x - 1) / x + (y - 1) / (x * y)) * m * net.gamma));
  };
  check(algo::hierarchical<2>::rounds<all_reduce>(16, 0), 2);
  check(algo::hierarchical<4>::rounds<all_reduce>(16, 0), 4);
  check(algo::hierarchical<3>::rounds<all_reduce>(15, 0), 3);
  check(algo::hierarchical<8>::rounds<all_reduce>(16, 0), 8);
}
