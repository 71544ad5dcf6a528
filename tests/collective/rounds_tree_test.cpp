// Trees, direct exchanges, prefixes and the fixed tree: what they promise, and their messages, bytes and rounds.
#include <heddle/collective/algorithm/binomial.hpp>
#include <heddle/collective/algorithm/direct.hpp>
#include <heddle/collective/algorithm/dissemination.hpp>
#include <heddle/collective/algorithm/double_tree.hpp>
#include <heddle/collective/algorithm/dyadic.hpp>
#include <heddle/collective/algorithm/grid_all_to_all.hpp>
#include <heddle/collective/algorithm/pairwise.hpp>
#include <heddle/collective/algorithm/pat.hpp>
#include <heddle/collective/algorithm/reduce_scatter_gather.hpp>
#include <heddle/collective/algorithm/scatter_all_gather.hpp>
#include <heddle/collective/round_cost.hpp>
#include <heddle/collective/rounds_check.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"

namespace {
namespace hd = heddle;
namespace algo = heddle::algo;
using hd::arrival, hd::fold_order, hd::round_view;
using what = hd::comm_operation;

constexpr int log2_up(int p) {
  return p <= 1 ? 0 : static_cast<int>(std::bit_width(static_cast<unsigned>(p - 1)));
}
constexpr bool power_of_two(int p) {
  return std::has_single_bit(static_cast<unsigned>(p));
}

// The first fault for 1, ..., most ranks, at every root where there is one.
template <class A, what What>
constexpr hd::round_fault first_fault(int most) {
  constexpr bool rooted =
      What == what::broadcast || What == what::reduce || What == what::gather || What == what::scatter;
  for (int p = 1; p <= most; ++p)
    for (int root = 0; root < (rooted ? p : 1); ++root)
      if (A::template offers<What>(p))
        if (const auto fault = hd::check_rounds<A, What>(p, root); !fault.ok()) return fault;
  return {};
}

int most_messages(round_view v) {
  int most = 0;
  for (int r = 0; r < v.ranks(); ++r) most = (std::max)(most, hd::messages_sent(v, r));
  return most;
}

std::int64_t most_bytes(round_view v, std::int64_t n) {
  std::int64_t most = 0;
  for (int r = 0; r < v.ranks(); ++r) most = (std::max)(most, hd::bytes_sent(v, r, n, 1));
  return most;
}

constexpr hd::hockney net{3e-6, 2e-9, 5e-10};
constexpr double alpha = net.alpha, beta = net.beta, gamma_ = net.gamma;
Approx close(double x) {
  return Approx(x).epsilon(1e-12);
}
}  // namespace

// In constant evaluation, for few ranks.
static_assert(first_fault<algo::binomial, what::broadcast>(6).ok());
static_assert(first_fault<algo::binomial, what::reduce>(8).ok());
static_assert(first_fault<algo::binomial, what::gather>(6).ok());
static_assert(first_fault<algo::binomial, what::scatter>(6).ok());
static_assert(first_fault<algo::double_tree<>, what::all_reduce>(8).ok());
static_assert(first_fault<algo::double_tree<2>, what::broadcast>(6).ok());
static_assert(first_fault<algo::scatter_all_gather<>, what::broadcast>(5).ok());
static_assert(first_fault<algo::reduce_scatter_gather<>, what::reduce>(5).ok());
static_assert(first_fault<algo::direct, what::all_to_all>(7).ok());
static_assert(first_fault<algo::pairwise, what::all_to_all>(8).ok());
static_assert(first_fault<algo::hierarchical_all_to_all<2>, what::all_to_all>(8).ok());
static_assert(first_fault<algo::grid_all_to_all, what::all_to_all>(8).ok());
static_assert(first_fault<algo::dissemination, what::scan>(8).ok());
static_assert(first_fault<algo::dissemination, what::exclusive_scan>(8).ok());
static_assert(first_fault<algo::dyadic, what::all_reduce>(8).ok());
static_assert(hd::static_rounds<algo::dyadic, what::all_reduce, 7>::view().rounds() == 4);
static_assert(algo::double_tree<4>::name == "double_tree<4>" && algo::scattered<32>::name == "scattered<32>");
static_assert(algo::scatter_all_gather<>::name == "scatter_all_gather<ring>" && algo::direct::name == "direct");

#define CHECK_FAULT(...) CHECK(to_string(__VA_ARGS__) == to_string(hd::round_fault{}))

TEST_CASE("trees keep their promises on any number of ranks, at every root", "[comm][rounds]") {
  CHECK_FAULT(first_fault<algo::binomial, what::broadcast>(40));
  CHECK_FAULT(first_fault<algo::binomial, what::reduce>(40));
  CHECK_FAULT(first_fault<algo::binomial, what::gather>(33));
  CHECK_FAULT(first_fault<algo::binomial, what::scatter>(33));
  CHECK_FAULT(first_fault<algo::double_tree<>, what::all_reduce>(130));
  CHECK_FAULT(first_fault<algo::double_tree<3>, what::all_reduce>(40));
  CHECK_FAULT(first_fault<algo::double_tree<3>, what::broadcast>(33));
  CHECK_FAULT(first_fault<algo::double_tree<2>, what::reduce>(33));
  CHECK_FAULT(first_fault<algo::scatter_all_gather<>, what::broadcast>(20));
  CHECK_FAULT(first_fault<algo::scatter_all_gather<algo::pairwise>, what::broadcast>(32));
  CHECK_FAULT(first_fault<algo::reduce_scatter_gather<>, what::reduce>(20));
  CHECK_FAULT(first_fault<algo::reduce_scatter_gather<algo::direct>, what::reduce>(20));
  CHECK_FAULT(first_fault<algo::reduce_scatter_gather<algo::pat>, what::reduce>(20));
  CHECK_FAULT(first_fault<algo::dyadic, what::reduce>(33));
  CHECK_FAULT(first_fault<algo::dyadic, what::all_reduce>(130));
  CHECK_FAULT(first_fault<algo::dissemination, what::scan>(130));
  CHECK_FAULT(first_fault<algo::dissemination, what::exclusive_scan>(130));
}

TEST_CASE("direct exchanges keep their promises on any number of ranks", "[comm][rounds]") {
  CHECK_FAULT(first_fault<algo::direct, what::all_to_all>(24));
  CHECK_FAULT(first_fault<algo::direct, what::all_gather>(33));
  CHECK_FAULT(first_fault<algo::direct, what::reduce_scatter>(33));
  CHECK_FAULT(first_fault<algo::scattered<3>, what::all_to_all>(24));
  CHECK_FAULT(first_fault<algo::scattered<>, what::reduce_scatter>(33));
  CHECK_FAULT(first_fault<algo::scattered<>, what::all_gather>(33));
  CHECK_FAULT(first_fault<algo::pairwise, what::all_to_all>(32));
  CHECK_FAULT(first_fault<algo::pairwise, what::all_gather>(64));
  CHECK_FAULT(first_fault<algo::pairwise, what::reduce_scatter>(64));
  CHECK_FAULT(first_fault<algo::hierarchical_all_to_all<1>, what::all_to_all>(12));
  CHECK_FAULT(first_fault<algo::hierarchical_all_to_all<4>, what::all_to_all>(32));
  CHECK_FAULT(first_fault<algo::hierarchical_all_to_all<6>, what::all_to_all>(30));
  CHECK_FAULT(first_fault<algo::grid_all_to_all, what::all_to_all>(37));
}

TEST_CASE("binomial trees: parents, rounds, messages and time are the formula's", "[comm][rounds]") {
  const std::int64_t n = 1 << 12;
  const double m = static_cast<double>(n);
  for (int p = 1; p <= 33; ++p)
    for (int root = 0; root < p; root += p > 16 ? 7 : 1) {
      INFO("p = " << p << ", root = " << root);
      const int depth = log2_up(p);
      const auto down = algo::binomial::rounds<what::broadcast>(p, root);
      CHECK(down.view().rounds() == depth);
      CHECK(static_cast<int>(down.transfers.size()) == p - 1);
      std::vector<int> last_child(static_cast<std::size_t>(p), 2 * p);
      for (const auto& t : down.transfers) {
        const int v = (t.to - root + p) % p, parent = (t.from - root + p) % p;
        CHECK(parent == (v & (v - 1)));
        CHECK(v < last_child[static_cast<std::size_t>(parent)]);  // far first
        last_child[static_cast<std::size_t>(parent)] = v;
      }
      CHECK(hd::messages_sent(down, root) == depth);
      CHECK(hd::seconds(down, net, n, 1) == close(depth * (alpha + m * beta)));

      const auto up = algo::binomial::rounds<what::reduce>(p, root);
      CHECK(up.view().rounds() == depth);
      CHECK(static_cast<int>(up.transfers.size()) == p - 1);
      for (int r = 0; r < p; ++r) CHECK(hd::messages_sent(up, r) == (r == root ? 0 : 1));
      CHECK(hd::seconds(up, net, n, 1) == close(depth * (alpha + m * beta + m * gamma_)));

      for (const auto& t :
           {algo::binomial::rounds<what::scatter>(p, root), algo::binomial::rounds<what::gather>(p, root)}) {
        CHECK(t.view().rounds() == depth);
        CHECK(static_cast<int>(t.transfers.size()) == p - 1);
        int blocks = 0, all = 0, at_root = 0;
        for (int v = 1; v < p; ++v) blocks += (std::min)(v & -v, p - v);
        for (const auto& x : t.transfers) {
          all += x.items;
          if (x.from == root || x.to == root) at_root += x.items;
        }
        CHECK(all == blocks);
        CHECK(at_root == p - 1);
        if (power_of_two(p)) {
          CHECK(all == p / 2 * depth);
          CHECK(hd::seconds(t, net, n, 1) == close(depth * alpha + m / p * (p - 1) * beta));
        }
      }
    }
}

TEST_CASE("double trees: shape, depth, bytes and rounds", "[comm][rounds]") {
  for (int p = 2; p <= 128; ++p) {
    INFO("p = " << p);
    const int depth = log2_up(p);
    const auto table = algo::double_tree<>::rounds<what::all_reduce>(p, 0);
    CHECK(static_cast<int>(table.transfers.size()) == 4 * (p - 1));
    CHECK(table.view().rounds() == 2 * depth);
    CHECK(most_bytes(table, 1000) <= 2000);
    CHECK(hd::total_bytes(table, 1000, 1) == 2000 * (p - 1));
    std::vector<int> parent[2], children[2];
    for (int k = 0; k < 2; ++k) {
      parent[k].assign(static_cast<std::size_t>(p), -1);
      children[k].assign(static_cast<std::size_t>(p), 0);
    }
    for (const auto& t : table.transfers) {
      if (t.how == arrival::store) continue;
      const int k = table.items[static_cast<std::size_t>(t.first)];
      CHECK(parent[k][static_cast<std::size_t>(t.from)] == -1);
      parent[k][static_cast<std::size_t>(t.from)] = t.to;
      ++children[k][static_cast<std::size_t>(t.to)];
    }
    int both = 0, neither = 0;
    for (int r = 0; r < p; ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (r > 0) {  // the first tree, by its definition
        const int b = r & -r;
        CHECK(parent[0][i] == (((r ^ b) | (2 * b)) < p ? (r ^ b) | (2 * b) : r ^ b));
      }
      if (p % 2 == 0 && r < p - 1) CHECK(parent[1][i] == p - 1 - parent[0][static_cast<std::size_t>(p - 1 - r)]);
      for (int k = 0; k < 2; ++k) {
        CHECK(children[k][i] <= 2);
        int steps = 0;
        for (int at = r; parent[k][static_cast<std::size_t>(at)] >= 0 && steps <= p; ++steps)
          at = parent[k][static_cast<std::size_t>(at)];
        CHECK(steps <= depth);
      }
      both += children[0][i] > 0 && children[1][i] > 0;
      neither += children[0][i] == 0 && children[1][i] == 0;
    }
    CHECK(both == 0);
    CHECK(neither == 0);
    for (const auto& one_way : {algo::double_tree<>::rounds<what::broadcast>(p, p / 3),
                                algo::double_tree<>::rounds<what::reduce>(p, p / 3)}) {
      CHECK(one_way.view().rounds() == depth);
      CHECK(static_cast<int>(one_way.transfers.size()) == 2 * (p - 1));
      CHECK(most_bytes(one_way, 1000) <= 1000);
      for (int r = 0; r < p; ++r) {
        int inner[2] = {0, 0};
        const bool up = one_way.what == what::reduce;
        for (const auto& t : one_way.transfers)
          if ((up ? t.to : t.from) == r) ++inner[one_way.items[static_cast<std::size_t>(t.first)]];
        CHECK((r == p / 3 || inner[0] == 0 || inner[1] == 0));
        CHECK((std::max)(inner[0], inner[1]) <= 2);
      }
    }
  }
  CHECK(algo::double_tree<8>::rounds<what::all_reduce>(16, 0).view().rounds() == 2 * 4 + 7);
  CHECK(algo::double_tree<8>::rounds<what::broadcast>(13, 5).view().rounds() == 4 + 7);
}

namespace {
// All messages of a piece of a half are as long, so that the time is a number of messages one after the other.
template <int Chunks>
void check_double_tree_time(int p) {
  INFO("p = " << p << ", " << Chunks << " chunks");
  const std::int64_t n = 2 * Chunks * 100;
  const double one = alpha + 100 * beta;
  const int depth = log2_up(p);
  const double both =
      hd::seconds(algo::double_tree<Chunks>::template rounds<what::all_reduce>(p, 0), {alpha, beta, 0}, n, 1);
  const double down =
      hd::seconds(algo::double_tree<Chunks>::template rounds<what::broadcast>(p, p / 3), {alpha, beta, 0}, n, 1);
  CHECK(both <= (4 * depth - 1 + 4 * (Chunks - 1)) * one * (1 + 1e-9));
  CHECK(both >= (2 * depth + 4 * (Chunks - 1)) * one * (1 - 1e-9));
  CHECK(down <= 2 * (depth + Chunks - 1) * one * (1 + 1e-9));
  CHECK(down >= (depth + 2 * (Chunks - 1)) * one * (1 - 1e-9));
}
}  // namespace

TEST_CASE("double trees: twice the vector's time and a message per level, where a rank sends one at a time",
          "[comm][rounds]") {
  for (int p = 4; p <= 66; ++p) {
    check_double_tree_time<1>(p);
    check_double_tree_time<8>(p);
    check_double_tree_time<64>(p);
  }
}

TEST_CASE("long vectors: scatter and all_gather, reduce_scatter and gather", "[comm][rounds]") {
  for (int p = 1; p <= 33; ++p) {
    INFO("p = " << p);
    const int depth = log2_up(p);
    const std::int64_t n = 64 * p;
    const double m = static_cast<double>(n) / p;
    const auto down = algo::scatter_all_gather<>::rounds<what::broadcast>(p, p / 2);
    CHECK(down.view().rounds() == depth + p - 1);
    const auto up = algo::reduce_scatter_gather<>::rounds<what::reduce>(p, p / 2);
    CHECK(up.view().rounds() == depth + p - 1);
    for (const auto& table : {up, algo::reduce_scatter_gather<algo::pat>::rounds<what::reduce>(p, p / 2)}) {
      std::vector<std::int64_t> received(static_cast<std::size_t>(p), 0);
      for (const auto& t : table.transfers) received[static_cast<std::size_t>(t.to)] += hd::elements_of(table, t, n);
      CHECK(*std::max_element(received.begin(), received.end()) == 2 * (p - 1) * 64);
    }
    if (!power_of_two(p)) continue;
    CHECK(hd::seconds(down, net, n, 1) == close((depth + p - 1) * alpha + 2 * (p - 1) * m * beta));
    CHECK(hd::seconds(up, net, n, 1) == close((depth + p - 1) * alpha + (p - 1) * m * (2 * beta + gamma_)));
    const auto pairs = algo::scatter_all_gather<algo::pairwise>::rounds<what::broadcast>(p, 0);
    CHECK(hd::bytes_sent(pairs, 0, n, 1) == 2 * (p - 1) * 64);
  }
}

TEST_CASE("direct exchanges: one message to each other rank, the least bytes", "[comm][rounds]") {
  for (int p = 1; p <= 24; ++p) {
    INFO("p = " << p);
    const std::int64_t n = 50 * p;
    const auto all = algo::direct::rounds<what::all_to_all>(p, 0);
    CHECK(all.view().rounds() == p - 1);
    CHECK(hd::seconds(all, net, n, 1) == close((p - 1) * (alpha + 50 * beta)));
    const auto eight = algo::scattered<8>::rounds<what::all_to_all>(p, 0);
    CHECK(eight.view().rounds() == (p - 1 + 7) / 8);
    for (int k = 0; k < eight.view().rounds(); ++k)
      CHECK(hd::busiest_sender(eight, k, n, 1).messages == (std::min)(8, p - 1 - 8 * k));
    std::vector<hd::round_table> tables{all, eight, algo::direct::rounds<what::all_gather>(p, 0),
                                        algo::direct::rounds<what::reduce_scatter>(p, 0)};
    if (power_of_two(p)) {
      tables.push_back(algo::pairwise::rounds<what::all_to_all>(p, 0));
      tables.push_back(algo::pairwise::rounds<what::all_gather>(p, 0));
      tables.push_back(algo::pairwise::rounds<what::reduce_scatter>(p, 0));
      for (const auto& t : tables.back().transfers) CHECK(t.to == (t.from ^ (t.round + 1)));
    }
    for (const auto& table : tables)
      for (int r = 0; r < p; ++r) {
        CHECK(hd::messages_sent(table, r) == p - 1);
        CHECK(hd::bytes_sent(table, r, n, 1) == (p - 1) * 50);
      }
  }
  CHECK_FALSE(algo::pairwise::offers<what::all_to_all>(6));
}

TEST_CASE("hierarchical all_to_all: g + N - 2 messages, and no more bytes between nodes", "[comm][rounds]") {
  constexpr int g = 4;
  for (int nodes = 1; nodes <= 9; ++nodes) {
    INFO(nodes << " nodes");
    const int p = nodes * g;
    const auto table = algo::hierarchical_all_to_all<g>::rounds<what::all_to_all>(p, 0);
    const std::int64_t n = 3 * p;
    std::vector<std::int64_t> inside(static_cast<std::size_t>(p)), between(inside.size());
    for (const auto& t : table.transfers) {
      const bool network = t.from / g != t.to / g;
      (network ? between : inside)[static_cast<std::size_t>(t.from)] += hd::elements_of(table, t, n);
      CHECK(t.items == (network ? g : nodes));
      if (network) CHECK(t.from % g == t.to % g);
    }
    for (int r = 0; r < p; ++r) {
      CHECK(hd::messages_sent(table, r) == g + nodes - 2);
      CHECK(inside[static_cast<std::size_t>(r)] == (g - 1) * nodes * 3);
      CHECK(between[static_cast<std::size_t>(r)] == (nodes - 1) * g * 3);
    }
  }
  CHECK_FALSE(algo::hierarchical_all_to_all<4>::offers<what::all_to_all>(6));
}

TEST_CASE("grid all_to_all: 2 (sqrt p - 1) messages, each block at most twice", "[comm][rounds]") {
  for (int p = 1; p <= 50; ++p) {
    INFO("p = " << p);
    const auto table = algo::grid_all_to_all::rounds<what::all_to_all>(p, 0);
    const int columns = algo::grid_all_to_all::columns(p), rows = (p + columns - 1) / columns;
    CHECK(most_messages(table) <= columns + rows - 2 + (p % columns != 0 ? 1 : 0));
    std::map<int, int> sent;
    for (const int item : table.items) ++sent[item];
    for (const auto& [item, times] : sent) CHECK(times <= 2);
    if (columns * columns != p) continue;
    for (int r = 0; r < p; ++r) {
      CHECK(hd::messages_sent(table, r) == 2 * (columns - 1));
      CHECK(hd::items_sent(table, r) == 2 * (columns - 1) * columns);
    }
  }
}

TEST_CASE("prefixes in log2 p rounds", "[comm][rounds]") {
  for (int p = 1; p <= 40; ++p) {
    INFO("p = " << p);
    const auto scan = algo::dissemination::rounds<what::scan>(p, 0);
    CHECK(scan.view().rounds() == log2_up(p));
    int messages = 0;
    for (int s = 1; s < p; s *= 2) messages += p - s;
    CHECK(static_cast<int>(scan.transfers.size()) == messages);
    const auto before = algo::dissemination::rounds<what::exclusive_scan>(p, 0);
    CHECK(before.view().rounds() == (p > 1 ? 1 + log2_up(p - 1) : 0));
    CHECK(before.view().rounds() <= 1 + log2_up(p));
    if (power_of_two(p)) CHECK(hd::seconds(scan, net, 8, 1) == close(log2_up(p) * (alpha + 8 * (beta + gamma_))));
  }
}

TEST_CASE("the fixed tree: doubling where ranks are a power of two, never more than reduce and broadcast",
          "[comm][rounds]") {
  for (int p = 1; p <= 130; ++p) {
    INFO("p = " << p);
    const auto table = algo::dyadic::rounds<what::all_reduce>(p, 0);
    const int depth = log2_up(p);
    if (power_of_two(p)) {
      CHECK(table.view().rounds() == depth);
      CHECK(static_cast<int>(table.transfers.size()) == p * depth);
      CHECK(hd::seconds(table, net, 100, 1) == close(depth * (alpha + 100 * (beta + gamma_))));
    } else {
      CHECK(table.view().rounds() < 2 * depth + 1);
      CHECK(table.view().rounds() > depth);
    }
    for (int k = 0; k < table.view().rounds(); ++k) CHECK(hd::busiest_sender(table, k, 1, 1).messages <= 1);
    CHECK(algo::dyadic::rounds<what::reduce>(p, p / 2).view().rounds() == depth);
  }
  // Three quarters of a power of two, and one less than it: one round more than the shallowest tree has.
  CHECK(algo::dyadic::rounds<what::all_reduce>(12, 0).view().rounds() == 5);
  CHECK(algo::dyadic::rounds<what::all_reduce>(15, 0).view().rounds() == 5);
  CHECK(algo::dyadic::rounds<what::all_reduce>(127, 0).view().rounds() == 8);
}
