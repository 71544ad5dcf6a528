// heddle/compute/facets.hpp: facets of a backend by name, and the error for a missing one.
#pragma once

#include <heddle/compute/kernels.hpp>

#include <type_traits>

namespace heddle::inline v0::compute {

/// An operation, or a type with a member template `offered<B, T>` that is a bool: whether backend B has its kernels for elements of
/// type T. Backends and layers may define facets of their own in this form.
template <class F>
concept facet = requires { typename F::takes; } || requires { static_cast<bool>(F::template offered<int, float>); };

/// Whether backend B has all of these facets for elements of type T.
template <class B, class T, facet... Facets>
inline constexpr bool offers = (offered<Facets, B, T> && ...);

/// What an error about a missing facet names.
template <class Layer, class Facet, class Backend, class T>
struct layer_needs {
  static constexpr bool value = offered<Facet, Backend, T>;
};

/// One error that names the layer and the facet if the backend does not offer it for elements of type T. Returns whether
/// it does, so that a layer can leave its kernels out after the error: `if constexpr (require_facet<mine, rotary_facet,
/// B, T>()) { ... }`.
template <class Layer, facet Facet, class Backend, class T>
consteval bool require_facet() {
  static_assert(
      layer_needs<Layer, Facet, std::remove_cvref_t<Backend>, T>::value,
      "heddle: the backend lacks kernels that a layer needs; layer_needs<layer, facet, backend, element type> "
      "names them. Give the backend this facet (its operations are in compute/ops/), or take a backend that has it");
  return layer_needs<Layer, Facet, std::remove_cvref_t<Backend>, T>::value;
}

/// `require_facet` for several facets: one error for each that is missing.
template <class Layer, class Backend, class T, facet... Facets>
consteval bool require_facets() {
  return (int{require_facet<Layer, Facets, Backend, T>()} & ... & 1) != 0;  // no && for it would stop at the first
}

/// The facets that a layer's own verbs use: `using needs = compute::facet_list<compute::product_facet>;`.
template <facet... Facets>
struct facet_list {
  /// `require_facets` for these.
  template <class Layer, class Backend, class T>
  static consteval bool required() {
    return require_facets<Layer, Backend, T, Facets...>();
  }
};

}  // namespace heddle::inline v0::compute
