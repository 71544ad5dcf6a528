// heddle/collective/rounds.hpp: round tables: collective algorithms as data, message by message.
#pragma once

#include <heddle/comm/communicator.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {

namespace detail {
// Whether a rank has a block before the collective, or `after` it. Where contributions are folded, each rank has its own of every block.
constexpr bool has_block(comm_operation what, int ranks, int root, int rank, int block, bool after = false) {
  switch (what) {
    case comm_operation::broadcast:
      return after || rank == root;
    case comm_operation::reduce:
      return !after || rank == root;
    case comm_operation::scatter:
    case comm_operation::scatter_v:
      return after ? block == rank : rank == root;
    case comm_operation::gather:
    case comm_operation::gather_v:
      return after ? rank == root : block == rank;
    case comm_operation::all_gather:
    case comm_operation::all_gather_v:
      return after || block == rank;
    case comm_operation::reduce_scatter:
    case comm_operation::reduce_scatter_v:
      return !after || block == rank;
    case comm_operation::all_to_all:
    case comm_operation::all_to_all_v:
      return (after ? block % ranks : block / ranks) == rank;
    default:
      return true;
  }
}

constexpr bool folds_contributions(comm_operation what) noexcept {
  using enum comm_operation;
  return what == all_reduce || what == reduce || what == reduce_scatter || what == reduce_scatter_v || what == scan ||
         what == exclusive_scan;
}
}  // namespace detail

/// How an algorithm folds the ranks' contributions x0, x1, ... of one item.
enum class fold_order : std::uint8_t {
  none,    ///< it folds nothing
  rank,    ///< x0 op x1 op x2 ..., grouped in some way: the operator must be associative
  any,     ///< in another order: the operator must be commutative as well
  dyadic,  ///< x0 op x1 op x2 ..., grouped as the aligned binary tree, always: any operator will do
};

/// What becomes of an item that arrives, where the receiver may hold a value of its own.
enum class arrival : std::uint8_t {
  store,        ///< it replaces it
  fold_before,  ///< received op own
  fold_after,   ///< own op received
};

/// One message: in this round rank `from` sends items to rank `to`. Its items are `items` entries of the table's item
/// list from `first` on; the receiver treats all of them alike.
struct round_transfer {
  int round = 0;
  int from = 0;
  int to = 0;
  arrival how = arrival::store;
  int first = 0;
  int items = 0;
  friend constexpr bool operator==(const round_transfer&, const round_transfer&) = default;
};

/// The rounds of one collective on a number of ranks, not owned: what the checker, the executor, the printer, the cost
/// model and the simulator take. It holds the messages of all ranks: 24 bytes each and 4 per item, so that a ring or a
/// direct exchange on 1,000 ranks takes some 50 MB. Items and messages are counted by int.
///
/// The data is cut into blocks, each block into `parts` items; item `b * parts + i` is part i of block b. A vector of n
/// elements is cut evenly, the first blocks (parts) one element longer. What the blocks are depends on the collective:
/// - all_reduce, reduce, broadcast, scan, exclusive_scan: as many blocks of the whole vector as the algorithm likes;
/// - reduce_scatter, all_gather, gather, scatter: block r is rank r's;
/// - all_to_all: block s * ranks + d goes from rank s to rank d.
/// A table whose blocks are no parts of one vector says how large each is: `sizes`, in the unit of its user, bytes or elements.
///
/// A rank begins a round when it has finished its part in the rounds before; ranks do not wait for each other
/// otherwise. In a round a rank sends the values it had when the round began. What arrives in one round is stored and
/// folded in the order of the table. Transfers are sorted by round; no rank sends to itself.
class round_view {
 public:
  constexpr round_view() = default;
  constexpr round_view(comm_operation what, int ranks, int root, int blocks, int parts,
                       std::span<const round_transfer> transfers, std::span<const int> items,
                       std::span<const std::int64_t> sizes = {}) noexcept
      : what_(what),
        ranks_(ranks),
        root_(root),
        blocks_(blocks),
        parts_(parts),
        transfers_(transfers.data()),
        items_(items.data()),
        sizes_(sizes.empty() ? nullptr : sizes.data()),
        transfer_count_(static_cast<int>(transfers.size())),
        item_count_(static_cast<int>(items.size())) {}

  constexpr comm_operation what() const noexcept { return what_; }
  constexpr int ranks() const noexcept { return ranks_; }
  /// The rank that has or gets everything; 0 where there is none.
  constexpr int root() const noexcept { return root_; }
  constexpr int blocks() const noexcept { return blocks_; }
  constexpr int parts() const noexcept { return parts_; }
  constexpr int items() const noexcept { return blocks_ * parts_; }
  constexpr int rounds() const noexcept { return transfer_count_ == 0 ? 0 : transfers_[transfer_count_ - 1].round + 1; }
  /// All messages, round after round.
  constexpr std::span<const round_transfer> transfers() const noexcept {
    return {transfers_, static_cast<std::size_t>(transfer_count_)};
  }
  /// The messages of one round.
  constexpr std::span<const round_transfer> round(int k) const noexcept {
    const int begin = first_of(k), end = first_of(k + 1);
    return {transfers_ + begin, static_cast<std::size_t>(end - begin)};
  }
  /// What a message carries, in the order in which it lies in the message.
  constexpr std::span<const int> items_of(const round_transfer& t) const noexcept {
    return {items_ + t.first, static_cast<std::size_t>(t.items)};
  }
  constexpr std::span<const int> item_list() const noexcept { return {items_, static_cast<std::size_t>(item_count_)}; }
  /// How large each block is; empty where blocks are parts of one vector. A block is cut evenly into its parts.
  constexpr std::span<const std::int64_t> sizes() const noexcept {
    return {sizes_, sizes_ == nullptr ? std::size_t{0} : static_cast<std::size_t>(blocks_)};
  }

 private:
  constexpr int first_of(int k) const noexcept {  // of the transfers in round k or later
    int low = 0, high = transfer_count_;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (transfers_[middle].round < k)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  comm_operation what_ = comm_operation::barrier;
  int ranks_ = 1;
  int root_ = 0;
  int blocks_ = 1;
  int parts_ = 1;
  const round_transfer* transfers_ = nullptr;
  const int* items_ = nullptr;
  const std::int64_t* sizes_ = nullptr;
  int transfer_count_ = 0;
  int item_count_ = 0;
};

/// Rounds whose number is known at run time.
struct round_table {
  comm_operation what = comm_operation::barrier;
  int ranks = 1;
  int root = 0;
  int blocks = 1;
  int parts = 1;
  std::vector<round_transfer> transfers;
  std::vector<int> items;
  std::vector<std::int64_t> sizes{};  ///< one per block, or none: see `round_view`

  constexpr round_view view() const noexcept { return {what, ranks, root, blocks, parts, transfers, items, sizes}; }
  constexpr operator round_view() const noexcept { return view(); }
};

/// What an algorithm writes its rounds with: `send` begins a message, `item`, `block` and `blocks` fill it. Messages
/// may be given in any order of rounds; messages without items are dropped.
///
///     rounds.send(k, r, (r + 1) % p, arrival::fold_before).block(c);
class round_builder {
 public:
  constexpr round_builder(comm_operation what, int ranks, int root, int blocks, int parts) {
    table_.what = what;
    table_.ranks = ranks;
    table_.root = root;
    table_.blocks = blocks;
    table_.parts = parts;
  }

  constexpr int ranks() const noexcept { return table_.ranks; }
  constexpr int root() const noexcept { return table_.root; }
  constexpr int blocks() const noexcept { return table_.blocks; }
  constexpr int parts() const noexcept { return table_.parts; }

  constexpr round_builder& send(int round, int from, int to, arrival how = arrival::store) {
    close();
    open_ = {round, from, to, how, static_cast<int>(table_.items.size()), 0};
    return *this;
  }
  constexpr round_builder& item(int i) {
    table_.items.push_back(i);
    ++open_.items;
    return *this;
  }
  /// All parts of a block.
  constexpr round_builder& block(int b) {
    for (int i = 0; i < table_.parts; ++i) item(b * table_.parts + i);
    return *this;
  }
  /// `count` blocks from `first` on; after the last block comes block 0.
  constexpr round_builder& blocks(int first, int count) {
    for (int k = 0; k < count; ++k) block((first + k) % table_.blocks);
    return *this;
  }

  /// The finished table; the builder is empty after it.
  constexpr round_table take() {
    close();
    // Stable, by counting: within a round messages keep the order in which they were given.
    int rounds = 0;
    for (const round_transfer& t : table_.transfers) rounds = t.round + 1 > rounds ? t.round + 1 : rounds;
    std::vector<int> place(static_cast<std::size_t>(rounds) + 1, 0);
    for (const round_transfer& t : table_.transfers) ++place[static_cast<std::size_t>(t.round) + 1];
    for (std::size_t k = 1; k < place.size(); ++k) place[k] += place[k - 1];
    std::vector<round_transfer> sorted(table_.transfers.size());
    for (const round_transfer& t : table_.transfers)
      sorted[static_cast<std::size_t>(place[static_cast<std::size_t>(t.round)]++)] = t;
    table_.transfers = static_cast<std::vector<round_transfer>&&>(sorted);
    return static_cast<round_table&&>(table_);
  }

 private:
  constexpr void close() {
    if (open_.items > 0) table_.transfers.push_back(open_);
    open_ = {};
  }

  round_table table_;
  round_transfer open_;
};

/// A collective algorithm: a type that writes the rounds of the collectives it offers.
///
///     static constexpr std::string_view name = "ring";
///     // How it folds.
///     template <comm_operation What> static constexpr fold_order order = ...;
///     // False: not for so many ranks, or at all.
///     template <comm_operation What> static constexpr bool offers(int ranks);
///     // Where it offers.
///     template <comm_operation What> static constexpr round_table rounds(int ranks, int root);
template <class A, comm_operation What>
concept round_algorithm = requires(int ranks) {
  { A::name } -> std::convertible_to<std::string_view>;
  { A::template offers<What>(ranks) } -> std::same_as<bool>;
};

/// The rounds of a collective, as values known at compile time: read-only data. Errors (compile time): the algorithm
/// does not offer the collective on so many ranks.
template <class A, comm_operation What, int Ranks, int Root = 0>
class static_rounds {
  static_assert(A::template offers<What>(Ranks),
                "heddle: this algorithm has no rounds for this collective on this number of ranks; name another one");
  static constexpr std::size_t transfer_count() { return A::template rounds<What>(Ranks, Root).transfers.size(); }
  static constexpr std::size_t item_count() { return A::template rounds<What>(Ranks, Root).items.size(); }

  struct storage {
    int blocks = 1, parts = 1;
    std::array<round_transfer, transfer_count()> transfers{};
    std::array<int, item_count()> items{};
  };
  static constexpr storage made = [] {
    const round_table table = A::template rounds<What>(Ranks, Root);
    storage s;
    s.blocks = table.blocks;
    s.parts = table.parts;
    for (std::size_t i = 0; i < table.transfers.size(); ++i) s.transfers[i] = table.transfers[i];
    for (std::size_t i = 0; i < table.items.size(); ++i) s.items[i] = table.items[i];
    return s;
  }();

 public:
  static constexpr round_view view() noexcept {
    return {What, Ranks, Root, made.blocks, made.parts, made.transfers, made.items};
  }
};

}  // namespace heddle::inline v0
