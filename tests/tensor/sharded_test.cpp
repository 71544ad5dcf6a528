#include <heddle/tensor/redistribute.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/testing/checked_memory.hpp>
#include <heddle/testing/tensor_laws.hpp>

#include "catch.hpp"

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace hd = heddle;
namespace ht = hd::testing;
using hd::cp, hd::dp, hd::tp;

namespace {
using mesh = hd::mesh<hd::axis<dp>, hd::axis<cp>, hd::axis<tp>>;

template <class Layout, std::int64_t... E>
bool round_trip(const Layout& l, const hd::shape<E...>& s) {
  const ht::report r = ht::check_round_trip(l, s);
  UNSCOPED_INFO(r.what);
  return r.ok();
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

TEST_CASE("a tensor in memory of somebody else leaves it there", "[tensor]") {
  using fixed = hd::mesh<hd::axis<tp, 2>>;
  using part = hd::sharded<double, 1, hd::layout<fixed, hd::shard<0, tp>>>;
  hd::buffer<double> flat(16);
  const auto mine = [&](std::size_t at) { return std::span<double>(flat.data() + at, 4); };
  {
    part x({}, hd::shape{8}, 1, mine(8));
    x.elements()[3] = 7;
    CHECK(flat[11] == 7);
    part y = std::move(x);  // still there
    CHECK(y.elements().data() == flat.data() + 8);
    CHECK(x.elements().empty());
    const hd::buffer<double> copy = std::move(y).release();
    CHECK(copy.data() != flat.data() + 8);
    CHECK(copy[3] == 7);
    CHECK(y.elements().empty());

    part own({}, hd::shape{8}, 0);
    own = part({}, hd::shape{8}, 0, mine(0));  // its own memory goes
    CHECK(own.elements().data() == flat.data());
    own = part({}, hd::shape{8}, 0);  // the lent memory does not
    own.elements()[0] = 5;
    CHECK(flat[0] == 0);
  }
  CHECK(flat[11] == 7);
  CHECK_THROWS_WITH(part({}, hd::shape{8}, 1, std::span<double>(flat.data(), 3)), Catch::Contains("got 3"));
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

TEST_CASE("parts of any policy come together again", "[tensor][law]") {
  namespace split = hd::split;
  for (std::int64_t n : {0, 1, 6, 13}) {
    CAPTURE(n);
    const mesh w{2, 1, 3};
    const hd::dynamic_shape<1> s{n};
    const auto round = [&]<class L>(const L& l) {
      std::vector<double> whole(static_cast<std::size_t>(n));
      std::iota(whole.begin(), whole.end(), 1.0);
      std::vector<hd::sharded<double, 1, L>> parts;
      for (int r = 0; r < l.mesh().size(); ++r)
        parts.push_back(hd::shard_of(hd::view<const double, hd::dynamic_shape<1>>(whole.data(), s), l, r));
      const auto back = hd::assemble(std::span<const hd::sharded<double, 1, L>>(parts));
      return std::equal(whole.begin(), whole.end(), back.begin(), back.end());
    };
    CHECK(round(hd::layout<mesh, hd::shard<0, split::zigzag, dp, split::block_cyclic<2>, tp>>{w}));
    CHECK(round(hd::layout<mesh, hd::shard<0, split::padded<>, tp>, hd::partial<hd::plus, dp>>{w}));
    CHECK(round(hd::layout<mesh, hd::shard<0, split::ceil, tp, dp>>{w}));
    CHECK(round(hd::layout<mesh, hd::identical<tp>>{w}));
  }
}

TEST_CASE("varying values get a meaning when somebody says it", "[tensor]") {
  using fixed = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using own = hd::layout<fixed, hd::varying<dp>>;
  using rows = hd::layout<fixed, hd::shard<0, dp>>;
  hd::sharded<float, 2, own> x(own{}, hd::shape{3, 2}, 2);
  const float* where = x.elements().data();
  auto y = hd::assume<rows>(std::move(x), hd::shape{6, 2});
  CHECK(y.elements().data() == where);
  CHECK(y.local_offset() == std::array<std::int64_t, 2>{3, 0});
  CHECK_THROWS_AS(hd::assume<rows>(hd::assume<own>(std::move(y), hd::shape{3, 2})), hd::layout_error);
}

TEST_CASE("parts of two meshes are not put together, and released ones are not read", "[tensor]") {
  using L = hd::layout<mesh, hd::shard<0, tp>>;
  std::vector<hd::sharded<float, 1, L>> parts;
  parts.emplace_back(L{mesh{1, 1, 2}}, hd::shape{4}, 0);
  parts.emplace_back(L{mesh{1, 2, 1}}, hd::shape{4}, 1);
  CHECK_THROWS_WITH(
      hd::assemble(std::span<const hd::sharded<float, 1, L>>(parts)),
      "heddle: assemble needs parts on one mesh; part 0 is on dp=1 x cp=1 x tp=2, part 1 on dp=1 x cp=2 x tp=1");
  parts.pop_back();
  parts.emplace_back(L{mesh{1, 1, 2}}, hd::shape{4}, 1);
  static_cast<void>(std::move(parts[1]).release());
  CHECK_THROWS_AS(parts[1].local(), hd::layout_error);
  CHECK_THROWS_AS(hd::assemble(std::span<const hd::sharded<float, 1, L>>(parts)), hd::layout_error);
}

TEST_CASE("a tensor whose elements nobody can count is refused, however small the parts", "[tensor]") {
  using fixed = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using rows = hd::layout<fixed, hd::shard<0, dp, tp>>;
  const std::int64_t many = std::int64_t{1} << 40, more = std::int64_t{1} << 30;
  CHECK_THROWS_AS((hd::sharded<float, 2, rows>({}, hd::shape{many, more}, 0)), hd::layout_error);
  CHECK_THROWS_WITH((hd::sharded<float, 2, rows>({}, hd::shape{many, more}, 0)),
                    "heddle: a shape of 1099511627776 x 1073741824 has more elements than a 64-bit number counts");
  CHECK_THROWS_AS((hd::sharded<double, 1, rows>({}, hd::shape{many << 22}, 0)), hd::layout_error);  // in bytes
}

TEST_CASE("an index outside a part is refused where bounds are checked", "[tensor]") {
  static_assert(HEDDLE_CHECK_BOUNDS, "the tests check bounds");
  using fixed = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using rows = hd::layout<fixed, hd::shard<0, dp>>;
  hd::sharded<float, 2, rows> x({}, hd::shape{4, 3}, 0);
  const auto& y = x;
  x.local()(1, 2) = 5;
  CHECK(y.local()(1, 2) == 5);
  CHECK_THROWS_AS(x.local()(3, 0), hd::layout_error);
  CHECK_THROWS_WITH(x.local()(3, 0), "heddle: index 3 is outside dimension 0 of a view of shape 2 x 3");
  CHECK_THROWS_WITH(y.local()(0, 3), "heddle: index 3 is outside dimension 1 of a view of shape 2 x 3");
  CHECK_THROWS_WITH(y.local()(-1, 0), "heddle: index -1 is outside dimension 0 of a view of shape 2 x 3");
  CHECK_THROWS_WITH((hd::view<float, hd::shape<2, 3>>(x.elements().data(), {})(2, 0)),
                    "heddle: index 2 is outside dimension 0 of a view of shape 2 x 3");
  hd::buffer<float> b(2);
  CHECK_THROWS_WITH(b[2], "heddle: index 2 is outside a buffer of 2 elements");
}

TEST_CASE("a part lies in memory of somebody else, wherever that is", "[tensor][memory]") {
  using fixed = hd::mesh<hd::axis<tp, 2>>;
  using layout = hd::layout<fixed, hd::shard<1, tp>>;
  using hd::testing::checked_memory;
  checked_memory::queue queue;
  hd::buffer<float, checked_memory> flat(queue, 20, "all parameters");
  std::vector<float> numbers(20);
  std::iota(numbers.begin(), numbers.end(), 1.0f);
  queue.copy(numbers, flat);
  using part = hd::sharded<float, 2, layout, checked_memory>;
  part x({}, hd::shape{4, 5}, 0, hd::vector_view<float, checked_memory>(flat.address() + 3, hd::shape{12}));
  CHECK(x.is_lent());
  CHECK(x.local().address() == flat.address() + 3);
  const auto kept = hd::copy_of(queue, x);
  CHECK_FALSE(kept.is_lent());
  queue.zero(x.memory());
  CHECK(hd::copy_to<hd::host_memory>(queue, kept).elements()[11] == 15.0f);
  CHECK(hd::copy_to<hd::host_memory>(queue, x).elements()[11] == 0.0f);
  queue.copy(flat, numbers);
  queue.wait();
  CHECK(numbers[2] == 3.0f);
  CHECK(numbers[3] == 0.0f);
  CHECK(numbers[15] == 16.0f);
  CHECK_THROWS_WITH((void)std::move(x).release(), Catch::Matchers::Contains("memory of somebody else"));
  part y = std::move(x);
  CHECK(y.local().address() == flat.address() + 3);
  CHECK(x.memory().size() == 0);
  CHECK_THROWS_AS(x.local(), hd::layout_error);
  CHECK_THROWS_AS(hd::copy_of(queue, x), hd::layout_error);
  CHECK_THROWS_WITH(
      (part({}, hd::shape{4, 5}, 1, hd::vector_view<float, checked_memory>(flat.address(), hd::shape{12}))),
      Catch::Matchers::Contains("rank 1 holds 8 elements"));
}
