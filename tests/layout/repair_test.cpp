#include <heddle/layout/gradient.hpp>
#include <heddle/layout/operations.hpp>

#include "catch.hpp"
#include "layout/random_tables.hpp"

#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <random>

namespace hd = heddle;
namespace op = hd::op;
using hd::cp, hd::dp, hd::pp, hd::tp;

// Law: every combination of layouts has a repair, and after it the operator is legal.
namespace {
using hd::axis_role, hd::detail::axis_table, hd::detail::axis_use;

struct repairs {
  int refused = 0, unrepaired = 0, moved_sizes = 0, changed_varying = 0;
};
template <class Op, std::size_t Axes, std::size_t K>
repairs random_repairs(std::array<int, K> dims, int rounds, std::uint64_t seed) {
  std::array<int, Axes> extents{};
  extents.fill(2);
  const hd::detail::rule_evaluator<Op, Axes, K, 2> evaluate{
      {hd::detail::operator_facts{true, false, true}, hd::detail::operator_facts{false, true, false}},
      extents,
      hd::detail::made_rule<Op>(dims)};
  std::mt19937_64 random{seed};
  repairs count;
  for (int round = 0; round < rounds; ++round) {
    std::array<axis_table<Axes>, K> in;
    for (std::size_t o = 0; o < K; ++o) in[o] = random_table<Axes>(dims[o], round % 4 == 0, random);
    if (evaluate(in).legal()) continue;
    ++count.refused;
    const auto out = hd::detail::find_repair(evaluate, in, extents, evaluate.dims());
    if (!out.found || !evaluate(out.tables).legal()) ++count.unrepaired;
    for (std::size_t o = 0; o < K; ++o)
      for (std::size_t a = 0; a < Axes; ++a) {
        const axis_use &before = in[o].use[a], &after = out.tables[o].use[a];
        count.changed_varying += (before.role == axis_role::varying) != (after.role == axis_role::varying) ? 1 : 0;
        if (after.role != axis_role::sharded || after.split != 2) continue;
        bool given = false;  // sizes stay where some operand had them: the same letter, behind as many cuts
        for (std::size_t q = 0; q < K; ++q) {
          const axis_use& u = in[q].use[a];
          given = given || (u.split == 2 && u.level == after.level &&
                            evaluate.letter(q, u.dim) == evaluate.letter(o, after.dim));
        }
        count.moved_sizes += given ? 0 : 1;
      }
  }
  return count;
}
}  // namespace

TEST_CASE("every combination of layouts has a repair", "[layout][repair][law]") {
  std::uint64_t seed = 20;
  const auto sound = [&](const char* name, const repairs& r) {
    INFO(name << ", seed " << seed++);
    CHECK(r.refused > 20);
    CHECK(r.unrepaired == 0);
    CHECK(r.moved_sizes == 0);
    CHECK(r.changed_varying == 0);
  };
  sound("add", random_repairs<op::add, 3, 2>({2, 2}, 400, seed));
  sound("add, four axes", random_repairs<op::add, 4, 2>({2, 2}, 200, seed));
  sound("add of eight", random_repairs<op::add, 3, 8>({2, 2, 2, 2, 2, 2, 2, 2}, 40, seed));
  sound("product", random_repairs<op::einsum<"bi,io->bo">, 3, 2>({2, 2}, 400, seed));
  sound("gather", random_repairs<op::gather<0>, 3, 2>({2, 1}, 200, seed));
  sound("scatter", random_repairs<op::scatter<0>, 3, 3>({2, 1, 2}, 200, seed));
  sound("cross_entropy", random_repairs<op::cross_entropy<1>, 3, 2>({2, 1}, 200, seed));
  sound("concat", random_repairs<op::concat<1>, 3, 3>({2, 2, 2}, 200, seed));
  sound("multiply_of", random_repairs<op::multiply_of<"bh,h->bh">, 3, 2>({2, 1}, 200, seed));
  sound("attention", random_repairs<op::attention, 4, 3>({4, 4, 4}, 60, seed));
  sound("reshape", random_repairs<op::reshape<hd::shape<12, 8>, hd::shape<16, 6>>, 3, 1>({2}, 200, seed));
}

namespace {
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<cp, 2>, hd::axis<tp, 2>>;
using wide = hd::mesh<hd::axis<dp, 2>, hd::axis<cp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;
template <class... Ps>
using on = hd::layout<mesh, Ps...>;
template <class... Ps>
using on_four = hd::layout<wide, Ps...>;
template <class R, std::size_t I>
using operand = typename hd::detail::list_at<I, typename R::operands>::type;
using hd::shard, hd::partial, hd::plus;
}  // namespace

TEST_CASE("repairs of many operands and axes are found at compile time", "[layout][repair]") {
  using a = on<shard<0, tp>>;
  using b = on<shard<1, tp>>;
  using z = on<shard<2, hd::split::zigzag, tp>>;
  using p = on<partial<plus, tp>>;
  using eight = hd::repaired<op::add, a, b, z, p, on<>, a, b, a>;
  STATIC_REQUIRE(std::same_as<eight::result, p>);  // costs no bytes
  STATIC_REQUIRE(std::same_as<hd::repaired<op::concat<1>, b, b, b, b, b, b, b, b>::result, on<shard<2, tp>>> ||
                 std::same_as<hd::repaired<op::concat<1>, b, b, b, b, b, b, b, b>::result, a>);
  using scores = hd::repaired<op::attention, on_four<shard<0, dp, pp>, shard<2, hd::split::zigzag, cp>, shard<3, tp>>,
                              on_four<shard<0, pp, dp>, shard<1, tp>, shard<2, cp>>,
                              on_four<shard<1, tp>, shard<2, cp>, shard<3, dp>, partial<plus, pp>>>;
  STATIC_REQUIRE(hd::can_propagate_through<op::attention, operand<scores, 0>, operand<scores, 1>, operand<scores, 2>>);
}

TEST_CASE("a repair keeps a split policy on its dimension only", "[layout][repair]") {
  using hd::split::ragged;
  using sizes = shard<1, ragged<3, 2>, tp>;
  STATIC_REQUIRE(std::same_as<operand<hd::repaired<op::softmax<1>, on<sizes>>, 0>, on<shard<0, tp>>>);
  STATIC_REQUIRE(
      std::same_as<operand<hd::repaired<op::softmax<1>, on<shard<1, hd::split::zigzag, tp>>>, 0>, on<shard<0, tp>>>);
  STATIC_REQUIRE(std::same_as<hd::repaired<op::add, on<sizes>, on<>>::result, on<sizes>>);  // sliced alike
  // What is cut before sizes that are given must not change under them.
  using behind = hd::repaired<op::add, on<shard<0, dp, ragged<3, 2>, tp>>, on<shard<1, dp>, shard<0, tp>>>;
  STATIC_REQUIRE(hd::can_propagate_through<op::add, operand<behind, 0>, operand<behind, 1>>);
}

TEST_CASE("a NaN is the largest", "[layout][merge][law]") {
  using value = hd::indexed_value<double>;
  constexpr hd::take_larger larger;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto same = [](const value& a, const value& b) {
    return a.index == b.index && (a.value == b.value || (a.value != a.value && b.value != b.value));
  };
  const std::array<value, 7> all{value{},        value{3, 2},  value{nan, 5}, value{4, 7},
                                 value{nan, 11}, value{4, 13}, value{-1, 0}};
  for (const value& a : all) {
    CHECK(same(larger(a, value{}), a));
    CHECK(same(larger(value{}, a), a));
    for (const value& b : all) {
      CHECK(same(larger(a, b), larger(b, a)));
      for (const value& c : all) CHECK(same(larger(larger(a, b), c), larger(a, larger(b, c))));
    }
  }
  CHECK(larger(value{nan, 5}, value{9, 1}).index == 5);
  CHECK(larger(value{nan, 5}, value{nan, 3}).index == 3);
}

TEST_CASE("an axis of one rank is no mistake in a loss or a dual", "[layout][gradient]") {
  using one = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 1>>;
  using loss = hd::layout<one, hd::identical<dp>, partial<hd::maximum, tp>>;
  STATIC_REQUIRE(hd::loss_layout<loss>);
  STATIC_REQUIRE(std::same_as<hd::seed_gradient<loss>, hd::layout<one, hd::identical<dp>>>);
  STATIC_REQUIRE(std::same_as<hd::dual<hd::layout<one, partial<hd::maximum, tp>>>, hd::layout<one, partial<plus, dp>>>);
}

TEST_CASE("layout_if does not depend on the order of placements", "[layout][canonical]") {
  using hd::ep;
  STATIC_REQUIRE(std::same_as<hd::layout_if<mesh, partial<plus, tp>, partial<hd::maximum, ep>>, on<partial<plus, tp>>>);
  STATIC_REQUIRE(std::same_as<hd::layout_if<mesh, partial<hd::maximum, ep>, partial<plus, tp>>, on<partial<plus, tp>>>);
  STATIC_REQUIRE(std::same_as<hd::layout_if<mesh, shard<0, tp>, shard<0, ep>>, on<shard<0, tp>>>);
  STATIC_REQUIRE(std::same_as<hd::layout_if<mesh, shard<0, ep>, shard<0, tp>>, on<shard<0, tp>>>);
}
