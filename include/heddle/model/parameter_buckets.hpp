// heddle/model/parameter_buckets.hpp: parameters by the axes of their gradient sums.
#pragma once

#include <heddle/core/type_list.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/model/layers/trained.hpp>
#include <heddle/model/sharding.hpp>

#include <cstddef>
#include <type_traits>

namespace heddle::inline v0::model {

namespace detail {

// A flat buffer of parameters whose gradients are summed over `Summed`: copies along these axes, along the others parts of
// different tensors on each rank.
template <class Mesh, class Varying>
struct flat_layout_over {
  using type = layout<Mesh>;
};
template <class Mesh, class A, class... More>
struct flat_layout_over<Mesh, type_list<A, More...>> {
  using type = layout<Mesh, varying<A, More...>>;
};
template <class Mesh, class Summed, class Tags>
struct flat_layout;
template <class Mesh, class Summed, class... Tags>
struct flat_layout<Mesh, Summed, type_list<Tags...>> {
  using others = joined_lists<type_list<>, std::conditional_t<list_has<Summed, Tags>, type_list<>, type_list<Tags>>...>;
  using type = typename flat_layout_over<Mesh, others>::type;
};

// The axes over which gradients are summed, in the order of the mesh: those of a parameter, and those that split rows.
template <class Layouts, class Parameter, class Tags>
struct summed_axes;
template <class Layouts, class P, class... Tags>
struct summed_axes<Layouts, P, type_list<Tags...>> {
  using placement = typename Layouts::template parameter<typename P::own, typename P::meets>;
  using type =
      joined_lists<type_list<>,
                   std::conditional_t<Layouts::template sums_over<placement, Tags>, type_list<Tags>, type_list<>>...>;
};
template <class Layouts, class... Tags>
struct summed_axes<Layouts, void, type_list<Tags...>> {
  using type =
      joined_lists<type_list<>,
                   std::conditional_t<list_has<typename Layouts::row_axes, Tags>, type_list<Tags>, type_list<>>...>;
};
template <class Layouts, class P = void>
using summed_axes_of = typename summed_axes<Layouts, P, typename Layouts::mesh_type::tags>::type;

// A list of lists with those of more parameters and layers that it lacks, in their order.
template <class Sets, class Set>
struct with_set;
template <class... S, class Set>
struct with_set<type_list<S...>, Set> {
  using type = std::conditional_t<contains<Set, S...>, type_list<S...>, type_list<S..., Set>>;
};
template <class Layouts, class Trained, class Sets, class Parameters>
struct sets_with_parameters {
  using type = Sets;
};
template <class Layouts, class Trained, class Sets, class P, class... More>
struct sets_with_parameters<Layouts, Trained, Sets, layers::list<P, More...>> {
  template <bool Trains, class S>
  struct added {
    using type = S;
  };
  template <class S>
  struct added<true, S> {
    using type = typename with_set<S, summed_axes_of<Layouts, P>>::type;
  };
  using type = typename sets_with_parameters<Layouts, Trained, typename added<Trained::template trains<P>, Sets>::type,
                                             layers::list<More...>>::type;
};
template <class Layouts, class Trained, class Sets, class Layers>
struct sets_with_layers {
  using type = Sets;
};
template <class Layouts, class Trained, class Sets, class L, class... More>
struct sets_with_layers<Layouts, Trained, Sets, layers::list<L, More...>> {
  using own = typename sets_with_parameters<Layouts, Trained, Sets, layers::parameters_of<L>>::type;
  using inside = typename sets_with_layers<Layouts, Trained, own, layers::children_of<L>>::type;
  using type = typename sets_with_layers<Layouts, Trained, inside, layers::list<More...>>::type;
};

template <class Mesh, class Sets>
struct layouts_of_sets;
template <class Mesh, class... S>
struct layouts_of_sets<Mesh, type_list<S...>> {
  using type = type_list<typename flat_layout<Mesh, S, typename Mesh::tags>::type...>;
};
template <class Set, class Sets>
inline constexpr std::size_t place_of_set = 0;
template <class Set, class... S>
inline constexpr std::size_t place_of_set<Set, type_list<S...>> = index_of<Set, S...>;

}  // namespace detail

/// The parameters of some layers in buckets: those whose gradients are summed over the same axes are in one. The first has those
/// that are summed over the axes that split samples, which most are, and is there even if it is empty. A norm that split heads
/// share is in another, and so are experts, of which ranks with other samples hold others. Parameters that are not `Trained` have no gradients,
/// so they are in none of these.
template <class Layouts, class Trained, class... Layers>
struct trained_buckets {
  using axes = typename detail::sets_with_layers<Layouts, Trained, type_list<detail::summed_axes_of<Layouts>>,
                                                 layers::list<Layers...>>::type;
  /// Of the flat buffers, one for each bucket.
  using layouts = typename detail::layouts_of_sets<typename Layouts::mesh_type, axes>::type;
  static constexpr std::size_t count = axes::size;
  /// Whether some parameters are frozen.
  static constexpr bool freezes = !(layers::trains_all_of<Trained, Layers> && ...);
  /// The bucket of a described parameter; `count` if it is frozen.
  template <class Parameter>
  static constexpr std::size_t of =
      Trained::template trains<Parameter> ? detail::place_of_set<detail::summed_axes_of<Layouts, Parameter>, axes>
                                          : count;
};
/// The same where all parameters are trained.
template <class Layouts, class... Layers>
using parameter_buckets = trained_buckets<Layouts, layers::every_parameter, Layers...>;

}  // namespace heddle::inline v0::model
