// heddle/sim/levels.hpp: closed-form times of collectives of all groups of an axis.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/mesh/inverse_order.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/mesh/topology.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::sim {

/// A level of a cluster (device, node, pod, ...): equal parts of consecutive ranks, and what leads out of each.
/// Units: seconds, bytes per second in one direction; what enters has as much as what leaves.
struct level {
  int ranks = 1;       ///< of a part: those of the level below times a whole number
  double seconds = 0;  ///< a message between two parts of this level, in one part of the next: latency of its way
  double bytes_per_second = 1;  ///< through one exit
  int exits = 1;                ///< of a part (network cards of a node): rank i of it uses number i * exits / ranks
};

/// A message, by the ranks of the mesh.
struct level_message {
  int from = 0, to = 0;
  double bytes = 0;
};

/// A cluster as nested levels, smallest parts first: what a message between two ranks takes follows from the largest
/// parts that it leaves. Beyond the parts of the last level all is one network without a limit of its own.
/// Errors: `mesh_error` unless parts nest, exits divide the ranks of a part evenly, and bandwidths are positive.
class levels {
 public:
  levels() = default;
  /// `order[r]` is the physical rank that plays rank r of the mesh; none: each plays its own number.
  constexpr explicit levels(std::vector<level> parts, std::vector<int> order = {})
      : parts_(std::move(parts)), order_(std::move(order)) {
    int below = 1;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const level& l = parts_[i];
      if (l.ranks < below || l.ranks % below != 0 || l.exits < 1 || l.ranks % l.exits != 0 || !(l.seconds >= 0) ||
          !(l.bytes_per_second > 0))
        throw mesh_error(text_of(
            {"heddle: level ", static_cast<int>(i), " of a cluster has parts of ", l.ranks, " ranks with ", l.exits,
             " exits over parts of ", below,
             "; each level needs a multiple of the ranks below, exits that divide its ranks, a latency of at least 0 "
             "and a bandwidth above 0"}));
      below = l.ranks;
    }
    static_cast<void>(inverse_order(order_));  // refuses what is none
  }

  constexpr const std::vector<level>& parts() const noexcept { return parts_; }

  /// How long messages take that all set off together, until the last is there: each has the latency of the largest
  /// level that it leaves, and the time that the fullest exit on its way needs for all it has to carry.
  constexpr double slowest(std::span<const level_message> messages) const {
    std::vector<std::vector<double>> out(parts_.size()), in(parts_.size());
    const auto add = [](std::vector<double>& load, std::size_t exit, double bytes) {
      if (load.size() <= exit) load.resize(exit + 1, 0.0);
      load[exit] += bytes;
    };
    for (const level_message& m : messages)
      for (std::size_t i = 0; i < left(m); ++i) {
        add(out[i], exit_of(i, m.from), m.bytes);
        add(in[i], exit_of(i, m.to), m.bytes);
      }
    double seconds = 0;
    for (const level_message& m : messages) {
      const std::size_t top = left(m);
      double carried = 0;
      for (std::size_t i = 0; i < top; ++i)
        carried = (std::max)(
            carried, (std::max)(out[i][exit_of(i, m.from)], in[i][exit_of(i, m.to)]) / parts_[i].bytes_per_second);
      if (top > 0) seconds = (std::max)(seconds, parts_[top - 1].seconds + carried);
    }
    return seconds;
  }

 private:
  constexpr int physical(int rank) const {
    if (order_.empty()) return rank;
    if (rank < 0 || static_cast<std::size_t>(rank) >= order_.size())
      throw mesh_error(text_of({"heddle: the order of ranks on these levels names ", static_cast<int>(order_.size()),
                                " ranks, but there is a rank ", rank}));
    return order_[static_cast<std::size_t>(rank)];
  }
  // How many levels a message leaves a part of.
  constexpr std::size_t left(const level_message& m) const {
    const int from = physical(m.from), to = physical(m.to);
    std::size_t n = 0;
    while (n < parts_.size() && from / parts_[n].ranks != to / parts_[n].ranks) ++n;
    return n;
  }
  constexpr std::size_t exit_of(std::size_t i, int rank) const {
    return static_cast<std::size_t>(physical(rank) / (parts_[i].ranks / parts_[i].exits));
  }

  std::vector<level> parts_;
  std::vector<int> order_;
};

/// The levels of `topologies::nodes` and `topologies::fat_tree` with these numbers (`pods` 1: no core).
constexpr levels fat_tree_levels(int nodes_per_pod, int per_node, const link_class& inside, const link_class& between,
                                 const link_class& core, int cards = 1) {
  return levels({{1, inside.seconds, inside.bytes_per_second},
                 {per_node, between.seconds, between.bytes_per_second, cards},
                 {per_node * nodes_per_pod, between.seconds + core.seconds, core.bytes_per_second}});
}

namespace detail {
// Each member of each group along `Tags` to the one `shift` places on.
template <class... Tags, mesh_like Mesh>
constexpr std::vector<level_message> shifted(const Mesh& mesh, int shift, double bytes) {
  const int p = mesh.template group_size<Tags...>();
  std::vector<level_message> messages;
  for (int r = 0; r < mesh.size(); ++r)
    messages.push_back(
        {r, mesh.template group_member<Tags...>(r, (mesh.template group_index<Tags...>(r) + shift) % p), bytes});
  return messages;
}
}  // namespace detail

/// Seconds of a collective of all groups along `Tags` at once: rings for all_reduce, all_gather and reduce_scatter, an
/// exchange of neighbours at distance 1, 2, ... for all_to_all. `bytes`: of the vector that it cuts (`extent_of`): what
/// each has (all_reduce), what all have together (all_gather, reduce_scatter), what each sends to all (all_to_all).
/// As long as `sim::simulate` of the rounds where all groups lie alike on the parts.
/// Errors: `comm_error` for another operation.
template <class... Tags, mesh_like Mesh>
constexpr double call_seconds(const levels& where, const Mesh& mesh, comm_operation what, double bytes) {
  const int p = mesh.template group_size<Tags...>();
  if (p < 2) return 0;
  switch (what) {
    case comm_operation::all_gather:
    case comm_operation::reduce_scatter:
    case comm_operation::all_reduce: {
      const int rounds = (what == comm_operation::all_reduce ? 2 : 1) * (p - 1);
      return rounds * where.slowest(detail::shifted<Tags...>(mesh, 1, bytes / p));
    }
    case comm_operation::all_to_all: {
      double seconds = 0;
      for (int k = 1; k < p; ++k) seconds += where.slowest(detail::shifted<Tags...>(mesh, k, bytes / p));
      return seconds;
    }
    default:
      throw comm_error("heddle: call_seconds knows rings (all_reduce, all_gather, reduce_scatter) and all_to_all");
  }
}

}  // namespace heddle::inline v0::sim
