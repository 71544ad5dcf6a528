// heddle/layout/redistribution_objective.hpp: objectives: bytes, seconds or memory.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/type_list.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>

namespace heddle::inline v0 {

/// The kind of policies that say what a redistribution plan minimizes.
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
  int dimensions = 0;  // with idle axes: so many of the tensor may be cut on the way, whatever the layouts name
};

template <class Links, class... Tags>
constexpr std::array<link_cost, sizeof...(Tags)> links_of(type_list<Tags...>) {
  return {Links::template along<Tags>...};
}

}  // namespace detail

/// Policies of the planner: the third argument of `redistribution`. Sizes are taken as even. Of plans that cost the
/// same, one of collectives goes before a direct exchange, then the one with fewer steps, then the one that needs less memory.
/// What is searched: the ways over all layouts that cut dimensions which one of the two layouts names, in as many steps as it
/// takes; `bytes_on_all_axes_of<n>` cuts the first n dimensions too, named or not. A plan does not know whether a tensor has
/// further dimensions; a way that cuts one of those for a while is not looked at, and can be cheaper.
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
/// replicated along another sends less when each copy reduces its part and the copies gather the parts. On the way it may
/// cut the first `Dimensions` dimensions of the tensor, and all that are below one which the layouts name: give the
/// number of the tensor's, and no plan at all sends less than one that is `proven`. The tensor must have them; where it has fewer, `redistribute` goes by `bytes`.
template <int Dimensions>
struct bytes_on_all_axes_of {
  static_assert(Dimensions >= 0 && Dimensions <= 16,
                "heddle: objective::bytes_on_all_axes_of<dimensions>: give the tensor's number of dimensions, 0 to 16");
  using kind = objective_kind;
  static constexpr int dimensions = Dimensions;
  template <class... Tags>
  static constexpr detail::objective_numbers<sizeof...(Tags)> numbers(type_list<Tags...>) {
    return {detail::objective_mode::bytes, true, 0, {}, Dimensions};
  }
};
/// `bytes_on_all_axes_of` for tensors with at least one dimension.
using bytes_on_all_axes = bytes_on_all_axes_of<1>;

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

namespace detail {
template <class Objective>
constexpr int dimensions_cut_by() {
  if constexpr (requires { Objective::dimensions; })
    return Objective::dimensions;
  else
    return 0;
}
// The objective of a tensor of `Rank` dimensions, which may be fewer than it would cut.
template <class Objective, std::size_t Rank>
using objective_on =
    std::conditional_t<(dimensions_cut_by<Objective>() > static_cast<int>(Rank)), objective::bytes, Objective>;
}  // namespace detail

}  // namespace heddle::inline v0
