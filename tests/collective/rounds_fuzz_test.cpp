// The checker of rounds against a second one that writes every fold out: tables right, changed at random, and random.
// Sharded tensors have a function of the name of the struct `transfer`; included first it must not hide it.
namespace heddle::inline v0 {
void transfer();
}

#include <heddle/collective/algorithms.hpp>
#include <heddle/collective/measured_decisions.hpp>
#include <heddle/collective/round_cost.hpp>
#include <heddle/collective/rounds_check.hpp>
#include <heddle/collective/rounds_text.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"

namespace {
namespace hd = heddle;
namespace algo = heddle::algo;
using hd::arrival, hd::fold_order, hd::round_table;
using what = hd::comm_operation;

bool folds(what w) {
  return w == what::all_reduce || w == what::reduce || w == what::reduce_scatter || w == what::scan ||
         w == what::exclusive_scan;
}

// The fold of the contributions [begin, end) in the aligned binary tree: "((ab)c)".
std::string aligned(int begin, int end) {
  if (end - begin == 1) return std::string(1, static_cast<char>('a' + begin));
  int half = 1;
  while (2 * half < end - begin) half *= 2;
  return "(" + aligned(begin, begin + half) + aligned(begin + half, end) + ")";
}

// What a table does, by what it means, and whether that is what the collective promises.
bool right(const round_table& t, fold_order claimed) {
  const int p = t.ranks, items = t.blocks * t.parts;
  const auto block = [&](int i) { return i / t.parts; };
  std::vector<std::vector<std::optional<std::string>>> held(
      static_cast<std::size_t>(p), std::vector<std::optional<std::string>>(static_cast<std::size_t>(items)));
  const auto at = [&](auto& all, int r, int i) -> auto& {
    return all[static_cast<std::size_t>(r)][static_cast<std::size_t>(i)];
  };
  for (int r = 0; r < p; ++r)
    for (int i = 0; i < items; ++i) {
      bool has = true;
      if (t.what == what::broadcast || t.what == what::scatter) has = r == t.root;
      if (t.what == what::all_gather || t.what == what::gather) has = block(i) == r;
      if (t.what == what::all_to_all) has = block(i) / p == r;
      if (has) at(held, r, i) = folds(t.what) ? std::string(1, static_cast<char>('a' + r)) : std::string("x");
    }
  for (std::size_t k = 0; k < t.transfers.size();) {
    const auto before = held;
    const int round = t.transfers[k].round;
    for (; k < t.transfers.size() && t.transfers[k].round == round; ++k) {
      const auto& m = t.transfers[k];
      if (m.how != arrival::store && !folds(t.what)) return false;
      for (int j = 0; j < m.items; ++j) {
        const int i = t.items[static_cast<std::size_t>(m.first + j)];
        for (int other = 0; other < j; ++other)
          if (t.items[static_cast<std::size_t>(m.first + other)] == i) return false;
        const auto& came = at(before, m.from, i);
        auto& own = at(held, m.to, i);
        if (!came) return false;
        own = m.how == arrival::store         ? *came
              : m.how == arrival::fold_before ? "(" + *came + *own + ")"
                                              : "(" + *own + *came + ")";
      }
    }
  }
  for (int r = 0; r < p; ++r)
    for (int i = 0; i < items; ++i) {
      bool gets = true;
      if (t.what == what::reduce || t.what == what::gather) gets = r == t.root;
      if (t.what == what::reduce_scatter || t.what == what::scatter) gets = block(i) == r;
      if (t.what == what::all_to_all) gets = block(i) % p == r;
      if (t.what == what::exclusive_scan) gets = r > 0;
      if (!gets) continue;
      const auto& result = at(held, r, i);
      if (!result) return false;
      if (!folds(t.what)) continue;
      const int end = t.what == what::scan ? r + 1 : t.what == what::exclusive_scan ? r : p;
      std::string letters, serial;
      for (const char c : *result)
        if (c != '(' && c != ')') letters += c;
      for (int c = 0; c < end; ++c) serial += static_cast<char>('a' + c);
      if (claimed == fold_order::any) std::sort(letters.begin(), letters.end());
      if (letters != serial) return false;
      if (claimed == fold_order::dyadic && *result != aligned(0, end)) return false;
      if (t.what == what::all_reduce && *result != *at(held, 0, i)) return false;
    }
  return true;
}

using generator = std::mt19937;
int below(generator& random, int n) {
  return static_cast<int>(random() % static_cast<unsigned>(n));
}

void change(round_table& t, generator& random) {
  if (t.transfers.empty()) return;
  const auto victim = static_cast<std::size_t>(below(random, static_cast<int>(t.transfers.size())));
  auto& m = t.transfers[victim];
  switch (below(random, 8)) {
    case 0:
      t.transfers.erase(t.transfers.begin() + static_cast<std::ptrdiff_t>(victim));
      break;
    case 1:
      std::swap(m.from, m.to);
      break;
    case 2:
      m.how = static_cast<arrival>(below(random, 3));
      break;
    case 3:
      m.round = (std::max)(0, m.round + below(random, 3) - 1);
      break;
    case 4:
      t.items[static_cast<std::size_t>(m.first + below(random, m.items))] = below(random, t.blocks * t.parts);
      break;
    case 5:
      t.transfers.push_back(m);
      t.transfers.back().round += below(random, 2);
      break;
    case 6:
      m.to = (m.from + 1 + below(random, t.ranks - 1)) % t.ranks;
      break;
    default:
      std::swap(m, t.transfers[static_cast<std::size_t>(below(random, static_cast<int>(t.transfers.size())))]);
  }
  for (std::size_t i = 1; i < t.transfers.size(); ++i)  // sorted by round, stably
    for (std::size_t k = i; k > 0 && t.transfers[k].round < t.transfers[k - 1].round; --k)
      std::swap(t.transfers[k], t.transfers[k - 1]);
}

// Whether both say the same, for every order that might be claimed. Returns how many claims held.
int agree(const round_table& t) {
  int held = 0;
  for (const fold_order claimed : {fold_order::any, fold_order::rank, fold_order::dyadic}) {
    const auto fault = hd::check_rounds(t, claimed);
    held += fault.ok();
    if (fault.ok() == right(t, claimed)) continue;
    FAIL_CHECK(to_string(fault) << " for claim " << static_cast<int>(claimed) << " of\n" << hd::to_string(t.view()));
  }
  return held;
}

template <class A, what... Whats>
void with_tables(hd::type_list<A>, int p, int root, std::vector<round_table>& tables) {
  const auto add = [&]<what What>() {
    constexpr bool ever = hd::detail::offers_anywhere<A, What>();
    if constexpr (ever)
      if (A::template offers<What>(p)) tables.push_back(A::template rounds<What>(p, root));
  };
  (add.template operator()<Whats>(), ...);
}
template <class... As>
std::vector<round_table> all_tables(hd::type_list<As...>, int p, int root) {
  std::vector<round_table> tables;
  (with_tables<As, what::broadcast, what::all_reduce, what::reduce, what::reduce_scatter, what::all_gather,
               what::all_to_all, what::gather, what::scatter, what::scan, what::exclusive_scan>(hd::type_list<As>{}, p,
                                                                                                root, tables),
   ...);
  return tables;
}
}  // namespace

TEST_CASE("the checker says what following the folds letter by letter says", "[comm][rounds][property]") {
  const unsigned seed = 61;
  INFO("seed " << seed);
  generator random(seed);
  int held = 0, broken = 0;
  for (int p = 1; p <= 8; ++p)
    for (const round_table& table : all_tables(hd::known_algorithms{}, p, p / 3)) {
      CHECK(agree(table) > 0);
      for (int trial = 0; p > 1 && trial < 12; ++trial) {
        round_table changed = table;
        for (int n = 1 + below(random, 2); n > 0; --n) change(changed, random);
        const int claims = agree(changed);
        held += claims;
        broken += 3 - claims;
      }
    }
  CHECK(held > 300);  // changes that do no harm, and such that do
  CHECK(broken > 3000);
}

TEST_CASE("the checker says the same of tables without sense", "[comm][rounds][property]") {
  const unsigned seed = 62;
  INFO("seed " << seed);
  generator random(seed);
  int held = 0;
  const what whats[] = {what::broadcast,  what::all_reduce, what::reduce, what::reduce_scatter,
                        what::all_gather, what::scan,       what::gather, what::exclusive_scan};
  for (int trial = 0; trial < 20'000; ++trial) {
    const int p = 2 + below(random, 3);
    const what w = whats[below(random, 8)];
    const bool cut = w == what::reduce_scatter || w == what::all_gather || w == what::gather;
    hd::round_builder rounds(w, p, w == what::reduce ? below(random, p) : 0, cut ? p : 1, 1);
    for (int n = 1 + below(random, 5); n > 0; --n) {
      const int from = below(random, p), to = (from + 1 + below(random, p - 1)) % p;
      rounds.send(below(random, 3), from, to, folds(w) ? static_cast<arrival>(below(random, 3)) : arrival::store)
          .block(below(random, cut ? p : 1));
    }
    held += agree(rounds.take());
  }
  CHECK(held > 200);
}
