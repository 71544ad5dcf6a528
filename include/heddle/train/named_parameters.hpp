// heddle/train/named_parameters.hpp: a rank's parts of named parameters, by name rules.
#pragma once

#include <heddle/layout/gradient.hpp>
#include <heddle/layout/named_layouts.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

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

// A tensor in a flat buffer: read and written where it is. What takes it as a `sharded` can still move from it: it is empty
// then, and the next `add_gradient` says so.
template <class T, std::size_t Rank, layout_like Layout, memory_space Space>
struct tensor_in_buffer : sharded<T, Rank, Layout, Space> {
  using sharded<T, Rank, Layout, Space>::sharded;
  tensor_in_buffer(tensor_in_buffer&&) = delete;
  tensor_in_buffer& operator=(tensor_in_buffer&&) = delete;
};

// What a parameter begins with: kernels N(0, 1/inputs), embeddings N(0, 1/width), norms' factors 1, all others 0.
inline void set_initial(model::parameter& p, const named_shape& d) {
  const std::string_view leaf = heddle::v0::detail::seen(d, weight_order::by_name).leaf;
  const auto deviation = [](std::int64_t n) {
    return 1.0 / std::sqrt(static_cast<double>((std::max)(n, std::int64_t{1})));
  };
  if (leaf == "scale" || leaf == "weight") p.initial_mean = 1;
  if (leaf == "kernel") p.initial_deviation = deviation(heddle::v0::detail::inputs_of(d));
  if (leaf == "embedding" && d.rank > 0)
    p.initial_deviation = deviation(d.extents[static_cast<std::size_t>(d.rank - 1)]);
}

}  // namespace detail

/// One parameter on one rank, in the flat buffers of `named_parameters`. A weight is split as the rules say, or identical
/// along the tensor-parallel axis, and replicated along the others; its gradient has the dual layout (a sum over the
/// others is still to come).
template <class T, std::size_t Rank, layout_like Layout, memory_space Space = host_memory>
struct named_parameter {
  using layout_type = Layout;
  using gradient_layout = dual<Layout>;
  detail::tensor_in_buffer<T, Rank, Layout, Space> weight;
  detail::tensor_in_buffer<T, Rank, gradient_layout, Space> gradient;

  template <class Shape, class Mesh>
  named_parameter(const Shape& whole, const Mesh& mesh, int rank, row_view<T, Space> weights,
                  row_view<T, Space> gradients)
      : weight(Layout{mesh}, whole, rank, weights), gradient(gradient_layout{mesh}, whole, rank, gradients) {}
};

/// All parameters of a model, as a trainer takes them: a table, and weights and gradients in one flat buffer each.
/// `at<At>()` and `of<"path">()` are `named_parameter`s, the same elements as tensors. They lie in `Space`.
template <class T, named_model Model, mesh_like Mesh, class Rules = redco_rules, class Axis = tp,
          memory_space Space = host_memory>
class named_parameters {
 public:
  using space = Space;
  using layouts = named_layouts<Model, Mesh, Rules, Axis>;
  static constexpr std::size_t size = layouts::size;
  static constexpr const named_shape& description(std::size_t i) { return Model::parameters[i]; }

 private:
  template <std::size_t At>
  using parameter = named_parameter<T, static_cast<std::size_t>(Model::parameters[At].rank),
                                    typename detail::weight_layout<Mesh, Axis, layouts::rules[At].dim>::type, Space>;
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
    slots(model::parameter_store<T, Space>& store, const Mesh& mesh, int rank)
        : detail::parameter_slot<Is, parameter<Is>>{
              parameter<Is>(shape_of<Is>(), mesh, rank, store.weight(Is), store.gradient(Is))}... {}
  };
  static constexpr std::size_t at_once = 64;  // a fold of a few hundred is too long for clang
  // Calls `f.template operator()<At>()` for each parameter.
  template <std::size_t First, std::size_t Count, class F>
  static void visit(F& f) {
    if constexpr (Count > at_once) {
      visit<First, Count / 2>(f);
      visit<First + Count / 2, Count - Count / 2>(f);
    } else {
      [&]<std::size_t... Is>(std::index_sequence<Is...>) {
        (f.template operator()<First + Is>(), ...);
      }(std::make_index_sequence<Count>{});
    }
  }
  // The table, with memory for all of it.
  static model::parameter_store<T, Space> listed(typename Space::queue& queue, const Mesh& mesh, int rank) {
    model::parameter_store<T, Space> store;
    const auto add = [&]<std::size_t At>() {
      using layout_type = typename parameter<At>::layout_type;
      const auto extents = shape_of<At>().extents();
      model::parameter p;
      p.name = std::string(Model::parameters[At].path);
      p.id = static_cast<int>(At);
      p.shape.assign(extents.begin(), extents.end());
      if constexpr (Mesh::template has<Axis>)
        p.counted = layout_type::template is_sharded_on<Axis> || mesh.template coordinate<Axis>(rank) == 0;
      detail::set_initial(p, Model::parameters[At]);
      store.add(std::move(p), extents, layout_type{mesh}, rank);
    };
    visit<0, size>(add);
    store.allocate(queue);
    return store;
  }

 public:
  named_parameters(typename Space::queue& queue, const Mesh& mesh, int rank)
      : store_(listed(queue, mesh, rank)), all_(store_, mesh, rank) {}
  named_parameters(const Mesh& mesh, int rank, host_memory::queue now = {})
    requires std::same_as<Space, host_memory>
      : named_parameters(now, mesh, rank) {}

  /// As a trainer's stage has them.
  const std::vector<model::parameter>& table() const noexcept { return store_.table(); }
  row_view<T, Space> weights() noexcept { return store_.weights(); }
  row_view<T, Space> gradients() noexcept { return store_.gradients(); }

  template <std::size_t At>
  auto& at() {
    return detail::slot_value<At>(all_);
  }
  template <fixed_string Path>
  auto& of() {
    return at<layouts::template index_of<Path>>();
  }

  /// Calls `f(parameter, description)` for each parameter, in the model's order.
  template <class F>
  void for_each(F&& f) {
    const auto call = [&]<std::size_t At>() { f(at<At>(), Model::parameters[At]); };
    visit<0, size>(call);
  }

  /// Draws the weights from random numbers addressed by parameter and index, so that every mesh starts from the same
  /// model: kernels N(0, 1/inputs), embeddings N(0, 1/width), norms' factors ("scale", "weight") 1, all others 0.
  void initialize(typename Space::queue& queue, std::uint64_t seed) { store_.initialize(queue, seed); }
  void initialize(std::uint64_t seed)
    requires std::same_as<Space, host_memory>
  {
    store_.initialize(seed);
  }

  void zero_gradients(typename Space::queue& queue) { queue.zero(gradients()); }
  void zero_gradients()
    requires std::same_as<Space, host_memory>
  {
    std::fill(gradients().begin(), gradients().end(), T(0));
  }

 private:
  model::parameter_store<T, Space> store_;
  slots<std::make_index_sequence<size>> all_;
};

}  // namespace heddle::inline v0::train
