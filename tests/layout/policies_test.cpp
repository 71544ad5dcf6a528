#include <heddle/layout/operations.hpp>
#include <heddle/layout/redistribution.hpp>
#include <heddle/testing/layout_laws.hpp>

#include "catch.hpp"

#include <concepts>
#include <cstdint>
#include <vector>

namespace {
using namespace heddle;
using M = mesh<axis<dp, 2>, axis<cp, 3>, axis<tp, 2>>;

// Over every element of the tensor: who holds it, and that the maps are inverse of each other.
template <class L, std::int64_t... E>
void check_maps(const L& l, const shape<E...>& s) {
  const testing::report r = testing::check_partition(l, s);
  UNSCOPED_INFO(r.what);
  CHECK(r.ok());
  for (std::int64_t at = 0; at < s.size(); ++at)
    for (int rank = 0; rank < l.mesh().size(); ++rank) {
      const std::array<std::int64_t, 2> index{at / s.extent(1), at % s.extent(1)};
      CHECK(l.owns(s, rank, index) == l.part(s, rank).holds(index));
    }
  std::int64_t elements = 0;
  std::int64_t most = 0;
  for (int rank = 0; rank < l.mesh().size(); ++rank) {
    if (l.is_primary(rank)) elements += l.valid_shape(s, rank).size();
    most = (std::max)(most, l.bytes_held(s, 4, rank));
    CHECK(l.local_size(s, rank) == l.local_shape(s, rank).size());
  }
  CHECK(elements == s.size());
  CHECK(most == l.bytes_per_rank(s, 4));
}
template <class L>
void check_sizes() {
  for (const std::int64_t n : {0, 1, 5, 12, 13})
    for (const std::int64_t m : {1, 7, 24}) {
      CAPTURE(to_string(L{}), n, m);
      check_maps(L{}, shape{n, m});
    }
}
}  // namespace

TEST_CASE("layouts of every split policy hold each element once", "[layout][split]") {
  check_sizes<layout<M, shard<0, split::ceil, cp, dp>, shard<1, tp>>>();
  check_sizes<layout<M, shard<0, split::zigzag, cp, split::balanced, tp>, shard<1, split::ceil, dp>>>();
  check_sizes<layout<M, shard<1, dp, split::block_cyclic<2>, cp>, identical<tp>>>();
  check_sizes<layout<M, shard<1, split::padded<>, cp, dp>, shard<0, split::padded<split::balanced>, tp>>>();
  check_sizes<layout<M, shard<0, split::block_cyclic<1>, dp, split::zigzag, tp, cp>>>();
  check_maps(layout<M, shard<0, split::ragged<4, 0, 9>, cp>>{}, shape{13, 2});
}

TEST_CASE("dynamic meshes give the same parts", "[layout][split]") {
  using D = mesh<axis<dp>, axis<cp>, axis<tp>>;
  using S = layout<M, shard<0, split::zigzag, cp, split::ceil, tp>>;
  const layout<D, shard<0, split::zigzag, cp, split::ceil, tp>> d{D::from_extents({2, 3, 2})};
  check_maps(d, shape{13, 3});
  for (int rank = 0; rank < 12; ++rank) CHECK(d.local_shape(shape{13, 3}, rank) == S::local_shape(shape{13, 3}, rank));
}

TEST_CASE("spellings of policies and roles are canonical", "[layout]") {
  STATIC_REQUIRE(std::same_as<layout<M, shard<0, split::balanced, dp, tp>>, layout<M, shard<0, dp, tp>>>);
  STATIC_REQUIRE(
      std::same_as<layout<M, shard<0, split::ceil, dp, split::ceil, tp>>, layout<M, shard<0, split::ceil, dp, tp>>>);
  STATIC_REQUIRE_FALSE(std::same_as<layout<M, shard<0, split::ceil, dp>>, layout<M, shard<0, dp>>>);
  STATIC_REQUIRE(
      std::same_as<layout<M, varying<tp>, identical<cp, dp>>, layout<M, identical<dp>, varying<tp>, identical<cp>>>);
  STATIC_REQUIRE_FALSE(std::same_as<layout<M, identical<tp>>, layout<M>>);
  using L = layout<M, shard<1, split::zigzag, cp, split::balanced, tp>, identical<dp>>;
  STATIC_REQUIRE(std::same_as<L::split_of<cp>, split::zigzag>);
  STATIC_REQUIRE(std::same_as<L::split_of<tp>, split::balanced>);
  STATIC_REQUIRE((L::is_identical_on<dp> && !L::is_replicated_on<dp> && !L::is_contiguous && !L::has_varying));
  STATIC_REQUIRE((layout<M, varying<tp>>::has_varying && layout<M, varying<tp>>::is_varying_on<tp>));
  CHECK(to_string(L{}) == "shard<1, zigzag, cp, balanced, tp>, identical<dp> on dp=2 x cp=3 x tp=2");
  CHECK(to_string(layout<M, varying<tp>, partial<plus, dp>>{}) ==
        "partial<plus, dp>, varying<tp> on dp=2 x cp=3 x tp=2");
}

TEST_CASE("padded parts take the same memory on every rank", "[layout][split]") {
  using L = layout<M, shard<0, split::padded<>, cp, tp>>;
  for (const std::int64_t n : {1, 7, 11, 12}) {
    std::int64_t valid = 0;
    for (int rank = 0; rank < 6; ++rank) {
      CHECK(L::local_size(shape{n}, rank) == ((n + 2) / 3 + 1) / 2);
      valid += L::valid_shape(shape{n}, rank).size();
    }
    CHECK(valid == n);
  }
}

TEST_CASE("ragged sizes that do not add up are refused", "[layout][split]") {
  using L = layout<M, shard<0, split::ragged<4, 0, 9>, cp>>;
  CHECK_THROWS_WITH(
      L::local_shape(shape{12}, 0),
      Catch::Matchers::Contains("ragged<4") && Catch::Matchers::Contains("12 elements of dimension 0 into 3 parts"));
  using D = mesh<axis<tp>>;  // how many ranks is known only now
  const layout<D, shard<0, split::ragged<4, 0, 9>, tp>> two_parts{D::from_extents({2})};
  CHECK_THROWS_AS(two_parts.owner(shape{13}, {2}), layout_error);
}

TEST_CASE("nested balanced cuts equal one flat cut as the law says", "[layout][law]") {
  // n mod (a b) in {0, 1, a b - 1}; and the order of the axes is not a stride.
  for (int a = 1; a <= 4; ++a)
    for (int b = 1; b <= 4; ++b) {
      const auto nested = mesh<axis<dp>, axis<tp>>::from_extents({a, b});
      const auto flat = mesh<axis<dp>>::from_extents({a * b});
      for (std::int64_t n = 0; n <= 64; ++n) {
        bool equal = true;
        for (int r = 0; r < a * b; ++r)
          equal = equal && layout<mesh<axis<dp>, axis<tp>>, shard<0, dp, tp>>{nested}.local_shape(shape{n}, r) ==
                               layout<mesh<axis<dp>>, shard<0, dp>>{flat}.local_shape(shape{n}, r);
        const auto rest = n % (a * b);
        const bool law = rest == 0 || rest == 1 || rest == a * b - 1;
        CAPTURE(a, b, n);
        if (law) CHECK(equal);
        if (!law && a > 1 && b > 1) CHECK_FALSE(equal);
      }
    }
}

namespace {
// Parts hold their elements backwards, even the only one.
struct mirrored {
  using kind = split_kind;
  using even = split::balanced;
  using i64 = std::int64_t;
  static constexpr bool contiguous = false;
  static constexpr bool fits(i64, i64) { return true; }
  static constexpr i64 size(i64 n, i64 p, i64 r) { return even::size(n, p, r); }
  static constexpr i64 stored(i64 n, i64 p, i64 r) { return size(n, p, r); }
  static constexpr i64 owner(i64 n, i64 p, i64 g) { return even::owner(n, p, g); }
  static constexpr i64 to_local(i64 n, i64 p, i64 g) {
    return size(n, p, owner(n, p, g)) - 1 - even::to_local(n, p, g);
  }
  static constexpr i64 to_global(i64 n, i64 p, i64 r, i64 l) { return even::to_global(n, p, r, size(n, p, r) - 1 - l); }
  static constexpr i64 run(i64, i64, i64, i64) { return 1; }
};
}  // namespace

TEST_CASE("an axis of one rank whose policy reorders is no axis that does nothing", "[layout][split]") {
  STATIC_REQUIRE_FALSE(detail::functions_of<mirrored>.keeps_one);
  STATIC_REQUIRE(detail::functions_of<split::balanced>.keeps_one);
  STATIC_REQUIRE(detail::functions_of<split::ceil>.keeps_one);
  STATIC_REQUIRE(detail::functions_of<split::zigzag>.keeps_one);
  STATIC_REQUIRE(detail::functions_of<split::block_cyclic<3>>.keeps_one);
  STATIC_REQUIRE(detail::functions_of<split::padded<>>.keeps_one);
  STATIC_REQUIRE(detail::functions_of<split::ragged<7>>.keeps_one);
  using some = mesh<axis<dp>, axis<tp>>;
  using back = layout<some, shard<0, mirrored, tp>>;
  using copies = layout<some>;
  CHECK(plan_redistribution(back{some{2, 2}}, copies{some{2, 2}}).steps.size() == 1);
  CHECK_THROWS_AS(plan_redistribution(back{some{2, 1}}, copies{some{2, 1}}), layout_error);
  CHECK_THROWS_AS(plan_redistribution(copies{some{2, 1}}, back{some{2, 1}}), layout_error);
  using nested = layout<some, shard<0, dp, mirrored, tp>>;
  CHECK_THROWS_AS(plan_redistribution(nested{some{2, 1}}, back{some{2, 1}}), layout_error);
  // Along other dimensions it may change.
  using also = layout<some, shard<0, mirrored, tp>, shard<1, dp>>;
  CHECK_NOTHROW(plan_redistribution(back{some{2, 1}}, also{some{2, 1}}));
  CHECK_NOTHROW(plan_redistribution(back{some{2, 1}}, back{some{2, 1}}));
  // Operands in two orders do not fit together.
  using one = mesh<axis<dp, 2>, axis<tp, 1>>;
  STATIC_REQUIRE(can_propagate_through<op::add, layout<one, shard<0, tp>>, layout<one>>);
  STATIC_REQUIRE_FALSE(can_propagate_through<op::add, layout<one, shard<0, mirrored, tp>>, layout<one>>);
  STATIC_REQUIRE(
      can_propagate_through<op::add, layout<one, shard<0, mirrored, tp>>, layout<one, shard<0, mirrored, tp>>>);
}
