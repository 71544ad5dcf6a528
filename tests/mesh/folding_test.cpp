// tests/mesh/folding_test.cpp: a folded mesh has the groups of both meshes, for all pairs of meshes of at most 64 ranks.
#include <heddle/mesh/folding.hpp>

#include "catch.hpp"

#include <array>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
using hd::axis, hd::both, hd::dp, hd::ep, hd::mesh, hd::pp, hd::tp;

namespace {

struct etp {};
struct edp {};
using attention = mesh<axis<pp>, axis<dp>, axis<tp>>;
using experts = mesh<axis<pp>, axis<edp>, axis<ep>, axis<etp>>;

// Whether, from the last axis on, the ranks up to each axis of one divide those up to each axis of the other or the other way round.
bool fits(const attention& a, const experts& e) {
  if (a.extent<pp>() != e.extent<pp>() || a.size() != e.size()) return false;
  const int t = a.extent<tp>();
  for (const int s : {e.extent<etp>(), e.extent<etp>() * e.extent<ep>()})
    if (t % s != 0 && s % t != 0) return false;
  return true;
}

}  // namespace

TEST_CASE("a folded mesh has the groups of both of its meshes", "[mesh][folding]") {
  int folded = 0, refused = 0;
  for (const int ranks : {1, 2, 6, 8, 12, 16, 64})
    for (int p : {1, 2})
      for (int t = 1; t <= ranks; ++t)
        for (int x = 1; x <= ranks; ++x)
          for (int y = 1; x * y <= ranks; ++y) {
            if (ranks % (p * t) != 0 || ranks % (p * x * y) != 0) continue;
            const attention a(p, ranks / p / t, t);
            const experts e(p, ranks / p / x / y, y, x);
            CAPTURE(to_string(a), to_string(e));
            if (!fits(a, e)) {
              ++refused;
              CHECK_THROWS_AS(hd::fold(a, e), hd::mesh_error);
              continue;
            }
            ++folded;
            const auto m = hd::fold(a, e);
            REQUIRE(m.size() == ranks);
            bool same = true;
            for (int r = 0; r < ranks; ++r) {
              same = same && hd::group<pp>(m, r) == hd::group<pp>(a, r) && hd::group<pp>(a, r) == hd::group<pp>(e, r);
              same = same && hd::group<both<tp, edp>, both<tp, ep>, both<tp, etp>>(m, r) == hd::group<tp>(a, r);
              same = same && hd::group<both<dp, edp>, both<dp, ep>, both<dp, etp>>(m, r) == hd::group<dp>(a, r);
              same = same && hd::group<both<dp, etp>, both<tp, etp>>(m, r) == hd::group<etp>(e, r);
              same = same && hd::group<both<dp, ep>, both<tp, ep>>(m, r) == hd::group<ep>(e, r);
              same = same && hd::group<both<dp, edp>, both<tp, edp>>(m, r) == hd::group<edp>(e, r);
            }
            CHECK(same);
          }
  CHECK(folded > 200);
  CHECK(refused > 20);
}

TEST_CASE("static meshes fold at compile time", "[mesh][folding][law]") {
  using a = mesh<axis<pp, 2>, axis<dp, 2>, axis<tp, 4>>;
  using e = mesh<axis<pp, 2>, axis<edp, 1>, axis<ep, 4>, axis<etp, 2>>;
  using folded = hd::folded_mesh<a, e>;
  STATIC_REQUIRE(folded::is_static && folded::size() == 16);
  STATIC_REQUIRE(folded::extent<pp>() == 2 && folded::extent<both<dp, ep>>() == 2);
  STATIC_REQUIRE(folded::extent<both<tp, ep>>() == 2 && folded::extent<both<tp, etp>>() == 2);
  STATIC_REQUIRE(folded::extent<both<dp, edp>>() == 1 && folded::extent<both<dp, etp>>() == 1);
  STATIC_REQUIRE(std::is_same_v<decltype(hd::fold(a{}, e{})), folded>);
  // One static and one dynamic: found at start-up.
  const auto mixed = hd::fold(a{}, experts(2, 1, 4, 2));
  CHECK(mixed.extents() == std::array{2, 1, 2, 1, 1, 2, 2});
}

TEST_CASE("meshes that do not fold are refused by name", "[mesh][folding]") {
  const auto said = [](const attention& a, const experts& e) {
    try {
      static_cast<void>(hd::fold(a, e));
    } catch (const hd::mesh_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(said(attention(1, 3, 2), experts(1, 1, 2, 3)) ==
        "heddle: fold: mesh pp=1 x dp=3 x tp=2 and mesh pp=1 x edp=1 x ep=2 x etp=3 have groups that overlap in part: "
        "from the last axis on, an axis of one must be a factor of the other's, or the other way round");
  CHECK(said(attention(1, 4, 2), experts(1, 1, 2, 2)) ==
        "heddle: fold: mesh pp=1 x dp=4 x tp=2 and mesh pp=1 x edp=1 x ep=2 x etp=2 have 8 and 4 ranks");
  CHECK(
      said(attention(2, 2, 2), experts(1, 2, 2, 2)) ==
      "heddle: fold: mesh pp=2 x dp=2 x tp=2 and mesh pp=1 x edp=2 x ep=2 x etp=2 differ along an axis that both have");
}
