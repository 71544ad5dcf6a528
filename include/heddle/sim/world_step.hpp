// heddle/sim/world_step.hpp: simulates a training step of all ranks of a mesh.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/mesh/axis.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/sim/action_table.hpp>
#include <heddle/sim/levels.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::sim {

/// What the actions of a step take on one rank. `compute`: seconds of computations, with all that the rank exchanges
/// inside of them along axes that are neither the pipeline's nor data's, as `sim::simulate` takes it.
/// Units: seconds; bytes that one rank has: of one boundary tensor, of a stage's gradients and of its gathered weights
/// (each one number for all stages, or one a stage). What has no bytes takes no time.
template <class Duration = stage_times>
struct step_times {
  Duration compute{};
  double message_bytes = 0;
  std::vector<double> gradient_bytes{};
  std::vector<double> weight_bytes{};
  comm_operation reduction = comm_operation::reduce_scatter;  ///< of REDUCE_GRAD; UNSHARD is an all_gather
  double optimizer = 0;                                       ///< of OPTIM
  double loading = 0;  ///< until the batch is there: the first stage's forwards wait so long
};

/// How a step is run.
struct step_options {
  std::vector<std::pair<int, double>> slow{};  ///< ranks of the mesh whose computations take so many times as long
  schedule::transfers messages = schedule::transfers::asynchronous;
  bool messages_beside = true;  ///< false: a rank goes on when what it has computed is sent
  bool data_beside = true;      ///< UNSHARD and REDUCE_GRAD run beside what the rank computes; false: it waits for them
  bool share_equal = true;      ///< pipelines whose ranks are equal are simulated once
  bool skip_repeated = true;    ///< once the state of all ranks has repeated, repetitions are copied, not simulated
};

/// An action on the critical path: it ended late because of the one before it, and the one behind because of it.
struct step_event {
  int rank = 0;  ///< of the mesh; of ranks that differ in nothing the first
  schedule::action action{};
  double start = 0, end = 0;
};

/// What a simulated step came to. Units: seconds.
struct step {
  double seconds = 0;
  std::vector<double> exposed;  ///< by axis of the mesh: seconds of the critical path in messages and calls along it
  double computing = 0;  ///< seconds of the critical path in computations, the optimizer's and loading among them
  std::vector<step_event> critical;  ///< what set the time, first to last
  int pipelines = 0;                 ///< that were simulated, of all those of the mesh
  std::int64_t simulated = 0;        ///< actions of these pipelines
  std::int64_t copied = 0;           ///< of their repeated parts
};

namespace detail {

// A step with everything looked up: no mesh, no levels, no type of durations.
struct step_case {
  schedule::table_view table;
  std::vector<double> seconds;            // of each action of the table; of the first of a pair: of both
  std::vector<double> hop;                // seconds of a message, [from, to], by pipeline rank
  std::vector<double> reduce;             // of each stage
  std::vector<double> gather;             // of each stage
  std::vector<std::vector<double>> slow;  // of each pipeline: by how much each of its ranks is slower
  std::vector<std::vector<int>> member;   // of each pipeline: the rank of the mesh that stands for each of its ranks
  std::vector<double> sending;            // what each action's rank sends behind it before it goes on; empty: nothing
  double loading = 0;
};

/// `step.exposed` has two entries: messages of the pipeline, calls over data.
HEDDLE_INLINE step simulate_case(const step_case& c, const step_options& options);

// Messages hold up their sender: from `hop` to `sending`.
HEDDLE_INLINE void send_before_going_on(step_case& c);

HEDDLE_INLINE void check_step(schedule::table_view table, int pipeline_ranks, int ranks, const step_options& options);
// One number a stage, from one for all, one a stage, or none.
HEDDLE_INLINE std::vector<double> for_stages(const std::vector<double>& bytes, int stages, const char* what);

template <class Duration>
std::vector<double> action_seconds(schedule::table_view table, const step_times<Duration>& times) {
  std::vector<double> seconds;
  seconds.reserve(table.actions().size());
  for (int r = 0; r < table.ranks(); ++r)
    for (int k = table.offset(r); k < table.offset(r + 1); ++k) {
      const schedule::action& a = table[k];
      double s = a.kind == schedule::action_kind::optimizer_step ? times.optimizer : times.compute(a);
      if (a.overlaps_next && k + 1 < table.offset(r + 1)) {
        const schedule::action& b = table[k + 1];
        if constexpr (std::is_invocable_r_v<double, const Duration&, const schedule::action&, const schedule::action&>)
          s = times.compute(a, b);
        else
          s += times.compute(b);
      }
      seconds.push_back(s);
    }
  return seconds;
}

// Of each stage: what a call of all groups along `Data` takes. Equal sizes are looked up once.
template <class... Data, mesh_like Mesh>
std::vector<double> stage_calls(const levels& where, const Mesh& mesh, comm_operation what,
                                const std::vector<double>& bytes) {
  std::vector<double> seconds;
  for (std::size_t s = 0; s < bytes.size(); ++s)
    if (bytes[s] == 0)
      seconds.push_back(0);
    else
      seconds.push_back(s > 0 && bytes[s] == bytes[s - 1] ? seconds[s - 1]
                                                          : call_seconds<Data...>(where, mesh, what, bytes[s]));
  return seconds;
}

// Seconds of a message between two pipeline ranks, [from, to], for all pairs between which the table sends.
template <mesh_like Mesh>
std::vector<double> hop_seconds(schedule::table_view table, const Mesh& mesh, const levels& where, double bytes) {
  const auto p = static_cast<std::size_t>(table.ranks());
  std::vector<double> hop(p * p, 0.0);
  if constexpr (Mesh::template has<pp>) {
    std::vector<char> used(p * p, 0);
    const int step = table.has_paths() || table.chains() > 1 ? 1 : (std::max)(table.microbatches(), 1);
    for (int s = 0; s < table.stages(); ++s)
      for (int i = 0; i < table.microbatches(); i += step)
        for (const int other : {table.next(s, i), table.previous(s, i)})
          if (other >= 0)
            used[static_cast<std::size_t>(table.rank_of(s)) * p + static_cast<std::size_t>(table.rank_of(other))] = 1;
    std::vector<level_message> messages;
    for (std::size_t k = 0; k < p * p; ++k) {
      const int from = static_cast<int>(k / p), to = static_cast<int>(k % p);
      if (used[k] == 0 || from == to || bytes == 0) continue;
      messages.clear();
      for (int w = 0; w < mesh.size(); ++w)
        if (mesh.template coordinate<pp>(w) == from)
          messages.push_back({w, mesh.template group_member<pp>(w, to), bytes});
      hop[k] = where.slowest(messages);
    }
  }
  return hop;
}

}  // namespace detail

/// Simulates one training step of all ranks of a mesh: its axis `pp` has the table's ranks, the axes `Data` (none
/// named: `dp`) those that gradients are summed over and weights are gathered from; ranks along all others are inside
/// of `times.compute`, and the slowest of them counts.
///
/// Each pipeline runs the table as `simulate` does; a message takes what `where` says if all pipelines send it at once.
/// UNSHARD and REDUCE_GRAD of a stage are one call of all pipelines, a ring on `where`: it begins when all have come to
/// it and the one before it on the same ranks has ended. OPTIM waits for the stage's reduction, a computation for its
/// weights. Equal pipelines are simulated once. A repetition is copied where every action of every pipeline rank has
/// shifted by the same time for as many repetitions as messages and weights reach back: from there on the steps of a
/// max-plus system repeat for ever.
/// Errors: `schedule_error` if the table stops; `config_error` where mesh, table, ranks or bytes do not fit each other.
/// Source: Jiang et al. 2024, arXiv:2402.15627 (MegaScale), section 3.2, for what may overlap.
template <class... Data, class Duration, mesh_like Mesh>
  requires std::convertible_to<std::invoke_result_t<const Duration&, const schedule::action&>, double>
step simulate_step(schedule::table_view table, const Mesh& mesh, const step_times<Duration>& times, const levels& where,
                   const step_options& options = {}) {
  if constexpr (sizeof...(Data) == 0 && Mesh::template has<dp>) {
    return simulate_step<dp>(table, mesh, times, where, options);
  } else {
    const int p = mesh.template extent_or_one<pp>(), pipelines = mesh.template group_size<Data...>();
    detail::check_step(table, p, mesh.size(), options);
    detail::step_case c;
    c.table = table;
    c.loading = times.loading;
    c.seconds = detail::action_seconds(table, times);
    c.reduce = detail::stage_calls<Data...>(where, mesh, times.reduction,
                                            detail::for_stages(times.gradient_bytes, table.stages(), "gradient_bytes"));
    c.gather = detail::stage_calls<Data...>(where, mesh, comm_operation::all_gather,
                                            detail::for_stages(times.weight_bytes, table.stages(), "weight_bytes"));
    c.hop = detail::hop_seconds(table, mesh, where, times.message_bytes);
    if (!options.messages_beside) detail::send_before_going_on(c);
    std::vector<double> factor(static_cast<std::size_t>(mesh.size()), 1.0);
    for (const auto& [rank, by] : options.slow) factor[static_cast<std::size_t>(rank)] *= by;
    c.slow.assign(static_cast<std::size_t>(pipelines), std::vector<double>(static_cast<std::size_t>(p), 0.0));
    c.member.assign(static_cast<std::size_t>(pipelines), std::vector<int>(static_cast<std::size_t>(p), -1));
    for (int w = 0; w < mesh.size(); ++w) {
      std::size_t r = 0;
      if constexpr (Mesh::template has<pp>) r = static_cast<std::size_t>(mesh.template coordinate<pp>(w));
      const auto d = static_cast<std::size_t>(mesh.template group_index<Data...>(w));
      if (factor[static_cast<std::size_t>(w)] <= c.slow[d][r]) continue;
      c.slow[d][r] = factor[static_cast<std::size_t>(w)];
      c.member[d][r] = w;
    }
    step found = detail::simulate_case(c, options);
    std::vector<double> by_axis(Mesh::rank, 0.0);
    if constexpr (Mesh::template has<pp>) by_axis[Mesh::template position<pp>] = found.exposed[0];
    if constexpr (sizeof...(Data) > 0) by_axis[Mesh::template position<type_at<0, Data...>>] += found.exposed[1];
    found.exposed = std::move(by_axis);
    return found;
  }
}

}  // namespace heddle::inline v0::sim

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/sim/impl/world_step.hpp>
#endif
