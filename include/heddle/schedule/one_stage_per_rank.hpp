// heddle/schedule/one_stage_per_rank.hpp: the simplest stage map: stage s lives on rank s.
#pragma once

#include <heddle/schedule/table.hpp>

namespace heddle::inline v0::schedule {

/// What schedules with one stage per rank share; a base for your own: stage s lives on rank s.
template <microbatches_like Microbatches>
class one_stage_per_rank {
 public:
  using kind = schedule_kind;
  static constexpr bool is_static = Microbatches::is_static;

  constexpr one_stage_per_rank()
    requires(is_static)
  {
    static_cast<void>(Microbatches::count());  // which refuses an illegal number
  }
  constexpr explicit one_stage_per_rank(Microbatches m) : microbatches_(m) {}
  constexpr explicit one_stage_per_rank(int m)
    requires(!is_static)
      : microbatches_(m) {}

  constexpr int microbatch_count() const noexcept { return microbatches_.count(); }
  static constexpr int stages(int ranks) noexcept { return ranks; }
  static constexpr int rank_of(int stage, int) noexcept { return stage; }

 private:
  Microbatches microbatches_;
};

}  // namespace heddle::inline v0::schedule
