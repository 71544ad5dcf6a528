// heddle/rl/transfer_protocol.hpp: rows of a batch by rank, and ranks of the results.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/mesh/mesh.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl {

/// One chunk of rows for each coordinate along these axes, the first axis varying slowest; ranks that differ in other
/// axes have copies.
template <class... Tags>
struct over {};
/// One chunk for each rank.
struct over_all {};
/// Of axes that are not named among those that results are collected over, ranks at the last coordinate are taken, as a
/// pipeline ends there; otherwise those at 0.
template <class... Tags>
struct at_last {};

/// A way to distribute a batch and to collect results. `Padded`: a batch that the chunks do not divide is filled up;
/// otherwise refused.
template <class Distributed, class Collected = Distributed, class Last = at_last<>, bool Padded = true>
struct transfer_protocol {
  using distributed = Distributed;
  using collected = Collected;
  using last = Last;
  static constexpr bool padded = Padded;
};

/// The protocols that HybridFlow names, for meshes of data, pipeline and tensor parallelism: table 3 of Sheng et al.
/// 2024, arXiv:2409.19256.
namespace protocols {
/// The same for every rank; results of all.
using one_to_all = transfer_protocol<over<>, over_all>;
/// A chunk for each replica, copied to all its ranks; results of the last pipeline stage. `3D_PROTO`.
template <class Dp, class Pp>
using three_d = transfer_protocol<over<Dp>, over<Dp>, at_last<Pp>>;
/// A chunk for each of the smaller replicas that generate, `Micro` in each that trains. `3D_ALL_MICRO_DP`.
template <class Dp, class Micro>
using all_micro_dp = transfer_protocol<over<Dp, Micro>>;
/// The same for every rank; results of one rank of each pipeline stage. `3D_PP_ONLY`.
template <class Pp>
using pp_only = transfer_protocol<over<>, over<Pp>>;
/// A chunk for each rank. `DP_PROTO`.
using every_rank = transfer_protocol<over_all>;
/// What each rank gets is given: a batch has one row for each. `ALL_TO_ALL`.
using as_given = transfer_protocol<over_all, over_all, at_last<>, false>;
}  // namespace protocols

/// The rows of a batch that a rank has: `count` from `first`, of which `real` are no padding.
struct row_share {
  std::size_t first = 0, count = 0, real = 0;
  friend bool operator==(const row_share&, const row_share&) = default;
};

/// A protocol on a mesh, as plain numbers.
class transfer {
 public:
  transfer(std::vector<int> chunk_of_rank, int chunks, std::vector<int> collected, bool padded)
      : chunk_of_rank_(std::move(chunk_of_rank)), chunks_(chunks), collected_(std::move(collected)), padded_(padded) {}

  int ranks() const noexcept { return static_cast<int>(chunk_of_rank_.size()); }
  int chunks() const noexcept { return chunks_; }
  int chunk_of(int rank) const { return chunk_of_rank_.at(static_cast<std::size_t>(rank)); }
  /// Ranks whose results are taken, in their order.
  const std::vector<int>& collected() const noexcept { return collected_; }

  /// The share of a rank in a batch of `rows`; padding repeats the batch from its first row on.
  /// Errors: `config_error` for no rows, and rows that the chunks do not divide where the protocol has no padding.
  HEDDLE_INLINE row_share share(int rank, std::size_t rows) const;

  /// What each rank gets. Shapes: rows in, ranks x rows of a chunk out. Errors: as `share`.
  template <class T>
  std::vector<std::vector<T>> distribute(std::span<const T> rows) const {
    std::vector<std::vector<T>> all;
    for (int rank = 0; rank < ranks(); ++rank) {
      const row_share s = share(rank, rows.size());
      auto& to = all.emplace_back();
      for (std::size_t i = s.first; i < s.first + s.count; ++i) to.push_back(rows[i % rows.size()]);
    }
    return all;
  }
  /// Results of all ranks, a row for each row that they got, as rows of the batch: without copies and padding. What was
  /// the same for all ranks and is collected of several has the results of all, one after the other.
  /// Errors: as `share`, and `config_error` where a rank that is collected has another number of results, naming it.
  template <class T>
  std::vector<T> collect(const std::vector<std::vector<T>>& results, std::size_t rows) const {
    require_ranks(results.size());
    std::vector<T> all;
    for (const int rank : collected_) {
      const auto& of = results[static_cast<std::size_t>(rank)];
      const row_share s = share(rank, rows);
      require_results(rank, s.count, of.size());
      all.insert(all.end(), of.begin(), of.begin() + static_cast<std::ptrdiff_t>(s.real));
    }
    return all;
  }

 private:
  HEDDLE_INLINE void require_ranks(std::size_t results) const;
  HEDDLE_INLINE void require_results(int rank, std::size_t expected, std::size_t got) const;

  std::vector<int> chunk_of_rank_;
  int chunks_;
  std::vector<int> collected_;
  bool padded_;
};

namespace detail {
template <class Mesh, class... Tags>
constexpr std::pair<int, int> chunk_at(const Mesh& mesh, int rank, over<Tags...>) {  // its number, of how many
  if constexpr (sizeof...(Tags) == 0)
    return {0, 1};
  else
    return {mesh.template group_index<Tags...>(rank), mesh.template group_size<Tags...>()};
}
template <class Mesh>
constexpr std::pair<int, int> chunk_at(const Mesh& mesh, int rank, over_all) {
  return {rank, mesh.size()};
}
// Whether the rank stands for the others that have its chunk.
template <class Mesh, class... Tags, class... Last>
constexpr bool is_collected(const Mesh& mesh, int rank, over<Tags...>, at_last<Last...>) {
  const auto extents = mesh.extents();
  const auto at = mesh.coordinates(rank);
  std::array<bool, Mesh::rank> is_over{}, is_last{};
  ((is_over[Mesh::template position<Tags>] = true), ...);
  ((is_last[Mesh::template position<Last>] = true), ...);
  for (std::size_t a = 0; a < Mesh::rank; ++a)
    if (!is_over[a] && at[a] != (is_last[a] ? extents[a] - 1 : 0)) return false;
  return true;
}
template <class Mesh, class Last>
constexpr bool is_collected(const Mesh&, int, over_all, Last) {
  return true;
}
}  // namespace detail

/// The protocol on this mesh.
template <class Protocol, class Mesh>
transfer transfer_of(const Mesh& mesh) {
  std::vector<int> chunks;
  int count = 1;
  std::vector<std::pair<int, int>> collected;  // by their place
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const auto [chunk, of] = detail::chunk_at(mesh, rank, typename Protocol::distributed{});
    chunks.push_back(chunk);
    count = of;
    if (detail::is_collected(mesh, rank, typename Protocol::collected{}, typename Protocol::last{}))
      collected.emplace_back(detail::chunk_at(mesh, rank, typename Protocol::collected{}).first, rank);
  }
  std::vector<int> ranks(collected.size());
  for (const auto& [place, rank] : collected) ranks[static_cast<std::size_t>(place)] = rank;
  return {std::move(chunks), count, std::move(ranks), Protocol::padded};
}

/// Rows that go from one rank to another: `count` results from row `first` of the batch on, to place `at` of the
/// receiver's share.
struct row_move {
  int from = 0, to = 0;
  std::size_t first = 0, at = 0, count = 0;
  friend bool operator==(const row_move&, const row_move&) = default;
};

/// The way of a batch of `rows` from the results of one call to the arguments of the next: `collect` and `distribute`
/// without a place in the middle that has it all. Ranks are those of the two meshes, padding included. By receiver,
/// then by place.
/// Errors: as `transfer::share`, and `config_error` where the first call's results are no batch of `rows`.
HEDDLE_INLINE std::vector<row_move> row_moves(const transfer& from, const transfer& to, std::size_t rows);

}  // namespace heddle::inline v0::rl

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rl/impl/transfer_protocol.hpp>
#endif
