// heddle/schedule/generate/hanayo.hpp: Hanayo: waves of microbatches down and up.
#pragma once

#include <heddle/core/shape.hpp>
#include <heddle/schedule/generate/list_scheduling.hpp>

#include <cstdint>

namespace heddle::inline v0::schedule {
namespace detail {

struct hanayo_rule {
  int ranks;
  int stages;
  static constexpr int forward_time = 1;
  static constexpr int backward_time = 1;
  constexpr int most_live(int part) const noexcept { return stages - part < ranks ? stages - part : ranks; }
  // Backwards first, then the deepest stage first.
  constexpr std::int64_t order(action_kind kind, int part, int /*microbatch*/) const noexcept {
    return (kind == action_kind::backward ? 0 : stages) + (stages - 1 - part);
  }
};

// Stages in a number of waves known at run time.
struct waves_map {
  int waves;
  static constexpr int chains = 1;
  constexpr int stages(int ranks) const noexcept { return stage_count(2 * std::int64_t{waves}, ranks); }
  static constexpr int rank_of(int stage, int ranks) noexcept { return wave<1>::rank_of(stage, ranks); }
};

// The microbatches and the number of waves, as a type or as values.
template <microbatches_like Microbatches, int Waves>
struct hanayo_base : staged<Microbatches, wave<Waves>> {
  using staged<Microbatches, wave<Waves>>::staged;
  static constexpr int waves() noexcept { return Waves; }
};
template <microbatches_like Microbatches>
struct hanayo_base<Microbatches, dynamic> : staged<Microbatches> {
  static constexpr bool is_static = false;

  constexpr hanayo_base(Microbatches m, int waves)
      : staged<Microbatches>(m), waves_(checked_count(waves, 32768, "hanayo runs in", "waves")) {}
  constexpr hanayo_base(int m, int waves)
    requires(!Microbatches::is_static)
      : hanayo_base(Microbatches{m}, waves) {}

  constexpr int waves() const noexcept { return waves_; }
  constexpr int stages(int ranks) const noexcept { return stage_count(2 * std::int64_t{waves_}, ranks); }
  static constexpr int rank_of(int stage, int ranks) noexcept { return wave<1>::rank_of(stage, ranks); }

 private:
  int waves_;
};

}  // namespace detail

/// Hanayo: 2w stages per rank, laid in w waves, so that neighbouring stages at a turn share a rank. `Waves` of them,
/// or, with `dynamic`, a number given to the constructor behind the microbatches. Where F = B and p divides m the
/// bubble is (p - 1)(F + B)/(2w); a rank holds at most p activations of all its stages. If p does not divide m, the
/// last microbatches leave gaps.
/// Errors: `schedule_error` for fewer than one wave, or more than 32768.
/// Source: Liu et al. 2023, arXiv:2308.15762, section 3.
template <microbatches_like Microbatches = microbatches<>, int Waves = 1>
struct hanayo : detail::hanayo_base<Microbatches, Waves> {
  using detail::hanayo_base<Microbatches, Waves>::hanayo_base;

  constexpr rank_lists lists(int ranks) const {
    return list_schedule(detail::waves_map{this->waves()}, ranks, this->microbatch_count(),
                         detail::hanayo_rule{ranks, this->stages(ranks)});
  }
  constexpr int action_count(int ranks) const noexcept { return 2 * this->stages(ranks) * this->microbatch_count(); }
};

}  // namespace heddle::inline v0::schedule
