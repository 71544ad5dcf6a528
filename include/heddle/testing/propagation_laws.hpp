// heddle/testing/propagation_laws.hpp: what an operator's rule says of layouts, against kernels that compute with
// parts.
#pragma once

#include <heddle/core/monoid.hpp>
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
  for (;;) {
    f(at);
    std::size_t d = extents.size();
    for (; d-- > 0;) {
      if (++at[d] < extents[d]) break;
      at[d] = 0;
    }
    if (d == std::size_t(-1)) return;
  }
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

using heddle::detail::axis_role;
using heddle::detail::axis_use;
using law_table = heddle::detail::axis_table<2>;

inline constexpr std::array<int, 2> law_mesh{2, 3};
inline constexpr int law_ranks = 6;
constexpr int law_coordinate(std::size_t axis, int rank) {
  return axis == 0 ? rank / law_mesh[1] : rank % law_mesh[1];
}

inline law_index law_places(const law_table& t, int dim, std::int64_t n, int rank) {
  law_index out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), 0);
  for (int level = 0; level < 2; ++level)
    for (std::size_t a = 0; a < 2; ++a) {
      const axis_use& u = t.use[a];
      if (u.role != axis_role::sharded || u.dim != dim || u.level != level) continue;
      const auto size = static_cast<std::int64_t>(out.size());
      const int p = law_mesh[a], r = law_coordinate(a, rank);
      law_index kept;
      for (std::int64_t l = 0; l < u.how->size(size, p, r); ++l)
        kept.push_back(out[static_cast<std::size_t>(u.how->to_global(size, p, r, l))]);
      out = kept;
    }
  return out;
}
inline law_part law_part_of(const law_tensor& whole, const law_table& t, int rank) {
  law_part p{{}, {}, whole.extents};
  law_index extents;
  for (std::size_t d = 0; d < whole.extents.size(); ++d) {
    p.places.push_back(law_places(t, static_cast<int>(d), whole.extents[d], rank));
    extents.push_back(static_cast<std::int64_t>(p.places.back().size()));
  }
  p.tensor = law_tensor(extents, whole.width);
  for_each_index(extents, [&](const law_index& at) {
    law_index from = at;
    for (std::size_t d = 0; d < at.size(); ++d) from[d] = p.places[d][static_cast<std::size_t>(at[d])];
    for (std::size_t w = 0; w < static_cast<std::size_t>(whole.width); ++w)
      p.tensor.values[p.tensor.position(at) + w] = whole.values[whole.position(from) + w];
  });
  return p;
}

// All layouts of a tensor on the mesh.
inline std::vector<law_table> law_tables(std::size_t dims, const propagation_case& c, bool own_sums) {
  std::vector<axis_use> uses(1);
  if (c.identical) uses.push_back({axis_role::identical});
  if (own_sums) uses.push_back({axis_role::partial, -1, -1, 0});
  if (c.second_operator) uses.push_back({axis_role::partial, -1, -1, 1});
  for (int d = 0; d < static_cast<int>(dims); ++d) {
    uses.push_back({axis_role::sharded, d, 0});
    if (c.second_policy)
      uses.push_back({axis_role::sharded, d, 0, -1, 1, &heddle::detail::functions_of<split::zigzag>});
  }
  std::vector<law_table> out;
  for (const axis_use& a : uses)
    for (const axis_use& b : uses) {
      if (a.role == axis_role::partial && b.role == axis_role::partial && a.op != b.op) continue;
      law_table t;
      t.use[0] = a;
      t.use[1] = b;
      if (a.role == axis_role::sharded && b.role == axis_role::sharded && a.dim == b.dim) {
        t.use[1].level = 1;
        out.push_back(t);
        t.use[0].level = 1;
        t.use[1].level = 0;
      }
      out.push_back(t);
    }
  return out;
}

// "dimension 0 split over x, replicated over y".
inline std::string law_text(const law_table& t) {
  std::string text;
  for (std::size_t a = 0; a < 2; ++a) {
    const axis_use& u = t.use[a];
    const char* const name = a == 0 ? "x" : "y";
    if (!text.empty()) text += ", ";
    if (u.role == axis_role::sharded) {
      text += "dimension ";
      text += std::to_string(u.dim);
      text += " split ";
      if (u.split != 0) text += "zigzag ";
      text += "over ";
      text += name;
      if (u.level > 0) text += a == 0 ? " after y" : " after x";
      continue;
    }
    text += u.role == axis_role::partial     ? (u.op == 0 ? "partial under its own operator over " : "partial over ")
            : u.role == axis_role::identical ? "identical over "
                                             : "replicated over ";
    text += name;
  }
  return text;
}

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
inline std::string law_broken(const propagation_case& c, const law_kernel& compute, const law_merges& merges,
                              bool combines, const std::vector<law_table>& in, const law_table* results,
                              std::uint64_t seed) {
  std::vector<law_tensor> whole;
  std::vector<std::vector<law_tensor>> terms;  // per operand, one per place along its partial axes
  for (std::size_t o = 0; o < in.size(); ++o) {
    const counter_random random(seed, o);
    int copies = 1, op = 0;
    for (std::size_t a = 0; a < 2; ++a)
      if (in[o].use[a].role == axis_role::partial) {
        copies *= law_mesh[a];
        op = in[o].use[a].op;
      }
    const std::int64_t below = o < c.below.size() ? c.below[o] : 0;
    if (copies > 1 && below > 0) return "an operand of places (`below`) may be partial by the rule";
    terms.emplace_back();
    std::uint64_t number = 0;
    for (int i = 0; i < copies; ++i) {
      law_tensor term(c.shapes[o]);
      for (double& e : term.values) {
        const std::uint64_t drawn = random.integer(number++) >> 11;
        e = below > 0 ? static_cast<double>(drawn % static_cast<std::uint64_t>(below))
                      : static_cast<double>(drawn % 9) - 4;
      }
      terms.back().push_back(std::move(term));
    }
    whole.push_back(terms.back()[0]);
    for (int i = 1; i < copies; ++i)
      law_merge(whole.back(), terms.back()[static_cast<std::size_t>(i)], merges.of[static_cast<std::size_t>(op)]);
  }
  const auto local = [&](std::size_t o, int rank) {
    int which = 0;
    for (std::size_t a = 0; a < 2; ++a)
      if (in[o].use[a].role == axis_role::partial) which = which * law_mesh[a] + law_coordinate(a, rank);
    return law_part_of(terms[o][static_cast<std::size_t>(which)], in[o], rank);
  };
  law_call global;
  for (const law_tensor& w : whole) global.operands.push_back(law_part_of(w, law_table{}, 0));
  global.combined.push_back(global.operands[0]);
  const std::vector<law_tensor> expected = compute(global);
  std::vector<std::vector<law_tensor>> got;
  const auto place = [](std::size_t result, int rank) {
    std::string text = "result ";
    text += std::to_string(result);
    text += " on rank ";
    text += std::to_string(rank);
    return text + ": ";
  };
  for (int r = 0; r < law_ranks; ++r) {
    law_call mine;
    for (std::size_t o = 0; o < in.size(); ++o) mine.operands.push_back(local(o, r));
    for (int q = 0; q < law_ranks; ++q) {
      bool peer = true;
      for (std::size_t a = 0; a < 2; ++a) {
        const bool combined =
            combines && in[0].use[a].role == axis_role::sharded && results[0].use[a].role == axis_role::identical;
        peer = peer && (combined || law_coordinate(a, q) == law_coordinate(a, r));
      }
      if (peer) mine.combined.push_back(local(0, q));
    }
    for (std::size_t i = 0; i < expected.size(); ++i)
      mine.results.push_back(law_part_of(expected[i], results[i], r).tensor.extents);
    got.push_back(compute(mine));
    if (got.back().size() != expected.size()) return place(0, r) + "another number of results than of the whole";
    for (std::size_t i = 0; i < expected.size(); ++i)
      if (got.back()[i].extents != mine.results[i]) return place(i, r) + "other extents than its layout says";
  }
  for (std::size_t i = 0; i < expected.size(); ++i)
    for (int r = 0; r < law_ranks; ++r) {
      law_tensor all = got[static_cast<std::size_t>(r)][i];
      bool first = true;
      std::size_t op = 0;
      for (std::size_t a = 0; a < 2; ++a)
        if (results[i].use[a].role == axis_role::partial) {
          first = first && law_coordinate(a, r) == 0;
          op = static_cast<std::size_t>(results[i].use[a].op);
        }
      if (!first) continue;
      for (int q = r + 1; q < law_ranks; ++q) {
        bool joins = true;
        for (std::size_t a = 0; a < 2; ++a)
          joins =
              joins && (results[i].use[a].role == axis_role::partial || law_coordinate(a, q) == law_coordinate(a, r));
        if (joins) law_merge(all, got[static_cast<std::size_t>(q)][i], merges.of[op]);
      }
      const law_tensor want = law_part_of(expected[i], results[i], r).tensor;
      for (std::size_t e = 0; e < want.values.size(); ++e) {
        const double w = want.values[e], g = all.values[e];
        if (std::abs(g - w) <= 1e-9 * (1 + std::abs(w)) || g == w || (g != g && w != w)) continue;
        std::string text = place(i, r) + "element ";
        text += std::to_string(e / static_cast<std::size_t>(want.width));
        text += ": expected ";
        text += std::to_string(w);
        text += ", got ";
        return text + std::to_string(g);
      }
    }
  return {};
}

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
