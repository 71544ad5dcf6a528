// The published pair of losses of split logits: 0.4401897 is right, 1.1333369 is what a doubled gather makes of it.
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/testing/on_ranks.hpp>

#include "catch.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace hd = heddle;

namespace {

using split_line = hd::mesh<hd::axis<hd::tp>>;

// The loss of one row of logits whose classes are split over so many ranks, on each of them.
template <int Classes>
std::vector<double> split_loss(const std::array<double, Classes>& logits, std::int32_t label, int ranks) {
  const split_line mesh{ranks};
  using split = hd::layout<split_line, hd::shard<1, hd::tp>>;
  using same = hd::layout<split_line>;
  const auto found = hd::testing::on_ranks(mesh, [&](auto& world) {
    hd::compute::host<> backend;
    const auto mine =
        hd::shard_of(hd::view<const double, hd::shape<1, Classes>>(logits.data(), {}), split{mesh}, world.rank());
    const auto labels = hd::shard_of(hd::view<const std::int32_t, hd::shape<1>>(&label, {}), same{mesh}, world.rank());
    return hd::apply<hd::op::cross_entropy<1>>(backend, world, mine, labels).elements()[0];
  });
  std::vector<double> all;
  for (int r = 0; r < ranks; ++r) all.push_back(found[r]);
  return all;
}

}  // namespace

TEST_CASE("the loss of logits 0, 1, 2, 3 is the published one however their classes are split", "[compute][ranks]") {
  // Megatron issue 7452: two ranks, label 3. In closed form log(e^-3 + e^-2 + e^-1 + 1).
  const double right = std::log(std::exp(-3.0) + std::exp(-2.0) + std::exp(-1.0) + 1);
  CHECK(std::abs(right - 0.4401897) < 5e-8);
  for (const int ranks : {1, 2, 3, 4, 5})
    for (const double loss : split_loss<4>({0, 1, 2, 3}, 3, ranks)) {
      INFO(ranks << " ranks");
      CHECK(std::abs(loss - right) < 1e-12);
    }
  // What the bug computed: each rank's whole logits taken for a part, so that all classes count twice. It is told apart by log 2.
  for (const double loss : split_loss<8>({0, 1, 2, 3, 0, 1, 2, 3}, 3, 2)) {
    CHECK(std::abs(loss - 1.1333369) < 5e-8);
    CHECK(std::abs(loss - right - std::log(2.0)) < 1e-12);
  }
}
