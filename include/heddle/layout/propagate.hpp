// heddle/layout/propagate.hpp: the layout of an operator's result, from its operands.
#pragma once

#include <heddle/layout/factor_rule.hpp>
#include <heddle/layout/formula.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/layout/repair.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

/// The kind of operators that layouts propagate through: see `operation`.
struct operation_kind {};

/// An operator that layouts propagate through. It has
///   `monoid`                 the operator of its reductions (`plus` where there are none)
///   `least`, `most`          how many operands it takes
///   `rule(ranks)`            its `factor_rule`; `ranks[o]` is the least number of dimensions that operand o has
/// The operators of heddle are in `namespace op`; yours may be anywhere. `testing::propagation_law` checks their rules.
template <class Op>
concept operation = std::same_as<typename Op::kind, operation_kind> && requires {
  typename Op::monoid;
  { Op::least } -> std::convertible_to<int>;
  { Op::most } -> std::convertible_to<int>;
};

namespace op {
/// Product and sum over letters: `einsum<"bi,io->bo">`.
template <fixed_string Formula>
struct einsum {
  using kind = operation_kind;
  using monoid = plus;
  using checked = detail::checked_formula<Formula>;
  static constexpr int least = checked::value.operand_count;
  static constexpr int most = least;
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>&) {
    return detail::einsum_rule(checked::value);
  }
};
}  // namespace op

namespace detail {

// Whether the operator's own parameters make sense; if not, they have been refused already.
template <class Op>
struct operation_ok {
  static constexpr bool value = true;
};
template <class Op>
  requires requires { typename Op::checked; }
struct operation_ok<Op> {
  static constexpr bool value = Op::checked::ok;
};

template <class Op>
inline constexpr bool has_own_evaluation = requires { Op::has_own_evaluation; };
template <class Op, std::size_t Count>
constexpr auto made_rule(const std::array<int, Count>& ranks) {
  if constexpr (has_own_evaluation<Op>)
    return 0;
  else
    return Op::rule(ranks);
}

// An operator's rule with what it needs to be applied to tables.
template <class Op, std::size_t Axes, std::size_t Count, std::size_t Ops>
struct rule_evaluator {
  std::array<operator_facts, Ops> facts{};
  std::array<int, Axes> extents{};
  decltype(made_rule<Op>(std::array<int, Count>{})) rule{};

  using tables_type = std::array<axis_table<Axes>, Count>;

  constexpr rule_outcome<Axes> strictly(const tables_type& tables) const {
    if constexpr (has_own_evaluation<Op>)
      return Op::evaluate(tables[0], extents);
    else
      return propagate_strictly(rule, tables.data(), facts.data());
  }
  constexpr rule_outcome<Axes> operator()(const tables_type& tables) const {
    return without_inert_mistakes([this](const tables_type& t) { return strictly(t); }, tables, extents);
  }
  constexpr std::size_t results() const {
    if constexpr (has_own_evaluation<Op>)
      return 1;
    else
      return static_cast<std::size_t>(rule.result_count);
  }
  constexpr char letter(std::size_t o, int d) const {
    if constexpr (has_own_evaluation<Op>)
      return static_cast<char>('a' + d);
    else
      return rule.operands[o].letters[d];
  }
  constexpr int slot(std::size_t o) const {
    if constexpr (has_own_evaluation<Op>)
      return 1;
    else
      return rule.operands[o].slot;
  }
  // Whether parts are combined along some dimension.
  constexpr bool combines() const {
    if constexpr (!has_own_evaluation<Op>)
      for (int f = 0; f < rule.factor_count; ++f)
        if (rule.factors[f].kind == factor_kind::reduction) return true;
    return false;
  }
  // How many dimensions of each operand are known to be there.
  constexpr std::array<int, Count> dims() const {
    std::array<int, Count> out{};
    for (std::size_t o = 0; o < Count; ++o) {
      if constexpr (has_own_evaluation<Op>)
        out[o] = Op::rank;
      else
        out[o] = rule.operands[o].count;
    }
    return out;
  }
};

template <class Own, class List>
struct operator_table;
template <class Own, class... Os>
struct operator_table<Own, type_list<Os...>> {
  static constexpr std::array<operator_facts, sizeof...(Os)> value{
      operator_facts{std::is_same_v<Os, plus>, std::is_same_v<Os, maximum> || std::is_same_v<Os, minimum>,
                     std::is_same_v<Os, Own>}...};
};

// These carry operands, axis, letter and repair into the compiler's message; the assertion's text says what to do.
template <int Number, class Layout>
struct operand;
template <class Axis>
struct on_axis;
template <char Letter>
struct about_letter;
template <int Dim>
struct about_dimension;
template <class Op>
struct through_operator;
template <class... Redistributions>
struct repaired_by;
template <bool Ok, class... Names>
struct propagation_is_legal {
  static constexpr bool value = Ok;
};

// What an operator makes of some layouts, without complaints. `Sound`: the call itself makes sense.
template <class Op, bool Sound, class First, class... Rest>
struct propagation_facts {
  using mesh_type = typename First::mesh_type;
  static constexpr std::size_t axes = mesh_type::rank;
  static constexpr std::size_t count = 1 + sizeof...(Rest);
  using ops = distinct<joined_lists<type_list<typename Op::monoid>, typename First::ops, typename Rest::ops...>>;
  using splits = distinct<joined_lists<type_list<split::balanced>, typename First::splits, typename Rest::splits...>>;
  static constexpr std::array<axis_table<axes>, count> tables{joint_table<ops, splits, First>::value,
                                                              joint_table<ops, splits, Rest>::value...};
  static constexpr std::array<int, axes> extents = extents_or_unknown<mesh_type>(typename mesh_type::tags{});
  static constexpr rule_evaluator<Op, axes, count, ops::size> evaluate{
      operator_table<typename Op::monoid, ops>::value, extents,
      made_rule<Op>(std::array<int, count>{First::min_tensor_rank, Rest::min_tensor_rank...})};
  static constexpr rule_outcome<axes> outcome = evaluate(tables);
  static constexpr std::size_t results = evaluate.results();
  static constexpr bool ordered = !is_commutative<typename Op::monoid> && evaluate.combines();
};
template <class Op, class First, class... Rest>
struct propagation_facts<Op, false, First, Rest...> {
  using mesh_type = typename First::mesh_type;
  static constexpr std::size_t count = 1 + sizeof...(Rest);
  using ops = type_list<typename Op::monoid>;
  using splits = type_list<split::balanced>;
  static constexpr rule_outcome<mesh_type::rank> outcome{};
  static constexpr std::size_t results = 1;
  static constexpr bool ordered = false;
};

// The search for a repair, made only where one is asked for.
template <class Facts>
struct propagation_repair {
  static constexpr auto result = find_repair(Facts::evaluate, Facts::tables, Facts::extents, Facts::evaluate.dims());
  static constexpr auto outcome = Facts::evaluate(result.tables);
};

// Layouts from tables: `Source` has an array of them under `at(i)`.
template <class Facts, std::size_t R>
struct result_layout : in_words_of<Facts> {
  static constexpr auto groups =
      canonical_groups(Facts::outcome.legal() ? Facts::outcome.results[R] : axis_table<Facts::mesh_type::rank>{});
  using type = layout_from<result_layout>;
};
template <class Facts, std::size_t R>
struct repaired_result_layout : in_words_of<Facts> {
  static constexpr auto groups = canonical_groups(propagation_repair<Facts>::outcome.results[R]);
  using type = layout_from<repaired_result_layout>;
};
template <class Facts, std::size_t O>
struct repaired_operand_layout : in_words_of<Facts> {
  static constexpr auto groups = canonical_groups(propagation_repair<Facts>::result.tables[O]);
  using type = layout_from<repaired_operand_layout>;
};

template <template <class, std::size_t> class Layout, class Facts, std::size_t... R>
constexpr auto one_or_list(std::index_sequence<R...>) {
  if constexpr (sizeof...(R) == 1)
    return typename Layout<Facts, 0>::type{};
  else
    return type_list<typename Layout<Facts, R>::type...>{};
}

template <class Facts, std::size_t O>
constexpr auto named_redistribution() {
  if constexpr (propagation_repair<Facts>::result.tables[O] == Facts::tables[O])
    return type_list<>{};
  else
    return type_list<redistribute_operand<static_cast<int>(O), typename repaired_operand_layout<Facts, O>::type>>{};
}
template <class... Rs>
repaired_by<Rs...> as_repair(type_list<Rs...>);
template <class Facts, std::size_t... O>
constexpr auto named_repair(std::index_sequence<O...>) {
  if constexpr (Facts::outcome.legal())
    return std::type_identity<repaired_by<>>{};
  else if constexpr (!propagation_repair<Facts>::result.found)
    return std::type_identity<repaired_by<>>{};
  else
    return std::type_identity<decltype(as_repair(joined_lists<decltype(named_redistribution<Facts, O>())...>{}))>{};
}

template <class Op, class First, class... Rest>
struct propagation {
  using mesh_type = typename First::mesh_type;
  static constexpr std::size_t given = 1 + sizeof...(Rest);
  static constexpr bool ok = operation_ok<Op>::value;
  static constexpr bool counted =
      given >= static_cast<std::size_t>(Op::least) && given <= static_cast<std::size_t>(Op::most);
  static constexpr bool one_mesh = (std::is_same_v<mesh_type, typename Rest::mesh_type> && ...);
  static constexpr bool halos = (First::has_halo || ... || Rest::has_halo);
  static constexpr bool sound = ok && counted && one_mesh && !halos;
  using facts = propagation_facts<Op, sound, First, Rest...>;
  static constexpr bool legal = sound && !facts::ordered && facts::outcome.legal();
};

template <class Op, class First, class... Rest>
struct checked_propagation {
  using base = propagation<Op, First, Rest...>;
  using mesh_type = typename First::mesh_type;
  using facts = typename base::facts;
  static constexpr bool seen = true;

  static_assert(
      propagation_is_legal < !base::ok || base::counted, through_operator < Op >> ::value,
      "heddle: propagate<formula, layouts...>: the formula has another number of operands than layouts were given; "
      "separate operands by commas and give one layout for each (an operator of namespace op: as many as it takes)");
  static_assert(propagation_is_legal < !base::ok || !base::counted || base::one_mesh, mesh_type,
                typename Rest::mesh_type... > ::value,
                "heddle: propagate<formula, layouts...>: the operands live on different meshes; give all of them "
                "layouts on one mesh");

  static_assert(
      propagation_is_legal < !base::ok || !base::counted || !base::one_mesh || !base::halos, through_operator<Op>,
      First, Rest... > ::value,
      "heddle: propagate: an operand has a halo, whose elements the operator would take twice; redistribute it to "
      "without_halo<layout> (no bytes) first, and compute a stencil with kernels of your own on local()");
  static_assert(
      propagation_is_legal<!facts::ordered, through_operator<Op>, typename Op::monoid>::value,
      "heddle: propagate: the rule of an operator reduces a dimension under a monoid that is not commutative, "
      "but parts are combined in any order; declare static constexpr bool commutative = true in the monoid if it "
      "is, or make the factor whole");
  static constexpr auto finding = facts::outcome.finding;
  static constexpr rule_problem problem = finding.problem;

  using repair = typename decltype(named_repair<facts>(std::make_index_sequence<facts::count>{}))::type;
  template <rule_problem P>
  using without =
      propagation_is_legal<problem != P,
                           on_axis<typename decltype(axis_at<problem != rule_problem::none, facts::outcome.axis>(
                               typename mesh_type::tags{}))::type>,
                           through_operator<Op>, about_letter<finding.letter>, about_dimension<finding.dim>,
                           operand<finding.operand, type_at<static_cast<std::size_t>(finding.operand), First, Rest...>>,
                           operand<finding.other, type_at<static_cast<std::size_t>(finding.other), First, Rest...>>,
                           repair>;

  static_assert(
      without<rule_problem::dim_without_letter>::value,
      "heddle: propagate: a layout splits a dimension for which its operand has no letter; dimensions count from 0, so "
      "lower the number in shard<dim, ...> or add letters to the operand (operators take at most 12 dimensions)");
  static_assert(
      without<rule_problem::two_partials>::value,
      "heddle: propagate: two operands hold partial values over one axis, and a product of sums is not the sum of the "
      "products; redistribute one of them to replicated over this axis (all_reduce) first");
  static_assert(
      without<rule_problem::partial_and_split>::value,
      "heddle: propagate: one operand holds partial values over an axis that splits another operand, so terms would be "
      "missing; redistribute the partial operand to replicated (all_reduce) or to a split (reduce_scatter) first");
  static_assert(without<rule_problem::partial_and_whole>::value,
                "heddle: propagate: one term of a sum holds partial values over an axis and another does not, so the "
                "latter would "
                "be added once per rank; redistribute it to partial too (keep_on_owner), or the first to replicated "
                "(all_reduce)");
  static_assert(
      without<rule_problem::partial_refused>::value,
      "heddle: propagate: an operator that is not linear in an operand would compute with partial values; redistribute "
      "the operand to replicated (all_reduce) or to a split (reduce_scatter) over this axis first");
  static_assert(
      without<rule_problem::wrong_operator>::value,
      "heddle: propagate: the operator does not commute with the operator of a partial operand (products and sums "
      "do only with plus, monotone functions only with maximum and minimum); redistribute the operand to "
      "replicated over this axis (all_reduce) first");
  static_assert(
      without<rule_problem::two_operators>::value,
      "heddle: propagate: two operands hold partial values over one axis under different operators; redistribute both "
      "to replicated over this axis (all_reduce) first");
  static_assert(
      without<rule_problem::two_letters>::value,
      "heddle: propagate: one mesh axis splits two different letters, so each rank would see only the diagonal blocks; "
      "redistribute one of the operands to replicated over this axis (all_gather) first");
  static_assert(without<rule_problem::one_side_split>::value,
                "heddle: propagate: an axis splits a letter in one operand but not in the other that has it, so their "
                "parts do not "
                "match; redistribute the second to the same split (slice) or the first to replicated (all_gather)");
  static_assert(without<rule_problem::other_order>::value,
                "heddle: propagate: two operands split one letter over the same axes in another order, so their parts "
                "do not match; "
                "redistribute one of them to the order of the other");
  static_assert(
      without<rule_problem::other_policy>::value,
      "heddle: propagate: two operands split one letter under different split policies, so their parts do not match; "
      "redistribute one of them to the policy of the other");
  static_assert(
      without<rule_problem::needs_whole>::value,
      "heddle: propagate: the operator needs a dimension whole on each rank, but an axis splits it; redistribute the "
      "operand to replicated (all_gather) or to a split of another dimension (all_to_all) over this axis first");
  static_assert(
      without<rule_problem::identical_mixed>::value,
      "heddle: propagate: an operand is identical over an axis and another is not; redistribute the identical one to "
      "replicated over this axis (no bytes), so that its gradient is summed");
  static_assert(
      without<rule_problem::varying_mixed>::value,
      "heddle: propagate: an operand varies over an axis and another is split, partial or identical over it; values "
      "without "
      "a common meaning combine only with replicated ones, so redistribute the other operand to replicated first, or "
      "assume<layout> what the values mean");
  static_assert(
      without<rule_problem::not_interval>::value,
      "heddle: propagate: a reshape keeps a split only where each part is one interval, which the split policy of this "
      "axis does not give; redistribute the operand to a balanced split or to replicated first");
  static_assert(
      without<rule_problem::not_divisible>::value,
      "heddle: propagate: a reshape keeps a split only on the leading part that both shapes share, and where the axis "
      "divides it evenly; redistribute the operand to another dimension or to replicated (all_gather) first");
  static_assert(
      without<rule_problem::unknown_extent>::value,
      "heddle: propagate: a reshape joins or parts a dimension split over an axis whose extent is known only at "
      "start-up, so whether it divides is unknown; fix the axis's extent, or redistribute to replicated first");
};

template <bool Sound, class Op, class... Ls>
struct propagation_of {
  using type = void;  // refused already
};
template <class Op, class... Ls>
struct propagation_of<true, Op, Ls...> {
  using facts = typename propagation<Op, Ls...>::facts;
  using type = decltype(one_or_list<result_layout, facts>(std::make_index_sequence<facts::results>{}));
  // What asserts is not a base: clang would take a class derived from one whose assertion failed as one without members,
  // and complain of each use of the type.
  static_assert(checked_propagation<Op, Ls...>::seen);
};

template <class Op, bool Found, class First, class... Rest>
struct repaired_facts {
  using facts = typename propagation<Op, First, Rest...>::facts;
  template <std::size_t... O>
  static constexpr auto layouts(std::index_sequence<O...>) {
    return type_list<typename repaired_operand_layout<facts, O>::type...>{};
  }
  using operands = decltype(layouts(std::make_index_sequence<facts::count>{}));
  using result = decltype(one_or_list<repaired_result_layout, facts>(std::make_index_sequence<facts::results>{}));
  static constexpr bool proven = propagation_repair<facts>::result.proven;
};
template <class Op, class First, class... Rest>
struct repaired_facts<Op, false, First, Rest...> {  // legal as it is, or beyond repair and told so
  using operands = type_list<First, Rest...>;
  using result = typename propagation_of<true, Op, First, Rest...>::type;
  static constexpr bool proven = true;
};
template <class Op, class... Ls>
constexpr bool is_repairable() {
  using base = propagation<Op, Ls...>;
  if constexpr (!base::sound || base::legal)
    return false;
  else
    return propagation_repair<typename base::facts>::result.found;
}

template <class Op, class... Ls>
struct propagation_arguments {
  static constexpr bool any = sizeof...(Ls) > 0;
  static constexpr bool layouts = (layout_like<Ls> && ...);
  static_assert(propagation_is_legal<any, through_operator<Op>>::value,
                "heddle: propagate<formula, layouts...>: no layouts are given; give one layout for each operand");
  static_assert(propagation_is_legal<layouts, through_operator<Op>, Ls...>::value,
                "heddle: propagate<formula, layouts...>: every argument after the formula or operator must be a layout "
                "(auto_redistribute may stand before them); give one layout for each operand");
};
template <bool Sound, class Op, class... Ls>
struct repaired_propagation_of {
  using type = void;
};
template <class Op, class... Ls>
struct repaired_propagation_of<true, Op, Ls...> {
  using type = typename repaired_facts<Op, is_repairable<Op, Ls...>(), Ls...>::result;
};
template <class Op, class... Ls>
struct propagation_choice
    : propagation_of<propagation_arguments<Op, Ls...>::any && propagation_arguments<Op, Ls...>::layouts, Op, Ls...> {};
template <class Op, class... Ls>
struct propagation_choice<Op, auto_redistribute, Ls...>
    : repaired_propagation_of<propagation_arguments<Op, Ls...>::any && propagation_arguments<Op, Ls...>::layouts, Op,
                              Ls...> {};

template <class Op, bool One>
inline constexpr bool propagated_layout_is_one = One;

}  // namespace detail

/// The layout of an operator's result when every rank computes with the parts it holds and nothing is sent: of
/// `op::softmax<1>`, `op::einsum<"bi,io->bo">`, ... A `type_list` where there are several results.
/// With `auto_redistribute` before the layouts, what it is after the cheapest redistribution of the operands.
/// Errors (at compile time): an operand, an axis, why the operator cannot compute so, and the redistribution that
/// repairs it.
/// Source: factor rules of OpenXLA Shardy; signatures of Yuan et al. 2021 (OneFlow), arXiv:2110.15032, table 1.
template <operation Op, class... Operands>
using propagate_through = typename detail::propagation_choice<Op, Operands...>::type;

/// Whether `propagate_through<Op, Operands...>` compiles.
template <operation Op, layout_like... Operands>
inline constexpr bool can_propagate_through = detail::propagation<Op, Operands...>::legal;

/// How `auto_redistribute` makes an operator legal: `operands`, a `type_list` with the layout each operand is
/// redistributed to first (its own where it stays), and `result`, as of `propagate_through`. Of all layouts that the
/// operator takes and in which only the refused axes do something else, those that all operands together reach with the
/// fewest bytes by the planner's rules (operands taken as equally large, axes known only at start-up as two ranks); of
/// equal ones what changes the fewest operands. `proven` says that no other repair is cheaper; it is false only where a
/// search of many operands over many axes meets the limits of compilers and gives the best that it found. Where several
/// sums are reduced to different places, bytes may be estimated a few per cent too high. A split policy stays with its
/// dimension; new splits are balanced. Operands become partial only beside one that is, and never identical. Varying
/// values stay, everything against them is replicated. So there always is a repair.
template <operation Op, layout_like... Operands>
using repaired = detail::repaired_facts<Op, detail::is_repairable<Op, Operands...>(), Operands...>;

/// The layout of `einsum(Formula, operands...)` when every rank computes with the parts it holds and nothing is sent.
/// `propagate<"bi,io->bo", input, column>`; one operand too: `"bij->ji"` transposes and sums over b.
///
/// For each mesh axis: a letter that all its operands split alike stays split in the result, or becomes
/// `partial<plus>` when it is summed; one operand that is `partial<plus>` while the others replicate passes it on;
/// replicated everywhere stays replicated, identical everywhere identical; varying against replicated varies.
/// Errors (at compile time, naming operands, axis and letter): two partial operands, a partial one against a split one,
/// one axis on two letters, operands that split a letter differently, operators that a product does not commute with.
template <fixed_string Formula, class... Operands>
using propagate = propagate_through<op::einsum<Formula>, Operands...>;

/// Whether `propagate<Formula, Operands...>` compiles.
template <fixed_string Formula, layout_like... Operands>
inline constexpr bool can_propagate = can_propagate_through<op::einsum<Formula>, Operands...>;

/// The propagated layout as an object, for meshes whose extents are known at run time. Of operators with one result.
/// Errors: `layout_error` if the operands' meshes differ; compile errors as `propagate_through`.
template <operation Op, layout_like First, layout_like... Rest>
constexpr auto propagated_through(const First& first, const Rest&... rest) {
  if constexpr ((std::is_same_v<typename First::mesh_type, typename Rest::mesh_type> && ...)) {
    const auto same = [&](const auto& other) {
      if (!(first.mesh() == other.mesh()))
        throw layout_error("heddle: propagated: the operands live on different meshes: " + to_string(first.mesh()) +
                           " and " + to_string(other.mesh()));
    };
    (same(rest), ...);
  }
  if constexpr (detail::propagation<Op, First, Rest...>::facts::results > 1) {
    static_assert(detail::propagated_layout_is_one<Op, (false && sizeof(First) == 0)>,
                  "heddle: propagated_through: the operator has several results; make each layout of "
                  "propagate_through<op, layouts...>, which is a type_list, from the operands' mesh");
    return first;
  } else {
    return propagate_through<Op, First, Rest...>{first.mesh()};
  }
}
/// The layout that `propagate` gives, as an object, for meshes whose extents are known at run time.
template <fixed_string Formula, layout_like First, layout_like... Rest>
constexpr auto propagated(const First& first, const Rest&... rest) {
  return propagated_through<op::einsum<Formula>>(first, rest...);
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
  static_assert(
      detail::formula_fits<Formula, sizeof...(E), Shapes::rank()...>::value,
      "heddle: propagate_shape<formula>: a shape has another number of dimensions than its operand has letters, or the "
      "number of shapes differs; give one shape per operand and one dimension per letter");
  constexpr auto f = detail::checked_formula<Formula>::value;
  std::array<std::int64_t, static_cast<std::size_t>(f.output.count)> extents{};
  if constexpr (detail::formula_fits<Formula, sizeof...(E), Shapes::rank()...>::value &&
                detail::checked_formula<Formula>::ok) {
    for (int o = 0; o < f.operand_count; ++o)
      for (int d = 0; d < f.operands[o].count; ++d) {
        const char letter = f.operands[o].letters[d];
        const auto here = detail::extent_at(static_cast<std::size_t>(o), static_cast<std::size_t>(d), first, rest...);
        for (int p = 0; p < o; ++p) {
          const int e = f.operands[p].find(letter);
          if (e < 0) continue;
          const auto there =
              detail::extent_at(static_cast<std::size_t>(p), static_cast<std::size_t>(e), first, rest...);
          if (here != there)
            throw layout_error("heddle: in \"" + std::string(Formula.view()) + "\" the letter " +
                               std::string(1, letter) + " is " + std::to_string(there) + " in dimension " +
                               std::to_string(e) + " of operand " + std::to_string(p) + " and " + std::to_string(here) +
                               " in dimension " + std::to_string(d) + " of operand " + std::to_string(o));
        }
        const int to = f.output.find(letter);
        if (to >= 0) extents[static_cast<std::size_t>(to)] = here;
      }
  }
  return make_shape(extents);
}

}  // namespace heddle::inline v0
