// heddle/compute/adamw_parameter.hpp: an AdamW step of a sharded parameter.
#pragma once

#include <heddle/compute/application.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/ops/optimizer.hpp>
#include <heddle/core/text.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/tensor/sharded.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>

namespace heddle::inline v0 {

/// The first and second moments of a parameter, split as it is: one tensor each, zeros at the start.
template <class Tensor>
struct adamw_moments {
  using layout_type = typename Tensor::layout_type;
  Tensor first;
  Tensor second;
};
/// Moments of zeros for a parameter.
template <class X>
  requires compute::detail::sharded_value<X>
adamw_moments<X> zero_moments(const X& parameter) {
  return {X(parameter.layout(), parameter.shape(), parameter.rank()),
          X(parameter.layout(), parameter.shape(), parameter.rank())};
}

namespace compute::detail {

// These carry layouts into the compiler's message; the assertion's text says what to change.
template <bool Ok, class... Names>
inline constexpr bool optimizer_takes = Ok;
template <class Layout>
struct has_layout;
template <class Layout>
struct should_have_layout;
template <class Tensor, class To>
struct redistribute_to;

// Whether two layouts mean the same, axes of one rank aside.
template <class A, class B>
constexpr bool same_placement() {
  if constexpr (std::is_same_v<A, B>) {
    return true;
  } else if constexpr (!std::is_same_v<typename A::mesh_type, typename B::mesh_type>) {
    return false;
  } else {
    using ops = joined_lists<typename A::ops, typename B::ops>;
    using splits = joined_lists<typename A::splits, typename B::splits>;
    constexpr auto a = heddle::v0::detail::joint_table<ops, splits, A>::value,
                   b = heddle::v0::detail::joint_table<ops, splits, B>::value;
    constexpr auto extents =
        heddle::v0::detail::extents_or_unknown<typename A::mesh_type>(typename A::mesh_type::tags{});
    for (std::size_t i = 0; i < A::mesh_type::rank; ++i)
      if (extents[i] != 1 && !(a.use[i] == b.use[i])) return false;
    return true;
  }
}
// The first axis of more than one rank over which values are partial; the number of axes if there is none.
template <class L>
constexpr std::size_t first_partial_axis() {
  constexpr auto extents = heddle::v0::detail::extents_or_unknown<typename L::mesh_type>(typename L::mesh_type::tags{});
  std::size_t a = 0;
  while (a < L::mesh_type::rank && (extents[a] == 1 || L::table.use[a].role != axis_role::partial)) ++a;
  return a;
}

template <class Parameter, class Gradient, class Moments>
struct optimizer_check {
  using weights = typename Parameter::layout_type;
  using given = typename Gradient::layout_type;
  using kept = typename Moments::layout_type;
  using wanted = settled<dual<settled<weights>>>;
  static constexpr std::size_t sum_over = first_partial_axis<given>();
  static constexpr bool whole = first_partial_axis<weights>() == weights::mesh_type::rank;
  static constexpr bool reduced = !whole || sum_over == given::mesh_type::rank;
  static constexpr bool matching = !whole || !reduced || same_placement<given, wanted>();
  static constexpr bool moments = !whole || !reduced || !matching || same_placement<kept, weights>();
  static constexpr bool ok = whole && reduced && matching && moments;
  using axis = heddle::v0::detail::axis_of_layout<!reduced, (reduced ? 0 : sum_over), given>;
  using repair = redistribute_to<given, wanted>;
  static_assert(
      optimizer_takes<whole, has_layout<weights>>,
      "heddle: adamw_step: the weights are partial, and a step of a sum's contributions is no step of the sum; "
      "redistribute the weights to replicated (all_reduce) or to a split (reduce_scatter) first");
  static_assert(optimizer_takes<reduced, axis, has_layout<given>, should_have_layout<wanted>, repair>,
                "heddle: adamw_step: the gradient is a sum over an axis that nobody has made yet; make it with "
                "settle_gradient<weights>, reduce<axes...> or redistribute<settled<dual<weights>>>, or ask "
                "value_and_gradient for reduced_gradients");
  static_assert(
      optimizer_takes<matching, has_layout<given>, should_have_layout<wanted>, repair>,
      "heddle: adamw_step: the gradient is laid out otherwise than the weights, so a rank would step with other "
      "elements' gradients; redistribute it to settled<dual<weights>>");
  static_assert(optimizer_takes<moments, has_layout<kept>, should_have_layout<weights>>,
                "heddle: adamw_step: the moments are laid out otherwise than the weights; make them with "
                "zero_moments(weights), or redistribute them to the layout of the weights");
};

template <class X>
void require_like(const char* what, const auto& parameter, const X& x) {
  const bool same = x.shape() == parameter.shape() && x.rank() == parameter.rank() &&
                    x.layout().mesh() == parameter.layout().mesh() &&
                    x.elements().size() == parameter.elements().size() &&
                    static_cast<std::int64_t>(x.elements().size()) == x.local_shape().size();
  if (same) return;
  throw layout_error(
      text_of({"heddle: adamw_step: ", what, " should be rank ", parameter.rank(), "'s part, ",
               parameter.local_shape().size(), " elements of a tensor of ", to_string(parameter.shape()), ", got rank ",
               x.rank(), "'s, ", x.elements().size(), " elements of ", to_string(x.shape())}));
}

}  // namespace compute::detail

/// One AdamW step of this rank's part of the weights; sends nothing. Takes a gradient of layout `settled<dual<weights>>` and no
/// other: one that is still a sum does not compile, whatever its name.
/// `hd::adamw_step(backend, world, w, dw, moments, {.lr = 1e-3, .step = step})`
/// Shapes: weights, gradient and both moments have one shape and, axes of one rank aside, one layout.
/// Errors: `layout_error` for parts of other shapes, ranks or meshes, or that were moved away; at compile time, each with the
/// redistribution that repairs it: an unreduced gradient, a gradient or moments laid out otherwise, partial weights.
template <class Backend, class World, class Parameter, class Gradient, class Moments>
  requires compute::detail::sharded_value<Parameter> && compute::detail::sharded_value<Gradient>
void adamw_step(Backend& backend, World& world, Parameter& weights, const Gradient& gradient,
                adamw_moments<Moments>& moments, const compute::adamw_step& step) {
  using check = compute::detail::optimizer_check<Parameter, Gradient, Moments>;
  if constexpr (check::ok && compute::detail::on_mesh_of_world<Parameter, World>()) {
    if (!(weights.layout().mesh() == world.mesh()) || weights.rank() != world.rank())
      throw layout_error("heddle: adamw_step: the weights are rank " + std::to_string(weights.rank()) +
                         "'s part of a tensor on " + to_string(weights.layout().mesh()) + ", but this is rank " +
                         std::to_string(world.rank()) + " on " + to_string(world.mesh()));
    compute::detail::require_like("the weights", weights, weights);
    compute::detail::require_like("the gradient", weights, gradient);
    compute::detail::require_like("the first moments", weights, moments.first);
    compute::detail::require_like("the second moments", weights, moments.second);
    compute::run<compute::ops::adamw>(backend, weights.elements(), gradient.elements(), moments.first.elements(),
                                      moments.second.elements(), step);
  }
}

}  // namespace heddle::inline v0
