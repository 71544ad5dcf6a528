// heddle/layout/named_layouts.hpp: a layout type for each named parameter of a model.
#pragma once

#include <heddle/core/fixed_string.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/layout/name_rules.hpp>
#include <heddle/mesh/mesh.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace heddle::inline v0 {

/// A type that lists parameters: `static constexpr named_shape parameters[]{{"fc1/kernel", {8, 32}}, ...};` (or a
/// `std::array<named_shape, n>`; clang's limit on folds keeps `std::array` without arguments to 256 parameters).
template <class M>
concept named_model = requires {
  { std::span<const named_shape>(M::parameters) };
};

/// The rules of `name_rules` without any setting. A type of one's own with the same function sets explicit rules, or
/// follows `dataflow_rules`:
///
///     struct my_rules {
///       static constexpr name_rule given[]{{"attn/c_attn/kernel", -1}};
///       static constexpr auto rules(std::span<const named_shape> p, int m) { return name_rules(p, m, {.given = given}); }
///     };
struct redco_rules {
  static constexpr std::vector<parameter_rule> rules(std::span<const named_shape> parameters, int m) {
    return name_rules(parameters, m);
  }
};

namespace detail {
// Carry names and numbers into the compiler's message.
template <fixed_string Path>
struct parameter_named;
template <bool Ok, class Parameter, class Axis>
inline constexpr bool split_is_sound = Ok;
template <bool Ok, class Parameter>
inline constexpr bool model_lists = Ok;
template <class Axis, bool Static>
inline constexpr bool axis_size_is_static = Static;

template <mesh_like Mesh, class Axis>
constexpr int parts_over() {
  if constexpr (!Mesh::template has<Axis>)
    return 1;
  else if constexpr (Mesh::template axis_of<Axis>::is_static)
    return Mesh::template axis_of<Axis>::fixed_size;
  else
    return 0;
}

template <class Model, std::size_t At>
constexpr auto path_of_parameter() {
  constexpr std::string_view path = std::span<const named_shape>(Model::parameters)[At].path;
  char text[path.size() + 1]{};
  for (std::size_t i = 0; i < path.size(); ++i) text[i] = path[i];
  return fixed_string<path.size() + 1>(text);
}

template <class Mesh, class Axis, int Dim>
struct split_along {
  using type = layout_if<Mesh, shard<Dim, Axis>>;
};
template <class Mesh, class Axis>
struct split_along<Mesh, Axis, -1> {
  using type = layout<Mesh>;
};
}  // namespace detail

/// The plan of a model as types: the layout of parameter `At` is `at<At>`, that of a path `of<"fc1/kernel">`: split over
/// `Axis` along the dimension the rules chose, copied along every other axis of the mesh. The rules run in the compiler.
/// Errors (at compile time): the size of `Axis` is left to start-up; a path that the model does not list; a fused matrix
/// (q|k|v, k|v, gate|up) that would be cut into equal chunks, unless an explicit rule says so; a model with matrices of which
/// none is split and none told to be copied.
template <named_model Model, mesh_like Mesh, class Rules = redco_rules, class Axis = tp>
struct named_layouts {
  using mesh_type = Mesh;
  static constexpr int parts = detail::parts_over<Mesh, Axis>();
  static_assert(detail::axis_size_is_static<Axis, (parts != 0)>,
                "heddle: named_layouts: which dimensions divide depends on the axis' size; give it: axis<Tag, 4>");
  static constexpr std::size_t size = std::span<const named_shape>(Model::parameters).size();

  /// One rule per parameter, in the model's order.
  static constexpr std::array<parameter_rule, size> rules = [] {
    std::array<parameter_rule, size> all{};
    const auto found = Rules::rules(std::span<const named_shape>(Model::parameters), parts == 0 ? 1 : parts);
    for (std::size_t i = 0; i < size; ++i) all[i] = found[i];
    return all;
  }();

 private:
  static constexpr std::size_t first_mixed = [] {
    std::size_t i = 0;
    while (i < size && !rules[i].notes.mixes_fused) ++i;
    return i;
  }();
  static constexpr std::size_t culprit = first_mixed < size ? first_mixed : 0;
  static_assert(
      detail::split_is_sound<(first_mixed == size),
                             detail::parameter_named<detail::path_of_parameter<Model, culprit>()>, Axis>,
      "heddle: named_layouts: several matrices (q, k and v, or a gate and what it gates) lie side by side in this "
      "parameter, and equal chunks of it mix them; give it an explicit rule (-1 copies it), or keep a parameter "
      "of its own for each, or a dimension of heads");

  // Matrices, and none of them split or told to be copied: names that the rules do not know.
  static constexpr std::size_t first_copied = [] {
    std::size_t i = 0, split = 0, copied = size;
    for (; i < size; ++i) {
      split += rules[i].dim >= 0 ? 1 : 0;
      if (rules[i].notes.copies_matrix && rules[i].why == rule_reason::no_matrix && copied == size) copied = i;
    }
    return split > 0 ? size : copied;
  }();
  static_assert(
      detail::split_is_sound<
          (first_copied == size),
          detail::parameter_named<detail::path_of_parameter<Model, (first_copied < size ? first_copied : 0)>()>, Axis>,
      "heddle: named_layouts: the rules split no parameter of this model, so every rank would hold all of it; "
      "weights are known by their last part, kernel, embedding or weight: rename them, or give explicit rules");

  static constexpr std::size_t place(std::string_view path) {
    const std::span<const named_shape> all(Model::parameters);
    std::size_t i = 0;
    while (i < size && !detail::same_text(all[i].path, path)) ++i;
    return i;
  }

  template <fixed_string Path>
  static constexpr std::size_t checked_place() {
    constexpr std::size_t at = place(Path.view());
    static_assert(
        detail::model_lists<(at != size), detail::parameter_named<Path>>,
        "heddle: named_layouts: the model lists no parameter of this path; compare it with Model::parameters");
    return at == size ? 0 : at;
  }

 public:
  /// The place of a path in the model's list.
  template <fixed_string Path>
  static constexpr std::size_t index_of = checked_place<Path>();
  template <std::size_t At>
  using at = typename detail::split_along<Mesh, Axis, rules[At].dim>::type;
  template <fixed_string Path>
  using of = at<index_of<Path>>;
};

}  // namespace heddle::inline v0
