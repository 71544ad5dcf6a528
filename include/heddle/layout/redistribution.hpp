// heddle/layout/redistribution.hpp: how a tensor gets from one layout to another, and what it costs, before anything runs.
#pragma once

#include <heddle/layout/layout.hpp>
#include <heddle/layout/plan.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
namespace detail {

template <bool Ok, class... Names>
struct redistribution_exists {
  static constexpr bool value = Ok;
};

template <class Mesh, class... Tags>
constexpr std::array<int, sizeof...(Tags)> fixed_extents(type_list<Tags...>) {
  return {Mesh::template axis_of<Tags>::fixed_size...};
}

template <class Mesh>
[[noreturn]] void throw_two_meshes(const Mesh& from, const Mesh& to) {
  throw layout_error("heddle: a redistribution needs one mesh, got " + to_string(from) + " and " + to_string(to));
}

template <class From, class To>
struct found_steps {
  using mesh_type = typename From::mesh_type;
  using ops = joined<typename From::ops, typename To::ops>;
  using splits = joined<typename From::splits, typename To::splits>;
  static constexpr bool one_mesh = std::is_same_v<mesh_type, typename To::mesh_type>;
  static constexpr auto list = [] {
    if constexpr (one_mesh) {
      constexpr auto extents = fixed_extents<mesh_type>(typename mesh_type::tags{});
      constexpr auto axes = short_names(typename mesh_type::tags{});
      constexpr auto operators = short_names(ops{});
      auto found = find_steps(without_unit_axes(joint_table<ops, splits, From>::value, extents),
                              without_unit_axes(joint_table<ops, splits, To>::value, extents));
      for (redistribution_step& s : found.steps) {
        s.axis_name = axes[static_cast<std::size_t>(s.axis)];
        if (s.op >= 0) s.op_name = operators[static_cast<std::size_t>(s.op)];
      }
      return found;
    } else {
      return step_list<1>{};
    }
  }();
  using stuck_axis = typename decltype(axis_at<!list.complete, list.stuck>(typename mesh_type::tags{}))::type;

  // Called where a plan is made: an assertion in the class itself would make clang report every later use as well.
  static constexpr void check() {
    static_assert(redistribution_exists<one_mesh, mesh_type, typename To::mesh_type>::value,
                  "heddle: a redistribution needs source and target on one mesh; give both layouts the same mesh type");
    static_assert(redistribution_exists<list.complete, stuck_axis, From, To>::value,
                  "heddle: this redistribution goes via two steps, because it takes away or reorders an axis that is "
                  "not the last "
                  "cut of its dimension; redistribute first to a layout without the axes behind it, then to the target "
                  "(where two axes change places, gather one of them first)");
  }
};

}  // namespace detail

/// The plan that brings a tensor from layout `From` to layout `To` on one mesh: at most one step per axis that changes
/// (two from one operator's partial values to another's). The steps are constexpr data; sizes enter only where bytes
/// are asked for. Make one with `redistribution<From, To>` or `plan_redistribution(from, to)`.
/// Errors (at compile time): two meshes; a change that needs an axis to pass others in the order of its dimension.
/// Source: OneFlow's transfer table, Yuan et al. 2021, arXiv:2110.15032, table 2.
template <layout_like From, layout_like To>
class redistribution_plan {
  using found = detail::found_steps<From, To>;

 public:
  using from_layout = From;
  using to_layout = To;
  /// The operators that `redistribution_step::op` counts.
  using ops = typename found::ops;
  static constexpr auto steps = found::list.steps;

  constexpr redistribution_plan() { found::check(); }
  /// Errors: `layout_error` if the two meshes have the same axes but other extents.
  constexpr redistribution_plan(const From& from, const To& to) : from_(from), to_(to) {
    found::check();
    if (!(from.mesh() == to.mesh())) detail::throw_two_meshes(from.mesh(), to.mesh());
  }

  constexpr const From& from() const noexcept { return from_; }
  constexpr const To& to() const noexcept { return to_; }

  /// The shape of what `rank` holds before step number `step`; with `steps.size()`, after the last one.
  template <std::int64_t... E>
  constexpr dynamic_shape<sizeof...(E)> local_shape_before(std::size_t step, const shape<E...>& s, int rank) const {
    const auto mesh = detail::numbers_of(from_.mesh().extents());
    detail::check_rank(mesh.size, rank);
    if constexpr (fits<sizeof...(E)>())
      return make_shape(detail::local_box(cuts[step], mesh, s.extents(), rank).extent);
    else
      return {};
  }

  /// Bytes that `rank` sends, exactly, uneven parts included: each step's algorithm sends every element straight to the ranks
  /// that need it, or in a ring with the same total.
  template <std::int64_t... E>
  constexpr std::int64_t bytes_sent(const shape<E...>& s, std::size_t element_size, int rank) const {
    const auto mesh = detail::numbers_of(from_.mesh().extents());
    detail::check_rank(mesh.size, rank);
    std::int64_t elements = 0;
    if constexpr (fits<sizeof...(E)>())
      for (std::size_t i = 0; i != steps.size(); ++i)
        elements += detail::elements_sent(steps[i], detail::local_box(cuts[i], mesh, s.extents(), rank), mesh, rank);
    return elements * static_cast<std::int64_t>(element_size);
  }
  /// The most bytes that any rank sends. When all parts are even this is the ring formula and the same for every rank.
  template <std::int64_t... E>
  constexpr std::int64_t bytes_sent_per_rank(const shape<E...>& s, std::size_t element_size) const {
    std::int64_t most = 0;
    for (int rank = 0; rank < from_.mesh().size(); ++rank) {
      const std::int64_t bytes = bytes_sent(s, element_size, rank);
      if (bytes > most) most = bytes;
    }
    return most;
  }
  /// Bytes that all ranks send together.
  template <std::int64_t... E>
  constexpr std::int64_t bytes_sent_in_total(const shape<E...>& s, std::size_t element_size) const {
    std::int64_t total = 0;
    for (int rank = 0; rank < from_.mesh().size(); ++rank) total += bytes_sent(s, element_size, rank);
    return total;
  }

 private:
  static constexpr int min_rank =
      From::min_tensor_rank > To::min_tensor_rank ? From::min_tensor_rank : To::min_tensor_rank;
  template <std::size_t Rank>
  static constexpr bool fits() {
    static_assert(
        detail::tensor_has_dimension<min_rank - 1, Rank>::value,
        "heddle: a redistribution splits a dimension that the tensor does not have; dimensions count from 0, so lower "
        "the number in shard<dim, ...> or give the tensor more dimensions");
    return min_rank <= static_cast<int>(Rank);
  }
  // What is cut before each step, and after the last.
  static constexpr auto cuts = [] {
    std::array<decltype(detail::cuts_of(found::list.tables[0])), steps.size() + 1> all{};
    for (std::size_t i = 0; i != all.size(); ++i) all[i] = detail::cuts_of(found::list.tables[i]);
    return all;
  }();

  [[no_unique_address]] From from_{};
  [[no_unique_address]] To to_{};
};

namespace detail {
template <class From, class To>
constexpr redistribution_plan<From, To> static_plan() {
  static_assert(From::mesh_type::is_static,
                "heddle: redistribution<From, To> needs a mesh whose extents are all static; for others, call "
                "plan_redistribution(from, to) with layout objects");
  return {};
}
}  // namespace detail

/// The plan between two layouts of a static mesh, a constant. `redistribution<out, input>.steps`.
template <layout_like From, layout_like To>
inline constexpr redistribution_plan<From, To> redistribution = detail::static_plan<From, To>();

/// The plan between two layout objects, whatever is known of their mesh.
/// Errors: `layout_error` if their meshes differ in an extent; compile errors as `redistribution_plan`.
template <layout_like From, layout_like To>
constexpr redistribution_plan<From, To> plan_redistribution(const From& from, const To& to) {
  return redistribution_plan<From, To>(from, to);
}

/// `"all_reduce(plus) over tp"`, `"all_to_all from dimension 0 to 1 over tp"`.
inline std::string to_string(const redistribution_step& step) {
  std::string text(to_string(step.kind));
  if (step.op >= 0) text += "(" + std::string(step.op_name) + ")";
  if (step.from_dim >= 0 && step.to_dim >= 0)
    text += " from dimension " + std::to_string(step.from_dim) + " to " + std::to_string(step.to_dim);
  else if (step.from_dim >= 0 || step.to_dim >= 0)
    text += " of dimension " + std::to_string(step.from_dim >= 0 ? step.from_dim : step.to_dim);
  return text + " over " + std::string(step.axis_name);
}

namespace detail {
inline std::string plan_text(const std::string& from, const std::string& to, const redistribution_step* steps,
                             std::size_t count) {
  std::string text = from + " -> " + to + ": ";
  if (count == 0) text += "nothing to do";
  for (std::size_t i = 0; i != count; ++i) text += (i == 0 ? "" : "; ") + to_string(steps[i]);
  return text;
}
}  // namespace detail

/// `"shard<0, dp>, partial<plus, tp> -> shard<0, dp> on dp=2 x tp=2: all_reduce(plus) over tp"`.
template <layout_like From, layout_like To>
std::string to_string(const redistribution_plan<From, To>& plan) {
  return detail::plan_text(detail::placements_text(static_cast<const From*>(nullptr)), to_string(plan.to()),
                           plan.steps.begin(), plan.steps.size());
}

}  // namespace heddle::inline v0
