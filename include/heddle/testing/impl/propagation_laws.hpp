// heddle/testing/impl/propagation_laws.hpp: bodies of heddle/testing/propagation_laws.hpp.
#pragma once

#include <heddle/testing/propagation_laws.hpp>
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
namespace detail {

HEDDLE_INLINE law_index law_places(const law_table& t, int dim, std::int64_t n, int rank) {
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

HEDDLE_INLINE law_part law_part_of(const law_tensor& whole, const law_table& t, int rank) {
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

HEDDLE_INLINE std::vector<law_table> law_tables(std::size_t dims, const propagation_case& c, bool own_sums) {
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

HEDDLE_INLINE std::string law_text(const law_table& t) {
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

HEDDLE_INLINE std::string law_broken(const propagation_case& c, const law_kernel& compute, const law_merges& merges,
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
        text += number_text(w);
        text += ", got ";
        return text + number_text(g);
      }
    }
  return {};
}

}  // namespace detail
}  // namespace testing
}  // namespace heddle::inline v0
