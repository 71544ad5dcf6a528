#include <heddle/layout/operations.hpp>
#include <heddle/layout/plan.hpp>

#include "catch.hpp"
#include "layout/random_tables.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace hd = heddle;
namespace op = hd::op;

// Law: no legal layouts of the operands, with the axes that nothing refuses doing what they did, are reached with fewer
// bytes than the repair. Against all of them, at the planner's price.
namespace {
using hd::axis_role, hd::detail::axis_table, hd::detail::axis_use;

// Bytes that a rank sends on average, in tensors, by the planner's search.
template <std::size_t Axes>
double planned(const axis_table<Axes>& from, const axis_table<Axes>& to, const std::array<int, Axes>& extents) {
  if (from == to) return 0;
  const auto names = hd::detail::problem_between(from, to, extents, hd::detail::objective_numbers<Axes>{});
  double share = 1;
  std::array<bool, Axes> changes{};
  for (unsigned i = 0; i < names.problem.axes; ++i) changes[names.axis[i]] = true;
  for (std::size_t a = 0; a < Axes; ++a)
    if (changes[a] || from.use[a].role == axis_role::sharded) share /= extents[a];
  return hd::detail::cheapest_path(names.problem).bytes * share;
}

template <std::size_t Axes>
using tables = std::vector<axis_table<Axes>>;

// All layouts with the given choices per axis, in every order of the axes that split a dimension.
template <std::size_t Axes>
void all_orders(const std::array<std::vector<axis_use>, Axes>& uses, std::size_t axis, axis_table<Axes> t,
                tables<Axes>& out) {
  if (axis == Axes) {
    out.push_back(t);
    return;
  }
  for (const axis_use& u : uses[axis]) {
    int depth = 0;
    if (u.role == axis_role::sharded)
      for (std::size_t b = 0; b < axis; ++b) depth += t.use[b].role == u.role && t.use[b].dim == u.dim ? 1 : 0;
    for (int level = 0; level <= depth; ++level) {
      axis_table<Axes> next = t;
      next.use[axis] = u;
      if (u.role == axis_role::sharded) {
        next.use[axis].level = level;
        for (std::size_t b = 0; b < axis; ++b)
          if (t.use[b].role == u.role && t.use[b].dim == u.dim && t.use[b].level >= level) ++next.use[b].level;
      }
      all_orders(uses, axis + 1, next, out);
    }
  }
}

struct comparison {
  int compared = 0, dearer = 0, mispriced = 0, unproven = 0, by_axis_dearer = 0;
  double worst = 0;
};
template <class Op, std::size_t Axes, std::size_t K>
comparison compare(std::array<int, K> dims, const std::array<int, Axes>& extents, int rounds, std::uint64_t seed) {
  const hd::detail::rule_evaluator<Op, Axes, K, 2> evaluate{
      {hd::detail::operator_facts{true, false, true}, hd::detail::operator_facts{false, true, false}},
      extents,
      hd::detail::made_rule<Op>(dims)};
  std::mt19937_64 random{seed};
  comparison count;
  for (int round = 0; round < rounds;) {
    std::array<axis_table<Axes>, K> in;
    for (std::size_t o = 0; o < K; ++o) in[o] = random_table<Axes>(dims[o], false, random, 2);
    const auto outcome = evaluate(in);
    if (outcome.legal()) continue;
    ++round;
    const auto price = [&](const std::array<axis_table<Axes>, K>& to) {
      double all = 0;
      for (std::size_t o = 0; o < K; ++o) all += planned(in[o], to[o], extents);
      return all;
    };
    const auto found = hd::detail::find_repair(evaluate, in, extents, evaluate.dims());
    const double cost = price(found.tables);
    const auto alone = hd::detail::repair_axis_by_axis(evaluate, in, extents, evaluate.dims());
    count.unproven += found.proven ? 0 : 1;
    std::array<tables<Axes>, K> all;
    std::array<std::vector<double>, K> prices;
    for (std::size_t o = 0; o < K; ++o) {
      std::array<std::vector<axis_use>, Axes> uses;
      for (std::size_t a = 0; a < Axes; ++a) {
        if (!outcome.bad[a]) {
          uses[a].push_back(in[o].use[a]);
          continue;
        }
        uses[a].push_back({});
        bool zigzag = false;
        for (const auto& t : in) zigzag = zigzag || t.use[a].split == 1;
        for (int d = 0; d < dims[o]; ++d) {
          uses[a].push_back({axis_role::sharded, d});
          if (zigzag)
            uses[a].push_back({axis_role::sharded, d, -1, -1, 1, &hd::detail::functions_of<hd::split::zigzag>});
        }
        for (int sum = 0; sum < 2; ++sum) {
          bool beside = false;
          for (const auto& t : in) beside = beside || (t.use[a].role == axis_role::partial && t.use[a].op == sum);
          if (beside) uses[a].push_back({axis_role::partial, -1, -1, sum});
        }
      }
      all_orders<Axes>(uses, 0, axis_table<Axes>{}, all[o]);
      for (const auto& t : all[o]) prices[o].push_back(planned(in[o], t, extents));
    }
    double least = cost;
    std::array<std::size_t, K> at{};
    for (std::size_t o = 0; o < K;) {
      double sum = 0;
      std::array<axis_table<Axes>, K> to;
      for (std::size_t q = 0; q < K; ++q) {
        to[q] = all[q][at[q]];
        sum += prices[q][at[q]];
      }
      if (sum < least - 1e-9 && evaluate(to).legal()) least = sum;
      for (o = 0; o < K && ++at[o] == all[o].size(); ++o) at[o] = 0;
    }
    ++count.compared;
    count.dearer += cost > least + 1e-9 ? 1 : 0;
    count.mispriced += std::abs(found.cost - cost) > 1e-9 ? 1 : 0;
    count.by_axis_dearer += price(alone.tables) > least + 1e-9 ? 1 : 0;
    if (least > 0) count.worst = std::max(count.worst, cost / least);
  }
  return count;
}
}  // namespace

TEST_CASE("no repair of all refused axes together is cheaper", "[layout][repair][law]") {
  std::uint64_t seed = 60;
  const auto sound = [&](const char* name, const comparison& c) {
    INFO(name << ", seed " << seed++ << ": " << c.compared << " compared, " << c.by_axis_dearer
              << " dearer axis by axis, " << c.mispriced << " mispriced, worst " << c.worst);
    CHECK(c.dearer == 0);
    CHECK(c.mispriced == 0);
    CHECK(c.unproven == 0);
  };
  const std::array<int, 2> two{2, 3};
  const std::array<int, 3> three{2, 3, 2};
  sound("add", compare<op::add, 2, 2>({2, 2}, two, 120, seed));
  sound("product", compare<op::einsum<"bi,io->bo">, 2, 2>({2, 2}, two, 120, seed));
  sound("elementwise", compare<op::elementwise, 2, 2>({2, 2}, two, 120, seed));
  sound("softmax", compare<op::softmax<1>, 3, 1>({3}, three, 60, seed));
  sound("bias", compare<op::add_of<"bh,h->bh">, 3, 2>({2, 1}, three, 12, seed));
  sound("product, three axes", compare<op::einsum<"bi,io->bo">, 3, 2>({2, 2}, three, 6, seed));
}

TEST_CASE("axes are repaired together", "[layout][repair]") {
  using hd::dp, hd::tp;
  using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using tiles = hd::layout<mesh, hd::shard<0, dp>, hd::shard<1, tp>>;
  using rows = hd::layout<mesh, hd::shard<0, tp>>;
  // Axis by axis, the tiles would be gathered over dp and exchanged over tp: three times the bytes.
  using both = hd::repaired<op::add, tiles, rows>;
  STATIC_REQUIRE(std::same_as<both::operands, hd::type_list<tiles, tiles>>);
  STATIC_REQUIRE(both::proven);
  STATIC_REQUIRE(hd::repaired<op::einsum<"bi,io->bo">, tiles, tiles>::proven);
}
