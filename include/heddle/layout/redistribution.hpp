// heddle/layout/redistribution.hpp: plans from one layout to another, bytes and memory.
#pragma once

#include <heddle/layout/gradient.hpp>
#include <heddle/layout/halo_steps.hpp>
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
inline constexpr bool redistribution_exists = Ok;

template <class Mesh, class... Tags>
constexpr std::array<int, sizeof...(Tags)> fixed_extents(type_list<Tags...>) {
  return {Mesh::template axis_of<Tags>::fixed_size...};
}

template <class Mesh>
[[noreturn]] void throw_two_meshes(const Mesh& from, const Mesh& to) {
  throw layout_error("heddle: a redistribution needs one mesh, got " + to_string(from) + " and " + to_string(to));
}

[[noreturn]] inline void throw_reordering() {
  throw layout_error(
      "heddle: a redistribution changes a dimension that an axis of one rank splits by a policy which reorders or pads "
      "the elements of one part; let the policy keep one part as it is");
}

// The plan of two layout types. Its steps are constants if the mesh is static, or if only one axis changes: then the
// steps do not depend on extents.
template <class From, class To, class Objective = objective::bytes>
struct found_steps {
  using mesh_type = typename From::mesh_type;
  using tags = typename mesh_type::tags;
  using ops = joined_lists<typename From::ops, typename To::ops>;
  using splits = distinct<joined_lists<typename From::splits, typename To::splits>>;
  static constexpr std::size_t axes = mesh_type::rank;
  static constexpr bool one_mesh = std::is_same_v<mesh_type, typename To::mesh_type>;
  static constexpr auto fixed = fixed_extents<mesh_type>(tags{});
  static constexpr auto objective = Objective::numbers(tags{});
  static constexpr axis_table<axes> from_table = without_unit_axes(joint_table<ops, splits, From>::value, fixed);
  static constexpr axis_table<axes> to_table = [] {
    if constexpr (one_mesh)
      return without_unit_axes(joint_table<ops, splits, To>::value, fixed);
    else
      return from_table;
  }();
  static constexpr std::size_t reordering_axis = [] {
    if constexpr (one_mesh)
      return axis_that_reorders_one_rank(joint_table<ops, splits, From>::value, joint_table<ops, splits, To>::value,
                                         fixed);
    else
      return axes;
  }();
  // Whether that depends on extents that are known only at run time.
  static constexpr bool may_reorder = [] {
    bool any = false;
    if constexpr (one_mesh && !mesh_type::is_static)
      for (std::size_t a = 0; a < axes; ++a)
        any = any || reorders_one_rank(from_table.use[a]) || reorders_one_rank(to_table.use[a]);
    return any;
  }();
  static constexpr auto changed = changes_between(from_table, to_table, objective.idle_axes);
  static constexpr bool meaningful = !one_mesh || changed.varying == axes;
  static constexpr bool possible = one_mesh && changed.varying == axes;
  using varying_axis = typename decltype(axis_at<(changed.varying != axes), changed.varying>(tags{}))::type;
  static constexpr bool halos = table_has_halo(from_table) || table_has_halo(to_table);
  static constexpr bool is_static =
      mesh_type::is_static || (changed.count <= 1 && objective.mode != objective_mode::seconds && !halos);

  template <class List>
  static constexpr void name_steps(List& list) {
    constexpr auto operators = short_names(ops{});
    for (redistribution_step& s : list.steps)
      if (s.op >= 0) s.op_name = operators[static_cast<std::size_t>(s.op)];
  }
  static constexpr std::array<int, axes> nominal = [] {
    std::array<int, axes> e = fixed;
    for (int& n : e) n = n > 0 ? n : 2;
    return e;
  }();
  static constexpr auto constant_steps() {
    if constexpr (possible && halos) {
      auto list = steps_with_halos(from_table, to_table, nominal, objective, short_names(tags{}));
      name_steps(list);
      return list;
    } else if constexpr (possible) {
      constexpr plan_names names = problem_between(from_table, to_table, nominal, objective);
      constexpr const planned_path& path = solved_path<names.problem>;
      auto list = steps_of<axes, path.steps.size()>(names, path, from_table, to_table, short_names(tags{}));
      name_steps(list);
      return list;
    } else {
      return step_list<axes, 0>{};
    }
  }
  // The same search where extents are known only now.
  static constexpr auto steps_on(const std::array<int, axes>& extents) {
    const axis_table<axes> from = without_unit_axes(from_table, extents), to = without_unit_axes(to_table, extents);
    if constexpr (halos) {
      auto list = steps_with_halos(from, to, extents, objective, short_names(tags{}));
      name_steps(list);
      return list;
    } else {
      const plan_names names = problem_between(from, to, extents, objective);
      auto list = steps_of<axes, 3 * axes + 2>(names, cheapest_path(names.problem), from, to, short_names(tags{}));
      name_steps(list);
      return list;
    }
  }

  // Called where a plan is made: an assertion in the class itself would make clang report every later use as well.
  static constexpr void check() {
    static_assert(
        redistribution_exists<one_mesh, mesh_type, typename To::mesh_type>,
        "heddle: a redistribution needs source and target on one mesh; give both layouts the same mesh type, or use "
        "plan_transfer");
    static_assert(
        redistribution_exists<meaningful, varying_axis, From, To>,
        "heddle: a redistribution cannot make or use up values that vary over an axis, because they have no meaning "
        "for the whole tensor; say what they mean with assume<To>, or keep the axis varying");
    static_assert(
        redistribution_exists<(reordering_axis == axes),
                              typename decltype(axis_at<(reordering_axis != axes), reordering_axis>(tags{}))::type,
                              From, To>,
        "heddle: a redistribution changes a dimension that an axis of one rank splits by a policy which reorders or "
        "pads "
        "the elements of one part; leave that axis out of the layout, or let the policy keep one part as it is");
  }
  static constexpr void require_reordering(const std::array<int, axes>& extents) {
    if constexpr (possible && may_reorder)
      if (axis_that_reorders_one_rank(from_table, to_table, extents) != axes) throw_reordering();
  }
};

template <class From, class To, class Objective, bool IsStatic = found_steps<From, To, Objective>::is_static>
class plan_steps {
  static constexpr auto list = found_steps<From, To, Objective>::constant_steps();

 public:
  static constexpr bool has_static_steps = true;
  static constexpr auto steps = list.steps;
  static constexpr auto tables = list.tables;
  static constexpr bool proven = list.proven;

  constexpr plan_steps() = default;
  constexpr plan_steps(const From&, const To&) {}
};
template <class From, class To, class Objective>
class plan_steps<From, To, Objective, false> {
  using list_type = std::conditional_t<found_steps<From, To, Objective>::halos, halo_step_list<From::mesh_type::rank>,
                                       step_list<From::mesh_type::rank>>;

 public:
  static constexpr bool has_static_steps = false;
  decltype(list_type::steps) steps{};
  decltype(list_type::tables) tables{};
  bool proven = true;

  constexpr plan_steps(const From& from, const To& to) {
    if constexpr (found_steps<From, To, Objective>::possible) {
      if (!(from.mesh() == to.mesh())) throw_two_meshes(from.mesh(), to.mesh());
      const auto list = found_steps<From, To, Objective>::steps_on(from.mesh().extents());
      steps = list.steps;
      tables = list.tables;
      proven = list.proven;
    }
  }
};

}  // namespace detail

/// The plan that brings a tensor from layout `From` to layout `To` on one mesh: of all ways, the cheapest for even
/// sizes (`Objective` says of what; see redistribution_objective.hpp). Between any two layouts there is one. Sizes enter only where
/// bytes are asked for. Make one with `redistribution<From, To>` or `plan_redistribution(from, to)`.
///   steps      the steps, in order
///   tables     what the axes do before each step, and after the last
///   proven     whether the search showed that no other plan is cheaper, by the objective, for even sizes and among the plans
///              that cut the dimensions which redistribution_objective.hpp says are searched. If not, it came to the end of what compilers
///              calculate in one constant, or three axes and more change and one becomes partial, for which not all exchanges
///              are searched: the plan is right, and the cheapest of those it saw. Where none becomes partial and four axes
///              change this is about one pair in 300 for `bytes`; more axes and the other objectives make it likelier. A plan
///              in two parts, over a layout in between that the author names, may then be better.
///   has_static_steps   whether both are constants of the type (always on a static mesh) or members, found when extents are known
/// Ranks that a change does not concern take no part: only axes that change talk (unless the objective says otherwise).
/// Errors: `layout_error` for bytes that a 64-bit number does not count. At compile time: two meshes; values that vary over an axis, before or after but not both. Source: OneFlow's
/// transfer table, Yuan et al. 2021, arXiv:2110.15032, table 2; moves on the last cut of a dimension as in PyTorch's
/// DTensor.
template <layout_like From, layout_like To, plan_objective Objective = objective::bytes>
class redistribution_plan : public detail::plan_steps<From, To, Objective> {
  using found = detail::found_steps<From, To, Objective>;
  using base = detail::plan_steps<From, To, Objective>;

 public:
  using from_layout = From;
  using to_layout = To;
  using objective_type = Objective;
  /// The operators that `redistribution_step::op` counts.
  using ops = typename found::ops;
  /// The least number of dimensions a tensor needs for the plan.
  static constexpr int min_tensor_rank = [] {
    const int named = From::min_tensor_rank > To::min_tensor_rank ? From::min_tensor_rank : To::min_tensor_rank;
    const int cut = detail::dimensions_cut_by<Objective>();
    return named > cut ? named : cut;
  }();
  using base::proven;
  using base::steps;
  using base::tables;

  constexpr redistribution_plan()
    requires(base::has_static_steps)
  {
    found::check();
  }
  /// Errors: `layout_error` if the two meshes have the same axes but other extents.
  constexpr redistribution_plan(const From& from, const To& to) : base(from, to), from_(from), to_(to) {
    found::check();
    if constexpr (found::one_mesh)
      if (!(from.mesh() == to.mesh())) detail::throw_two_meshes(from.mesh(), to.mesh());
    found::require_reordering(from.mesh().extents());
  }

  constexpr const From& from() const noexcept { return from_; }
  constexpr const To& to() const noexcept { return to_; }

  /// The shape of the memory of what `rank` holds before step number `step`; with `steps.size()`, after the last one.
  template <std::int64_t... E>
  constexpr dynamic_shape<sizeof...(E)> local_shape_before(std::size_t step, const shape<E...>& s, int rank) const {
    const auto mesh = detail::numbers_of(from_.mesh().extents());
    detail::require_rank(mesh.size, rank);
    if constexpr (fits<sizeof...(E)>())
      return make_shape(detail::part_of(cuts_before(step), mesh, s.extents(), rank).stored());
    else
      return {};
  }

  /// Bytes that `rank` sends, exactly, uneven parts included: each step's algorithm sends every element straight to the
  /// ranks that need it, or in a ring with the same total.
  template <std::int64_t... E>
  constexpr std::int64_t bytes_sent(const shape<E...>& s, std::size_t element_size, int rank) const {
    const auto mesh = detail::numbers_of(from_.mesh().extents());
    detail::require_rank(mesh.size, rank);
    std::int64_t elements = 0;
    if constexpr (fits<sizeof...(E)>())
      for (std::size_t i = 0; i != steps.size(); ++i)
        elements = sum_of_counts(
            elements, detail::elements_sent(steps[i], cuts_before(i), cuts_before(i + 1), mesh, s.extents(), rank));
    return sent(product_of_counts(elements, static_cast<std::int64_t>(element_size)), s);
  }
  /// The most bytes that any rank sends. When all parts are even this is the ring formula and the same for every rank.
  template <std::int64_t... E>
  [[gnu::always_inline]] constexpr std::int64_t bytes_sent_per_rank(const shape<E...>& s,
                                                                    std::size_t element_size) const {
    if constexpr (first_sends_most() && fits<sizeof...(E)>()) {
      const auto mesh = detail::numbers_of(from_.mesh().extents());
      const std::int64_t elements = all_first_sends(mesh, s.extents(), std::make_index_sequence<steps.size()>{});
      return sent(product_of_counts(elements, static_cast<std::int64_t>(element_size)), s);
    } else {
      std::int64_t most = 0;
      for (int rank = 0; rank < from_.mesh().size(); ++rank) {
        const std::int64_t bytes = bytes_sent(s, element_size, rank);
        if (bytes > most) most = bytes;
      }
      return most;
    }
  }
  /// Bytes that all ranks send together.
  template <std::int64_t... E>
  constexpr std::int64_t bytes_sent_in_total(const shape<E...>& s, std::size_t element_size) const {
    std::int64_t total = 0;
    for (int rank = 0; rank < from_.mesh().size(); ++rank)
      total = sum_of_counts(total, bytes_sent(s, element_size, rank));
    return sent(total, s);
  }

  /// The most memory that any rank needs for its part: before and after a step together, whatever the transport needs
  /// aside.
  template <std::int64_t... E>
  constexpr std::int64_t peak_bytes(const shape<E...>& s, std::size_t element_size) const {
    const auto mesh = detail::numbers_of(from_.mesh().extents());
    std::int64_t most = 0;
    if constexpr (fits<sizeof...(E)>())
      for (int rank = 0; rank < mesh.size; ++rank) {
        std::int64_t before = 0;
        for (std::size_t i = 0; i <= steps.size(); ++i) {
          const std::int64_t held =
              product_of_counts(detail::part_of(cuts_before(i), mesh, s.extents(), rank).stored());
          const std::int64_t together = sum_of_counts(before, held);
          most = together < 0 || most < 0 ? uncountable : together > most ? together : most;
          before = held;
        }
      }
    return detail::counted(product_of_counts(most, static_cast<std::int64_t>(element_size)), s.extents(),
                           "needs more bytes");
  }

  // What each axis does before step number `step`; with `steps.size()`, after the last one.
  constexpr const detail::axis_table<found::axes>& table_before(std::size_t step) const { return tables[step]; }
  // What is cut before step number `step`; with `steps.size()`, after the last one.
  constexpr detail::cut_list<found::axes> cuts_before(std::size_t step) const { return detail::cuts_of(tables[step]); }
  // What `rank` holds then.
  template <std::int64_t... E>
  constexpr detail::tensor_part<sizeof...(E), found::axes> part_before(std::size_t step, const shape<E...>& s,
                                                                       int rank) const {
    return detail::part_of(cuts_before(step), detail::numbers_of(from_.mesh().extents()), s.extents(), rank);
  }

 private:
  template <std::int64_t... E>
  static constexpr std::int64_t sent(std::int64_t bytes, const shape<E...>& s) {
    return detail::counted(bytes, s.extents(), "sends more bytes");
  }
  template <std::size_t Rank>
  static constexpr bool fits() {
    static_assert(
        detail::tensor_has_dimension<min_tensor_rank - 1, Rank>,
        "heddle: a redistribution splits a dimension that the tensor does not have; dimensions count from 0, so lower "
        "the number in shard<dim, ...> or give the tensor more dimensions");
    return min_tensor_rank <= static_cast<int>(Rank);
  }

  // Whether no rank sends more than rank 0, whatever the sizes: balanced parts are largest there, and these steps send
  // all of one.
  static constexpr bool first_sends_most() {
    if constexpr (base::has_static_steps) {
      for (const redistribution_step& step : steps)
        if (step.kind == step_kind::all_to_all || step.kind == step_kind::reduce_scatter ||
            step.kind == step_kind::exchange)
          return false;
      for (const auto& table : tables)
        for (const detail::axis_use& u : table.use)
          if (u.halo != 0 || (u.role == axis_role::sharded && u.how != &detail::functions_of<split::balanced>))
            return false;
      return true;
    } else {
      return false;
    }
  }
  template <std::size_t Step>
  static constexpr auto cuts_of_step = detail::cuts_of(base::tables[Step]);
  // Elements that rank 0 sends in one step; unrolled, so that it is a constant where the sizes are.
  template <std::size_t Step, std::size_t Rank>
  [[gnu::always_inline]] static constexpr std::int64_t first_sends(const detail::mesh_numbers<found::axes>& mesh,
                                                                   const std::array<std::int64_t, Rank>& extents) {
    constexpr redistribution_step step = base::steps[Step];
    if constexpr (step.kind != step_kind::all_gather && step.kind != step_kind::all_reduce) {
      return 0;
    } else {
      std::int64_t parts = 1;
      for (std::size_t a = 0; a < found::axes; ++a)
        if (step.axes >> a & 1u) parts *= mesh.extents[a];
      detail::tensor_box<Rank> box{{}, extents};
      [&]<std::size_t... Cuts>(std::index_sequence<Cuts...>) {
        (detail::apply_cut(box, cuts_of_step<Step>.cuts[Cuts], mesh, 0), ...);
      }(std::make_index_sequence<cuts_of_step<Step>.count>{});
      const std::int64_t all = box.size();
      if constexpr (step.kind == step_kind::all_gather) return product_of_counts(parts - 1, all);
      const std::int64_t own = balanced_split{all, parts}.size(0);
      return sum_of_counts(all - own, product_of_counts(parts - 1, own));
    }
  }

  template <std::size_t Rank, std::size_t... Steps>
  [[gnu::always_inline]] static constexpr std::int64_t all_first_sends(const detail::mesh_numbers<found::axes>& mesh,
                                                                       const std::array<std::int64_t, Rank>& extents,
                                                                       std::index_sequence<Steps...>) {
    std::int64_t elements = 0;
    ((elements = sum_of_counts(elements, first_sends<Steps>(mesh, extents))), ...);
    return elements;
  }

  [[no_unique_address]] From from_{};
  [[no_unique_address]] To to_{};
};

namespace detail {
template <class From, class To, class Objective>
constexpr redistribution_plan<From, To, Objective> static_plan() {
  static_assert(From::mesh_type::is_static,
                "heddle: redistribution<From, To> needs a mesh whose extents are all static; for others, call "
                "plan_redistribution(from, to) with layout objects");
  if constexpr (From::mesh_type::is_static)
    return {};
  else
    return {From{}, To{}};
}
}  // namespace detail

/// The plan between two layouts of a static mesh, a constant. `redistribution<out, input>.steps`.
template <layout_like From, layout_like To, plan_objective Objective = objective::bytes>
inline constexpr redistribution_plan<From, To, Objective> redistribution = detail::static_plan<From, To, Objective>();

/// The plan between two layout objects, whatever is known of their mesh.
/// Errors: `layout_error` if their meshes differ in an extent; compile errors as `redistribution_plan`.
template <layout_like From, layout_like To, plan_objective Objective = objective::bytes>
constexpr redistribution_plan<From, To, Objective> plan_redistribution(const From& from, const To& to, Objective = {}) {
  return redistribution_plan<From, To, Objective>(from, to);
}

/// How gradients go back where a plan brought values: from the target's gradient layout to the source's.
template <class Plan>
using backward_plan = redistribution_plan<dual<typename Plan::to_layout>, dual<typename Plan::from_layout>,
                                          typename Plan::objective_type>;

namespace detail {
inline std::string step_text(const redistribution_step& step, const std::string_view* axes, std::size_t count) {
  std::string text(to_string(step.kind));
  if (step.op >= 0) {
    text += "(";
    text += step.op_name;
    text += ")";
  }
  const int dim = step.from_dim >= 0 ? step.from_dim : step.to_dim;
  if (step.from_dim >= 0 && step.to_dim >= 0) {
    text += " from dimension ";
    text += std::to_string(step.from_dim);
    text += " to ";
    text += std::to_string(step.to_dim);
  } else if (dim >= 0) {
    text += " of dimension ";
    text += std::to_string(dim);
  }
  text += " over ";
  if ((step.axes & (step.axes - 1)) == 0 || count == 0) {
    text += step.axis_name;
    return text;
  }
  bool first = true;
  for (std::size_t a = 0; a < count; ++a)
    if (step.axes >> a & 1u) {
      text += first ? "" : ", ";
      text += axes[a];
      first = false;
    }
  return text;
}
inline std::string plan_text(std::string text, const std::string& to, const redistribution_step* steps,
                             std::size_t count, const std::string_view* axes, std::size_t axis_count) {
  text += " -> ";
  text += to;
  text += count == 0 ? ": nothing to do" : ": ";
  for (std::size_t i = 0; i != count; ++i) {
    text += i == 0 ? "" : "; ";
    text += step_text(steps[i], axes, axis_count);
  }
  return text;
}
}  // namespace detail

/// `"all_reduce(plus) over tp"`, `"all_to_all from dimension 0 to 1 over tp"`. Of several axes it names the first: a
/// plan's own text names all.
inline std::string to_string(const redistribution_step& step) {
  return detail::step_text(step, nullptr, 0);
}

/// `"shard<0, dp>, partial<plus, tp> -> shard<0, dp> on dp=2 x tp=2: all_reduce(plus) over tp"`.
template <layout_like From, layout_like To, plan_objective Objective>
std::string to_string(const redistribution_plan<From, To, Objective>& plan) {
  constexpr auto axes = detail::short_names(typename From::mesh_type::tags{});
  return detail::plan_text(detail::placements_text(static_cast<const From*>(nullptr)), to_string(plan.to()),
                           plan.steps.begin(), plan.steps.size(), axes.data(), axes.size() - 1);
}

}  // namespace heddle::inline v0
