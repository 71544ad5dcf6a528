// heddle/schedule/routed.hpp: a schedule of microbatches with paths of their own.
#pragma once

#include <heddle/schedule/gradient_scale.hpp>
#include <heddle/schedule/paths.hpp>
#include <heddle/schedule/table.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::schedule {

/// The schedule of a table of ways. In its action table every node is a rank and a stage of its own: stage n is what
/// node n holds, and behind the nodes come the stages of the loss, one on each node of stage 0. So replicas of one part
/// of the model are stages that do not follow each other on any way; `part_of` tells which part a stage is: 0 to S - 1
/// as in the table of ways, S for the loss. A microbatch sends 2 length messages. Ways belong to microbatch numbers:
/// where a trainer copies the nodes along dp, microbatch i of every dp rank goes way i.
/// Each node takes its visits in the order of a timetable: that of a simulation (`sim::serial_nodes`) or of a plan for
/// all microbatches; without one, all first visits, then all second ones, and so on, which needs slots for all
/// microbatches.
/// Errors: `schedule_error` if the ways are none (`require_paths`), or the timetable is of others or not of times.
class routed : public detail::run_time_schedule {
 public:
  constexpr explicit routed(path_table paths) : routed(std::move(paths), timetable{}) {}

  constexpr routed(path_table paths, const timetable& order) : paths_(std::move(paths)) {
    require_paths(paths_);
    const int m = paths_.microbatches();
    if (m < 1) throw schedule_error("heddle: a schedule of ways needs at least one microbatch");
    loss_of_.assign(static_cast<std::size_t>(paths_.nodes()), -1);
    for (int n = 0; n < paths_.nodes(); ++n)
      if (paths_.stage_of_node[at(n)] == 0) {
        loss_of_[at(n)] = paths_.nodes() + static_cast<int>(origins_.size());
        origins_.push_back(n);
      }
    lists_.resize(at(paths_.nodes()));
    if (order.visits.empty()) {
      for (int k = 0; k < paths_.visits(); ++k)
        for (int i = 0; i < m; ++i) add(k, i);
    } else {
      std::vector<visit> sorted = order.visits;
      for (const visit& v : sorted)
        if (!(v.start <= v.end)) detail::refuse_path(v.microbatch, "ends before it begins, or at no time");
      std::sort(sorted.begin(), sorted.end(), begins_before);
      std::vector<int> next(at(m), 0);
      for (const visit& v : sorted) {
        if (v.microbatch < 0 || v.microbatch >= m || v.position != next[at(v.microbatch)] ||
            v.position >= paths_.visits() || v.node != paths_.node_at(v.microbatch, v.position))
          detail::refuse_path(v.microbatch, "is another one in the timetable");
        ++next[at(v.microbatch)];
        add(v.position, v.microbatch);
      }
      for (int i = 0; i < m; ++i)
        if (next[at(i)] != paths_.visits()) detail::refuse_path(i, "does not end in the timetable");
    }
  }

  constexpr const path_table& paths() const noexcept { return paths_; }
  constexpr int microbatch_count() const noexcept { return paths_.microbatches(); }
  /// As many ranks as nodes.
  constexpr bool fits(int ranks) const noexcept { return ranks == paths_.nodes(); }
  constexpr int stages(int /*ranks*/ = 0) const noexcept { return paths_.nodes() + static_cast<int>(origins_.size()); }
  constexpr int rank_of(int stage, int /*ranks*/ = 0) const noexcept {
    return stage < paths_.nodes() ? stage : origins_[at(stage - paths_.nodes())];
  }
  /// The part of the model that a stage is: a stage of the table of ways, or behind them the loss.
  constexpr int part_of(int stage) const noexcept {
    return stage < paths_.nodes() ? paths_.stage_of_node[at(stage)] : paths_.stages;
  }
  constexpr int parts() const noexcept { return paths_.stages + 1; }
  /// Of them the first ones that have layers: all but the loss.
  constexpr int parts_with_layers() const noexcept { return paths_.stages; }
  /// The stage of the loss on a node of stage 0, -1 on others.
  constexpr int loss_stage_of(int node) const noexcept { return loss_of_[at(node)]; }

  /// The stage a microbatch goes to behind this one; see `action_table::next`.
  constexpr int next(int stage, int microbatch) const noexcept { return neighbour(stage, microbatch, 1); }
  constexpr int previous(int stage, int microbatch) const noexcept { return neighbour(stage, microbatch, -1); }

  constexpr void generate(int rank, int /*ranks*/, auto& emit) const {
    for (const entry& e : lists_[at(rank)]) {
      const bool loss = e.position == paths_.length;
      const int stage = loss ? loss_of_[at(rank)] : rank;
      if (e.position <= paths_.length) emit(action_kind::forward, stage, e.microbatch);
      if (e.position >= paths_.length) emit(action_kind::backward, stage, e.microbatch);
    }
  }

 private:
  struct entry {
    int position, microbatch;
  };
  static constexpr std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }

  constexpr void add(int position, int microbatch) {
    lists_[at(paths_.node_at(microbatch, position))].push_back({position, microbatch});
  }

  constexpr int neighbour(int stage, int microbatch, int step) const noexcept {
    const auto way = paths_.path(microbatch);
    const int length = paths_.length;
    int position = length;
    if (stage < paths_.nodes()) {
      position = 0;
      while (position < length && way[at(position)] != stage) ++position;
      if (position == length) return not_on_path;
    } else if (loss_of_[at(way[0])] != stage) {
      return not_on_path;
    }
    const int other = position + step;
    return other < 0 || other > length ? -1 : other == length ? loss_of_[at(way[0])] : way[at(other)];
  }

  path_table paths_;
  std::vector<int> origins_{};
  std::vector<int> loss_of_{};
  std::vector<std::vector<entry>> lists_{};
};

/// What the gradients of a part, added up over all its replicas, are multiplied with. It does not depend on how many
/// replicas there are: stage 0 has more than the others. `part` as `routed::part_of` says.
template <gradient_scale Scale = by_batch>
constexpr double gradient_factor(const path_table& paths, int part) {
  const int m = paths.microbatches();
  const int visits = part < paths.stages ? paths.visits_of_stages()[static_cast<std::size_t>(part)] : m;
  return 1.0 / Scale::divisor(visits, m);
}

}  // namespace heddle::inline v0::schedule
