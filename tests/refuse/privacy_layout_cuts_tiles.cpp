// refuse: heddle: privacy::pixelize: this layout cuts tiles: split frames, shard<0, axis>, or rows by shard<1, split::block_cyclic<64>, axis>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/pixelize.hpp>

namespace hd = heddle;
namespace pv = heddle::privacy;
using rows = hd::layout<hd::mesh<hd::axis<hd::dp, 2>>, hd::shard<1, hd::dp>>;
pv::pixelized cut(hd::compute::host<>& backend, const hd::sharded<std::uint8_t, 3, rows>& frames, pv::ledger& spent) {
  return pv::pixelize<pv::epsilon<1>, pv::pixels<16>, pv::sides<8>>(1, pv::by_hand(std::uint8_t{8}))(backend, frames,
                                                                                                     spent);
}
