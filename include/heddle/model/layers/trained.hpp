// heddle/model/layers/trained.hpp: marks parameters of a description as trained or frozen.
#pragma once

#include <heddle/model/layers/description.hpp>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::model::layers {

/// All parameters are trained: what holds for a description that says nothing else.
struct every_parameter {
  template <class Parameter>
  static constexpr bool trains = true;
};

/// A description of which only those parameters are trained that `Trained::trains<Parameter>` names. The others are frozen: they have no
/// gradient, no optimizer state and no decay, and no step changes them.
template <class Trained, class Description>
struct partly_trained : Description {
  using trained = Trained;
};
/// Numbers of all parameters, trained and frozen.
template <class Trained, class Description>
constexpr std::int64_t count_parameters(const partly_trained<Trained, Description>& m) {
  return count_parameters(static_cast<const Description&>(m));
}
/// Floating-point operations as of the description that trains all: a bound, as gradients of frozen weights are not computed.
template <class Trained, class Description>
constexpr double training_flops(const partly_trained<Trained, Description>& m, std::int64_t sequence) {
  return training_flops(static_cast<const Description&>(m), sequence);
}
/// `train_only<adapters>(describe_gpt2(...))`.
template <class Trained, class Description>
constexpr partly_trained<Trained, Description> train_only(const Description& of) {
  return {of};
}
/// The same model with another head, of which the same parameters are trained.
template <class Trained, class Description, class Head>
constexpr auto with_head(const partly_trained<Trained, Description>& m, const Head& head) {
  return train_only<Trained>(with_head(static_cast<const Description&>(m), head));
}

namespace detail {
template <class Description>
struct trained_in {
  using type = every_parameter;
};
template <class Trained, class Description>
struct trained_in<partly_trained<Trained, Description>> {
  using type = Trained;
};

template <class Trained, class Layer>
struct trained_layer;
template <class Trained, class List>
struct trained_layers;
template <class Trained, class... L>
struct trained_layers<Trained, list<L...>> {
  static constexpr bool any = (trained_layer<Trained, L>::any || ...);
  static constexpr bool all = (trained_layer<Trained, L>::all && ...);
};
template <class Trained, class... P>
constexpr bool trains_any(std::type_identity<list<P...>>) {
  return (Trained::template trains<P> || ...);
}
template <class Trained, class... P>
constexpr bool trains_all(std::type_identity<list<P...>>) {
  return (Trained::template trains<P> && ...);
}
// A tied head has the token embedding for a weight, without listing it.
template <class Trained, class Layer>
constexpr bool trains_tied_table() {
  if constexpr (requires { requires Layer::tied; })
    return Trained::template trains<typename Layer::tied_table>;
  else
    return false;
}
template <class Trained, class Layer>
struct trained_layer {
  using own = std::type_identity<parameters_of<Layer>>;
  using inside = trained_layers<Trained, children_of<Layer>>;
  static constexpr bool any = trains_any<Trained>(own{}) || trains_tied_table<Trained, Layer>() || inside::any;
  static constexpr bool all = trains_all<Trained>(own{}) && inside::all;
};
template <class Layer>
struct trained_layer<every_parameter, Layer> {
  static constexpr bool any = true, all = true;
};
}  // namespace detail

/// Which parameters of a description are trained: `every_parameter`, or what `partly_trained` says.
template <class Description>
using trained_of = typename detail::trained_in<std::remove_cvref_t<Description>>::type;
/// Whether a layer or one of its children has a parameter that is trained.
template <class Trained, class Layer>
inline constexpr bool trains_in = detail::trained_layer<Trained, Layer>::any;
/// Whether a layer and its children have no frozen parameter.
template <class Trained, class Layer>
inline constexpr bool trains_all_of = detail::trained_layer<Trained, Layer>::all;

}  // namespace heddle::inline v0::model::layers
