// heddle/schedule/generate/looped_stages.hpp: base of schedules with several stages per rank.
#pragma once

#include <heddle/core/shape.hpp>
#include <heddle/schedule/stage_map.hpp>

namespace heddle::inline v0::schedule {

namespace detail {
template <int Chunks>
constexpr bool chunks_checked() {
  static_assert(Chunks > 0,
                "heddle: a rank of a pipeline holds at least one stage; give a number of chunks of at least 1, or "
                "`dynamic` if it is known only at start-up");
  return true;
}
}  // namespace detail

/// A base for schedules whose rank r holds the stages r, p + r, 2p + r, ..: `Chunks` of them, or, with `dynamic`, a
/// number given to the constructor behind the microbatches.
/// Errors: does not compile for fewer than one chunk; `schedule_error` for that at run time, or for more than 65536.
template <microbatches_like Microbatches, int Chunks>
class looped : public staged<Microbatches, loop<(Chunks > 0 ? Chunks : 1)>> {
  static_assert(detail::chunks_checked<Chunks>());

 public:
  using staged<Microbatches, loop<(Chunks > 0 ? Chunks : 1)>>::staged;
  static constexpr int chunks() noexcept { return Chunks > 0 ? Chunks : 1; }
};

template <microbatches_like Microbatches>
class looped<Microbatches, dynamic> : public detail::run_time_schedule {
 public:
  constexpr looped(Microbatches m, int chunks)
      : microbatches_(m), chunks_(detail::checked_count(chunks, 65536, "a rank of a pipeline holds", "stages")) {}
  constexpr looped(int m, int chunks)
    requires(!Microbatches::is_static)
      : looped(Microbatches{m}, chunks) {}

  constexpr int microbatch_count() const noexcept { return microbatches_.count(); }
  constexpr int chunks() const noexcept { return chunks_; }
  constexpr int stages(int ranks) const noexcept { return detail::stage_count(chunks_, ranks); }
  static constexpr int rank_of(int stage, int ranks) noexcept { return stage % ranks; }
  static constexpr table_form form() noexcept { return {}; }

 private:
  Microbatches microbatches_;
  int chunks_;
};

namespace detail {

// The order in which interleaved schedules take the chunks of a rank: the microbatches go in groups; a group passes one
// chunk after the other before the next group begins. Backwards begin with the last chunk.
class interleaved_order {
 public:
  // Groups of at least p microbatches, all of one size.
  constexpr interleaved_order(int microbatches, int ranks, int chunks) noexcept
      : ranks_(ranks), chunks_(chunks), group_(microbatches / rounds(microbatches, ranks)) {}

  static constexpr int rounds(int microbatches, int ranks) noexcept {
    return microbatches > ranks ? microbatches / ranks : 1;
  }
  static constexpr bool fits(int microbatches, int ranks) noexcept {
    return microbatches % rounds(microbatches, ranks) == 0;
  }

  constexpr int group() const noexcept { return group_; }
  constexpr int microbatch(int k) const noexcept { return k / (group_ * chunks_) * group_ + k % group_; }
  constexpr int forward_stage(int k, int rank) const noexcept { return k / group_ % chunks_ * ranks_ + rank; }
  constexpr int backward_stage(int k, int rank) const noexcept {
    return (chunks_ - 1 - k / group_ % chunks_) * ranks_ + rank;
  }

 private:
  int ranks_;
  int chunks_;
  int group_;
};

}  // namespace detail
}  // namespace heddle::inline v0::schedule
