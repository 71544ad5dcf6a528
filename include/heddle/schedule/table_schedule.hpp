// heddle/schedule/table_schedule.hpp: a schedule made of an action table, from a planner or a text.
#pragma once

#include <heddle/schedule/table.hpp>
#include <heddle/schedule/check/validate.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace heddle::inline v0::schedule {

/// The schedule whose table is the given one: for tables that are made at run time, by `automatic`, by `parse` or by hand.
/// It fits the number of ranks that the table has, and no other.
class tabled : public detail::run_time_schedule {
 public:
  /// Errors: `schedule_error` if the table's parts are not of the sizes that it says, or lead to stages and ranks that it
  /// does not have; whether its actions make sense is for `check_table` to say.
  constexpr explicit tabled(action_table table) : table_(std::move(table)) {
    if (const report found = detail::check_shape(table_.view()); !found.ok()) throw schedule_error(to_string(found));
  }
  /// The table of any schedule on so many ranks, with what it says of the parts of the model that its stages are
  /// (`routed::part_of`). Errors: as `make_table`.
  template <schedule_policy When>
  constexpr tabled(const When& when, int ranks) : table_(make_table(when, ranks)) {
    if constexpr (requires { when.part_of(0), when.parts(); }) {
      for (int s = 0; s < table().stages(); ++s) part_of_.push_back(when.part_of(s));
      parts_ = parts_with_layers_ = when.parts();
      if constexpr (requires { when.parts_with_layers(); }) parts_with_layers_ = when.parts_with_layers();
    }
  }

  constexpr table_view table() const noexcept { return table_.view(); }
  constexpr int microbatch_count() const noexcept { return table_.microbatches; }
  constexpr int stages(int) const noexcept { return table().stages(); }
  constexpr int rank_of(int stage, int) const noexcept { return table().rank_of(stage); }
  constexpr table_form form() const noexcept { return table_.form; }
  constexpr bool fits(int ranks) const noexcept { return ranks == table().ranks(); }
  constexpr bool has_paths() const noexcept { return table().has_paths(); }
  constexpr int next(int stage, int microbatch) const noexcept { return table().next(stage, microbatch); }
  constexpr int previous(int stage, int microbatch) const noexcept { return table().previous(stage, microbatch); }
  /// The part of the model that a stage is, how many there are, and how many of them, from the first on, have layers.
  constexpr int part_of(int stage) const noexcept {
    return part_of_.empty() ? table().part_of(stage) : part_of_[static_cast<std::size_t>(stage)];
  }
  constexpr int parts() const noexcept { return part_of_.empty() ? table().parts() : parts_; }
  constexpr int parts_with_layers() const noexcept { return part_of_.empty() ? table().parts() : parts_with_layers_; }

  constexpr void generate(int rank, int, auto& emit) const {
    for (const action& a : table().list(rank)) emit(a.kind, a.stage, a.microbatch, a.overlaps_next);
  }

 private:
  action_table table_;
  std::vector<int> part_of_{};
  int parts_ = 0;
  int parts_with_layers_ = 0;
};

}  // namespace heddle::inline v0::schedule
