// heddle/layout/factor_rule.hpp: factor rules: an operator's effect on layouts as data.
#pragma once

#include <heddle/layout/formula.hpp>
#include <heddle/layout/placement.hpp>

#include <array>
#include <cstddef>

namespace heddle::inline v0 {

/// What an operator does along one factor, that is, one dimension of its work.
enum class factor_kind : unsigned char {
  pass,       ///< computed element by element: a split stays a split
  reduction,  ///< combined under the rule's operator: a split becomes partial values
  whole,      ///< needs all of it on one rank (a normalised, sorted, concatenated dimension): no axis may split it
  combined,   ///< combined over the ranks by the operator itself: a split becomes an identical value
};

/// Which partial values an operand may hold. Flags.
enum partial_rule : unsigned char {
  no_partials = 0,
  sums = 1,         ///< linear in this operand
  extrema = 2,      ///< monotone in it, nowhere decreasing: maxima and minima
  own = 4,          ///< the rule's own operator
  any_partials = 8  ///< only moves or selects elements
};

/// The dimensions of one operand or result, one factor each, and what partial values it may hold.
/// Operands with the same positive `slot` hold them together (the terms of a sum), of different slots one at a time
/// (the factors of a product).
template <std::size_t Capacity>
struct rule_term : detail::formula_term<Capacity> {
  int slot = 0;
  unsigned char partials = no_partials;
};

/// A factor: its letter and what happens along it.
struct rule_factor {
  char letter = ' ';
  factor_kind kind = factor_kind::pass;
};

/// How an operator treats layouts: the factors of each operand and result. Operators of one's own build one in their
/// `rule` function. At most `Capacity` operands, results, dimensions and factors.
/// Source: factor rules of OpenXLA Shardy; linear slots as in Yuan et al. 2021 (OneFlow), arXiv:2110.15032, table 1.
template <std::size_t Capacity = 20>
struct factor_rule {
  static constexpr std::size_t capacity = Capacity;
  rule_term<Capacity> operands[Capacity]{};
  int operand_count = 0;
  rule_term<Capacity> results[4]{};
  int result_count = 0;
  rule_factor factors[Capacity]{};
  int factor_count = 0;

  /// Adds a factor under the next free letter.
  constexpr char factor(factor_kind kind = factor_kind::pass) {
    const char letter = static_cast<char>('a' + factor_count);
    factors[factor_count++] = {letter, kind};
    return letter;
  }
  constexpr rule_term<Capacity>& operand(int slot = 0, unsigned char partials = no_partials) {
    rule_term<Capacity>& t = operands[operand_count++];
    t.slot = slot;
    t.partials = partials;
    return t;
  }
  constexpr rule_term<Capacity>& result() { return results[result_count++]; }
  constexpr factor_kind kind_of(char letter) const noexcept {
    for (int i = 0; i < factor_count; ++i)
      if (factors[i].letter == letter) return factors[i].kind;
    return factor_kind::pass;
  }
};

namespace detail {

enum class rule_problem : unsigned char {
  none,
  dim_without_letter,
  two_partials,
  partial_and_split,
  partial_and_whole,
  partial_refused,
  wrong_operator,
  two_operators,
  two_letters,
  one_side_split,
  other_order,
  other_policy,
  needs_whole,
  identical_mixed,
  varying_mixed,
  not_interval,
  not_divisible,
  unknown_extent,
};

// What the engine must know about an operator of partial values.
struct operator_facts {
  bool sum = false;
  bool extremum = false;
  bool own = false;
};

// What an operator makes of one axis, or why it cannot.
struct axis_finding {
  rule_problem problem = rule_problem::none;
  int operand = 0;
  int other = 0;
  int dim = -1;
  char letter = ' ';

  constexpr void refuse(rule_problem p, int first, int second, int d = -1, char about = ' ') {
    if (problem != rule_problem::none) return;
    *this = {p, first, second, d, about};
  }
};

// The results' layouts as values, or the first mistake; `bad` says for each axis whether it has one.
template <std::size_t Axes>
struct rule_outcome {
  axis_table<Axes> results[4]{};
  axis_finding finding{};
  std::size_t axis = 0;
  bool bad[Axes == 0 ? 1 : Axes]{};

  constexpr bool legal() const noexcept { return finding.problem == rule_problem::none; }
  constexpr void refuse(std::size_t a, const axis_finding& why) {
    bad[a] = true;
    const bool first = legal();
    // No redistribution of another axis helps against these, so they are told first.
    const bool graver = !first && rank_of(why.problem) < rank_of(finding.problem);
    if (!first && !graver) return;
    finding = why;
    axis = a;
  }
  static constexpr int rank_of(rule_problem p) noexcept {
    return p == rule_problem::dim_without_letter ? 0 : p == rule_problem::two_partials ? 1 : 2;
  }
};

// One axis of a rule. `uses[o]` is what the axis does to operand o; `into[r]` receives what it does to result r.
// Operator 0 of the tables is the one of reductions.
template <std::size_t N>
constexpr axis_finding propagate_axis(const factor_rule<N>& rule, const axis_use* uses, const operator_facts* facts,
                                      axis_use* into) {
  axis_finding found;
  const int count = rule.operand_count;
  int part = -1, split = -1, same = -1, vary = -1;
  for (int o = 0; o < count; ++o) {
    const axis_role role = uses[o].role;
    if (role == axis_role::partial && part < 0) part = o;
    if (role == axis_role::sharded && split < 0) split = o;
    if (role == axis_role::identical && same < 0) same = o;
    if (role == axis_role::varying && vary < 0) vary = o;
    if (role == axis_role::sharded && uses[o].dim >= rule.operands[o].count)
      found.refuse(rule_problem::dim_without_letter, o, o, uses[o].dim);
  }
  axis_use result;
  char letter = ' ';
  if (found.problem != rule_problem::none) return found;
  if (vary >= 0) {
    for (int o = 0; o < count; ++o)
      if (uses[o].role != axis_role::varying && uses[o].role != axis_role::replicated)
        found.refuse(rule_problem::varying_mixed, vary, o);
    result.role = axis_role::varying;
  } else if (same >= 0) {
    for (int o = 0; o < count; ++o)
      if (uses[o].role != axis_role::identical) found.refuse(rule_problem::identical_mixed, same, o);
    result.role = axis_role::identical;
  } else if (part >= 0) {
    const int slot = rule.operands[part].slot;
    for (int o = 0; o < count; ++o)
      if (o != part && uses[o].role == axis_role::partial && (slot == 0 || rule.operands[o].slot != slot))
        found.refuse(
            slot == 0 || rule.operands[o].slot == 0 ? rule_problem::partial_refused : rule_problem::two_partials,
            slot != 0 && rule.operands[o].slot == 0 ? o : part, o);
    if (split >= 0)
      found.refuse(rule_problem::partial_and_split, part, split, uses[split].dim,
                   rule.operands[split].letters[uses[split].dim]);
    const operator_facts& op = facts[uses[part].op];
    const unsigned allowed = rule.operands[part].partials;
    if (slot == 0 || allowed == no_partials) found.refuse(rule_problem::partial_refused, part, part);
    if (!((allowed & any_partials) || ((allowed & sums) && op.sum) || ((allowed & extrema) && op.extremum) ||
          ((allowed & own) && op.own)))
      found.refuse(rule_problem::wrong_operator, part, part);
    for (int o = 0; o < count; ++o) {
      if (o == part || rule.operands[o].slot != slot) continue;
      if (uses[o].role != axis_role::partial) found.refuse(rule_problem::partial_and_whole, part, o);
      if (uses[o].op != uses[part].op) found.refuse(rule_problem::two_operators, part, o);
    }
    result = uses[part];
  } else if (split >= 0) {
    const axis_use& first = uses[split];
    letter = rule.operands[split].letters[first.dim];
    for (int o = split; o < count; ++o)
      if (uses[o].role == axis_role::sharded &&
          rule.kind_of(rule.operands[o].letters[uses[o].dim]) == factor_kind::whole)
        found.refuse(rule_problem::needs_whole, o, o, uses[o].dim, rule.operands[o].letters[uses[o].dim]);
    for (int o = split + 1; o < count; ++o)
      if (uses[o].role == axis_role::sharded && rule.operands[o].letters[uses[o].dim] != letter)
        found.refuse(rule_problem::two_letters, split, o, uses[o].dim, rule.operands[o].letters[uses[o].dim]);
    const factor_kind kind = rule.kind_of(letter);
    for (int o = 0; o < count; ++o)
      if (rule.operands[o].has(letter) && uses[o].role != axis_role::sharded)
        found.refuse(rule_problem::one_side_split, split, o, rule.operands[o].find(letter), letter);
    for (int o = split + 1; o < count; ++o) {
      if (uses[o].role != axis_role::sharded) continue;
      if (uses[o].level != first.level) found.refuse(rule_problem::other_order, split, o, uses[o].dim, letter);
      if (uses[o].split != first.split) found.refuse(rule_problem::other_policy, split, o, uses[o].dim, letter);
    }
    result = first;
    if (kind == factor_kind::reduction) {
      result = {};
      result.role = axis_role::partial;
      result.op = 0;
    }
    if (kind == factor_kind::combined) {
      result = {};
      result.role = axis_role::identical;
    }
  }
  for (int r = 0; r < rule.result_count; ++r) {
    into[r] = result;
    if (result.role == axis_role::sharded) into[r].dim = rule.results[r].find(letter);
  }
  return found;
}

// All axes of a rule, as it stands.
template <std::size_t Axes, std::size_t N>
constexpr rule_outcome<Axes> propagate_strictly(const factor_rule<N>& rule, const axis_table<Axes>* tables,
                                                const operator_facts* facts) {
  rule_outcome<Axes> out;
  for (std::size_t a = 0; a < Axes; ++a) {
    axis_use uses[N]{};
    axis_use into[4]{};
    for (int o = 0; o < rule.operand_count; ++o) uses[o] = tables[o].use[a];
    const axis_finding found = propagate_axis(rule, uses, facts, into);
    if (found.problem != rule_problem::none) out.refuse(a, found);
    for (int r = 0; r < rule.result_count; ++r) out.results[r].use[a] = into[r];
  }
  for (int r = 0; r < rule.result_count; ++r)
    for (std::size_t a = 0; a < Axes; ++a)
      for (std::size_t b = 0; b < a; ++b)
        if (out.results[r].use[a].role == axis_role::partial && out.results[r].use[b].role == axis_role::partial &&
            out.results[r].use[a].op != out.results[r].use[b].op && out.legal()) {
          axis_finding two;
          two.problem = rule_problem::wrong_operator;
          for (int o = 0; o < rule.operand_count; ++o)
            if (tables[o].use[a].role == axis_role::partial || tables[o].use[b].role == axis_role::partial)
              two.operand = two.other = o;
          out.refuse(tables[two.operand].use[a].role == axis_role::partial ? a : b, two);
        }
  return out;
}

// Takes an axis out of a layout.
template <std::size_t Axes>
constexpr void forget_axis(axis_table<Axes>& table, std::size_t axis) {
  const axis_use gone = table.use[axis];
  table.use[axis] = {};
  if (gone.role != axis_role::sharded) return;
  for (axis_use& u : table.use)
    if (u.role == axis_role::sharded && u.dim == gone.dim && u.level > gone.level) --u.level;
}

// An axis of one rank does nothing, so nothing that a layout says about it is a mistake: where the rule refuses, such
// axes are taken out. Where it does not, the result names them as on a larger mesh.
template <class Evaluate, std::size_t Axes, std::size_t Count>
constexpr auto without_inert_mistakes(const Evaluate& evaluate, std::array<axis_table<Axes>, Count> tables,
                                      const std::array<int, Axes>& extents) {
  auto out = evaluate(tables);
  for (std::size_t turn = 0; turn <= Axes && !out.legal(); ++turn) {
    bool changed = false;
    const bool only_this = extents[out.axis] == 1;
    for (std::size_t a = 0; a < Axes; ++a) {
      if (extents[a] != 1 || (only_this && a != out.axis)) continue;
      bool reorders = false;
      for (const auto& t : tables) reorders = reorders || reorders_one_rank(t.use[a]);
      if (reorders) continue;
      for (auto& t : tables) {
        changed = changed || t.use[a].role != axis_role::replicated;
        forget_axis(t, a);
      }
    }
    if (!changed) break;
    out = evaluate(tables);
  }
  return out;
}

// The rule of an einsum: one factor per letter, one slot per operand.
template <std::size_t N>
constexpr factor_rule<N> einsum_rule(const formula<N>& f) {
  factor_rule<N> rule;
  const auto kind = [&](char c) { return f.output.has(c) ? factor_kind::pass : factor_kind::reduction; };
  for (int o = 0; o < f.operand_count; ++o) {
    auto& t = rule.operand(o + 1, f.is_permutation() ? any_partials : sums);
    for (int d = 0; d < f.operands[o].count; ++d) {
      const char c = f.operands[o].letters[d];
      t.letters[t.count++] = c;
      bool known = false;
      for (int i = 0; i < rule.factor_count; ++i) known = known || rule.factors[i].letter == c;
      if (!known) rule.factors[rule.factor_count++] = {c, kind(c)};
    }
  }
  auto& r = rule.result();
  for (int d = 0; d < f.output.count; ++d) r.letters[r.count++] = f.output.letters[d];
  return rule;
}

}  // namespace detail
}  // namespace heddle::inline v0
