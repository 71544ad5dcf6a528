// heddle/plan/fabric_step.hpp: collectives of a step on a switched fabric, as one plan.
#pragma once

#include <heddle/collective/round_groups.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/mesh/topology.hpp>
#include <heddle/plan/circuit_matchings.hpp>
#include <heddle/plan/reconfigure.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {

/// How a step is planned.
struct step_options {
  /// Circuits are switched while ranks compute: the first switch of a call takes only what the computation before it
  /// does not cover.
  bool hide_behind_computation = false;
};

/// What a plan says of one call.
struct planned_call {
  std::string name;         ///< "all_reduce over axis 0, 33554432 bytes"
  std::string way;          ///< the algorithm
  std::vector<int> states;  ///< of the fabric in each round
  double seconds = 0;       ///< rounds and switching, without the computation before
  double hidden = 0;        ///< seconds of switching that computation covers
  int switches = 0;
};
/// A plan of a step. Units: seconds.
struct fabric_plan {
  double seconds = 0;
  double fixed = 0;         ///< on the first topology, each call by its best algorithm; infinity if one has no way
  double single = 0;        ///< on the best one topology, switched to once
  double call_by_call = 0;  ///< each call planned alone, from where the one before left the circuits
  int switches = 0;
  double hidden = 0;
  std::vector<planned_call> calls;
  std::vector<std::string> states;  ///< what they are called
};
/// Lines for people: the times, and calls that follow each other with the same plan together.
HEDDLE_INLINE std::string to_string(const fabric_plan& plan);

namespace detail {

// A way to do a call, among all ranks of the fabric.
struct fabric_way {
  std::string name;
  round_table rounds;
  std::int64_t bytes = 0;  // of the vector; 0 where the table has sizes
};
struct fabric_call {
  std::size_t kind = 0;
  double compute = 0;  // seconds before it
};
struct fabric_kind {
  std::string name;
  std::vector<fabric_way> ways;
};
struct fabric_calls {
  std::vector<fabric_kind> kinds;
  std::vector<fabric_call> calls;
  double compute = 0;  // after the last call
};
HEDDLE_INLINE void require_fabric(const topology& start, const circuit_switch& fabric, int ranks);
HEDDLE_INLINE std::vector<fabric_way> ways_of_traffic(const rank_traffic& traffic,
                                                      const std::vector<std::vector<int>>& groups, int ranks);
HEDDLE_INLINE fabric_plan planned(const fabric_calls& step, const topology& start, const circuit_switch& fabric,
                                  const step_options& options);

}  // namespace detail

/// The computation and the calls of a step on a fabric whose circuits can be switched. Rank r of the mesh stands where
/// rank r of the topology does; all groups of an axis call at the same time.
///
///     plan::fabric_step step(mesh, topologies::torus({8, 16}, optics.port()), optics);
///     step.offer<algo::rabenseifner, algo::ring>();
///     for (int l = 0; l < 32; ++l) step.compute(1e-3).all_reduce<tp>(33'554'432);
///     const plan::fabric_plan plan = step.plan({.hide_behind_computation = true});
///
/// Source: Vijaya Kumar, Devraj and Singh 2025, arXiv:2509.15450, for the cost of a round and of switching; planning
/// calls together and hiding are ours.
template <mesh_like Mesh>
class fabric_step {
 public:
  /// Errors: `config_error` for a switch that cannot be, or a topology of another number of ranks.
  fabric_step(const Mesh& mesh, topology start, const circuit_switch& fabric)
      : mesh_(mesh), start_(std::move(start)), fabric_(fabric) {
    detail::require_fabric(start_, fabric_, mesh.size());
  }

  /// Algorithms that the calls from here on may take.
  template <class... Algorithms>
  fabric_step& offer() {
    (offered_.push_back(offered{
         std::string(std::string_view(Algorithms::name)), &rounds_of<Algorithms, comm_operation::all_reduce>,
         &rounds_of<Algorithms, comm_operation::all_gather>, &rounds_of<Algorithms, comm_operation::reduce_scatter>}),
     ...);
    return *this;
  }
  /// What all ranks compute before the next call. Errors: `config_error` below 0.
  fabric_step& compute(double seconds) {
    if (!(seconds >= 0))
      throw config_error("heddle: fabric_step: computation takes 0 seconds or more, got " + std::to_string(seconds));
    step_.compute += seconds;
    return *this;
  }
  /// A call of all groups of an axis on vectors of so many bytes.
  /// Errors: `config_error` for bytes below 0, and if no algorithm that was offered has rounds for it.
  template <class Axis>
  fabric_step& all_reduce(std::int64_t bytes) {
    return call<Axis>("all_reduce", &offered::all_reduce, bytes);
  }
  /// `bytes` are those of the gathered vector.
  template <class Axis>
  fabric_step& all_gather(std::int64_t bytes) {
    return call<Axis>("all_gather", &offered::all_gather, bytes);
  }
  /// `bytes` are those of the vector before it is scattered.
  template <class Axis>
  fabric_step& reduce_scatter(std::int64_t bytes) {
    return call<Axis>("reduce_scatter", &offered::reduce_scatter, bytes);
  }
  /// The same traffic in each group of the axis: all at once, in the fewest matchings, or in shifts.
  /// Errors: `config_error` for traffic of another number of ranks.
  template <class Axis>
  fabric_step& all_to_all_v(const rank_traffic& traffic) {
    const auto groups = groups_of<Axis>();
    if (traffic.ranks() != static_cast<int>(groups[0].size()))
      throw config_error("heddle: fabric_step: traffic of " + std::to_string(traffic.ranks()) + " ranks over axis " +
                         std::to_string(Mesh::template position<Axis>) + " of " + std::to_string(groups[0].size()));
    constexpr std::size_t axis = Mesh::template position<Axis>;
    for (const known_traffic& k : traffic_)
      if (k.axis == axis && k.bytes == traffic.bytes()) {
        step_.calls.push_back({k.kind, std::exchange(step_.compute, 0.0)});
        return *this;
      }
    traffic_.push_back({axis, step_.kinds.size(), traffic.bytes()});
    std::int64_t bytes = 0;
    for (const std::int64_t b : traffic.bytes()) bytes += b;
    add({"all_to_all_v over axis " + std::to_string(Mesh::template position<Axis>) + ", " + std::to_string(bytes) +
             " bytes a group, traffic " + std::to_string(step_.kinds.size()),
         detail::ways_of_traffic(traffic, groups, mesh_.size())});
    return *this;
  }

  /// The plan that takes the least time: a shortest path through (call, algorithm, round, state of the fabric). States
  /// are the first topology and the circuits of every round of every way for which the ports suffice; the fabric may
  /// stay in the last.
  /// Errors: `config_error` if a call finds no way in any state.
  [[nodiscard]] fabric_plan plan(const step_options& options = {}) const {
    return detail::planned(step_, start_, fabric_, options);
  }

 private:
  using maker = bool (*)(int ranks, round_table& into);
  struct offered {
    std::string name;
    maker all_reduce, all_gather, reduce_scatter;
  };
  template <class A, comm_operation What>
  static bool rounds_of(int ranks, round_table& into) {
    if constexpr (requires { A::template rounds<What>(ranks, 0); }) {
      if (!A::template offers<What>(ranks)) return false;
      into = A::template rounds<What>(ranks, 0);
      return true;
    } else {
      return false;
    }
  }
  template <class Axis>
  std::vector<std::vector<int>> groups_of() const {
    constexpr std::array<std::size_t, 1> at{Mesh::template position<Axis>};
    const auto extents = mesh_.extents();
    std::vector<std::vector<int>> groups;
    for (int r = 0; r < mesh_.size(); ++r) {
      if (heddle::detail::mesh_coordinate(extents, at[0], r) != 0) continue;
      groups.emplace_back();
      for (int i = 0; i < extents[at[0]]; ++i) groups.back().push_back(heddle::detail::group_member(extents, at, r, i));
    }
    return groups;
  }
  template <class Axis>
  fabric_step& call(const char* what, maker offered::* how, std::int64_t bytes) {
    if (bytes < 0)
      throw config_error("heddle: fabric_step: a call of " + std::to_string(bytes) + " bytes; give 0 or more");
    detail::fabric_kind kind{std::string(what) + " over axis " + std::to_string(Mesh::template position<Axis>) + ", " +
                                 std::to_string(bytes) + " bytes",
                             {}};
    const std::size_t known = find(kind.name);
    if (known < step_.kinds.size() &&
        step_.kinds[known].ways.size() == count_of(how, mesh_.extents()[Mesh::template position<Axis>])) {
      step_.calls.push_back({known, std::exchange(step_.compute, 0.0)});
      return *this;
    }
    const auto groups = groups_of<Axis>();
    for (const offered& o : offered_)
      if (round_table rounds; (o.*how)(static_cast<int>(groups[0].size()), rounds))
        kind.ways.push_back({o.name, round_groups(rounds, groups, mesh_.size()), bytes});
    if (kind.ways.empty())
      throw config_error("heddle: fabric_step: no algorithm that was offered has rounds for " + std::string(what) +
                         " of " + std::to_string(groups[0].size()) + " ranks; offer one");
    add(std::move(kind));
    return *this;
  }
  std::size_t count_of(maker offered::* how, int ranks) const {
    std::size_t n = 0;
    for (const offered& o : offered_)
      if (round_table rounds; (o.*how)(ranks, rounds)) ++n;
    return n;
  }
  // The last kind of that name.
  std::size_t find(const std::string& name) const {
    for (std::size_t k = step_.kinds.size(); k-- > 0;)
      if (step_.kinds[k].name == name) return k;
    return step_.kinds.size();
  }
  void add(detail::fabric_kind kind) {
    step_.kinds.push_back(std::move(kind));
    step_.calls.push_back({step_.kinds.size() - 1, std::exchange(step_.compute, 0.0)});
  }

  struct known_traffic {
    std::size_t axis, kind;
    std::vector<std::int64_t> bytes;
  };

  Mesh mesh_;
  topology start_;
  circuit_switch fabric_;
  std::vector<offered> offered_;
  std::vector<known_traffic> traffic_;
  detail::fabric_calls step_;
};

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/fabric_step.hpp>
#endif
