// heddle/model/layers/exchange_tables.hpp: counts and orders of rows for experts.
#pragma once

#include <heddle/tensor/memory_space.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::model::layers {

/// What one rank knows of rows that go to nodes of ranks first, on the host. Units: rows.
struct node_tables {
  const void* axes = nullptr;                   ///< between nodes: of which axes the tables are
  std::vector<std::uint8_t> holds{};            ///< [expert, node]: whether a rank of the node holds a part of it
  std::vector<std::int32_t> ids{};              ///< [row, node]: the node, or -1 where the row does not go there
  std::vector<std::int32_t> places{};           ///< [row, node]: the row among those that leave, or -1
  std::vector<std::int32_t> sources{};          ///< of each row that leaves: which of this rank's rows it is
  std::vector<std::int64_t> offsets{};          ///< of each node: the first row that leaves for it; and their number
  std::vector<std::int64_t> sent{}, arrived{};  ///< of each node: rows that go to it, and come from it to this rank
  std::vector<std::int32_t> leaving{}, arriving{};  ///< choices of such rows
  std::int64_t rows_sent() const noexcept { return sum(sent); }
  std::int64_t rows_arrived() const noexcept { return sum(arrived); }
  static std::int64_t sum(const std::vector<std::int64_t>& of) noexcept {
    std::int64_t n = 0;
    for (const std::int64_t one : of) n += one;
    return n;
  }
};

/// What one rank knows of rows that travel between the ranks of a group, on the host. Units: rows, experts.
struct exchange_tables {
  const void* of = nullptr;  ///< of which layouts and axes the tables of members are
  std::vector<std::int32_t>
      reached{};            ///< [expert, copy]: its number among those of the group, in the group's order; or -1
  std::int64_t copies = 1;  ///< members that hold parts of one expert
  std::vector<std::int32_t>
      choices{};  ///< [row, choice, copy]: of this rank's rows, as numbers among the experts of the group
  std::vector<std::int64_t> first{};     ///< of each member: the number of its first expert
  std::vector<std::int64_t> held{};      ///< of each member: its experts
  std::vector<std::int64_t> wanted{};    ///< of each expert of the group: rows of this rank
  std::vector<std::int64_t> counts{};    ///< [member, own expert]: rows that come
  std::vector<std::int64_t> sent{};      ///< of each member: rows that go to it
  std::vector<std::int64_t> received{};  ///< of each member: rows that come from it
  std::vector<std::int64_t> offsets{};  ///< of each own expert: its first row when rows lie by expert; and their number
  std::vector<std::int32_t> order{};    ///< row by expert -> row as it came
  std::vector<std::int32_t> back{};     ///< row as it came -> row by expert
  std::vector<std::int64_t> out{}, in{};  ///< elements of each member in one exchange
  /// Whether rows stay as they come, by member and then by expert; `member_offsets` [member, own expert + 1] are `offsets` of each member's.
  bool by_member = false;
  std::vector<std::int64_t> member_offsets{};
  node_tables nodes{};

  /// Whether rows lie as they come.
  bool stays() const noexcept { return by_member || own_experts() <= 1; }
  std::int64_t rows_sent() const noexcept { return node_tables::sum(sent); }
  std::int64_t rows_received() const noexcept { return node_tables::sum(received); }
  int own_experts() const noexcept { return offsets.empty() ? 0 : static_cast<int>(offsets.size()) - 1; }

  /// Finds `sent` from `wanted`.
  void count_sent() {
    sent.assign(first.size(), 0);
    for (std::size_t m = 0; m < first.size(); ++m)
      for (std::int64_t e = 0; e < held[m]; ++e) sent[m] += wanted[static_cast<std::size_t>(first[m] + e)];
  }
  /// Finds `received` and `offsets` from `counts` of `experts` own experts.
  void count_received(std::int64_t experts) {
    const auto n = static_cast<std::size_t>(experts), members = first.size();
    received.assign(members, 0);
    offsets.assign(n + 1, 0);
    for (std::size_t m = 0; m < members; ++m)
      for (std::size_t e = 0; e < n; ++e) {
        received[m] += counts[m * n + e];
        offsets[e + 1] += counts[m * n + e];
      }
    for (std::size_t e = 0; e < n; ++e) offsets[e + 1] += offsets[e];
    by_member = false;
  }
  /// The same, and how rows lie. With at least `least` rows for each expert and each member but one
  /// rows stay as they come, since products of each member's rows cost less than moving rows: finds `member_offsets`; else `order` and `back`.
  void arrange(std::int64_t experts, std::int64_t least) {
    count_received(experts);
    const auto n = static_cast<std::size_t>(experts), members = first.size();
    by_member = n > 1 && offsets[n] >= least * experts * (static_cast<std::int64_t>(members) - 1);
    if (by_member) {
      member_offsets.assign(members * (n + 1), 0);
      for (std::size_t m = 0; m < members; ++m)
        for (std::size_t e = 0; e < n; ++e)
          member_offsets[m * (n + 1) + e + 1] = member_offsets[m * (n + 1) + e] + counts[m * n + e];
      return;
    }
    order.resize(static_cast<std::size_t>(offsets[n]));
    back.resize(order.size());
    std::size_t row = 0;
    for (std::size_t e = 0; e < n; ++e) {
      std::int64_t from = 0;  // of member m's rows
      for (std::size_t m = 0; m < members; ++m) {
        std::int64_t before = from;
        for (std::size_t k = 0; k < e; ++k) before += counts[m * n + k];
        for (std::int64_t i = 0; i < counts[m * n + e]; ++i, ++row) {
          order[row] = static_cast<std::int32_t>(before + i);
          back[static_cast<std::size_t>(before + i)] = static_cast<std::int32_t>(row);
        }
        from += received[m];
      }
    }
  }
};

/// For how much a `routing_memory` has room. Units: choices of experts, and experts, each once for each rank that holds a part of one; where rows
/// travel between ranks, rows that may come, and own experts once for each rank that may send to them.
struct routing_extents {
  std::int64_t choices = 0, experts = 0, received = 0, senders = 0;
  /// Bytes that `routing_memory::reserve` allocates where kernels run on the host.
  constexpr std::int64_t bytes() const noexcept { return choices * 4 * 4 + (experts > 0 ? (experts + 1) * 8 : 0); }
  /// The same in `Space`: elsewhere there are tables of rows that travel, too.
  template <class Space>
  constexpr std::int64_t bytes_in() const noexcept {
    return bytes() + (std::is_same_v<Space, host_memory> ? 0 : exchange_numbers() * 4 + exchange_counts() * 8);
  }
  /// Numbers of these tables: of experts, choices, and the order of rows that come; counts of rows.
  constexpr std::int64_t exchange_numbers() const noexcept {
    return senders > 0 ? experts + choices + 2 * received : 0;
  }
  constexpr std::int64_t exchange_counts() const noexcept { return senders > 0 ? experts + 1 + 2 * senders : 0; }
  /// The more of each.
  constexpr void cover(const routing_extents& other) noexcept {
    choices = (std::max)(choices, other.choices);
    experts = (std::max)(experts, other.experts);
    received = (std::max)(received, other.received);
    senders = (std::max)(senders, other.senders);
  }
  friend constexpr bool operator==(const routing_extents&, const routing_extents&) = default;
};

}  // namespace heddle::inline v0::model::layers
