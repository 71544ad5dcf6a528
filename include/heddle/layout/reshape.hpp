// heddle/layout/reshape.hpp: propagation of splits through reshapes that join and part dimensions.
#pragma once

#include <heddle/layout/factor_rule.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace heddle::inline v0 {
namespace detail {

// A factor that both shapes have: of a dimension of the source and of one of the target, major to minor. `plain`: all
// of both, so that whatever splits it stays.
struct shared_factor {
  int from = -1;
  int to = -1;
  std::int64_t size = 0;
  bool plain = false;
};
template <std::size_t Most>
struct shared_factors {
  shared_factor list[Most == 0 ? 1 : Most]{};
  std::size_t count = 0;
};

// From the major end, the greatest common factor of what is left of both dimensions; where there is none, what follows
// up to the next common boundary has no shared factors.
template <std::size_t From, std::size_t To>
constexpr shared_factors<2 * (From + To)> factors_of_reshape(const std::array<std::int64_t, From>& from,
                                                             const std::array<std::int64_t, To>& to) {
  shared_factors<2 * (From + To)> out;
  std::size_t i = 0, j = 0;
  std::int64_t left_from = From == 0 ? 1 : from[0], left_to = To == 0 ? 1 : to[0];
  const auto next_from = [&] { left_from = ++i < From ? from[i] : 1; };
  const auto next_to = [&] { left_to = ++j < To ? to[j] : 1; };
  while (i < From && j < To) {
    if (left_from == from[i] && left_to == to[j] && left_from == left_to) {
      out.list[out.count++] = {static_cast<int>(i), static_cast<int>(j), left_from, true};
      next_from();
      next_to();
    } else if (left_from == 0 || left_to == 0) {  // no elements, no order
      break;
    } else if (left_from == 1) {
      next_from();
    } else if (left_to == 1) {
      next_to();
    } else if (const std::int64_t common = std::gcd(left_from, left_to); common > 1) {
      out.list[out.count++] = {static_cast<int>(i), static_cast<int>(j), common, false};
      left_from /= common;
      left_to /= common;
      if (left_from == 1) next_from();
      if (left_to == 1) next_to();
    } else {
      while (left_from != left_to && i < From && j < To) {
        if (left_from < left_to) {
          if (++i < From) left_from *= from[i];
        } else {
          if (++j < To) left_to *= to[j];
        }
      }
      next_from();
      next_to();
    }
  }
  return out;
}

constexpr bool cuts_evenly(const split_functions& how, std::int64_t n, std::int64_t p) {
  if (n % p != 0 || !how.fits(n, p)) return false;
  for (std::int64_t r = 0; r < p; ++r)
    if (how.size(n, p, r) != n / p || how.stored(n, p, r) != n / p) return false;
  return true;
}

// A split goes through a reshape if it cuts the leading shared factor of its dimension evenly into intervals, or the
// factor behind one that other axes have cut into single elements, and the same is true of the dimension it comes to.
template <std::size_t Axes, std::size_t From, std::size_t To>
constexpr rule_outcome<Axes> propagate_reshape(const axis_table<Axes>& table, const std::array<int, Axes>& extents,
                                               const std::array<std::int64_t, From>& from,
                                               const std::array<std::int64_t, To>& to) {
  rule_outcome<Axes> out;
  const auto factors = factors_of_reshape(from, to);
  std::int64_t left[2 * (From + To) + 1]{};
  for (std::size_t f = 0; f < factors.count; ++f) left[f] = factors.list[f].size;
  int levels[To + 1]{};
  std::array<std::int64_t, To> local = to;
  for (std::size_t a = 0; a < Axes; ++a)
    if (table.use[a].role != axis_role::sharded) out.results[0].use[a] = table.use[a];
  for (int d = 0; d < static_cast<int>(From); ++d) {
    std::size_t f = 0;
    while (f < factors.count && factors.list[f].from != d) ++f;
    std::int64_t n = from[static_cast<std::size_t>(d)];
    for (int level = 0; level < static_cast<int>(Axes); ++level)
      for (std::size_t a = 0; a < Axes; ++a) {
        const axis_use& u = table.use[a];
        if (u.role != axis_role::sharded || u.dim != d || u.level != level) continue;
        const std::int64_t p = extents[a];
        axis_finding why;
        const auto here = [&] { return f < factors.count && factors.list[f].from == d; };
        if (!here()) {
          why.refuse(p <= 0 ? rule_problem::unknown_extent : rule_problem::not_divisible, 0, 0, d);
          out.refuse(a, why);
          continue;
        }
        if (!factors.list[f].plain) {
          while (left[f] == 1 && f + 1 < factors.count && factors.list[f + 1].from == d) ++f;
          bool leads = p > 0 && left[f] % p == 0;
          for (std::size_t e = 0; e < f; ++e)
            leads = leads && (factors.list[e].to != factors.list[f].to || left[e] == 1);
          const auto target = static_cast<std::size_t>(factors.list[f].to);
          if (p <= 0)
            why.refuse(rule_problem::unknown_extent, 0, 0, d);
          else if (!u.how->contiguous)
            why.refuse(rule_problem::not_interval, 0, 0, d);
          else if (!leads || !cuts_evenly(*u.how, n, p) || !cuts_evenly(*u.how, local[target], p))
            why.refuse(rule_problem::not_divisible, 0, 0, d);
          if (why.problem != rule_problem::none) {
            out.refuse(a, why);
            continue;
          }
          left[f] /= p;
          n /= p;
          local[target] /= p;
        }
        axis_use& into = out.results[0].use[a];
        into = u;
        into.dim = factors.list[f].to;
        into.level = levels[into.dim]++;
      }
  }
  for (std::size_t a = 0; a < Axes; ++a)
    if (table.use[a].role == axis_role::sharded && table.use[a].dim >= static_cast<int>(From)) {
      axis_finding why;
      why.refuse(rule_problem::dim_without_letter, 0, 0, table.use[a].dim);
      out.refuse(a, why);
    }
  return out;
}

}  // namespace detail
}  // namespace heddle::inline v0
