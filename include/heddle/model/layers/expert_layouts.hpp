// heddle/model/layers/expert_layouts.hpp: layouts of experts, and axes of their rows.
#pragma once

#include <heddle/core/type_list.hpp>
#include <heddle/model/layers/settlement.hpp>
#include <heddle/model/sharding.hpp>

#include <type_traits>

namespace heddle::inline v0::model::layers::detail {

template <bool Ok, class How>
inline constexpr bool router_is_whole = Ok;
template <bool Ok, class Axes, class Space>
inline constexpr bool rows_are_gathered_on_the_host = Ok;

// The layouts of a mixture. Where rows travel to their experts, experts and their units are whole seen from a row's rank.
template <class Layouts>
struct experts_laid {
  using mesh_type = typename Layouts::mesh_type;
  using how = typename model::detail::without_exchange<typename Layouts::how, dim::experts, dim::ffn>::type;
  using seen = model::layouts<mesh_type, how>;
  using units = dims<dim::experts, dim::ffn>;
  using weight = typename seen::template parameter<dims<dim::experts, dim::ffn, dim::width>>;
  using in = product_layouts<seen, dims<dim::width>, units, weight, true>;
  using out = product_layouts<seen, units, dims<dim::width>, weight>;
  using exchange = typename Layouts::template exchange_axes<dim::experts, dim::ffn>;
  using copied_over = typename Layouts::template exchange_axes<dim::ffn>;
  static constexpr bool exchanges = exchange::size > 0;
  // Those whose ranks hold parts of one expert.
  using units_over =
      typename model::detail::sharding_rules<typename Layouts::how>::template axes_of<mesh_type, dim::ffn>;

  template <class D>
  static constexpr bool whole =
      model::detail::sharding_rules<typename Layouts::how>::template axes_of<mesh_type, D>::size == 0;
  static_assert(
      router_is_whole<(whole<dim::candidates> && whole<dim::choices>), typename Layouts::how>,
      "heddle: a router scores all experts for each token: a sharding may split dim::experts and dim::ffn of a "
      "mixture, not dim::candidates or dim::choices");
};

// The axes whose ranks get copies of a row that is sent to an expert of which each has a part.
template <class Laid, class Dispatch>
struct copies_travel {
  using over = std::conditional_t<Dispatch::gathers, type_list<>, typename Laid::copied_over>;
};

// The axes of How that rows travel along, whatever mesh they are of: those that split rows and experts, or what is in these.
template <class How>
struct axes_of_travel;
template <class... S>
struct axes_of_travel<sharding<S...>> {
  template <class D>
  static constexpr bool is_of_rows = std::is_same_v<D, dim::samples> || std::is_same_v<D, dim::sequence>;
  template <class D>
  static constexpr bool is_of_experts = std::is_same_v<D, dim::experts> || std::is_same_v<D, dim::ffn>;
  template <class Axis>
  static constexpr bool has = ((std::is_same_v<Axis, typename S::axis> && is_of_rows<typename S::dimension>) || ...) &&
                              ((std::is_same_v<Axis, typename S::axis> && is_of_experts<typename S::dimension>) || ...);
  // Whether all of these are some of them, and one more is left.
  template <class... Axes>
  static constexpr bool are_inside =
      (has<Axes> && ...) && ((has<typename S::axis> && !contains<typename S::axis, Axes...>) || ...);
};
template <bool Ok, class Inside, class How>
inline constexpr bool axes_inside_a_node = Ok;

// Of the axes that rows travel along: those inside a node, and those between nodes.
template <class Layouts, class Exchange, class Inside>
struct dispatch_axes;
template <class Layouts, class Exchange, class... Axes>
struct dispatch_axes<Layouts, Exchange, type_list<Axes...>> {
  static constexpr bool fit = axes_of_travel<typename Layouts::how>::template are_inside<Axes...>;
  using between = typename model::detail::axes_without<Exchange, type_list<Axes...>>::type;
  using inside = typename model::detail::axes_without<Exchange, between>::type;
};
// Without nodes all of them are inside one.
template <class Layouts, class Exchange>
struct dispatch_axes<Layouts, Exchange, type_list<>> {
  static constexpr bool fit = true;
  using between = type_list<>;
  using inside = Exchange;
};

}  // namespace heddle::inline v0::model::layers::detail
