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
