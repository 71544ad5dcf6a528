// heddle/train/named_parameters.hpp: a rank's part of every parameter of a model, laid out by name rules, with its gradient
// and optimizer state.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/random.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/layout/named_layouts.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/train/options.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::train {

/// A second tensor with the same elements: layers take their input by value and keep what backward needs.
template <class T, std::size_t Rank, layout_like L>
sharded<T, Rank, L> copy_of(const sharded<T, Rank, L>& x) {
  sharded<T, Rank, L> copy(x.layout(), x.shape(), x.rank());
  std::copy(x.elements().begin(), x.elements().end(), copy.elements().begin());
  return copy;
}

namespace detail {

template <class Mesh, class Axis, int Dim>
struct weight_layout {
  using type = layout_if<Mesh, shard<Dim, Axis>>;
};
template <class Mesh, class Axis>
struct weight_layout<Mesh, Axis, -1> {
  using type = layout_if<Mesh, identical<Axis>>;
};

// A parameter at its place in the model. All of them are bases of one class: neither compiler limits their number as it
// limits the depth of a tuple or the length of a fold.
template <std::size_t At, class Parameter>
struct parameter_slot {
  Parameter value;
};
template <std::size_t At, class Parameter>
Parameter& slot_value(parameter_slot<At, Parameter>& slot) {
  return slot.value;
}

}  // namespace detail

/// One parameter on one rank. A weight is split as the rules say, or identical along the tensor-parallel axis, and
/// replicated along the others; its gradient has the dual layout (a sum over the others is still to come), its moments
/// have its own.
template <class T, std::size_t Rank, layout_like Layout>
struct named_parameter {
  using layout_type = Layout;
  using gradient_layout = dual<Layout>;
  sharded<T, Rank, Layout> weight;
  sharded<T, Rank, gradient_layout> gradient;
  sharded<T, Rank, Layout> first_moment;
  sharded<T, Rank, Layout> second_moment;

  template <class Shape, class Mesh>
  named_parameter(const Shape& whole, const Mesh& mesh, int rank)
      : weight(Layout{mesh}, whole, rank),
        gradient(gradient_layout{mesh}, whole, rank),
        first_moment(Layout{mesh}, whole, rank),
        second_moment(Layout{mesh}, whole, rank) {}
};

/// All parameters of a model. `at<At>()` and `of<"path">()` are `named_parameter`s.
template <class T, named_model Model, mesh_like Mesh, class Rules = redco_rules, class Axis = tp>
class named_parameters {
 public:
  using plan = named_layouts<Model, Mesh, Rules, Axis>;
  static constexpr std::size_t size = plan::size;
  static constexpr const named_shape& description(std::size_t i) { return Model::parameters[i]; }

 private:
  template <std::size_t At>
  using parameter = named_parameter<T, static_cast<std::size_t>(Model::parameters[At].rank),
                                    typename detail::weight_layout<Mesh, Axis, plan::rules[At].dim>::type>;
  template <std::size_t At>
  static auto shape_of() {
    std::array<std::int64_t, static_cast<std::size_t>(Model::parameters[At].rank)> extents{};
    for (std::size_t d = 0; d < extents.size(); ++d) extents[d] = Model::parameters[At].extents[d];
    return make_shape(extents);
  }
  template <class Places>
  struct slots;
  template <std::size_t... Is>
  struct slots<std::index_sequence<Is...>> : detail::parameter_slot<Is, parameter<Is>>... {
    slots(const Mesh& mesh, int rank)
        : detail::parameter_slot<Is, parameter<Is>>{parameter<Is>(shape_of<Is>(), mesh, rank)}... {}
  };
  static constexpr std::size_t at_once = 64;  // a fold of a few hundred is too long for clang
  template <std::size_t First, std::size_t Count, class F>
  void visit(F& f) {
    if constexpr (Count > at_once) {
      visit<First, Count / 2>(f);
      visit<First + Count / 2, Count - Count / 2>(f);
    } else {
      [&]<std::size_t... Is>(std::index_sequence<Is...>) {
        (f(at<First + Is>(), Model::parameters[First + Is]), ...);
      }(std::make_index_sequence<Count>{});
    }
  }

 public:
  named_parameters(const Mesh& mesh, int rank) : all_(mesh, rank) {}

  template <std::size_t At>
  auto& at() {
    return detail::slot_value<At>(all_);
  }
  template <fixed_string Path>
  auto& of() {
    return at<plan::template index_of<Path>>();
  }

  /// Calls `f(parameter, description)` for each parameter, in the model's order.
  template <class F>
  void for_each(F&& f) {
    visit<0, size>(f);
  }

  /// Draws the weights from random numbers addressed by parameter and index, so that every mesh starts from the same
  /// model: kernels N(0, 1/inputs), embeddings N(0, 1/width), norms' factors ("scale", "weight") 1, all others 0.
  void initialize(std::uint64_t seed) {
    std::uint64_t stream = 0;
    for_each([&](auto& p, const named_shape& d) { fill(p.weight, d, counter_random(seed, stream++)); });
  }

  void zero_gradients() {
    for_each([](auto& p, const named_shape&) {
      std::fill(p.gradient.elements().begin(), p.gradient.elements().end(), T(0));
    });
  }

 private:
  template <std::size_t Rank, class Layout>
  static void fill(sharded<T, Rank, Layout>& w, const named_shape& d, const counter_random& random) {
    const std::string_view leaf = heddle::v0::detail::seen(d, weight_order::by_name).leaf;
    double mean = leaf == "scale" || leaf == "weight" ? 1.0 : 0.0, deviation = 0;
    if (leaf == "kernel")
      deviation = 1.0 / std::sqrt(static_cast<double>((std::max)(heddle::v0::detail::inputs_of(d), std::int64_t{1})));
    if (leaf == "embedding" && d.rank > 0)
      deviation =
          1.0 /
          std::sqrt(static_cast<double>((std::max)(d.extents[static_cast<std::size_t>(d.rank - 1)], std::int64_t{1})));
    const auto local = w.local_shape().extents();
    std::array<std::int64_t, Rank> index{};
    for (T& value : w.elements()) {
      const auto global = w.layout().to_global(w.shape(), w.rank(), index);
      std::int64_t flat = 0;
      for (std::size_t k = 0; k < Rank; ++k) flat = flat * w.shape().extent(k) + global[k];
      value =
          static_cast<T>(mean + (deviation > 0 ? deviation * random.normal(static_cast<std::uint64_t>(flat)) : 0.0));
      for (std::size_t k = Rank; k-- > 0;) {
        if (++index[k] < local[k]) break;
        index[k] = 0;
      }
    }
  }

  slots<std::make_index_sequence<size>> all_;
};

}  // namespace heddle::inline v0::train
