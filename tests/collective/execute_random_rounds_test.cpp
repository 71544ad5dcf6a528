// Rounds that no algorithm would make, valid all the same, executed by ranks: whatever the checker accepts gives what the
// collective promises. Values go back and forth, arrive twice, leave while others arrive in their place.
#include <heddle/collective/execute_rounds.hpp>
#include <heddle/collective/rounds_check.hpp>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "comm/support.hpp"

using namespace comm_test;
using hd::arrival, hd::comm_operation;

namespace {

using dice = std::mt19937;
int below(dice& d, int n) {
  return static_cast<int>(d() % static_cast<unsigned>(n));
}

// Messages of a table under construction: items that go the same way in the same round travel together, or now and then
// do not.
struct table_maker {
  dice& d;
  std::map<std::tuple<int, int, int, arrival, int>, std::vector<int>> messages{};
  std::set<std::tuple<int, int, int, int>> sent{};
  void send(int round, int from, int to, arrival how, int item) {
    if (!sent.insert({round, from, to, item}).second) return;
    auto& items = messages[{round, from, to, how, below(d, 4) == 0 ? item : -1}];
    items.insert(items.begin() + below(d, static_cast<int>(items.size()) + 1), item);
  }
  hd::round_table take(comm_operation what, int p, int root, int blocks, int parts) {
    hd::round_builder rounds(what, p, root, blocks, parts);
    for (const auto& [way, items] : messages) {
      const auto [round, from, to, how, alone] = way;
      rounds.send(round, from, to, how);
      for (const int i : items) rounds.item(i);
    }
    return rounds.take();
  }
};

// From the ranks that have an item's final value at `round` to those that must get it, over others too.
void spread(table_maker& make, int p, int item, std::vector<int> have, const std::vector<int>& wanted, int round) {
  dice& d = make.d;
  const auto has = [&](int r) { return std::find(have.begin(), have.end(), r) != have.end(); };
  const auto all_have = [&] { return std::all_of(wanted.begin(), wanted.end(), has); };
  for (int k = round; !all_have() || below(d, 3) == 0; ++k) {
    const std::vector<int> now = have;
    for (int sends = 1 + below(d, 3); sends > 0; --sends) {
      const int from = now[static_cast<std::size_t>(below(d, static_cast<int>(now.size())))];
      const int to = below(d, p);
      if (to == from) continue;
      make.send(k, from, to, arrival::store, item);  // now and then to one that has it
      if (!has(to)) have.push_back(to);
    }
  }
}

// Folds an item's contributions side by side in random order, now and then both ways; a rank that has the result, and the
// next round.
std::pair<int, int> fold(table_maker& make, int p, int item) {
  dice& d = make.d;
  std::vector<int> holders;  // of neighbouring groups, in rank order
  for (int r = 0; r < p; ++r) holders.push_back(r);
  int round = below(d, 2);
  for (; holders.size() > 1; round += 1 + below(d, 2)) {
    const auto g = static_cast<std::size_t>(below(d, static_cast<int>(holders.size()) - 1));
    const bool right = below(d, 2) == 0;
    if (right || below(d, 2) == 0) make.send(round, holders[g], holders[g + 1], arrival::fold_before, item);
    if (!right || below(d, 2) == 0) make.send(round, holders[g + 1], holders[g], arrival::fold_after, item);
    holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(right ? g : g + 1));
  }
  return {holders[0], round};
}

hd::round_table random_rounds(comm_operation what, int p, int root, dice& d) {
  using enum comm_operation;
  const bool cut = what == all_reduce || what == reduce || what == broadcast;
  const int blocks = what == all_to_all ? p * p : cut ? 1 + below(d, 4) : p, parts = 1 + below(d, 2);
  table_maker make{d};
  std::vector<int> everyone;
  for (int r = 0; r < p; ++r) everyone.push_back(r);
  for (int item = 0; item < blocks * parts; ++item) {
    const int block = item / parts;
    if (what == all_reduce || what == reduce || what == reduce_scatter) {
      const auto [rank, round] = fold(make, p, item);
      spread(make, p, item, {rank}, what == all_reduce ? everyone : std::vector<int>{what == reduce ? root : block},
             round);
    } else {
      const int from = what == all_to_all ? block / p : what == broadcast || what == scatter ? root : block;
      const std::vector<int> to = what == broadcast || what == all_gather ? everyone
                                  : what == gather                        ? std::vector<int>{root}
                                                                          : std::vector<int>{block % p};
      spread(make, p, item, {from}, to, below(d, 2));
    }
  }
  return make.take(what, p, root, blocks, parts);
}

// Element i of the whole vector of rank r.
std::vector<word> words(int rank, std::int64_t first, std::int64_t count) {
  std::vector<word> x;
  for (std::int64_t i = 0; i < count; ++i) x.push_back(value<word>(rank, first + i));
  return x;
}

// What a rank gives and must get, blocks of n words.
struct sides {
  std::vector<word> in, out;
};
sides sides_of(comm_operation what, int p, int r, int root, std::int64_t n) {
  using enum comm_operation;
  const auto folded_words = [&](std::int64_t first, std::int64_t count) {
    std::vector<word> x;
    for (std::int64_t i = 0; i < count; ++i) x.push_back(folded<word>(p, first + i, join{}));
    return x;
  };
  sides s;
  const auto from_each = [&](std::int64_t first) {
    for (int q = 0; q < p; ++q)
      for (const word& w : words(q, first, n)) s.out.push_back(w);
  };
  switch (what) {
    case all_reduce:
    case reduce:
      s.in = words(r, 0, n);
      if (what == all_reduce || r == root) s.out = folded_words(0, n);
      break;
    case broadcast:
      s.in = words(r, 0, n);
      s.out = words(root, 0, n);
      break;
    case reduce_scatter:
      s.in = words(r, 0, p * n);
      s.out = folded_words(r * n, n);
      break;
    case all_gather:
    case gather:
      s.in = words(r, 0, n);
      if (what == all_gather || r == root) from_each(0);
      break;
    case scatter:
      if (r == root) s.in = words(r, 0, p * n);
      s.out = words(root, r * n, n);
      break;
    default:
      s.in = words(r, 0, p * n);
      from_each(r * n);
      break;
  }
  return s;
}

void random_tables(unsigned seed, int tables) {
  INFO("seed " << seed);
  dice d(seed);
  for (int k = 0; k < tables; ++k) {
    const int p = 2 + below(d, (std::min)(4, most_ranks() - 1)), root = below(d, p);
    using enum comm_operation;
    constexpr std::array<comm_operation, 8> all{all_reduce, reduce, broadcast, reduce_scatter,
                                                all_gather, gather, scatter,   all_to_all};
    std::vector<hd::round_table> made;
    for (const comm_operation what : all) {
      const bool rooted = what == reduce || what == broadcast || what == gather || what == scatter;
      made.push_back(random_rounds(what, p, rooted ? root : 0, d));
      const auto fault = hd::check_rounds(made.back(), hd::fold_order::rank);
      INFO(to_string(fault));
      REQUIRE(fault.ok());
    }
    notes found(p);
    launch(line{p}, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      for (const hd::round_table& table : made) {
        const bool cut = table.what == all_reduce || table.what == reduce || table.what == broadcast;
        for (const std::int64_t n : {0, 1, 7}) {
          const sides s = sides_of(table.what, p, c.rank(), table.root, n);
          const hd::block_sizes sizes = cut ? hd::block_sizes::vector(n) : hd::block_sizes::equal(n);
          std::string at(to_string(table.what));
          at += " among " + std::to_string(p) + ", " + std::to_string(n) + " words, table " + std::to_string(k);
          std::vector<word> in = s.in, out(s.out.size());
          if (table.what != broadcast) {
            hd::execute_rounds<word>(c, table, in.data(), out.data(), sizes, join{});
            found.expect(c.rank(), out == s.out, at);
            found.expect(c.rank(), in == s.in, at + ": the input was changed");
          }
          if (table.what == broadcast || table.what == all_reduce || (table.what == reduce && c.rank() == table.root)) {
            hd::execute_rounds<word>(c, table, in.data(), in.data(), sizes, join{}, true);
            found.expect(c.rank(), in == s.out, at + ", in place");
          } else if (table.what == reduce) {
            hd::execute_rounds<word>(c, table, in.data(), out.data(), sizes, join{});
          }
        }
      }
    });
    found.report();
  }
}

}  // namespace

TEST_CASE("random rounds give what their collectives promise", "[comm][rounds][property]") {
  if (most_ranks() < 2) return;
  random_tables(20'251'121, on_threads ? 12 : 4);
}
TEST_CASE("many random rounds give what their collectives promise", "[comm][rounds][property][slow]") {
  if (most_ranks() < 2) return;
  for (unsigned seed = 1; seed <= 20; ++seed) random_tables(seed, 20);
}
