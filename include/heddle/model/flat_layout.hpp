// heddle/model/flat_layout.hpp: the layout of a stage's parameters in one flat buffer, and the check that one reduction sums
// all their gradients.
#pragma once

#include <heddle/core/type_list.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/model/layers/description.hpp>
#include <heddle/model/sharding.hpp>

#include <type_traits>

namespace heddle::inline v0::model {

namespace detail {
template <bool Ok, class Layer, class Layout>
struct gradient_is_summed_over_rows {
  static constexpr bool value = Ok;
};
// Every parameter's gradient must be a sum over the axes that split rows and over nothing else: one reduction for all.
template <class Layouts, class Layer>
struct sums_over_rows;
template <class Layouts, class Layer, class List>
struct parameters_sum_over_rows;
template <class Layouts, class Layer, class... P>
struct parameters_sum_over_rows<Layouts, Layer, layers::list<P...>> {
  template <class Layout, class... Tags>
  static constexpr bool one(type_list<Tags...>) {
    return ((Layouts::template sums_over<Layout, Tags> == list_has<typename Layouts::row_axes, Tags>) && ...);
  }
  template <class Layout>
  static constexpr bool checked() {
    constexpr bool ok = one<Layout>(typename Layouts::mesh_type::tags{});
    static_assert(
        gradient_is_summed_over_rows<ok, Layer, Layout>::value,
        "heddle: the gradient of a parameter must be a sum over the axes that split samples and over no other; name "
        "the dimension that this axis splits, or leave it out of the sharding");
    return true;  // one sentence is enough
  }
  static constexpr bool value =
      (checked<typename Layouts::template parameter<typename P::own, typename P::meets>>() && ...);
};
template <class Layouts, class List>
struct children_sum_over_rows;
template <class Layouts, class... C>
struct children_sum_over_rows<Layouts, layers::list<C...>> {
  static constexpr bool value = (sums_over_rows<Layouts, C>::value && ...);
};
template <class Layouts, class Layer>
struct sums_over_rows {
  static constexpr bool value = parameters_sum_over_rows<Layouts, Layer, layers::parameters_of<Layer>>::value &&
                                children_sum_over_rows<Layouts, layers::children_of<Layer>>::value;
};

template <class Mesh, class RowAxes, class Tags>
struct flat_layout;
template <class Mesh, class RowAxes, class... Tags>
struct flat_layout<Mesh, RowAxes, type_list<Tags...>> {
  using others = joined<type_list<>, std::conditional_t<list_has<RowAxes, Tags>, type_list<>, type_list<Tags>>...>;
  template <class... A>
  static layout<Mesh, varying<A...>> of(type_list<A...>);
  static layout<Mesh> of(type_list<>);
  using type = decltype(of(others{}));
};
}  // namespace detail

}  // namespace heddle::inline v0::model
