// heddle/schedule/microbatches.hpp: policies for the number of microbatches of a step.
#pragma once

#include <heddle/core/error.hpp>

#include <concepts>
#include <string>

namespace heddle::inline v0 {

/// The kind of the policies that say when each part of a step runs: `gpipe`, `one_f_one_b`, your own.
struct schedule_kind {};

/// The number of microbatches of a step: `microbatches<8>` is known to the compiler, `microbatches<>{8}` at start-up.
/// Errors: does not compile for a number below one; `schedule_error` at run time.
template <int... Count>
struct microbatches {
  static constexpr bool is_static = true;
  static constexpr int count() noexcept {
    // Here, not in the class: clang takes a class whose assertion failed for broken, and says so a second time.
    static_assert(sizeof...(Count) == 1,
                  "heddle: microbatches<N>: give one number, or none if it is known only at start-up");
    static_assert(((Count > 0) && ...),
                  "heddle: microbatches<N>: a step needs at least one microbatch; leave N out if it is known only at "
                  "start-up");
    return sizeof...(Count) == 1 && ((Count > 0) && ...) ? (Count + ...) : 1;
  }
};

template <>
struct microbatches<> {
  static constexpr bool is_static = false;

  constexpr explicit microbatches(int count) : count_(count) {
    if (count <= 0) throw schedule_error("heddle: a step needs at least one microbatch, got " + std::to_string(count));
  }
  constexpr int count() const noexcept { return count_; }

 private:
  int count_;
};

/// What schedules take as their number of microbatches.
template <class M>
concept microbatches_like = requires(const M m) {
  { M::is_static } -> std::convertible_to<bool>;
  { m.count() } -> std::same_as<int>;
};

}  // namespace heddle::inline v0
