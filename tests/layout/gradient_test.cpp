// Gradient layouts: the table of duals, that dual is its own inverse, and what may be a loss.
#include <heddle/layout/gradient.hpp>
#include <heddle/layout/operations.hpp>
#include <heddle/layout/propagate.hpp>

#include "catch.hpp"

#include <concepts>
#include <tuple>

namespace hd = heddle;
using hd::cp, hd::dp, hd::tp;

namespace {
using grid = hd::mesh<hd::axis<dp, 2>, hd::axis<cp, 3>, hd::axis<tp, 2>>;
template <class... Ps>
using on = hd::layout<grid, Ps...>;

template <class A, class B>
constexpr bool are_duals = std::same_as<hd::dual<A>, B> && std::same_as<hd::dual<B>, A>;

// Every assignment of the five roles to three axes: 125 layouts, each the dual of its dual.
template <int Role, class Axis, int Dim>
struct placed;
template <class Axis, int Dim>
struct placed<0, Axis, Dim> {
  using type = hd::replicate<Axis>;
};
template <class Axis, int Dim>
struct placed<1, Axis, Dim> {
  using type = hd::shard<Dim, hd::split::zigzag, Axis>;
};
template <class Axis, int Dim>
struct placed<2, Axis, Dim> {
  using type = hd::partial<hd::plus, Axis>;
};
template <class Axis, int Dim>
struct placed<3, Axis, Dim> {
  using type = hd::identical<Axis>;
};
template <class Axis, int Dim>
struct placed<4, Axis, Dim> {
  using type = hd::varying<Axis>;
};

template <int Code>
constexpr bool is_its_own_inverse() {
  using L = on<typename placed<Code % 5, dp, 0>::type, typename placed<Code / 5 % 5, cp, 2>::type,
               typename placed<Code / 25, tp, 1>::type>;
  using D = hd::dual<L>;
  constexpr auto flips = [](auto a, auto b) {
    using role = hd::axis_role;
    return a.role == role::replicated ? b.role == role::partial
           : a.role == role::partial  ? b.role == role::replicated
                                      : a.role == b.role && a.dim == b.dim && a.level == b.level && a.how == b.how;
  };
  bool ok = std::same_as<hd::dual<D>, L>;
  for (std::size_t a = 0; a < 3; ++a) ok = ok && flips(L::table.use[a], D::table.use[a]);
  return ok;
}
template <std::size_t... Codes>
constexpr bool all_are_inverse(std::index_sequence<Codes...>) {
  return (is_its_own_inverse<static_cast<int>(Codes)>() && ...);
}
}  // namespace

TEST_CASE("the dual of a layout follows the table, and is its own inverse", "[layout][gradient][law]") {
  using hd::shard, hd::identical, hd::varying;
  using sum = hd::plus;
  STATIC_REQUIRE(are_duals<on<>, on<hd::partial<sum, dp, cp, tp>>>);
  STATIC_REQUIRE(are_duals<on<shard<0, dp>, identical<cp>>, on<shard<0, dp>, identical<cp>, hd::partial<sum, tp>>>);
  STATIC_REQUIRE(are_duals<on<shard<1, tp, hd::split::zigzag, cp>, varying<dp>>,
                           on<shard<1, tp, hd::split::zigzag, cp>, varying<dp>>>);
  STATIC_REQUIRE(all_are_inverse(std::make_index_sequence<125>{}));
  using some = hd::mesh<hd::axis<dp>, hd::axis<tp, 2>>;
  STATIC_REQUIRE(are_duals<hd::layout<some, shard<0, dp>>, hd::layout<some, shard<0, dp>, hd::partial<sum, tp>>>);
  CHECK(hd::dual_of(hd::layout<some, shard<0, dp>>{some{3}}).mesh().size() == 6);
}

TEST_CASE("a loss is a sum over data axes and one computation over model axes", "[layout][gradient]") {
  using sum = hd::plus;
  using per_row = on<hd::shard<0, dp, cp>, hd::identical<tp>>;
  using loss = hd::propagate<"b->", per_row>;
  STATIC_REQUIRE(std::same_as<loss, on<hd::partial<sum, dp, cp>, hd::identical<tp>>>);
  STATIC_REQUIRE(hd::loss_layout<loss>);
  STATIC_REQUIRE(std::same_as<hd::seed_gradient<loss>, on<hd::identical<tp>>>);
  STATIC_REQUIRE(hd::loss_layout<on<hd::partial<sum, dp, cp, tp>>>);
  STATIC_REQUIRE(hd::loss_layout<on<hd::identical<dp, cp, tp>>>);
  STATIC_REQUIRE(!hd::loss_layout<on<hd::partial<sum, dp, cp>>>);  // replicated over tp
  STATIC_REQUIRE(!hd::loss_layout<on<hd::shard<0, dp>, hd::identical<cp, tp>>>);
  STATIC_REQUIRE(!hd::loss_layout<on<hd::varying<dp>, hd::identical<cp, tp>>>);
  STATIC_REQUIRE(!hd::loss_layout<on<hd::partial<hd::maximum, dp>, hd::identical<cp, tp>>>);
  STATIC_REQUIRE(!hd::loss_layout<int>);
  // An axis of one rank does nothing.
  using single = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 1>>;
  STATIC_REQUIRE(hd::loss_layout<hd::layout<single, hd::partial<sum, dp>>>);
}

TEST_CASE("gradients of a product have the duals of its operands' layouts", "[layout][gradient][law]") {
  // Column- and row-parallel products: dx and dW by the same algebra, from dy of the dual of y's layout.
  using x = on<hd::shard<0, dp>>;
  using w = on<hd::shard<1, tp>>;
  using y = hd::propagate<"bi,io->bo", x, w>;
  STATIC_REQUIRE(std::same_as<hd::propagate<"bo,io->bi", on<hd::shard<0, dp>, hd::shard<1, tp>, hd::identical<cp>>,
                                            on<hd::shard<1, tp>, hd::identical<cp>>>,
                              on<hd::shard<0, dp>, hd::partial<hd::plus, tp>, hd::identical<cp>>>);
  STATIC_REQUIRE(std::same_as<y, on<hd::shard<0, dp>, hd::shard<1, tp>>>);
  using plane = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using x2 = hd::layout<plane, hd::shard<0, dp>>;
  using w2 = hd::layout<plane, hd::shard<1, tp>>;
  using y2 = hd::propagate<"bi,io->bo", x2, w2>;
  STATIC_REQUIRE(std::same_as<hd::propagate<"bo,io->bi", hd::dual<y2>, w2>, hd::dual<x2>>);
  STATIC_REQUIRE(std::same_as<hd::propagate<"bi,bo->io", x2, hd::dual<y2>>, hd::dual<w2>>);
  using w3 = hd::layout<plane, hd::shard<0, tp>>;
  using y3 = hd::propagate<"bi,io->bo", y2, w3>;
  STATIC_REQUIRE(std::same_as<hd::dual<y3>, x2>);
  STATIC_REQUIRE(std::same_as<hd::propagate<"bo,io->bi", hd::dual<y3>, w3>, hd::dual<y2>>);
  STATIC_REQUIRE(std::same_as<hd::propagate<"bi,bo->io", y2, hd::dual<y3>>, hd::dual<w3>>);
}

TEST_CASE("the refused losses compile when they are made right", "[layout][gradient]") {
  // tests/refuse/gradient_loss_*.cpp: logits reduced over tp, or split by classes, and a loss that is identical along tp.
  using plane = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using labels = hd::layout<plane, hd::shard<0, dp>>;
  using stream = hd::layout<plane, hd::shard<0, dp>, hd::identical<tp>>;
  using by_class = hd::layout<plane, hd::shard<0, dp>, hd::shard<1, tp>>;
  using entropy = hd::op::cross_entropy<1>;
  using parallel = hd::propagate<"b->", hd::propagate_through<entropy, by_class, labels>>;
  using repeated = hd::propagate<"b->", hd::propagate_through<entropy, stream, stream>>;
  STATIC_REQUIRE(hd::loss_layout<parallel>);
  STATIC_REQUIRE(hd::loss_layout<repeated>);
  STATIC_REQUIRE(std::same_as<hd::seed_gradient<parallel>, hd::layout<plane, hd::identical<tp>>>);
  // Copies of the logits give copies of the loss: every rank would differentiate its own.
  STATIC_REQUIRE(!hd::loss_layout<hd::propagate<"b->", hd::propagate_through<entropy, labels, labels>>>);
}
