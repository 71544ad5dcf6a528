// Products of sharded tensors in the memory of an execution space: kernels of one element permute and sum where the host loops.
#include "catch.hpp"
#include "space.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/einsum.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/core/random.hpp>
#include <heddle/testing/on_ranks.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace {

namespace hd = heddle;
namespace co = heddle::compute;
using hd::dp, hd::tp;
using memory = hd::kokkos_memory<tested_space>;
using mesh = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using both = hd::layout<mesh, hd::shard<0, dp>, hd::shard<1, tp>>;
using row = hd::layout<mesh, hd::shard<0, tp>>;
using rows = hd::layout<mesh, hd::shard<0, dp>>;
using column = hd::layout<mesh, hd::shard<1, tp>>;

template <class L, class Shape>
auto random_part(const mesh& m, Shape whole, int rank, std::uint64_t stream) {
  hd::buffer<double> numbers(whole.size());
  const hd::counter_random random(5, stream);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = random.uniform(i) - 0.5;
  return hd::shard_of(hd::view<const double, Shape>(numbers.data(), whole), L{m}, rank);
}

// The largest difference from the host's product.
template <hd::fixed_string Formula>
double far_from_host(auto& world, const auto&... x) {
  co::host<> near;
  co::kokkos<tested_space> there;
  auto& queue = there.queue();
  const auto expected = co::einsum<Formula>(near, world, x...);
  const auto got =
      hd::copy_to<hd::host_memory>(queue, co::einsum<Formula>(there, world, hd::copy_to<memory>(queue, x)...));
  if (got.elements().size() != expected.elements().size()) return 1e300;
  double worst = 0;
  for (std::size_t i = 0; i < got.elements().size(); ++i)
    worst = (std::max)(worst, std::abs(got.elements()[i] - expected.elements()[i]));
  return worst;
}

}  // namespace

TEST_CASE("einsum on Kokkos multiplies, permutes and sums as the host does", "[kokkos]") {
  const mesh m = ranks_can_be_threads ? mesh{2, 2} : mesh{1, 1};
  const auto results = hd::testing::on_ranks(m, [&](auto& world) {
    const int r = world.rank();
    using hd::dynamic_shape;
    const auto x = random_part<both>(m, dynamic_shape<2>{5, 3}, r, 1);
    const auto w = random_part<row>(m, dynamic_shape<2>{3, 7}, r, 2);
    const auto in = random_part<rows>(m, dynamic_shape<3>{3, 2, 4}, r, 3);
    const auto out = random_part<column>(m, dynamic_shape<2>{4, 5}, r, 4);
    return (std::max)({far_from_host<"bi,io->bo">(world, x, w), far_from_host<"bi,io->ob">(world, x, w),
                       far_from_host<"bi,bi->bi">(world, x, x), far_from_host<"bti,io->tob">(world, in, out),
                       far_from_host<"abc->cb">(world, in), far_from_host<"abc->">(world, in)});
  });
  INFO(to_string(results));
  REQUIRE(results.ok());
  for (int r = 0; r < m.size(); ++r) CHECK(results[r] < 1e-14);
}
