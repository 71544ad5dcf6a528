#include <heddle/layout/layout.hpp>

#include "catch.hpp"

#include <concepts>
#include <type_traits>

namespace hd = heddle;
using hd::cp, hd::dp, hd::ep, hd::tp;

namespace {
struct mine {};
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<cp, 3>, hd::axis<tp, 2>>;
using some = hd::mesh<hd::axis<dp>, hd::axis<cp, 3>, hd::axis<tp>>;
using none = hd::mesh<hd::axis<dp>, hd::axis<cp>, hd::axis<mine>>;

template <class M, class A, class B, class C>
constexpr bool canonical() {
  using one = hd::layout<M, hd::shard<0, A>, hd::shard<1, B>, hd::partial<hd::plus, C>>;
  return std::same_as<one, hd::layout<M, hd::partial<hd::plus, C>, hd::shard<1, B>, hd::shard<0, A>>> &&
         std::same_as<one, hd::layout<M, hd::shard<1, B>, hd::partial<hd::plus, C>, hd::shard<0, A>>> &&
         std::same_as<hd::layout<M, hd::shard<0, A>, hd::replicate<B, C>>, hd::layout<M, hd::shard<0, A>>> &&
         std::same_as<hd::layout<M, hd::replicate<>>, hd::layout<M>> &&
         std::same_as<hd::layout<M, hd::partial<hd::plus, C, A>>, hd::layout<M, hd::partial<hd::plus, A, C>>> &&
         std::same_as<hd::layout<M, hd::partial<hd::plus, C>, hd::partial<hd::plus, A>>, hd::layout<M, hd::partial<hd::plus, A, C>>> &&
         // The order of cuts is part of the layout.
         !std::same_as<hd::layout<M, hd::shard<0, A, B>>, hd::layout<M, hd::shard<0, B, A>>> &&
         !std::same_as<hd::layout<M, hd::shard<0, A>>, hd::layout<M, hd::shard<1, A>>> &&
         !std::same_as<hd::layout<M, hd::partial<hd::plus, A>>, hd::layout<M, hd::partial<hd::maximum, A>>>;
}
}  // namespace

TEST_CASE("two spellings of a layout are one type", "[layout][law]") {
  STATIC_REQUIRE(canonical<mesh, dp, cp, tp>());
  STATIC_REQUIRE(canonical<some, tp, dp, cp>());
  STATIC_REQUIRE(canonical<none, cp, mine, dp>());
  STATIC_REQUIRE(std::same_as<hd::layout<mesh, hd::partial<hd::plus, tp, dp>, hd::shard<3, cp>>,
                              hd::basic_layout<mesh, hd::shard<3, cp>, hd::partial<hd::plus, dp, tp>>>);
  STATIC_REQUIRE(std::same_as<hd::layout<mesh, hd::shard<7, tp>, hd::shard<2, cp, dp>>,
                              hd::basic_layout<mesh, hd::shard<2, cp, dp>, hd::shard<7, tp>>>);
}

TEST_CASE("a layout answers what each axis does", "[layout]") {
  using l = hd::layout<mesh, hd::shard<1, tp, dp>, hd::partial<hd::maximum, cp>>;
  STATIC_REQUIRE(l::is_sharded_on<tp>);
  STATIC_REQUIRE(l::is_sharded_on<dp>);
  STATIC_REQUIRE(l::dim_of<dp> == 1);
  STATIC_REQUIRE(l::dim_of<cp> == -1);
  STATIC_REQUIRE(l::is_partial_on<cp>);
  STATIC_REQUIRE(std::same_as<l::op_of<cp>, hd::maximum>);
  STATIC_REQUIRE_FALSE(l::is_replicated_on<cp>);
  STATIC_REQUIRE(l::is_replicated_on<ep>);  // a stranger splits nothing
  STATIC_REQUIRE(l::min_tensor_rank == 2);
  STATIC_REQUIRE(l::has_partial);
  STATIC_REQUIRE(hd::layout<mesh>::min_tensor_rank == 0);
  STATIC_REQUIRE_FALSE(hd::layout<mesh>::has_partial);
  STATIC_REQUIRE(hd::layout_like<l>);
  STATIC_REQUIRE_FALSE(hd::layout_like<mesh>);
  STATIC_REQUIRE(hd::placement<hd::shard<0, tp>>);
  STATIC_REQUIRE_FALSE(hd::placement<tp>);
}

TEST_CASE("a layout of a static mesh takes no room, others store the mesh", "[layout]") {
  STATIC_REQUIRE(std::is_empty_v<hd::layout<mesh, hd::shard<0, tp>>>);
  STATIC_REQUIRE(sizeof(hd::layout<some, hd::shard<0, tp>>) == sizeof(some));
  const hd::layout<some, hd::shard<0, tp>> l{some{4, 5}};
  CHECK(l.mesh().extent<tp>() == 5);
  CHECK(l == hd::layout<some, hd::shard<0, tp>>{some{4, 5}});
  CHECK_FALSE(l == hd::layout<some, hd::shard<0, tp>>{some{4, 6}});
  CHECK(hd::layout<mesh>{mesh{}} == hd::layout<mesh>{});
}

TEST_CASE("axes that a mesh lacks drop out of layout_if", "[layout]") {
  using flat = hd::mesh<hd::axis<dp>>;
  STATIC_REQUIRE(std::same_as<hd::layout_if<flat, hd::shard<0, dp, tp>, hd::partial<hd::plus, cp>>, hd::layout<flat, hd::shard<0, dp>>>);
  STATIC_REQUIRE(std::same_as<hd::layout_if<flat, hd::shard<1, tp>>, hd::layout<flat>>);
  STATIC_REQUIRE(std::same_as<hd::layout_if<flat, hd::shard<1, tp, dp>>, hd::layout<flat, hd::shard<1, dp>>>);
}

TEST_CASE("layouts print as they are written", "[layout]") {
  CHECK(to_string(hd::layout<mesh, hd::partial<hd::plus, tp>, hd::shard<0, dp>>{}) == "shard<0, dp>, partial<plus, tp> on dp=2 x cp=3 x tp=2");
  CHECK(to_string(hd::layout<mesh>{}) == "replicated on dp=2 x cp=3 x tp=2");
  CHECK(to_string(hd::layout<some, hd::shard<1, cp, tp>>{some{4, 5}}) == "shard<1, cp, tp> on dp=4 x cp=3 x tp=5");
}
