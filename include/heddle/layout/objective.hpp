// heddle/layout/objective.hpp: what the planner of redistributions makes small: bytes, seconds, or memory.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/type_list.hpp>

#include <array>
#include <concepts>
#include <cstddef>

namespace heddle::inline v0 {

struct objective_kind {};

/// One axis of the mesh as a link: what a message costs before its first byte, and how fast the bytes follow.
struct link_cost {
  double seconds_per_message = 0;
  double bytes_per_second = 1;
};

namespace detail {

enum class objective_mode : unsigned char { bytes, seconds, peak };

// An objective as numbers, one link per mesh axis.
template <std::size_t Axes>
struct objective_numbers {
  objective_mode mode = objective_mode::bytes;
  bool idle_axes = false;
  double tensor_bytes = 0;
  std::array<link_cost, Axes> links{};
};

template <class Links, class... Tags>
constexpr std::array<link_cost, sizeof...(Tags)> links_of(type_list<Tags...>) {
  return {Links::template along<Tags>...};
}

}  // namespace detail

/// Policies of the planner: the third argument of `redistribution`. Sizes are taken as even. Of plans that cost the
/// same, one of collectives goes before a direct exchange, then the one with fewer steps, then the one that needs less memory.
namespace objective {

/// The fewest bytes sent by all ranks together. A plan talks only along axes that change, so that ranks which do not take
/// part in a redistribution (other pipeline stages, say) need not know of it. The default.
struct bytes {
  using kind = objective_kind;
  template <class... Tags>
  static constexpr detail::objective_numbers<sizeof...(Tags)> numbers(type_list<Tags...>) {
    return {};
  }
};

/// As `bytes`, and may share the work with axes that the layouts leave alone: a sum over one axis of a tensor that is
/// replicated along another sends less when each copy reduces its part and the copies gather the parts.
struct bytes_on_all_axes {
  using kind = objective_kind;
  template <class... Tags>
  static constexpr detail::objective_numbers<sizeof...(Tags)> numbers(type_list<Tags...>) {
    return {detail::objective_mode::bytes, true, 0, {}};
  }
};

/// The shortest time on links with latency and bandwidth. `Links` says what they are:
/// `struct links { static constexpr double tensor_bytes = 1e6; template <class Axis> static constexpr link_cost along{5e-6, 4e11}; };`
/// Units: seconds, bytes per second that one rank sends, bytes of the whole tensor.
template <class Links>
struct alpha_beta {
  using kind = objective_kind;
  template <class... Tags>
  static constexpr detail::objective_numbers<sizeof...(Tags)> numbers(type_list<Tags...> tags) {
    return {detail::objective_mode::seconds, false, static_cast<double>(Links::tensor_bytes),
            detail::links_of<Links>(tags)};
  }
};

/// The smallest peak: what a rank holds before and after its largest step together; then the fewest bytes.
struct peak_memory {
  using kind = objective_kind;
  template <class... Tags>
  static constexpr detail::objective_numbers<sizeof...(Tags)> numbers(type_list<Tags...>) {
    return {detail::objective_mode::peak, false, 0, {}};
  }
};

}  // namespace objective

/// A policy of the planner.
template <class O>
concept plan_objective = std::same_as<typename O::kind, objective_kind>;

}  // namespace heddle::inline v0
