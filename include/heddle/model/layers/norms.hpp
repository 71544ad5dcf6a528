// heddle/model/layers/norms.hpp: layer norm and root mean square norm of the residual stream.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/compute/ops/rows.hpp>
#include <heddle/layout/operations.hpp>
#include <heddle/model/layers/linear.hpp>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::model::layers {

/// Row statistics that norms keep.
struct mean : statistic {};
struct inverse_deviation : statistic {};  ///< 1 / sqrt(variance + epsilon), or of the mean square, of each row

struct shifted_weight {};  ///< scratch: 1 + the weight of a norm, in its first elements

namespace detail {
// A norm of the dimension `Dim` does not take an edge that is split there: its operator says so.
template <class Layouts, class Operation, class Dim>
using normed_layout = propagate_through<Operation, typename Layouts::template edge<dims<Dim>>>;

// Whether a call's backend adds a norm's gradient to another tensor than it writes.
template <class B>
inline constexpr bool adds_gradient_onto =
    compute::norm_onto_facet::offered<std::remove_cvref_t<decltype(std::declval<const B&>().compute())>,
                                      typename B::scalar>;

// One kernel makes output and statistics: both are kept or both are dropped.
template <class B>
void require_output(const B& b, typename B::view y) {
  if (b.makes(inverse_deviation{}) && !b.is_wanted(y) && b.rows() > 0)
    throw config_error(
        std::string("heddle: the norm \"") + b.layer().name +
        "\" computes its statistics again together with its output; the layer that keeps the output must "
        "give it the norm's role");
}

// What norms multiply by: their weight, or 1 + their weight, made in the beginning of a scratch tensor.
template <bool Shifted, class B>
typename B::const_row norm_weights(const B& b) {
  const typename B::const_row own = b.vector(weight{});
  if constexpr (Shifted) {
    const auto n = static_cast<std::int64_t>(element_count(own));
    const auto room = b.vector(shifted_weight{});
    if (static_cast<std::int64_t>(element_count(room)) < n) return own;  // no row, nothing to multiply
    const auto sum = row_at<typename B::space>(first_element(room), n);
    compute::run<compute::ops::fill>(b.compute(), sum, typename B::scalar(1));
    compute::run<compute::ops::add>(b.compute(), typename B::const_row(sum), own, sum);
    return sum;
  } else {
    return own;
  }
}

// The verbs of a root mean square norm: `rows(x)` of the layer has what is normed together in each row, `weights(b)` what that is multiplied by.
template <class Layer>
struct rms_norm_verbs : leaf {
  using needs = compute::facet_list<compute::rms_norm_facet, compute::elementwise_facet>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    require_output(b, y);
    b.give(y, [&](auto v) {
      compute::run<compute::ops::rms_norm>(b.compute(), own().rows(x), own().weights(b),
                                           static_cast<typename B::sum>(own().epsilon), own().rows(v),
                                           b.vector(inverse_deviation{}));
    });
    return made<typename Layer::template laid<typename B::layouts>>{};
  }
  /// Adds to dx.
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx,
                      bool add) const {
    if (!add) compute::run<compute::ops::fill>(b.compute(), elements_of(dx), typename B::scalar(0));
    compute::run<compute::ops::rms_norm_backward_input>(b.compute(), own().rows(dy), own().rows(x), own().weights(b),
                                                        b.vector(inverse_deviation{}), own().rows(dx));
    return made<dual<typename Layer::template laid<typename B::layouts>>>{};
  }
  /// dx = onto + the gradient, in one pass.
  template <class B>
    requires adds_gradient_onto<B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx,
                      typename B::const_view onto) const {
    compute::run<compute::ops::rms_norm_backward_onto>(b.compute(), own().rows(dy), own().rows(x), own().weights(b),
                                                       b.vector(inverse_deviation{}), own().rows(onto), own().rows(dx));
    return made<dual<typename Layer::template laid<typename B::layouts>>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    compute::run<compute::ops::rms_norm_backward_weight>(b.compute(), own().rows(dy), own().rows(x),
                                                         b.vector(inverse_deviation{}), b.gradient_vector(weight{}));
  }

 private:
  constexpr const Layer& own() const { return static_cast<const Layer&>(*this); }
};
}  // namespace detail

/// y = (x - mean) / sqrt(variance + epsilon) w + b over dimension `Dim` of each row. Every rank that has the row computes the
/// same; nothing is sent.
/// Shapes: x, y [rows, width]; w, b [width].
/// Errors: `config_error` where the statistics are computed again and the output is not.
template <class Dim = dim::width>
struct layer_norm : leaf {
  const char* name;
  std::int64_t width;
  double epsilon;
  activation_set role{};  ///< what recomputation calls its output and statistics

  constexpr layer_norm(const char* called, std::int64_t elements, double added, activation_set kept_as = {})
      : name(called), width(elements), epsilon(added), role(kept_as) {}

  constexpr auto parameters() const {
    return list(parameter<weight, dims<Dim>>{"weight", {width}, 0, 1}, parameter<bias, dims<Dim>>{"bias", {width}});
  }
  constexpr auto activations() const {
    return list(activation<mean, life::until_weight>{{}, role},
                activation<inverse_deviation, life::until_weight>{{}, role});
  }
  template <class Layouts>
  using laid = detail::normed_layout<Layouts, op::layer_norm<1>, Dim>;
  using needs = compute::facet_list<compute::layer_norm_facet, compute::elementwise_facet>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    detail::require_output(b, y);
    b.give(y, [&](auto v) {
      compute::run<compute::ops::layer_norm>(b.compute(), x, b.vector(weight{}), b.vector(bias{}),
                                             static_cast<typename B::sum>(epsilon), v, b.vector(mean{}),
                                             b.vector(inverse_deviation{}));
    });
    return made<laid<typename B::layouts>>{};
  }
  /// Adds to dx.
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx,
                      bool add) const {
    if (!add) compute::run<compute::ops::fill>(b.compute(), elements_of(dx), typename B::scalar(0));
    compute::run<compute::ops::layer_norm_backward_input>(b.compute(), dy, x, b.vector(weight{}), b.vector(mean{}),
                                                          b.vector(inverse_deviation{}), dx);
    return made<dual<laid<typename B::layouts>>>{};
  }
  /// dx = onto + the gradient, in one pass.
  template <class B>
    requires detail::adds_gradient_onto<B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx,
                      typename B::const_view onto) const {
    compute::run<compute::ops::layer_norm_backward_onto>(b.compute(), dy, x, b.vector(weight{}), b.vector(mean{}),
                                                         b.vector(inverse_deviation{}), onto, dx);
    return made<dual<laid<typename B::layouts>>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    compute::run<compute::ops::layer_norm_backward_weight>(b.compute(), dy, x, b.vector(mean{}),
                                                           b.vector(inverse_deviation{}), b.gradient_vector(weight{}),
                                                           b.gradient_vector(bias{}));
  }
};

/// y = x / sqrt(mean(x^2) + epsilon) w over dimension `Dim` of each row; `Shifted`: times 1 + w, which begins as 0 (Gemma).
/// Shapes: x, y [rows, width]; w [width].
/// Errors: `config_error` where the statistics are computed again and the output is not.
/// Source: Zhang and Sennrich 2019, arXiv:1910.07467.
template <class Dim = dim::width, bool Shifted = false>
struct rms_norm : detail::rms_norm_verbs<rms_norm<Dim, Shifted>> {
  const char* name;
  std::int64_t width;
  double epsilon;
  activation_set role{};

  constexpr rms_norm(const char* called, std::int64_t elements, double added, activation_set kept_as = {})
      : name(called), width(elements), epsilon(added), role(kept_as) {}

  constexpr auto parameters() const {
    return list(parameter<weight, dims<Dim>>{"weight", {width}, 0, Shifted ? 0 : 1});
  }
  constexpr auto activations() const {
    const activation<inverse_deviation, life::until_weight> statistics{{}, role};
    if constexpr (Shifted)
      return list(statistics, activation<shifted_weight, life::scratch, dims<Dim>>{{width}});
    else
      return list(statistics);
  }
  template <class B>
  static typename B::const_row weights(const B& b) {
    return detail::norm_weights<Shifted>(b);
  }
  template <class Layouts>
  using laid = detail::normed_layout<Layouts, op::rms_norm<1>, Dim>;

  template <class Matrix>
  Matrix rows(Matrix x) const {
    return x;
  }
};

}  // namespace heddle::inline v0::model::layers
