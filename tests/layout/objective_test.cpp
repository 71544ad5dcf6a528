#include <heddle/layout/redistribution.hpp>

#include "catch.hpp"

namespace hd = heddle;
using hd::dp, hd::tp, hd::step_kind;

namespace {
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 8>>;
template <class... Ps>
using on = hd::layout<mesh, Ps...>;

struct slow_messages {
  static constexpr double tensor_bytes = 1e3;
  template <class Axis>
  static constexpr hd::link_cost along{1e-3, 1e9};
};
}  // namespace

TEST_CASE("idle axes take part in a sum only where the objective lets them", "[layout][plan]") {
  using from = on<hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
  STATIC_REQUIRE(hd::redistribution<from, on<hd::shard<0, dp>>>.steps.size() == 1);
  // Replicated over dp: each copy reduces half of the tensor, then they exchange halves. It needs a dimension to cut.
  using sums = on<hd::partial<hd::plus, tp>>;
  using split = on<hd::shard<0, tp>>;
  constexpr auto plain = hd::redistribution<sums, split>;
  constexpr auto shared = hd::redistribution<sums, split, hd::objective::bytes_on_all_axes>;
  STATIC_REQUIRE(plain.steps.size() == 1);
  STATIC_REQUIRE(plain.steps[0].axes == 2u);
  STATIC_REQUIRE(shared.bytes_sent_in_total(hd::shape{16, 4}, 4) < plain.bytes_sent_in_total(hd::shape{16, 4}, 4));
}

TEST_CASE("a sum on all axes goes over a cut of a dimension that no layout names", "[layout][plan]") {
  using grid = hd::mesh<hd::axis<dp, 3>, hd::axis<tp, 4>>;
  using sums = hd::layout<grid, hd::partial<hd::plus, tp>>;
  using whole = hd::layout<grid>;
  constexpr hd::shape s{12, 5};
  constexpr std::int64_t tensor = 12 * 5 * 4;
  constexpr auto plain = hd::redistribution<sums, whole>;
  constexpr auto shared = hd::redistribution<sums, whole, hd::objective::bytes_on_all_axes>;
  STATIC_REQUIRE(plain.bytes_sent_in_total(s, 4) == 18 * tensor);   // an all_reduce over tp by each of 3 copies
  STATIC_REQUIRE(shared.bytes_sent_in_total(s, 4) == 14 * tensor);  // of a third each, which the copies gather
  STATIC_REQUIRE(plain.proven);
  STATIC_REQUIRE(shared.proven);
  STATIC_REQUIRE(plain.min_tensor_rank == 0);
  STATIC_REQUIRE(shared.min_tensor_rank == 1);
  constexpr auto two = hd::redistribution<sums, whole, hd::objective::bytes_on_all_axes_of<2>>;
  STATIC_REQUIRE(two.bytes_sent_in_total(s, 4) == 14 * tensor);
  // A dimension below one that is named is there too: a split of the second, a sum that moves to the other axis.
  using from = hd::layout<grid, hd::shard<1, dp>, hd::partial<hd::plus, tp>>;
  using to = hd::layout<grid, hd::shard<1, tp>, hd::partial<hd::plus, dp>>;
  STATIC_REQUIRE(hd::redistribution<from, to, hd::objective::bytes_on_all_axes>.min_tensor_rank == 2);
  constexpr hd::shape even{12, 12};
  STATIC_REQUIRE(hd::redistribution<from, to, hd::objective::bytes_on_all_axes>.bytes_sent_in_total(even, 1) <
                 hd::redistribution<from, to>.bytes_sent_in_total(even, 1));
}

TEST_CASE("the plan with the smallest peak needs no more memory than the one with the fewest bytes", "[layout][plan]") {
  using from = on<hd::shard<0, tp>>;
  using to = on<hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
  constexpr hd::shape s{16, 16};
  constexpr auto lean = hd::redistribution<from, to, hd::objective::peak_memory>;
  constexpr auto cheap = hd::redistribution<from, to>;
  STATIC_REQUIRE(lean.peak_bytes(s, 1) <= cheap.peak_bytes(s, 1));
  STATIC_REQUIRE(cheap.bytes_sent_in_total(s, 1) <= lean.bytes_sent_in_total(s, 1));
}

TEST_CASE("a plan that counts seconds spares messages where they are slow", "[layout][plan]") {
  using sums = on<hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
  using to = on<hd::shard<0, dp, tp>>;
  constexpr auto plan = hd::redistribution<sums, to, hd::objective::alpha_beta<slow_messages>>;
  STATIC_REQUIRE(plan.steps.size() == 1);
  STATIC_REQUIRE(plan.steps[0].kind == step_kind::reduce_scatter);
  const hd::mesh<hd::axis<dp>, hd::axis<tp>> m{2, 4};
  using some = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
  const auto found =
      hd::plan_redistribution(hd::layout<some, hd::shard<0, dp, tp>>{m}, hd::layout<some, hd::shard<0, tp, dp>>{m},
                              hd::objective::alpha_beta<slow_messages>{});
  CHECK(found.steps.size() >= 1);
  CHECK(found.tables[found.steps.size()] == hd::layout<some, hd::shard<0, tp, dp>>::table);
}

TEST_CASE("gradients go back from the dual of the target to the dual of the source", "[layout][plan]") {
  using split = on<hd::shard<0, dp>, hd::identical<tp>>;
  using sums = on<hd::partial<hd::plus, dp>, hd::identical<tp>>;
  using gather = hd::redistribution_plan<split, on<hd::identical<tp>>>;
  STATIC_REQUIRE(gather::steps[0].kind == step_kind::all_gather);
  STATIC_REQUIRE(hd::backward_plan<gather>::steps[0].kind == step_kind::reduce_scatter);
  using reduce = hd::redistribution_plan<sums, on<hd::identical<tp>>>;
  STATIC_REQUIRE(hd::backward_plan<reduce>::steps[0].kind == step_kind::all_reduce);
}
