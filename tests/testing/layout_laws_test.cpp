#include <heddle/testing/layout_laws.hpp>
#include <heddle/testing/random_cases.hpp>

#include "catch.hpp"

#include <cstdint>
#include <string>

namespace hd = heddle;
namespace ht = hd::testing;
namespace split = hd::split;
using hd::cp, hd::dp, hd::tp;

namespace {
using one = hd::mesh<hd::axis<tp>>;
using two = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using three = hd::mesh<hd::axis<dp>, hd::axis<cp>, hd::axis<tp>>;
using fixed = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 3>>;
using mixed = hd::mesh<hd::axis<dp>, hd::axis<tp, 2>>;

ht::case_options cases(std::int64_t n, std::int64_t most_extent = 64, std::int64_t most_elements = 200) {
  ht::case_options o;
  o.cases = n;
  o.most_extent = most_extent;
  o.most_elements = most_elements;
  return o;
}
// The law for several layouts on the same random meshes and shapes.
template <class Mesh, std::size_t Rank, class... Layouts>
std::string broken(const ht::case_options& options) {
  return ht::for_random_cases<Mesh, Rank>(options,
                                          [](const Mesh& mesh, const auto& s, std::uint64_t) {
                                            ht::report all;
                                            ((all.ok() ? void(all += ht::check_partition(Layouts{mesh}, s)) : void()),
                                             ...);
                                            return all;
                                          })
      .what;
}
}  // namespace

TEST_CASE("every size from 0 to 64 over 1 to 8 ranks is covered once", "[testing][law]") {
  const auto all = [](auto policy) {
    using P = decltype(policy);
    ht::report found;
    for (int p = 1; p <= 8; ++p)
      for (std::int64_t n = 0; n <= 64 && found.ok(); ++n)
        found += ht::check_partition(hd::layout<one, hd::shard<0, P, tp>>{one{p}}, hd::shape{n});
    return found.what;
  };
  CHECK(all(split::balanced{}) == "");
  CHECK(all(split::ceil{}) == "");
  CHECK(all(split::zigzag{}) == "");
  CHECK(all(split::block_cyclic<3>{}) == "");
  CHECK(all(split::padded<>{}) == "");
}

TEST_CASE("layouts on one, two and three axes cover random tensors once", "[testing][law]") {
  using hd::shard, hd::partial, hd::plus;
  CHECK(broken<one, 1, hd::layout<one>, hd::layout<one, partial<plus, tp>>, hd::layout<one, hd::identical<tp>>,
               hd::layout<one, hd::varying<tp>>>(cases(60)) == "");
  CHECK(broken<two, 2, hd::layout<two, shard<0, dp>, shard<1, tp>>, hd::layout<two, shard<1, tp, dp>>,
               hd::layout<two, shard<1, split::zigzag, tp, split::ceil, dp>>,
               hd::layout<two, shard<0, split::block_cyclic<2>, dp>, partial<hd::maximum, tp>>,
               hd::layout<two, shard<0, split::padded<>, tp>, hd::identical<dp>>>(cases(60)) == "");
  CHECK(broken<three, 2, hd::layout<three, shard<0, cp, dp, tp>>,
               hd::layout<three, shard<1, tp>, shard<0, split::zigzag, cp>>,
               hd::layout<three, shard<0, split::ceil, dp, split::block_cyclic<1>, tp>, partial<plus, cp>>,
               hd::layout<three, shard<1, dp>, hd::identical<cp>, hd::varying<tp>>>(cases(40)) == "");
  CHECK(
      broken<three, 3, hd::layout<three, shard<2, tp>, shard<0, dp>>, hd::layout<three, shard<1, split::padded<>, cp>>>(
          cases(40)) == "");
  CHECK(broken<fixed, 2, hd::layout<fixed, shard<0, tp, dp>>, hd::layout<fixed, shard<1, split::zigzag, tp>>>(
            cases(40)) == "");
  CHECK(broken<mixed, 2, hd::layout<mixed, shard<0, tp, dp>>>(cases(40)) == "");
}

TEST_CASE("the laws of layouts hold at compile time", "[testing][law]") {
  using hd::shard;
  HEDDLE_STATIC_LAW(ht::partition(hd::layout<fixed>{}, hd::shape<2, 3>{}));
  HEDDLE_STATIC_LAW(ht::partition(hd::layout<fixed, shard<0, dp, tp>>{}, hd::shape<7, 3>{}));
  HEDDLE_STATIC_LAW(ht::partition(hd::layout<fixed, shard<0, tp>, shard<1, dp>>{}, hd::shape<5, 4>{}));
  HEDDLE_STATIC_LAW(
      ht::partition(hd::layout<fixed, shard<0, split::zigzag, tp>, hd::partial<hd::plus, dp>>{}, hd::shape<13>{}));
  HEDDLE_STATIC_LAW(
      ht::partition(hd::layout<fixed, shard<0, split::ceil, tp, split::block_cyclic<2>, dp>>{}, hd::shape<11>{}));
  HEDDLE_STATIC_LAW(
      ht::partition(hd::layout<fixed, shard<0, split::padded<>, tp>, hd::identical<dp>>{}, hd::shape<4>{}));
  HEDDLE_STATIC_LAW(ht::partition(hd::layout<fixed, shard<0, split::ragged<3, 0, 4>, tp>>{}, hd::shape<7>{}));
  HEDDLE_STATIC_LAW(ht::partition(hd::layout<fixed, shard<0, tp>>{}, hd::shape<0>{}));
  SUCCEED();
}

TEST_CASE("axes of one rank are inert, and nested balanced cuts merge where they can", "[testing][law]") {
  using unit = hd::mesh<hd::axis<dp, 1>, hd::axis<tp, 3>>;
  HEDDLE_STATIC_LAW(ht::same_parts(hd::layout<unit, hd::shard<0, dp, tp>>{}, hd::layout<unit, hd::shard<0, tp>>{},
                                   hd::shape<7, 2>{}));
  HEDDLE_STATIC_LAW(ht::same_parts(hd::layout<unit, hd::shard<0, tp>, hd::shard<1, dp>>{},
                                   hd::layout<unit, hd::shard<0, tp, dp>>{}, hd::shape<7, 2>{}));
  for (int a = 1; a <= 3; ++a)
    for (int b = 1; b <= 3; ++b)
      for (std::int64_t n = 0; n <= 24; ++n) {
        CAPTURE(a, b, n);
        const hd::layout<two, hd::shard<0, dp, tp>> nested{two{a, b}};
        const hd::layout<one, hd::shard<0, tp>> flat{one{a * b}};
        const std::int64_t rest = n % (a * b);
        const bool merges = a == 1 || b == 1 || rest == 0 || rest == 1 || rest == a * b - 1;
        REQUIRE(ht::same_parts(nested, flat, hd::shape{n}).ok() == merges);
      }
}

TEST_CASE("an explicit list of sizes must fit the extent", "[testing][law]") {
  using ragged = hd::layout<one, hd::shard<0, split::ragged<5, 0, 2>, tp>>;
  CHECK(ht::check_partition(ragged{one{3}}, hd::shape{7}).what == "");
  CHECK_THROWS_AS(ht::check_partition(ragged{one{3}}, hd::shape{8}), hd::layout_error);
}

TEST_CASE("a failing law names layout, mesh, shape and numbers", "[testing]") {
  const hd::layout<two, hd::shard<0, dp>> a{two{2, 2}};
  const hd::layout<two, hd::shard<0, tp>> b{two{2, 2}};
  const ht::report r = ht::report_of(ht::same_parts(a, b, hd::shape{4}), "dp and tp");
  CHECK_FALSE(r.ok());
  CHECK(r.what ==
        "dp and tp: extent 4, parts 4, rank 1, index 0: a rank holds an element in one of two layouts only: expected "
        "1, got 0");
  const ht::finding below{ht::problem::local_out_of_range, 5, 2, -1, 0, 3, -1};
  CHECK(to_string(below) ==
        "extent 5, parts 2, index 0: to_local is outside of the owner's part: expected at least 0 and less than 3, got "
        "-1");
  CHECK(to_string(ht::report{true, "", 3}) == "holds in 3 cases");
}
