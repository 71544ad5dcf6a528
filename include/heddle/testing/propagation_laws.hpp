// heddle/testing/propagation_laws.hpp: laws of propagation rules, with kernels on parts.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/next_index.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/type_name.hpp>
#include <heddle/layout/propagate.hpp>
#include <heddle/testing/report.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace testing {

/// Extents, or the index of an element.
using law_index = std::vector<std::int64_t>;

/// A tensor for naive kernels: row-major, each element `width` numbers.
struct law_tensor {
  law_index extents;
  std::vector<double> values;
  int width = 1;

  law_tensor() = default;
  explicit law_tensor(law_index shape, int numbers = 1) : extents(std::move(shape)), width(numbers) {
    std::int64_t n = width;
    for (const auto e : extents) n *= e;
    values.assign(static_cast<std::size_t>(n), 0);
  }
  std::size_t position(const law_index& at) const {
    std::int64_t i = 0;
    for (std::size_t d = 0; d < extents.size(); ++d) i = i * extents[d] + at[d];
    return static_cast<std::size_t>(i) * static_cast<std::size_t>(width);
  }
  double& operator()(const law_index& at) { return values[position(at)]; }
  double operator()(const law_index& at) const { return values[position(at)]; }
};

/// Calls `f(index)` for every element of a tensor of these extents, in order.
template <class F>
void for_each_index(const law_index& extents, F&& f) {
  for (const auto e : extents)
    if (e == 0) return;
  law_index at(extents.size(), 0);
  do f(at);
  while (::heddle::next_index(at, extents, extents.size()));
}

/// What a rank knows of an operand: its part, for each dimension the places of the part in the whole, and the whole's
/// extents.
struct law_part {
  law_tensor tensor;
  std::vector<law_index> places;
  law_index whole;
};

/// What a kernel is given: the rank's parts of all operands, and, of operators that combine over ranks themselves
/// (`factor_kind::combined`), the parts of operand 0 of all ranks they combine over, this one's among them. `results`
/// are the extents that the results should have by their layouts; there are none where the kernel is to compute the
/// whole.
struct law_call {
  std::vector<law_part> operands;
  std::vector<law_part> combined;
  std::vector<law_index> results;
};

/// Computes all results of an operator from parts of its operands, by the definition.
using law_kernel = std::function<std::vector<law_tensor>(const law_call&)>;

/// With what `propagation_law` tries an operator. All combinations of layouts of tensors of these shapes on a mesh of 2
/// x 3 ranks are looked at: keep shapes and operands few.
struct propagation_case {
  std::vector<law_index> shapes;  ///< of the operands
  law_index below{};              ///< operand o is of integers from 0 to less than `below[o]`, where that is positive
  bool second_operator = true;    ///< also partial values of an operator that is not the rule's own
  bool second_policy = true;      ///< also zigzag splits
  bool identical = true;          ///< also identical values
  int check_repair_of = 7;        ///< of so many refused combinations one is repaired, which must give a legal one
  /// Combines an element of a result that is partial under the rule's own monoid with that of another rank. Left out,
  /// it is the monoid applied to numbers; a monoid of something else needs it, and then no operand is partial under it.
  std::function<void(double* into, const double* from)> merge{};
};

/// The answer of `propagation_law`; `cases` are the legal combinations.
struct propagation_report : report {
  std::int64_t combinations = 0;
};

namespace detail {

using heddle::detail::axis_use;
using law_table = heddle::detail::axis_table<2>;

inline constexpr std::array<int, 2> law_mesh{2, 3};
inline constexpr int law_ranks = 6;
constexpr int law_coordinate(std::size_t axis, int rank) {
  return axis == 0 ? rank / law_mesh[1] : rank % law_mesh[1];
}

HEDDLE_INLINE law_index law_places(const law_table& t, int dim, std::int64_t n, int rank);
HEDDLE_INLINE law_part law_part_of(const law_tensor& whole, const law_table& t, int rank);

// All layouts of a tensor on the mesh.
HEDDLE_INLINE std::vector<law_table> law_tables(std::size_t dims, const propagation_case& c, bool own_sums);

// "dimension 0 split over x, replicated over y".
HEDDLE_INLINE std::string law_text(const law_table& t);

struct law_merges {
  std::array<std::function<void(double*, const double*)>, 2> of;
};
template <class Op>
law_merges law_merges_of(const propagation_case& c) {
  using own = typename Op::monoid;
  law_merges merges;
  merges.of[0] = c.merge;
  if constexpr (monoid<own, double>)
    if (!c.merge) merges.of[0] = [](double* a, const double* b) { *a = own{}(*a, *b); };
  if constexpr (std::is_same_v<own, plus>)
    merges.of[1] = [](double* a, const double* b) { *a = maximum{}(*a, *b); };
  else
    merges.of[1] = [](double* a, const double* b) { *a = plus{}(*a, *b); };
  return merges;
}

// Elements of `from` into those of `into`, of as many numbers each.
inline void law_merge(law_tensor& into, const law_tensor& from,
                      const std::function<void(double*, const double*)>& merge) {
  for (std::size_t e = 0; e < into.values.size(); e += static_cast<std::size_t>(into.width))
    merge(&into.values[e], &from.values[e]);
}

// Of operands made from `seed`: what is wrong with the results that ranks compute in these layouts, or "".
HEDDLE_INLINE std::string law_broken(const propagation_case& c, const law_kernel& compute, const law_merges& merges,
                                     bool combines, const std::vector<law_table>& in, const law_table* results,
                                     std::uint64_t seed);

}  // namespace detail

/// Law: for every combination of layouts that the rule of `Op` takes, what the ranks compute from their parts is what
/// the layouts of the results say of the result of the whole; and what it refuses can be repaired. `Count` operands.
/// Values are small integers; results may differ by 1e-9 of themselves. Combinations are numbered, and the number is
/// the seed.
///
///     propagation_law<my_op>([](const law_call& c) { ... return std::vector{out}; }, {.shapes = {{5, 4}}})
///
/// Errors: `report::what` names the first combination that broke the law: its layouts, result, rank, element, both
/// values. Source: law 5 of sharding: local compute, then gather, is global compute.
template <operation Op, std::size_t Count = static_cast<std::size_t>(Op::least)>
propagation_report propagation_law(const law_kernel& compute, const propagation_case& c) {
  using own = typename Op::monoid;
  std::string name(short_type_name<Op>());
  propagation_report out;
  const auto fail = [&](std::string text) {
    if (out.ok()) static_cast<report&>(out) = failure(name + ": " + std::move(text), out.cases);
  };
  if (c.shapes.size() != Count) {
    fail("give the shape of every operand");
    return out;
  }
  std::array<int, Count> ranks{};
  for (std::size_t o = 0; o < Count; ++o) ranks[o] = static_cast<int>(c.shapes[o].size());
  constexpr bool is_sum = std::is_same_v<own, plus>;
  constexpr bool is_extremum = std::is_same_v<own, maximum> || std::is_same_v<own, minimum>;
  const heddle::detail::rule_evaluator<Op, 2, Count, 2> evaluate{
      {heddle::detail::operator_facts{is_sum, is_extremum, true},
       heddle::detail::operator_facts{!is_sum, is_sum, false}},
      detail::law_mesh,
      heddle::detail::made_rule<Op>(ranks)};
  bool combines = false;
  if constexpr (!heddle::detail::has_own_evaluation<Op>)
    for (int f = 0; f < evaluate.rule.factor_count; ++f)
      combines = combines || evaluate.rule.factors[f].kind == factor_kind::combined;
  const auto merges = detail::law_merges_of<Op>(c);
  if (!merges.of[0] && evaluate.combines()) {
    fail("give `merge`: its monoid is not one of numbers");
    return out;
  }
  std::array<std::vector<detail::law_table>, Count> all;
  for (std::size_t o = 0; o < Count; ++o)
    all[o] = detail::law_tables(c.shapes[o].size(), c, !c.merge && monoid<own, double>);
  std::array<std::size_t, Count> at{};
  for (std::size_t o = 0; o < Count;) {
    std::array<detail::law_table, Count> tables;
    for (std::size_t q = 0; q < Count; ++q) tables[q] = all[q][at[q]];
    const auto outcome = evaluate(tables);
    const auto number = static_cast<std::uint64_t>(out.combinations++);
    std::string wrong;
    if (outcome.legal()) {
      ++out.cases;
      wrong =
          detail::law_broken(c, compute, merges, combines, {tables.begin(), tables.end()}, outcome.results, number + 1);
    } else if (c.check_repair_of > 0 && number % static_cast<std::uint64_t>(c.check_repair_of) == 0) {
      const auto repair = heddle::detail::find_repair(evaluate, tables, detail::law_mesh, evaluate.dims());
      if (!repair.found || !evaluate(repair.tables).legal()) wrong = "refused, and there is no repair";
    }
    if (!wrong.empty() && out.ok()) {
      std::string text = "combination ";
      text += std::to_string(number);
      for (std::size_t q = 0; q < Count; ++q) {
        text += q == 0 ? ", operand " : "; operand ";
        text += std::to_string(q);
        text += ' ';
        text += detail::law_text(tables[q]);
      }
      text += " (x has 2 ranks, y 3): ";
      fail(text + wrong);
    }
    for (o = 0; o < Count && ++at[o] == all[o].size(); ++o) at[o] = 0;
  }
  return out;
}

}  // namespace testing
}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/testing/impl/propagation_laws.hpp>
#endif
