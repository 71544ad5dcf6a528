// heddle/schedule/tabled.hpp: an action table as a schedule: what a planner computed or a text says.
#pragma once

#include <heddle/schedule/table.hpp>

#include <utility>

namespace heddle::inline v0::schedule {

/// The schedule whose table is the given one: for tables that are made at run time, by `automatic`, by `parse` or by hand.
/// It fits the number of ranks that the table has, and no other.
class tabled {
 public:
  using kind = schedule_kind;
  static constexpr bool is_static = false;

  constexpr explicit tabled(action_table table) : table_(std::move(table)) {}

  constexpr table_view table() const noexcept { return table_.view(); }
  constexpr int microbatch_count() const noexcept { return table_.microbatches; }
  constexpr int stages(int) const noexcept { return table().stages(); }
  constexpr int rank_of(int stage, int) const noexcept { return table().rank_of(stage); }
  constexpr table_form form() const noexcept { return table_.form; }
  constexpr bool fits(int ranks) const noexcept { return ranks == table().ranks(); }
  constexpr bool has_paths() const noexcept { return table().has_paths(); }
  constexpr int next(int stage, int microbatch) const noexcept { return table().next(stage, microbatch); }
  constexpr int previous(int stage, int microbatch) const noexcept { return table().previous(stage, microbatch); }

  template <class Sink>
  constexpr void generate(int rank, int, Sink& emit) const {
    for (const action& a : table().list(rank)) emit(a.kind, a.stage, a.microbatch, a.overlaps_next);
  }

 private:
  action_table table_;
};

}  // namespace heddle::inline v0::schedule
