// heddle/layout/propagate.hpp: the layout of a product or reduction, from the layouts of its operands.
#pragma once

#include <heddle/layout/formula.hpp>
#include <heddle/layout/layout.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
namespace detail {

enum class einsum_problem : unsigned char {
  none,
  dim_without_letter,
  two_partials,
  partial_and_split,
  not_linear,
  two_letters,
  one_side_split,
  other_order
};

// The result's layout as a value, or the first mistake: which axis, between which operands, about which letter.
template <std::size_t Axes>
struct einsum_outcome {
  axis_table<Axes> table{};
  einsum_problem problem = einsum_problem::none;
  int operand = 0;
  int other = 0;
  std::size_t axis = 0;
  char letter = ' ';

  constexpr void refuse(einsum_problem p, int first, int second, std::size_t on_axis, char about) {
    if (problem != einsum_problem::none) return;
    problem = p;
    operand = first;
    other = second;
    axis = on_axis;
    letter = about;
  }
};

// The factor rules, axis by axis. Operator 0 of the tables is `plus`.
template <std::size_t Axes, std::size_t N>
constexpr einsum_outcome<Axes> propagate_tables(const formula<N>& f, const axis_table<Axes>* tables) {
  einsum_outcome<Axes> out;
  const int operands = f.operand_count;
  for (std::size_t a = 0; a < Axes; ++a)
    for (int o = 0; o < operands; ++o)
      if (tables[o].use[a].role == axis_role::sharded && tables[o].use[a].dim >= f.operands[o].count) {
        out.refuse(einsum_problem::dim_without_letter, o, o, a, ' ');
        return out;
      }
  // Before all else, because no redistribution of another axis would help.
  for (std::size_t a = 0; a < Axes; ++a)
    for (int o = 0; o < operands; ++o)
      for (int p = 0; p < o; ++p)
        if (tables[p].use[a].role == axis_role::partial && tables[o].use[a].role == axis_role::partial)
          out.refuse(einsum_problem::two_partials, p, o, a, ' ');
  for (std::size_t a = 0; a < Axes; ++a) {
    int part = -1, split = -1;
    char letter = ' ';
    for (int o = 0; o < operands; ++o) {
      const axis_use& u = tables[o].use[a];
      if (u.role == axis_role::partial) part = o;
      if (u.role == axis_role::sharded) {
        const char mine = f.operands[o].letters[u.dim];
        if (split >= 0 && mine != letter) out.refuse(einsum_problem::two_letters, split, o, a, mine);
        if (split < 0) letter = mine;
        if (split < 0) split = o;
      }
    }
    if (part >= 0 && split >= 0) out.refuse(einsum_problem::partial_and_split, part, split, a, letter);
    if (part >= 0 && tables[part].use[a].op != 0 && !f.is_permutation()) out.refuse(einsum_problem::not_linear, part, part, a, ' ');
    if (split >= 0)
      for (int o = 0; o < operands; ++o)
        if (f.operands[o].has(letter) && tables[o].use[a].role != axis_role::sharded)
          out.refuse(einsum_problem::one_side_split, split, o, a, letter);
    if (part >= 0) out.table.use[a] = tables[part].use[a];
    if (split >= 0) {
      axis_use& u = out.table.use[a];
      u = tables[split].use[a];
      u.dim = f.output.find(letter);
      if (u.dim < 0) u = {axis_role::partial, -1, -1, 0, 0};
      for (int o = split + 1; o < operands; ++o)
        if (tables[o].use[a].role == axis_role::sharded && tables[o].use[a].level != tables[split].use[a].level)
          out.refuse(einsum_problem::other_order, split, o, a, letter);
    }
  }
  return out;
}

// These carry operands, axis and letter into the compiler's message; the assertion's text says what would repair it.
template <int Number, class Layout>
struct operand;
template <class Axis>
struct on_axis;
template <char Letter>
struct about_letter;
template <bool Ok, class... Names>
struct propagation_is_legal {
  static constexpr bool value = Ok;
};

template <fixed_string Text, bool Sound, class First, class... Rest>
struct propagated_table {
  using ops = joined<type_list<plus>, typename First::ops, typename Rest::ops...>;
  using splits = joined<type_list<split::balanced>, typename First::splits, typename Rest::splits...>;
  static constexpr axis_table<First::mesh_type::rank> tables[]{joint_table<ops, splits, First>::value,
                                                               joint_table<ops, splits, Rest>::value...};
  static constexpr auto outcome = propagate_tables(checked_formula<Text>::value, tables);
};
template <fixed_string Text, class First, class... Rest>
struct propagated_table<Text, false, First, Rest...> {
  using ops = type_list<plus>;
  using splits = type_list<split::balanced>;
  static constexpr einsum_outcome<First::mesh_type::rank> outcome{};
};

template <fixed_string Text, class First, class... Rest>
struct propagation {
  using mesh_type = typename First::mesh_type;
  static constexpr std::size_t given = 1 + sizeof...(Rest);
  static constexpr std::size_t wanted = static_cast<std::size_t>(checked_formula<Text>::value.operand_count);
  static constexpr bool formula_ok = checked_formula<Text>::ok;
  static constexpr bool one_mesh = (std::is_same_v<mesh_type, typename Rest::mesh_type> && ...);
  static_assert(!formula_ok || given == wanted,
                "heddle: propagate<formula, layouts...>: the formula has another number of operands than layouts were given; "
                "separate operands by commas and give one layout for each");
  static_assert(propagation_is_legal<!formula_ok || given != wanted || one_mesh, mesh_type, typename Rest::mesh_type...>::value,
                "heddle: propagate<formula, layouts...>: the operands live on different meshes; give all of them layouts on one mesh");

  using result = propagated_table<Text, formula_ok && given == wanted && one_mesh, First, Rest...>;
  using ops = typename result::ops;
  using splits = typename result::splits;
  static constexpr auto outcome = result::outcome;
  static constexpr einsum_problem problem = outcome.problem;

  template <einsum_problem P>
  using without = propagation_is_legal<
      problem != P, on_axis<typename decltype(axis_at<problem != einsum_problem::none, outcome.axis>(typename mesh_type::tags{}))::type>,
      about_letter<outcome.letter>, operand<outcome.operand, type_at<static_cast<std::size_t>(outcome.operand), First, Rest...>>,
      operand<outcome.other, type_at<static_cast<std::size_t>(outcome.other), First, Rest...>>>;

  static_assert(without<einsum_problem::dim_without_letter>::value,
                "heddle: propagate: a layout splits a dimension for which its operand has no letter; dimensions count from 0, so "
                "lower the number in shard<dim, ...> or add letters to the operand");
  static_assert(without<einsum_problem::two_partials>::value,
                "heddle: propagate: two operands hold partial values over one axis, and a product of sums is not the sum of the "
                "products; redistribute one of them to replicated over this axis (all_reduce) first");
  static_assert(without<einsum_problem::partial_and_split>::value,
                "heddle: propagate: one operand holds partial values over an axis that splits another operand, so terms would be "
                "missing; redistribute the partial operand to replicated (all_reduce) or to a split (reduce_scatter) first");
  static_assert(without<einsum_problem::not_linear>::value,
                "heddle: propagate: products and sums do not commute with the operator of a partial operand (only plus does); "
                "redistribute the operand to replicated over this axis (all_reduce) first");
  static_assert(without<einsum_problem::two_letters>::value,
                "heddle: propagate: one mesh axis splits two different letters, so each rank would see only the diagonal blocks; "
                "redistribute one of the operands to replicated over this axis (all_gather) first");
  static_assert(without<einsum_problem::one_side_split>::value,
                "heddle: propagate: an axis splits a letter in one operand but not in the other that has it, so their parts do not "
                "match; redistribute the second to the same split (slice) or the first to replicated (all_gather)");
  static_assert(without<einsum_problem::other_order>::value,
                "heddle: propagate: two operands split one letter over the same axes in another order, so their parts do not match; "
                "redistribute one of them to the order of the other");

  static constexpr axis_table<mesh_type::rank> table =
      problem == einsum_problem::none ? outcome.table : axis_table<mesh_type::rank>{};
  static constexpr auto groups = canonical_groups(table);
  using type = layout_from<propagation>;
};

}  // namespace detail

/// The layout of `einsum(Formula, operands...)` when every rank computes with the parts it holds and nothing is sent.
/// `propagate<"bi,io->bo", input, column>`; one operand too: `"bij->ji"` transposes and sums over b.
///
/// For each mesh axis: a letter that all its operands split alike stays split in the result, or becomes
/// `partial<plus>` when it is summed; one operand that is `partial<plus>` while the others replicate passes it on;
/// replicated everywhere stays replicated.
/// Errors (at compile time, naming operands, axis and letter): two partial operands, a partial one against a split one, one
/// axis on two letters, operands that split a letter differently, operators that a product does not commute with.
/// Source: factor rules of OpenXLA Shardy; signatures of Yuan et al. 2021 (OneFlow), arXiv:2110.15032, table 1.
template <fixed_string Formula, layout_like... Operands>
using propagate = typename detail::propagation<Formula, Operands...>::type;

/// The propagated layout as an object, for meshes whose extents are known at run time.
/// Errors: `layout_error` if the operands' meshes differ; compile errors as `propagate`.
template <fixed_string Formula, layout_like First, layout_like... Rest>
constexpr propagate<Formula, First, Rest...> propagated(const First& first, const Rest&... rest) {
  const auto same = [&](const auto& other) {
    if (!(first.mesh() == other.mesh()))
      throw layout_error("heddle: propagated: the operands live on different meshes: " + to_string(first.mesh()) + " and " +
                         to_string(other.mesh()));
  };
  (same(rest), ...);
  return propagate<Formula, First, Rest...>{first.mesh()};
}

namespace detail {
template <fixed_string Formula, std::size_t... Ranks>
struct formula_fits {
  using checked = checked_formula<Formula>;
  static constexpr bool value = [] {
    if (!checked::ok) return true;  // already reported
    constexpr std::size_t ranks[]{Ranks...};
    if (static_cast<std::size_t>(checked::value.operand_count) != sizeof...(Ranks)) return false;
    for (std::size_t o = 0; o < sizeof...(Ranks); ++o)
      if (static_cast<std::size_t>(checked::value.operands[o].count) != ranks[o]) return false;
    return true;
  }();
};

template <class... Shapes>
constexpr std::int64_t extent_at(std::size_t which, std::size_t dim, const Shapes&... shapes) {
  std::int64_t found = 0;
  std::size_t at = 0;
  ((found = at++ == which ? shapes.extent(dim) : found), ...);
  return found;
}
}  // namespace detail

/// The shape of `einsum(Formula, operands...)`. `propagate_shape<"bi,io->bo">(shape{8, 4}, shape{4, 2})` is `8 x 2`.
/// Errors: `layout_error` if a letter has two sizes, naming both places; a compile error if a rank does not match.
template <fixed_string Formula, std::int64_t... E, class... Shapes>
constexpr auto propagate_shape(const shape<E...>& first, const Shapes&... rest) {
  static_assert(detail::formula_fits<Formula, sizeof...(E), Shapes::rank()...>::value,
                "heddle: propagate_shape<formula>: a shape has another number of dimensions than its operand has letters, or the "
                "number of shapes differs; give one shape per operand and one dimension per letter");
  constexpr auto f = detail::checked_formula<Formula>::value;
  std::array<std::int64_t, static_cast<std::size_t>(f.output.count)> extents{};
  if constexpr (detail::formula_fits<Formula, sizeof...(E), Shapes::rank()...>::value && detail::checked_formula<Formula>::ok) {
    for (int o = 0; o < f.operand_count; ++o)
      for (int d = 0; d < f.operands[o].count; ++d) {
        const char letter = f.operands[o].letters[d];
        const auto here = detail::extent_at(static_cast<std::size_t>(o), static_cast<std::size_t>(d), first, rest...);
        for (int p = 0; p < o; ++p) {
          const int e = f.operands[p].find(letter);
          if (e < 0) continue;
          const auto there = detail::extent_at(static_cast<std::size_t>(p), static_cast<std::size_t>(e), first, rest...);
          if (here != there)
            throw layout_error("heddle: in \"" + std::string(Formula.view()) + "\" the letter " + std::string(1, letter) + " is " +
                               std::to_string(there) + " in dimension " + std::to_string(e) + " of operand " + std::to_string(p) +
                               " and " + std::to_string(here) + " in dimension " + std::to_string(d) + " of operand " +
                               std::to_string(o));
        }
        const int to = f.output.find(letter);
        if (to >= 0) extents[static_cast<std::size_t>(to)] = here;
      }
  }
  return make_shape(extents);
}

}  // namespace heddle::inline v0
