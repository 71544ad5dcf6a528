// heddle/collective/rounds_check.hpp: checks that a round table computes its collective.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/collective/rounds.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace heddle::inline v0 {

/// What can be wrong with the rounds of a collective.
enum class round_problem : std::uint8_t {
  none,
  no_rounds,     ///< the collective has no rounds: a barrier, a split, a message
  malformed,     ///< ranks, root, blocks or parts are not those of the collective
  unsorted,      ///< a message of a round that is over, or of a negative one
  bad_rank,      ///< a message from or to a rank that does not exist, or from a rank to itself
  bad_item,      ///< a message without items, or with an item that does not exist
  repeated,      ///< a message carries an item twice
  not_held,      ///< a rank sends an item it does not have
  folds,         ///< a message is folded where the collective, or the algorithm by its own claim, folds nothing
  missing,       ///< a rank ends without an item it should have
  incomplete,    ///< a rank ends with an item that lacks a rank's contribution
  unwanted,      ///< a rank ends with an item that has the contribution of a rank that has no part in it
  twice,         ///< a contribution is in a result twice
  out_of_order,  ///< a result is not folded in rank order
  not_dyadic,    ///< a result is folded in rank order, but not as the aligned binary tree
  differs,       ///< ranks of an all_reduce end with results that are folded differently: their bits may differ
};

/// The first fault of a round table; `ok()` if there is none. The message it happens in is `round`, `from`, `to` (-1
/// where it is no message's); `item` is the item, `rank` the one that ends with it, `contribution` the rank whose
/// contribution is missing or in it twice.
struct round_fault {
  round_problem what = round_problem::none;
  comm_operation operation = comm_operation::barrier;
  int ranks = 0;
  int round = -1;
  int from = -1;
  int to = -1;
  int item = -1;
  int rank = -1;
  int contribution = -1;

  constexpr bool ok() const noexcept { return what == round_problem::none; }
};

/// One sentence that names the round, the ranks and the item, and what is wrong.
HEDDLE_INLINE std::string to_string(const round_fault& f);

namespace detail {

// What the collectives start from and promise, item by item.
struct round_promise {
  comm_operation what;
  int ranks;
  int root;
  int parts;

  constexpr bool has_rounds() const {
    switch (what) {
      case comm_operation::barrier:
      case comm_operation::split:
      case comm_operation::send:
      case comm_operation::recv:
        return false;
      default:
        return true;
    }
  }
  constexpr bool folds() const { return folds_contributions(what); }
  // The number of blocks; 0 where the algorithm chooses.
  constexpr int blocks() const {
    switch (what) {
      case comm_operation::all_to_all:
      case comm_operation::all_to_all_v:
        return ranks * ranks;
      case comm_operation::reduce_scatter:
      case comm_operation::reduce_scatter_v:
      case comm_operation::all_gather:
      case comm_operation::all_gather_v:
      case comm_operation::gather:
      case comm_operation::gather_v:
      case comm_operation::scatter:
      case comm_operation::scatter_v:
        return ranks;
      default:
        return 0;
    }
  }
  // Whether the rank has the item to begin with.
  constexpr bool starts(int rank, int item) const { return has_block(what, ranks, root, rank, item / parts); }
  // Whether the rank is to end with the item.
  constexpr bool ends(int rank, int item) const {
    if (what == comm_operation::exclusive_scan) return rank > 0;  // rank 0 gets the identity, which no message carries
    return has_block(what, ranks, root, rank, item / parts, true);
  }
  // The result of the rank is made of the contributions of the ranks below this one.
  constexpr int contributors(int rank) const {
    if (what == comm_operation::scan) return rank + 1;
    if (what == comm_operation::exclusive_scan) return rank;
    return ranks;
  }
};

// Carries a round table out on symbols. A value is not its expression, which grows with the ranks, but what decides
// about it: the set of contributions, whether they are an interval in order, whether they are grouped as the aligned
// tree, and a hash of the expression. Defects stay with the value and count only if a result has them: what a rank
// folds and never uses is no fault.
class round_checker {
 public:
  // Follows every `stride`-th item. Items do not meet: what happens to one does not depend on the others.
  constexpr round_checker(round_view view, fold_order claimed, int stride = 1)
      : view_(view),
        claimed_(claimed),
        stride_(stride),
        promise_{view.what(), view.ranks(), view.root(), view.parts()},
        words_(static_cast<std::size_t>(view.ranks() + 63) / 64) {}

  constexpr round_fault run() {
    if (const auto fault = header(); !fault.ok()) return fault;
    begin();
    if (const auto fault = messages(); !fault.ok()) return fault;
    return results();
  }

 private:
  struct value {
    int low = 0, high = 0;    // the interval of contributions, if it is one
    int order_broken = -1;    // the transfer that first put contributions out of order
    int tree_broken = -1;     // ... or grouped them otherwise than the aligned tree
    int doubled = -1;         // ... or folded a contribution in again
    int doubled_rank = -1;    // whose
    std::uint64_t shape = 0;  // hash of the expression
  };

  constexpr round_fault fault(round_problem what) const {
    round_fault f;
    f.what = what;
    f.operation = view_.what();
    f.ranks = view_.ranks();
    return f;
  }
  constexpr round_fault fault(round_problem what, const round_transfer& t, int item = -1) const {
    round_fault f = fault(what);
    f.round = t.round;
    f.from = t.from;
    f.to = t.to;
    f.item = item;
    return f;
  }
  constexpr round_fault fault_at_end(round_problem what, int rank, int item, int contribution = -1) const {
    round_fault f = fault(what);
    f.rank = rank;
    f.item = item;
    f.contribution = contribution;
    return f;
  }
  constexpr round_fault fault_in_result(round_problem what, int transfer_index, int rank, int item) const {
    round_fault f = fault(what, view_.transfers()[static_cast<std::size_t>(transfer_index)], item);
    f.rank = rank;
    return f;
  }

  constexpr round_fault header() const {
    if (!promise_.has_rounds()) return fault(round_problem::no_rounds);
    const bool fits = view_.ranks() >= 1 && view_.root() >= 0 && view_.root() < view_.ranks() && view_.blocks() >= 1 &&
                      view_.parts() >= 1 && (promise_.blocks() == 0 || promise_.blocks() == view_.blocks());
    return fits ? round_fault{} : fault(round_problem::malformed);
  }

  constexpr void begin() {
    const int values = promise_.folds() ? view_.ranks() : 1;
    values_.resize(static_cast<std::size_t>(values));
    sets_.resize(values_.size() * words_, 0);
    if (promise_.folds())
      for (int r = 0; r < view_.ranks(); ++r) {
        values_[static_cast<std::size_t>(r)] = {r, r + 1, -1, -1, -1, -1, mix(static_cast<std::uint64_t>(r) + 1)};
        word(r, static_cast<std::size_t>(r) / 64) |= std::uint64_t{1} << (r % 64);
      }
    held_.resize(static_cast<std::size_t>(view_.ranks()) * followed_items(), -1);
    for (int r = 0; r < view_.ranks(); ++r)
      for (int i = 0; i < view_.items(); i += stride_)
        if (promise_.starts(r, i)) held(r, i) = promise_.folds() ? r : 0;
  }

  constexpr round_fault messages() {
    const auto transfers = view_.transfers();
    std::vector<int> seen(static_cast<std::size_t>(view_.items()), -1);  // the last transfer with the item
    std::vector<int> sent;                                               // the values that travel in this round
    for (std::size_t i = 0; i < transfers.size();) {
      const int round = transfers[i].round;
      sent.clear();
      std::size_t end = i;
      for (; end < transfers.size() && transfers[end].round == round; ++end) {
        const round_transfer& t = transfers[end];
        if (t.round < 0 || (i > 0 && round < transfers[i - 1].round)) return fault(round_problem::unsorted, t);
        if (t.from < 0 || t.from >= view_.ranks() || t.to < 0 || t.to >= view_.ranks() || t.from == t.to)
          return fault(round_problem::bad_rank, t);
        if (t.items < 1 || t.first < 0 || t.first > static_cast<int>(view_.item_list().size()) - t.items)
          return fault(round_problem::bad_item, t);
        if (t.how != arrival::store && (!promise_.folds() || claimed_ == fold_order::none))
          return fault(round_problem::folds, t);
        for (const int item : view_.items_of(t)) {
          if (item < 0 || item >= view_.items()) return fault(round_problem::bad_item, t, item);
          if (seen[static_cast<std::size_t>(item)] == static_cast<int>(end))
            return fault(round_problem::repeated, t, item);
          seen[static_cast<std::size_t>(item)] = static_cast<int>(end);
          if (!follows(item)) continue;
          const int what = held(t.from, item);
          if (what < 0) return fault(round_problem::not_held, t, item);
          sent.push_back(what);
        }
      }
      std::size_t next = 0;
      for (; i < end; ++i) {
        const round_transfer& t = transfers[i];
        for (const int item : view_.items_of(t)) {
          if (!follows(item)) continue;
          const int arrived = sent[next++];
          int& own = held(t.to, item);
          if (t.how == arrival::store)
            own = arrived;
          else if (t.how == arrival::fold_before)
            own = fold(arrived, own, static_cast<int>(i));
          else
            own = fold(own, arrived, static_cast<int>(i));
        }
      }
    }
    return {};
  }

  constexpr round_fault results() const {
    for (int r = 0; r < view_.ranks(); ++r)
      for (int i = 0; i < view_.items(); i += stride_) {
        if (!promise_.ends(r, i)) continue;
        const int index = held(r, i);
        if (index < 0) return fault_at_end(round_problem::missing, r, i);
        if (!promise_.folds()) continue;
        const value& v = values_[static_cast<std::size_t>(index)];
        for (std::size_t w = 0; w < words_; ++w) {
          const std::uint64_t has = word(index, w), wanted = below(promise_.contributors(r), w);
          if (has == wanted) continue;
          const bool lacks = (wanted & ~has) != 0;
          return fault_at_end(lacks ? round_problem::incomplete : round_problem::unwanted, r, i,
                              first_bit(lacks ? wanted & ~has : has & ~wanted) + static_cast<int>(w * 64));
        }
        if (v.doubled >= 0) {
          round_fault f = fault_in_result(round_problem::twice, v.doubled, r, i);
          f.contribution = v.doubled_rank;
          return f;
        }
        const bool in_order = claimed_ == fold_order::rank || claimed_ == fold_order::dyadic;
        if (in_order && v.order_broken >= 0) return fault_in_result(round_problem::out_of_order, v.order_broken, r, i);
        if (claimed_ == fold_order::dyadic && v.tree_broken >= 0)
          return fault_in_result(round_problem::not_dyadic, v.tree_broken, r, i);
        if (view_.what() == comm_operation::all_reduce && r > 0 &&
            v.shape != values_[static_cast<std::size_t>(held(0, i))].shape)
          return fault_at_end(round_problem::differs, r, i);
      }
    return {};
  }

  // The value `left op right`, made by a transfer.
  constexpr int fold(int left, int right, int by) {
    const value a = values_[static_cast<std::size_t>(left)], b = values_[static_cast<std::size_t>(right)];
    const int index = static_cast<int>(values_.size());
    value v;
    v.low = a.low;
    v.high = b.high;
    const auto inherited = [](int x, int y) { return x >= 0 && (y < 0 || x < y) ? x : y; };
    v.order_broken = inherited(a.order_broken, b.order_broken);
    v.tree_broken = inherited(a.tree_broken, b.tree_broken);
    const bool from_a = a.doubled >= 0 && (b.doubled < 0 || a.doubled < b.doubled);
    v.doubled = from_a ? a.doubled : b.doubled;
    v.doubled_rank = from_a ? a.doubled_rank : b.doubled_rank;
    v.shape = mix(a.shape * 0x9E3779B97F4A7C15u + mix(b.shape));
    for (std::size_t w = 0; w < words_; ++w) {
      const std::uint64_t x = word(left, w), y = word(right, w);
      if ((x & y) != 0 && v.doubled < 0) {
        v.doubled = by;
        v.doubled_rank = first_bit(x & y) + static_cast<int>(w * 64);
      }
      sets_.push_back(x | y);
    }
    // A gap between the two can never be filled later, so that only neighbours keep the order.
    if (v.order_broken < 0 && a.high != b.low) v.order_broken = by;
    // In the aligned tree the left part is a whole subtree: 2^k contributions, begun at a multiple of twice as many;
    // the right part may be cut off at the last rank.
    const int size = a.high - a.low;
    const bool aligned = size > 0 && (size & (size - 1)) == 0 && a.low % (2 * size) == 0 && b.high - b.low <= size;
    if (v.tree_broken < 0 && (v.order_broken >= 0 || !aligned)) v.tree_broken = by;
    values_.push_back(v);
    return index;
  }

  static constexpr std::uint64_t mix(std::uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  static constexpr std::uint64_t below(int n, std::size_t w) {  // the bits of the contributions 0 .. n - 1 in word w
    const int here = n - static_cast<int>(w * 64);
    return here >= 64 ? ~std::uint64_t{0} : here <= 0 ? 0 : (std::uint64_t{1} << here) - 1;
  }
  static constexpr int first_bit(std::uint64_t x) {
    int n = 0;
    for (; (x & 1) == 0; x >>= 1) ++n;
    return n;
  }

  constexpr std::uint64_t& word(int value, std::size_t w) {
    return sets_[static_cast<std::size_t>(value) * words_ + w];
  }
  constexpr std::uint64_t word(int value, std::size_t w) const {
    return sets_[static_cast<std::size_t>(value) * words_ + w];
  }
  constexpr bool follows(int item) const { return stride_ == 1 || item % stride_ == 0; }
  constexpr std::size_t followed_items() const {
    return (static_cast<std::size_t>(view_.items()) + static_cast<std::size_t>(stride_) - 1) /
           static_cast<std::size_t>(stride_);
  }
  constexpr std::size_t place(int rank, int item) const {
    return static_cast<std::size_t>(rank) * followed_items() + static_cast<std::size_t>(item / stride_);
  }
  constexpr int& held(int rank, int item) { return held_[place(rank, item)]; }
  constexpr int held(int rank, int item) const { return held_[place(rank, item)]; }

  round_view view_;
  fold_order claimed_;
  int stride_;
  round_promise promise_;
  std::size_t words_;
  std::vector<value> values_;        // where contributions are folded the first ones are the contributions
  std::vector<std::uint64_t> sets_;  // the contributions of each value, `words_` words each
  std::vector<int> held_;            // [rank][item] -> value, -1: none
};

// The stride that bounds what a check of these rounds takes: 1 for up to 1,024 ranks and as many items. It shares no factor with the ranks,
// so that the items that are followed are those of all ranks in turn.
constexpr int bounded_stride(round_view view) {
  constexpr std::int64_t most = std::int64_t{1} << 24;
  const bool folds = folds_contributions(view.what());
  const std::int64_t words = folds ? (view.ranks() + 63) / 64 : 1;
  const std::int64_t all = std::int64_t{view.ranks()} * view.items() * words;
  int stride = static_cast<int>((all + most - 1) / most);
  const auto common = [](int a, int b) {
    while (b != 0) {
      const int rest = a % b;
      a = b;
      b = rest;
    }
    return a;
  };
  while (stride > 1 && common(stride, view.ranks()) != 1) ++stride;
  return stride < 1 ? 1 : stride;
}

}  // namespace detail

/// Carries the rounds out on symbols and says what is wrong first: every rank must end with what the collective
/// promises, each contribution in it exactly once, folded in the order that is claimed; nothing is sent that is not
/// there; on all ranks of an all_reduce the result is the same expression, so that its bits are the same. Time and
/// memory grow as items times ranks. In constant evaluation good for about 8 ranks, at run time for hundreds.
constexpr round_fault check_rounds(round_view view, fold_order claimed) {
  return detail::round_checker(view, claimed).run();
}

/// The first fault of an algorithm's rounds on so many ranks, by its own claim of order. Requires that it offers them.
///
///     static_assert(hd::check_rounds<algo::ring, hd::comm_operation::all_reduce>(6).ok());
template <class A, comm_operation What>
  requires round_algorithm<A, What>
constexpr round_fault check_rounds(int ranks, int root = 0) {
  const round_table table = A::template rounds<What>(ranks, root);
  return check_rounds(table.view(), A::template order<What>);
}

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/collective/impl/rounds_check.hpp>
#endif
