#include <heddle/layout/redistribution.hpp>
#include <heddle/layout/sbp.hpp>

#include "catch.hpp"

#include <type_traits>

namespace hd = heddle;
namespace sbp = hd::sbp;
using hd::dp, hd::tp;

namespace {
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 4>>;
using dynamic = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
template <class... Entries>
using at = sbp::signature<mesh, Entries...>;
template <class A, class B>
inline constexpr bool same = std::is_same_v<A, B>;
}  // namespace

TEST_CASE("signatures in OneFlow's spelling are layouts", "[layout][oneflow]") {
  STATIC_REQUIRE(same<at<sbp::B, sbp::B>, hd::layout<mesh>>);
  STATIC_REQUIRE(same<at<sbp::S<0>, sbp::S<1>>, hd::layout<mesh, hd::shard<0, dp>, hd::shard<1, tp>>>);
  STATIC_REQUIRE(same<at<sbp::S<1>, sbp::S<0>>, hd::layout<mesh, hd::shard<0, tp>, hd::shard<1, dp>>>);
  STATIC_REQUIRE(same<at<sbp::S<2>, sbp::S<2>>, hd::layout<mesh, hd::shard<2, dp, tp>>>);
  STATIC_REQUIRE(same<at<sbp::P, sbp::S<0>>, hd::layout<mesh, hd::shard<0, tp>, hd::partial<hd::plus, dp>>>);
  STATIC_REQUIRE(same<at<sbp::P, sbp::P>, hd::layout<mesh, hd::partial<hd::plus, dp, tp>>>);
  STATIC_REQUIRE(same<sbp::signature<dynamic, sbp::B, sbp::S<0>>, hd::layout<dynamic, hd::shard<0, tp>>>);
}

TEST_CASE("a boxing is a redistribution between signatures", "[layout][oneflow]") {
  constexpr auto plan = hd::redistribution<at<sbp::P, sbp::B>, at<sbp::B, sbp::B>>;
  STATIC_REQUIRE(plan.steps.size() == 1);
  STATIC_REQUIRE(plan.steps[0].kind == hd::step_kind::all_reduce);
}
