// heddle/schedule/stage_map.hpp: maps from stages to pipeline ranks, as policies.
#pragma once

#include <heddle/schedule/table.hpp>

#include <concepts>
#include <cstdint>
#include <string>

namespace heddle::inline v0::schedule {

/// How stages are laid on p pipeline ranks: `stages(p)`, `rank_of(stage, p)`, `chains`.
template <class M>
concept stage_map = requires(int n) {
  { M::chains } -> std::convertible_to<int>;
  { M::stages(n) } -> std::same_as<int>;
  { M::rank_of(n, n) } -> std::same_as<int>;
};

namespace detail {
// In functions: clang takes a class whose own assertion failed for broken, and says so a second time.
template <int PerRank>
constexpr int stages_per_rank() {
  static_assert(PerRank >= 1, "heddle: schedule::loop<V>: a rank holds at least one stage");
  return PerRank >= 1 ? PerRank : 1;
}
template <int Waves>
constexpr int number_of_waves() {
  static_assert(Waves >= 1, "heddle: schedule::wave<W>: there is at least one wave");
  return Waves >= 1 ? Waves : 1;
}
}  // namespace detail

/// Round and round: stage s on rank s mod p, v p stages.
template <int PerRank = 1>
struct loop {
  static constexpr int chains = 1;
  static constexpr int stages(int ranks) noexcept {
    return detail::stage_count(detail::stages_per_rank<PerRank>(), ranks);
  }
  static constexpr int rank_of(int stage, int ranks) noexcept { return stage % ranks; }
};

/// Down and up again, w times: 2 w p stages; stage s with q = s / p lies on rank s mod p if q is even, on p - 1 - s mod p
/// if it is odd (Hanayo).
template <int Waves = 1>
struct wave {
  static constexpr int chains = 1;
  static constexpr int stages(int ranks) noexcept {
    return detail::stage_count(2 * std::int64_t{detail::number_of_waves<Waves>()}, ranks);
  }
  static constexpr int rank_of(int stage, int ranks) noexcept {
    return stage / ranks % 2 == 0 ? stage % ranks : ranks - 1 - stage % ranks;
  }
};

/// Down and up once: rank r holds stages r and 2p - 1 - r, so that the first and the last are on rank 0.
using v_shape = wave<1>;

/// Two replicas of a model of p parts in opposite directions: part x of the first is stage x on rank x, part x of the
/// second is stage p + x on rank p - 1 - x (Chimera, DualPipe).
struct bidirectional {
  static constexpr int chains = 2;
  static constexpr int stages(int ranks) noexcept { return detail::stage_count(2, ranks); }
  static constexpr int rank_of(int stage, int ranks) noexcept { return stage < ranks ? stage : 2 * ranks - 1 - stage; }
};

namespace detail {
// `n`, of which there may be 1 to `most`. Errors: `schedule_error`.
constexpr int checked_count(int n, int most, const char* has, const char* what) {
  if (n < 1 || n > most)
    throw schedule_error(std::string("heddle: ") + has + " 1 to " + std::to_string(most) + " " + what + ", got " +
                         std::to_string(n));
  return n;
}
}  // namespace detail

/// What schedules share; a base for your own: a number of microbatches and a stage map.
template <microbatches_like Microbatches, stage_map Map = loop<1>>
class staged {
 public:
  using kind = schedule_kind;
  using map = Map;
  static constexpr bool is_static = Microbatches::is_static;

  constexpr staged()
    requires(is_static)
  {
    static_cast<void>(Microbatches::count());  // which refuses an illegal number
  }
  constexpr explicit staged(Microbatches m) : microbatches_(m) {}
  constexpr explicit staged(int m)
    requires(!is_static)
      : microbatches_(m) {}

  constexpr int microbatch_count() const noexcept { return microbatches_.count(); }
  static constexpr int stages(int ranks) noexcept { return Map::stages(ranks); }
  static constexpr int rank_of(int stage, int ranks) noexcept { return Map::rank_of(stage, ranks); }
  static constexpr table_form form() noexcept { return {.chains = Map::chains}; }

 private:
  Microbatches microbatches_;
};

/// The simplest: stage s lives on rank s.
template <microbatches_like Microbatches>
using one_stage_per_rank = staged<Microbatches, loop<1>>;

}  // namespace heddle::inline v0::schedule
