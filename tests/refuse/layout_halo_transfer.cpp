// refuse: heddle: plan_transfer: a layout has a halo, whose elements several ranks hold; transfer between layouts without_halo<layout>
#include <heddle/layout/transfer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
auto bad = hd::plan_transfer(hd::layout<mesh, hd::halo<0, 1, hd::dp>>{}, hd::rank_range{0, 2}, hd::layout<mesh>{},
                             hd::rank_range{2, 2});
