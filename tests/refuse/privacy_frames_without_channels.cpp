// refuse: heddle: privacy::pixelize: pixels with channels have a dimension of their own, and channels<N>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/pixelize.hpp>

namespace hd = heddle;
namespace pv = heddle::privacy;
using split = hd::layout<hd::mesh<hd::axis<hd::dp, 2>>, hd::shard<0, hd::dp>>;
pv::pixelized of_colour(hd::compute::host<>& backend, const hd::sharded<std::uint8_t, 4, split>& frames,
                        pv::ledger& spent) {
  return pv::pixelize<pv::epsilon<1>, pv::pixels<16>, pv::sides<8>>(1, pv::by_hand(std::uint8_t{8}))(backend, frames,
                                                                                                     spent);
}
