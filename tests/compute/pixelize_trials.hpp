// tests/compute/pixelize_trials.hpp: frames pixelized by kernels that a queue launches have the bits of the host's.
#pragma once

#include "catch.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/launched_pixelize.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/sharded.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pixelize_trials {
namespace hd = heddle;
namespace pv = heddle::privacy;
using line = hd::mesh<hd::axis<hd::dp>>;
using by_frames = hd::layout<line, hd::shard<0, hd::dp>>;
using by_rows = hd::layout<line, hd::shard<1, hd::split::block_cyclic<64>, hd::dp>>;
using all_sides = pv::sides<8, 16, 32>;
using half = pv::epsilon<1, 2>;

template <class Backend, std::size_t Rank, class Stage, class Layout>
bool same_bits(const Stage& stage, const Layout& layout, const hd::dynamic_shape<Rank>& shape, int rank) {
  hd::sharded<std::uint8_t, Rank, Layout> x(layout, shape, rank);
  std::uint32_t at = 17;
  for (std::uint8_t& v : x.elements()) v = static_cast<std::uint8_t>((at = at * 1664525u + 1013904223u) >> 24);
  hd::compute::host<> host;
  Backend device;
  const auto there = hd::copy_to<typename Backend::space>(device.queue(), x);
  pv::ledger a(pv::epsilon<100>{}), b(pv::epsilon<100>{});
  const pv::pixelized wanted = stage(host, x, a, 5);
  return stage(device, there, b, 5) == wanted && a.left() == b.left();
}

template <class Backend>
void compare_all_with_host() {
  static_assert(hd::launches_kernels<typename Backend::space::queue>);  // what chooses the launched kernels
  const pv::pixelize<half, pv::pixels<16>, all_sides> by_hand(3, pv::by_hand(std::uint8_t{16}));
  const pv::pixelize<half, pv::pixels<16>, all_sides, pv::scored<half>> by_score(3, pv::scored<half>({62, 65}));
  const pv::pixelize<half, pv::pixels<16>, all_sides, pv::scored<half>, pv::channels<3>> colour(
      3, pv::scored<half>({62, 65}));
  const pv::pixelize<half, pv::pixels<16>, all_sides, pv::from_public> by_public(
      3, pv::from_public(std::vector<std::uint8_t>(130 * 70, 128), {62, 65}));
  for (int rank = 0; rank < 3; ++rank) {  // of the rows the last rank has the two last, of the frames none
    CAPTURE(rank);
    const hd::dynamic_shape<3> grey{2, 130, 70};
    CHECK(same_bits<Backend, 3>(by_hand, by_rows{line{3}}, grey, rank));
    CHECK(same_bits<Backend, 3>(by_score, by_rows{line{3}}, grey, rank));
    CHECK(same_bits<Backend, 3>(by_score, by_frames{line{3}}, grey, rank));
    CHECK(same_bits<Backend, 3>(by_public, by_frames{line{3}}, grey, rank));
    CHECK(same_bits<Backend, 4>(colour, by_rows{line{3}}, hd::dynamic_shape<4>{2, 130, 70, 3}, rank));
  }
}
}  // namespace pixelize_trials
