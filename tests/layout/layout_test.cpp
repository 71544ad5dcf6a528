#include <heddle/layout/layout.hpp>
#include <heddle/testing/layout_laws.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace hd = heddle;
namespace ht = hd::testing;
using hd::cp, hd::dp, hd::tp;

namespace {
using index2 = std::array<std::int64_t, 2>;
using fixed = hd::mesh<hd::axis<dp, 2>, hd::axis<cp, 3>, hd::axis<tp, 2>>;
using mixed = hd::mesh<hd::axis<dp>, hd::axis<cp, 3>, hd::axis<tp>>;
using free_mesh = hd::mesh<hd::axis<dp>, hd::axis<cp>, hd::axis<tp>>;

// The slow, obvious definition: cut a list of indices into balanced pieces, axis by axis.
std::vector<std::int64_t> piece(std::vector<std::int64_t> all, int parts, int part) {
  std::size_t begin = 0;
  for (int p = 0; p <= part; ++p) {
    const std::size_t larger = all.size() % static_cast<std::size_t>(parts);
    const std::size_t size =
        all.size() / static_cast<std::size_t>(parts) + (static_cast<std::size_t>(p) < larger ? 1 : 0);
    if (p == part)
      return {all.begin() + static_cast<std::ptrdiff_t>(begin),
              all.begin() + static_cast<std::ptrdiff_t>(begin + size)};
    begin += size;
  }
  return {};
}
std::vector<std::int64_t> indices(std::int64_t n) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < n; ++i) all.push_back(i);
  return all;
}

// Laws of any layout of a 2-D tensor: `copies` ranks hold each element, one of them primary.
template <class Layout>
void check_laws(const Layout& l, const hd::dynamic_shape<2>& s, int copies) {
  const ht::report r = ht::check_partition(l, s);
  UNSCOPED_INFO(r.what);
  REQUIRE(r.ok());
  std::int64_t held = 0, most = 0;
  for (int rank = 0; rank < l.mesh().size(); ++rank) {
    held += l.local_size(s, rank);
    REQUIRE(l.local_size(s, rank) == l.local_shape(s, rank).size());
    most = (std::max)(most, l.bytes_held(s, 8, rank));
  }
  REQUIRE(held == copies * s.size());
  REQUIRE(most == l.bytes_per_rank(s, 8));
}
}  // namespace

TEST_CASE("every element has its holders, one owner, and inverse index maps", "[layout][law]") {
  for (std::int64_t n = 0; n <= 17; ++n)
    for (std::int64_t m : {0, 1, 2, 5, 12, 13})
      for (int a = 1; a <= 3; ++a)
        for (int b : {1, 2, 4})
          for (int c : {1, 3}) {
            CAPTURE(n, m, a, b, c);
            const free_mesh mesh{a, b, c};
            const hd::dynamic_shape<2> s{n, m};
            check_laws(hd::layout<free_mesh, hd::shard<0, dp>>{mesh}, s, b * c);
            check_laws(hd::layout<free_mesh, hd::shard<0, tp, dp>>{mesh}, s, b);
            check_laws(hd::layout<free_mesh, hd::shard<1, dp>, hd::shard<0, cp>>{mesh}, s, c);
            check_laws(hd::layout<free_mesh, hd::shard<1, cp, tp>, hd::partial<hd::plus, dp>>{mesh}, s, a);
          }
}

TEST_CASE("exactly one of the ranks that hold a copy is primary", "[layout][law]") {
  const free_mesh mesh{2, 3, 4};
  const hd::layout<free_mesh, hd::shard<0, cp>> l{mesh};
  const hd::shape s{7};
  for (std::int64_t i = 0; i < 7; ++i) {
    int primaries = 0;
    for (int r = 0; r < mesh.size(); ++r) primaries += l.owns(s, r, {i}) && l.is_primary(r) ? 1 : 0;
    CHECK(primaries == 1);
    CHECK(l.is_primary(l.owner(s, {i})));
  }
  // Contributions are not copies of each other: each rank of a partial axis counts.
  const hd::layout<free_mesh, hd::partial<hd::plus, dp>> sum{mesh};
  int primaries = 0;
  for (int r = 0; r < mesh.size(); ++r) primaries += sum.is_primary(r) ? 1 : 0;
  CHECK(primaries == 2);
}

TEST_CASE("nested cuts are cuts of cuts, for every size and order", "[layout][law]") {
  for (std::int64_t n = 0; n <= 40; ++n)
    for (int a = 1; a <= 4; ++a)
      for (int b = 1; b <= 4; ++b) {
        CAPTURE(n, a, b);
        const free_mesh mesh{a, 1, b};
        const hd::layout<free_mesh, hd::shard<0, dp, tp>> outer_first{mesh};
        const hd::layout<free_mesh, hd::shard<0, tp, dp>> inner_first{mesh};
        const hd::layout<hd::mesh<hd::axis<dp>>, hd::shard<0, dp>> flat{hd::mesh<hd::axis<dp>>{a * b}};
        bool same_as_flat = true, ok = true;
        for (int r = 0; r < mesh.size(); ++r) {
          const int i = mesh.coordinate<dp>(r), j = mesh.coordinate<tp>(r);
          const auto want = piece(piece(indices(n), a, i), b, j);
          const auto other = piece(piece(indices(n), b, j), a, i);
          ok = ok && outer_first.local_shape(hd::shape{n}, r)[0] == static_cast<std::int64_t>(want.size());
          ok = ok && inner_first.local_shape(hd::shape{n}, r)[0] == static_cast<std::int64_t>(other.size());
          if (!want.empty()) ok = ok && outer_first.local_offset(hd::shape{n}, r)[0] == want[0];
          if (!other.empty()) ok = ok && inner_first.local_offset(hd::shape{n}, r)[0] == other[0];
          same_as_flat = same_as_flat &&
                         flat.local_shape(hd::shape{n}, r) == outer_first.local_shape(hd::shape{n}, r) &&
                         flat.local_offset(hd::shape{n}, r) == outer_first.local_offset(hd::shape{n}, r);
        }
        REQUIRE(ok);
        // Sizes agree with one flat cut exactly if the remainder is 0, 1 or all but one (Yuan et al. 2021).
        const std::int64_t rest = n % (a * b);
        if (a > 1 && b > 1) REQUIRE(same_as_flat == (rest == 0 || rest == 1 || rest == a * b - 1));
      }
}

TEST_CASE("static, mixed and dynamic meshes give the same layout arithmetic", "[layout][law]") {
  using s = hd::layout<fixed, hd::shard<0, tp, cp>, hd::shard<1, dp>>;
  using m = hd::layout<mixed, hd::shard<0, tp, cp>, hd::shard<1, dp>>;
  using d = hd::layout<free_mesh, hd::shard<0, tp, cp>, hd::shard<1, dp>>;
  STATIC_REQUIRE(s::local_shape(hd::shape{13, 5}, 0) == hd::shape{3, 3});
  STATIC_REQUIRE(s::local_shape(hd::shape<13, 5>{}, 0) == hd::shape<3, 3>{});
  STATIC_REQUIRE(m{mixed{2, 2}}.local_shape(hd::shape{13, 5}, 0) == hd::shape{3, 3});
  STATIC_REQUIRE(d{free_mesh{2, 3, 2}}.local_shape(hd::shape{13, 5}, 0) == hd::shape{3, 3});
  STATIC_REQUIRE(s::local_offset(hd::shape{13, 5}, 11) == index2{11, 3});
  STATIC_REQUIRE(m{mixed{2, 2}}.local_offset(hd::shape{13, 5}, 11) == index2{11, 3});
  STATIC_REQUIRE(d{free_mesh{2, 3, 2}}.local_offset(hd::shape{13, 5}, 11) == index2{11, 3});
  STATIC_REQUIRE(s::owner(hd::shape{13, 5}, {12, 4}) == 11);
  STATIC_REQUIRE(m{mixed{2, 2}}.owner(hd::shape{13, 5}, {12, 4}) == 11);
  STATIC_REQUIRE(d{free_mesh{2, 3, 2}}.owner(hd::shape{13, 5}, {12, 4}) == 11);
  STATIC_REQUIRE(s::owns(hd::shape{13, 5}, 11, {12, 4}));
  STATIC_REQUIRE(s::to_local(hd::shape{13, 5}, 11, {12, 4}) == index2{1, 1});
  STATIC_REQUIRE(s::to_global(hd::shape{13, 5}, 11, {1, 1}) == index2{12, 4});
  STATIC_REQUIRE(s::bytes_per_rank(hd::shape{13, 5}, 4) == 36);
  STATIC_REQUIRE(s::is_primary(5));
  for (int r = 0; r < 12; ++r) {
    CHECK(s::local_shape(hd::shape{13, 5}, r) == d{free_mesh{2, 3, 2}}.local_shape(hd::shape{13, 5}, r));
    CHECK(s::local_offset(hd::shape{13, 5}, r) == m{mixed{2, 2}}.local_offset(hd::shape{13, 5}, r));
  }
}

TEST_CASE("an axis of one rank changes nothing", "[layout][law]") {
  const free_mesh mesh{1, 3, 1};
  for (int r = 0; r < 3; ++r) {
    const auto plain = hd::layout<free_mesh, hd::shard<0, cp>>{mesh}.local_shape(hd::shape{10, 4}, r);
    CHECK(hd::layout<free_mesh, hd::shard<0, dp, cp, tp>>{mesh}.local_shape(hd::shape{10, 4}, r) == plain);
    CHECK(hd::layout<free_mesh, hd::shard<0, cp>, hd::shard<1, tp>>{mesh}.local_shape(hd::shape{10, 4}, r) == plain);
  }
}

TEST_CASE("four dimensions: heads of a fused query, key and value weight", "[layout]") {
  const free_mesh mesh{2, 1, 3};
  const hd::layout<free_mesh, hd::shard<2, tp>> l{mesh};
  const hd::shape weight{64, 3, 8, 16};
  CHECK(l.local_shape(weight, 0) == hd::shape{64, 3, 3, 16});
  CHECK(l.local_shape(weight, 2) == hd::shape{64, 3, 2, 16});
  CHECK(l.local_offset(weight, 5) == std::array<std::int64_t, 4>{0, 0, 6, 0});
  CHECK(hd::layout<free_mesh>{mesh}.local_shape(hd::dynamic_shape<0>{}, 1).size() == 1);
}

TEST_CASE("layouts refuse ranks and indices that are not there", "[layout]") {
  const hd::layout<free_mesh, hd::shard<0, tp>> l{free_mesh{2, 1, 3}};
  CHECK_THROWS_AS(l.local_shape(hd::shape{8, 4}, 6), hd::layout_error);
  CHECK_THROWS_AS(l.local_shape(hd::shape{8, 4}, -1), hd::layout_error);
  CHECK_THROWS_AS(l.is_primary(6), hd::layout_error);
  CHECK_THROWS_AS(l.owner(hd::shape{8, 4}, {8, 0}), hd::layout_error);
  CHECK_THROWS_AS(l.to_global(hd::shape{8, 4}, 0, {3, 0}), hd::layout_error);
  CHECK_THROWS_WITH(l.to_local(hd::shape{8, 4}, 1, {0, 0}),
                    "heddle: rank 1 does not hold element [0, 0]; it holds [3, 4] elements from [3, 0]");
}
