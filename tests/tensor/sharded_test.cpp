#include <heddle/tensor/sharded.hpp>

#include "catch.hpp"

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace hd = heddle;
using hd::cp, hd::dp, hd::tp;

namespace {
using mesh = hd::mesh<hd::axis<dp>, hd::axis<cp>, hd::axis<tp>>;

template <class Layout, std::int64_t... E>
bool round_trip(const Layout& l, const hd::shape<E...>& s) {
  constexpr std::size_t Rank = sizeof...(E);
  std::vector<std::int32_t> whole(static_cast<std::size_t>(s.size()));
  std::iota(whole.begin(), whole.end(), 3);
  const hd::view<const std::int32_t, hd::dynamic_shape<Rank>> v(whole.data(), s);
  std::vector<hd::sharded<std::int32_t, Rank, Layout>> parts;
  for (int r = 0; r < l.mesh().size(); ++r) parts.push_back(hd::shard_of(v, l, r));
  bool ok = true;
  for (const auto& part : parts) {  // element by element against the index maps
    const auto local = part.local();
    const auto offset = part.local_offset();
    ok = ok && local.shape() == l.local_shape(s, part.rank());
    if constexpr (Rank == 2 && !Layout::has_partial)
      for (std::int64_t i = 0; i < local.extent(0); ++i)
        for (std::int64_t j = 0; j < local.extent(1); ++j)
          ok = ok && local(i, j) == whole[static_cast<std::size_t>((offset[0] + i) * s[1] + offset[1] + j)];
  }
  const auto back = hd::assemble(std::span<const hd::sharded<std::int32_t, Rank, Layout>>(parts));
  return ok && std::equal(whole.begin(), whole.end(), back.begin(), back.end());
}
}  // namespace

TEST_CASE("gathering what was scattered gives the tensor", "[tensor][law]") {
  for (int a = 1; a <= 3; ++a)
    for (int b = 1; b <= 2; ++b)
      for (int c = 1; c <= 4; ++c)
        for (std::int64_t n = 0; n <= 9; ++n)
          for (std::int64_t m : {0, 1, 2, 7, 8}) {
            CAPTURE(a, b, c, n, m);
            const mesh w{a, b, c};
            const hd::dynamic_shape<2> s{n, m};
            REQUIRE(round_trip(hd::layout<mesh>{w}, s));
            REQUIRE(round_trip(hd::layout<mesh, hd::shard<0, tp>>{w}, s));
            REQUIRE(round_trip(hd::layout<mesh, hd::shard<1, tp, dp>>{w}, s));
            REQUIRE(round_trip(hd::layout<mesh, hd::shard<1, dp>, hd::shard<0, cp>>{w}, s));
            REQUIRE(round_trip(hd::layout<mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>{w}, s));
            REQUIRE(round_trip(hd::layout<mesh, hd::shard<1, cp>, hd::partial<hd::minimum, tp, dp>>{w}, s));
            REQUIRE(round_trip(hd::layout<mesh, hd::partial<hd::multiplies, tp>>{w}, s));
          }
  const mesh w{2, 1, 3};
  REQUIRE(round_trip(hd::layout<mesh, hd::shard<2, tp>, hd::shard<0, dp>>{w}, hd::dynamic_shape<4>{3, 2, 7, 5}));
  REQUIRE(round_trip(hd::layout<mesh, hd::shard<0, tp>>{w}, hd::dynamic_shape<1>{8}));
  REQUIRE(round_trip(hd::layout<mesh, hd::partial<hd::plus, tp>>{w}, hd::dynamic_shape<0>{}));
}

TEST_CASE("a static mesh makes a sharded tensor no larger than its parts", "[tensor]") {
  using fixed = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using part = hd::sharded<float, 2, hd::layout<fixed, hd::shard<1, tp>>>;
  part x({}, hd::shape{4, 5}, 3);
  CHECK(x.local_shape() == hd::shape{4, 2});
  CHECK(x.elements().size() == 8);
  CHECK(x.elements()[7] == 0.0f);
  CHECK(part({}, hd::shape<4, 5>{}, 2).local_shape() == hd::shape{4, 3});
  hd::buffer<float> memory = std::move(x).release();
  const float* where = memory.data();
  part y({}, hd::shape{4, 5}, 3, std::move(memory));
  CHECK(y.elements().data() == where);
}

TEST_CASE("a sharded tensor refuses a local part of another size", "[tensor]") {
  const mesh w{1, 1, 3};
  using part = hd::sharded<float, 1, hd::layout<mesh, hd::shard<0, tp>>>;
  CHECK_THROWS_WITH(part(hd::layout<mesh, hd::shard<0, tp>>{w}, hd::shape{8}, 2, hd::buffer<float>(3)),
                    "heddle: rank 2 holds 2 elements of a tensor of 8 under shard<0, tp> on dp=1 x cp=1 x tp=3, got 3");
  CHECK_THROWS_AS(part(hd::layout<mesh, hd::shard<0, tp>>{w}, hd::shape{8}, 3), hd::layout_error);
  std::vector<part> some;
  some.emplace_back(hd::layout<mesh, hd::shard<0, tp>>{w}, hd::shape{8}, 0);
  CHECK_THROWS_AS(hd::assemble(std::span<const part>(some)), hd::layout_error);
}
