// Collectives that every rank takes part in alike: they keep their promises, and cost exactly what their formulas say.
#include <heddle/collective/algorithm/bidirectional_ring.hpp>
#include <heddle/collective/algorithm/bruck.hpp>
#include <heddle/collective/algorithm/pat.hpp>
#include <heddle/collective/algorithm/rabenseifner.hpp>
#include <heddle/collective/algorithm/recursive_doubling.hpp>
#include <heddle/collective/algorithm/recursive_halving.hpp>
#include <heddle/collective/algorithm/ring.hpp>
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
constexpr auto all_to_all = comm_operation::all_to_all;

constexpr bool power_of_two(int n) {
  return n >= 1 && (n & (n - 1)) == 0;
}
constexpr int log2_up(int n) {
  int k = 0;
  while ((1 << k) < n) ++k;
  return k;
}
constexpr int log2_down(int n) {
  return log2_up(n + 1) - 1;
}

template <class A, comm_operation What>
constexpr bool proved_up_to(int ranks) {
  for (int p = 1; p <= ranks; ++p)
    if (A::template offers<What>(p) && !hd::check_rounds<A, What>(p).ok()) return false;
  return true;
}
static_assert(proved_up_to<algo::bidirectional_ring, all_reduce>(8));
static_assert(proved_up_to<algo::bidirectional_ring, reduce_scatter>(8));
static_assert(proved_up_to<algo::bidirectional_ring, all_gather>(8));
static_assert(proved_up_to<algo::recursive_doubling, all_reduce>(8));
static_assert(proved_up_to<algo::recursive_doubling, reduce_scatter>(8));
static_assert(proved_up_to<algo::recursive_doubling, all_gather>(8));
static_assert(proved_up_to<algo::recursive_halving, reduce_scatter>(8));
static_assert(proved_up_to<algo::rabenseifner, all_reduce>(8));
static_assert(proved_up_to<algo::bruck, all_reduce>(8));
static_assert(proved_up_to<algo::bruck, reduce_scatter>(8));
static_assert(proved_up_to<algo::bruck, all_gather>(8));
static_assert(proved_up_to<algo::bruck, all_to_all>(8));
static_assert(proved_up_to<algo::pat, all_reduce>(8));
static_assert(proved_up_to<algo::pat, reduce_scatter>(8));
static_assert(proved_up_to<algo::pat, all_gather>(8));
static_assert(proved_up_to<algo::bounded_pat<2>, all_reduce>(8));

template <class A, comm_operation What>
hd::round_table table(int p) {
  REQUIRE(A::template offers<What>(p));
  return A::template rounds<What>(p, 0);
}

template <class A, comm_operation What>
void keeps_its_promises() {
  const auto check = [](int p) {
    if (!A::template offers<What>(p)) return;
    INFO(std::string(A::name));
    CHECK(to_string(hd::check_rounds<A, What>(p)) == "the rounds do what the collective promises");
    // The messages of every rank add up to those of the table, and no item is sent that is not there.
    const auto t = A::template rounds<What>(p, 0);
    int items = 0;
    for (int r = 0; r < p; ++r) items += hd::items_sent(t, r);
    CHECK(items == static_cast<int>(t.items.size()));
  };
  for (int p = 1; p <= 17; ++p) check(p);
  check(32);
  check(64);
}

// What one rank sends, round by round: messages and items of each; every rank the same.
struct step {
  int messages;
  int items;
  friend bool operator==(const step&, const step&) = default;
};
std::vector<step> steps(hd::round_view view, int rank) {
  std::vector<step> made(static_cast<std::size_t>(view.rounds()));
  for (const auto& t : view.transfers())
    if (t.from == rank) {
      made[static_cast<std::size_t>(t.round)].messages += 1;
      made[static_cast<std::size_t>(t.round)].items += t.items;
    }
  return made;
}
void every_rank(hd::round_view view, const std::vector<step>& expected) {
  for (int r = 0; r < view.ranks(); ++r) {
    INFO("p = " << view.ranks() << ", rank " << r);
    CHECK(steps(view, r) == expected);
  }
}
std::vector<step> joined(std::vector<step> a, const std::vector<step>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
std::vector<step> backwards(const std::vector<step>& a) {
  return {a.rbegin(), a.rend()};
}

constexpr hd::hockney net{3e-6, 2e-10, 7e-11};
double seconds(hd::round_view view, std::int64_t elements) {
  return hd::seconds(view, net, elements, 4);
}
Approx exactly(double t) {
  return Approx(t).epsilon(1e-12);
}
}  // namespace

TEST_CASE("every algorithm ends with what its collective promises", "[comm][rounds][law]") {
  keeps_its_promises<algo::bidirectional_ring, all_reduce>();
  keeps_its_promises<algo::bidirectional_ring, reduce_scatter>();
  keeps_its_promises<algo::bidirectional_ring, all_gather>();
  keeps_its_promises<algo::recursive_doubling, all_reduce>();
  keeps_its_promises<algo::recursive_doubling, reduce_scatter>();
  keeps_its_promises<algo::recursive_doubling, all_gather>();
  keeps_its_promises<algo::recursive_halving, reduce_scatter>();
  keeps_its_promises<algo::rabenseifner, all_reduce>();
  keeps_its_promises<algo::bruck, all_reduce>();
  keeps_its_promises<algo::bruck, reduce_scatter>();
  keeps_its_promises<algo::bruck, all_gather>();
  keeps_its_promises<algo::bruck, all_to_all>();
  keeps_its_promises<algo::pat, all_reduce>();
  keeps_its_promises<algo::pat, reduce_scatter>();
  keeps_its_promises<algo::pat, all_gather>();
  keeps_its_promises<algo::bounded_pat<1>, all_reduce>();
  keeps_its_promises<algo::bounded_pat<4>, reduce_scatter>();
  keeps_its_promises<algo::bounded_pat<4>, all_gather>();
}

TEST_CASE("the ring: 2 (p - 1) messages of one block", "[comm][rounds][formula]") {
  for (int p = 1; p <= 16; ++p) {
    const auto n = static_cast<std::size_t>(p - 1);
    const std::vector<step> half(n, {1, 1});
    every_rank(table<algo::ring, all_reduce>(p), joined(half, half));
    every_rank(table<algo::ring, reduce_scatter>(p), half);
    every_rank(table<algo::ring, all_gather>(p), half);
    const double m = 4.0 * 240 * p;  // divides evenly
    CHECK(seconds(table<algo::ring, all_reduce>(p), 240 * p) ==
          exactly(2 * (p - 1) * net.alpha + 2.0 * (p - 1) / p * m * net.beta + (p - 1.0) / p * m * net.gamma));
  }
}

TEST_CASE("the ring both ways: half the rounds, half the bytes per direction", "[comm][rounds][formula]") {
  for (int p = 1; p <= 16; ++p) {
    const auto gather = table<algo::bidirectional_ring, all_gather>(p);
    const auto scatter = table<algo::bidirectional_ring, reduce_scatter>(p);
    CHECK(gather.view().rounds() == p / 2);  // ceil((p - 1) / 2)
    CHECK(table<algo::bidirectional_ring, all_reduce>(p).view().rounds() == 2 * (p / 2));
    const std::int64_t n = 2 * p * 10, block = 20;
    for (const hd::round_view view : {gather.view(), scatter.view()})
      for (int r = 0; r < p; ++r) {
        std::int64_t right = 0, left = 0;
        for (const auto& t : view.transfers()) {
          if (t.from != r) continue;
          CHECK((t.to == (r + 1) % p || t.to == (r - 1 + p) % p));
          (t.to == (r + 1) % p ? right : left) += hd::elements_of(view, t, n);
        }
        CHECK(right + left == (p - 1) * block);
        if (p > 2) CHECK(right == left);
        CHECK(hd::messages_sent(view, r) == (p == 2 ? 1 : p % 2 == 0 ? p : p - 1));
      }
    // With a port per neighbour, half the time of the ring in either term.
    hd::hockney both_ways = net;
    both_ways.ports = 2;
    const double m = 4.0 * static_cast<double>(n), whole = p == 2 ? 0 : (p - 1) / 2,
                 last = p > 2 && p % 2 == 0 ? 0.5 : p == 2;
    CHECK(hd::seconds(gather, both_ways, n, 4) == exactly((p / 2) * net.alpha + (whole + last) * m / p * net.beta));
  }
}

TEST_CASE("recursive doubling: log2 p messages", "[comm][rounds][formula]") {
  for (int p = 1; p <= 16; ++p) {
    const auto view_of = table<algo::recursive_doubling, all_reduce>(p);
    const int l = log2_down(p), core = 1 << l, extra = p - core;
    const double m = 4.0 * 96;
    CHECK(view_of.view().transfers().size() == static_cast<std::size_t>(core * l + 2 * extra));
    for (int r = 0; r < p; ++r) {
      const int expected = r >= 2 * extra ? l : r % 2 == 0 ? 1 : l + 1;
      CHECK(hd::messages_sent(view_of, r) == expected);
      CHECK(hd::bytes_sent(view_of, r, 96, 4) == expected * 96 * 4);
    }
    // Where ranks join the core they fold once more.
    CHECK(seconds(view_of, 96) == exactly(l * (net.alpha + m * (net.beta + net.gamma)) +
                                          (extra > 0 ? 2 * (net.alpha + m * net.beta) + m * net.gamma : 0)));
    CHECK(hd::check_rounds(view_of, fold_order::rank).ok());
    CHECK(algo::recursive_doubling::offers<all_gather>(p) == power_of_two(p));
    CHECK(algo::recursive_doubling::offers<reduce_scatter>(p) == power_of_two(p));
    if (!power_of_two(p)) continue;
    CHECK(hd::check_rounds(view_of, fold_order::dyadic).ok());
    std::vector<step> grows;
    for (int have = 1; have < p; have *= 2) grows.push_back({1, have});
    every_rank(table<algo::recursive_doubling, all_gather>(p), grows);
    every_rank(table<algo::recursive_doubling, reduce_scatter>(p), backwards(grows));
    const double whole = 4.0 * 16 * p;
    CHECK(seconds(table<algo::recursive_doubling, all_gather>(p), 16 * p) ==
          exactly(l * net.alpha + (p - 1.0) / p * whole * net.beta));
  }
  // Ranks keep their order for any p, but where some join the core the grouping is another.
  CHECK(hd::check_rounds(table<algo::recursive_doubling, all_reduce>(13), fold_order::dyadic).what ==
        hd::round_problem::not_dyadic);
}

TEST_CASE("recursive halving and Rabenseifner: log2 p messages, (p - 1) / p of the vector", "[comm][rounds][formula]") {
  for (int p = 1; p <= 16; ++p) {
    const auto scatter = table<algo::recursive_halving, reduce_scatter>(p);
    const auto reduce = table<algo::rabenseifner, all_reduce>(p);
    const int l = log2_down(p), core = 1 << l;
    const double m = 4.0 * 240 * p;
    if (power_of_two(p)) {
      std::vector<step> shrinks;
      for (int half = p / 2; half >= 1; half /= 2) shrinks.push_back({1, half});
      every_rank(scatter, shrinks);
      every_rank(reduce, joined(shrinks, backwards(shrinks)));
      CHECK(seconds(reduce, 240 * p) ==
            exactly(2 * l * net.alpha + 2.0 * (p - 1) / p * m * net.beta + (p - 1.0) / p * m * net.gamma));
      CHECK(seconds(scatter, 240 * p) == exactly(l * net.alpha + (p - 1.0) / p * m * (net.beta + net.gamma)));
    } else {
      const double part = (core - 1.0) / core;
      const std::int64_t n = 240 * p * core;
      const double bytes = 4.0 * static_cast<double>(n);
      CHECK(seconds(reduce, n) ==
            exactly((2 * l + 2) * net.alpha + (2 + 2 * part) * bytes * net.beta + (1 + part) * bytes * net.gamma));
      CHECK(scatter.view().rounds() == l + 2);
    }
  }
  // The order in which rank 0 folds on 8 ranks: 0, 4, 2, 6, 1, 5, 3, 7.
  const auto eight = table<algo::recursive_halving, reduce_scatter>(8);
  std::vector<std::vector<std::string>> held(8, std::vector<std::string>(8));
  for (int r = 0; r < 8; ++r)
    for (auto& item : held[static_cast<std::size_t>(r)]) item = std::to_string(r);
  for (int k = 0; k < eight.view().rounds(); ++k) {
    const auto before = held;
    for (const auto& t : eight.view().round(k))
      for (const int i : eight.view().items_of(t)) {
        const auto& came = before[static_cast<std::size_t>(t.from)][static_cast<std::size_t>(i)];
        auto& own = held[static_cast<std::size_t>(t.to)][static_cast<std::size_t>(i)];
        own = t.how == hd::arrival::fold_before ? came + own : own + came;
      }
  }
  CHECK(held[0][0] == "04261537");
  CHECK(hd::check_rounds(eight, fold_order::rank).what == hd::round_problem::out_of_order);
}

TEST_CASE("Bruck: ceil(log2 p) messages for any p", "[comm][rounds][formula]") {
  for (int p = 1; p <= 16; ++p) {
    std::vector<step> grows;
    for (int have = 1; have < p; have *= 2) grows.push_back({1, (std::min)(have, p - have)});
    int blocks = 0;
    for (const auto& s : grows) blocks += s.items;
    CHECK(blocks == p - 1);
    CHECK(static_cast<int>(grows.size()) == log2_up(p));
    every_rank(table<algo::bruck, all_gather>(p), grows);
    every_rank(table<algo::bruck, reduce_scatter>(p), backwards(grows));
    every_rank(table<algo::bruck, all_reduce>(p), joined(backwards(grows), grows));

    std::vector<step> slots;
    int sent = 0;
    for (int step = 1; step < p; step *= 2) {
      int n = 0;
      for (int slot = 0; slot < p; ++slot) n += (slot & step) != 0;
      slots.push_back({1, n});
      sent += n;
    }
    const auto exchange = table<algo::bruck, all_to_all>(p);
    every_rank(exchange, slots);
    for (int r = 0; r < p; ++r) CHECK(hd::bytes_sent(exchange, r, 12 * p, 4) == sent * 12 * 4);
    if (power_of_two(p)) {
      CHECK(sent == p / 2 * log2_up(p));
      const double m = 4.0 * 12 * p;  // what one rank sends to all
      CHECK(seconds(exchange, 12 * p) == exactly(log2_up(p) * net.alpha + log2_up(p) / 2.0 * m * net.beta));
    }
  }
  const auto slots_sent = [](int p) { return hd::items_sent(algo::bruck::rounds<all_to_all>(p, 0), 0); };
  CHECK(slots_sent(4) == 4);
  CHECK(slots_sent(5) == 5);
  CHECK(slots_sent(8) == 12);
  CHECK(slots_sent(16) == 32);
}

TEST_CASE("PAT: ceil(log2 p) messages, the shortest to the farthest", "[comm][rounds][formula]") {
  for (int p = 1; p <= 64; ++p) {
    const auto gather = table<algo::pat, all_gather>(p);
    const auto made = steps(gather, 0);
    CHECK(static_cast<int>(made.size()) == log2_up(p));
    int blocks = 0;
    for (std::size_t k = 0; k < made.size(); ++k) {
      CHECK(made[k].messages == 1);
      CHECK((k == 0 || made[k].items >= made[k - 1].items));
      if (power_of_two(p)) CHECK(made[k].items == 1 << k);
      blocks += made[k].items;
    }
    CHECK(blocks == p - 1);
    if (p <= 16) {
      every_rank(gather, made);
      every_rank(table<algo::pat, reduce_scatter>(p), backwards(made));
      every_rank(table<algo::pat, all_reduce>(p), joined(backwards(made), made));
    }
    for (const auto& t : gather.transfers) CHECK((t.to - t.from + p) % p == 1 << (log2_up(p) - 1 - t.round));
  }
  CHECK(steps(table<algo::pat, all_gather>(13), 5) == std::vector<step>{{1, 1}, {1, 2}, {1, 3}, {1, 6}});
  CHECK(steps(table<algo::bruck, all_gather>(13), 5) == std::vector<step>{{1, 1}, {1, 2}, {1, 4}, {1, 5}});
}

namespace {
// The most blocks of a reduce_scatter that one rank has begun to sum up for others and has not sent yet.
int sums_under_way(hd::round_view view) {
  std::set<std::pair<int, int>> begun;
  std::vector<int> count(static_cast<std::size_t>(view.ranks()), 0);
  int most = 0;
  for (int k = 0; k < view.rounds(); ++k) {
    for (const auto& t : view.round(k))
      for (const int i : view.items_of(t)) count[static_cast<std::size_t>(t.from)] -= begun.erase({t.from, i}) == 1;
    for (const auto& t : view.round(k))
      for (const int i : view.items_of(t))
        if (t.to != i) count[static_cast<std::size_t>(t.to)] += begun.insert({t.to, i}).second;
    most = (std::max)(most, *std::max_element(count.begin(), count.end()));
  }
  return most;
}

template <int Most>
void bounded() {
  for (const int p : {1, 2, 3, 5, 8, 13, 16, 31, 33, 64, 100, 128}) {
    INFO("p = " << p << ", Most = " << Most);
    const auto gather = table<algo::bounded_pat<Most>, all_gather>(p);
    const auto scatter = table<algo::bounded_pat<Most>, reduce_scatter>(p);
    const int leaves = 1 << log2_up(p), reached = (std::min)(Most, leaves), below = leaves / reached;
    CHECK(gather.view().rounds() == log2_up(reached) + (std::min)(below, p) - 1);
    for (const auto& t : gather.transfers) CHECK(t.items <= Most);
    for (int r = 0; r < p; ++r) {
      CHECK(hd::items_sent(gather, r) == p - 1);
      CHECK(hd::messages_sent(gather, r) == gather.view().rounds());
    }
    CHECK(sums_under_way(scatter) <= reached * (1 + log2_up(below)));
    if (Most >= p) {
      CHECK(gather.transfers == table<algo::pat, all_gather>(p).transfers);
      CHECK(gather.items == table<algo::pat, all_gather>(p).items);
    }
  }
}
}  // namespace

TEST_CASE("bounded PAT: short messages, few sums under way", "[comm][rounds][formula]") {
  bounded<1>();
  bounded<2>();
  bounded<4>();
  bounded<8>();
  bounded<128>();
  CHECK(sums_under_way(table<algo::pat, reduce_scatter>(128)) == 63);
  CHECK(sums_under_way(table<algo::bounded_pat<1>, reduce_scatter>(128)) == 3);
  CHECK(std::string_view(algo::bounded_pat<4>::name) == "bounded_pat<4>");
}
