#include <heddle/tensor/redistribute.hpp>

#include "catch.hpp"
#include "transport.hpp"

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::tp;

namespace {
// Goes round all placements of one axis and back; on each rank, whether the part came back as it left.
template <class Mesh, class World>
bool goes_round(World& world, std::int64_t n, std::int64_t m) {
  using S0 = hd::layout<Mesh, hd::shard<0, dp, tp>>;
  using S1 = hd::layout<Mesh, hd::shard<0, dp>, hd::shard<1, tp>>;
  using R = hd::layout<Mesh, hd::shard<0, dp>>;
  using P = hd::layout<Mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
  const hd::shape s{n, m};
  std::vector<double> whole(static_cast<std::size_t>(s.size()));
  std::iota(whole.begin(), whole.end(), 1.0);
  const hd::view<const double, hd::dynamic_shape<2>> v(whole.data(), s);
  const auto start = hd::shard_of(v, S0{world.mesh()}, world.rank());
  auto x = hd::redistribute<S1>(start, world);                       // all_to_all
  auto y = hd::redistribute<P>(std::move(x), world);                 // pad
  auto z = hd::redistribute<S0>(y, world);                           // reduce_scatter
  auto u = hd::redistribute<R>(std::move(y), world);                 // all_reduce in place
  auto p = hd::redistribute<P>(std::move(u), world);                 // keep on owner
  auto t = hd::redistribute<R>(hd::redistribute<S1>(p, world), world);  // reduce_scatter, all_gather inside rows
  auto back = hd::redistribute<S0>(std::move(t), world);             // slice
  return std::equal(start.elements().begin(), start.elements().end(), back.elements().begin(), back.elements().end()) &&
         std::equal(start.elements().begin(), start.elements().end(), z.elements().begin(), z.elements().end());
}
}  // namespace

TEST_CASE("redistribute runs on ranks, even and uneven", "[tensor][redistribute][comm][ranks]") {
  using fixed = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 3>>;
  using some = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
  for (std::int64_t n : {0, 1, 7, 12})
    for (std::int64_t m : {1, 6, 8}) {
      CAPTURE(n, m);
      std::vector<char> ok(6, 0);
      transport_test::launch<fixed>([&](auto& world) { ok[static_cast<std::size_t>(world.rank())] = goes_round<fixed>(world, n, m); });
      transport_test::share(ok);
      CHECK(ok == std::vector<char>(6, 1));
      ok.assign(4, 0);
      transport_test::launch(some{1, 4}, [&](auto& world) { ok[static_cast<std::size_t>(world.rank())] = goes_round<some>(world, n, m); });
      transport_test::share(ok);
      CHECK(ok == std::vector<char>(4, 1));
    }
}
