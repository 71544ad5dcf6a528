// refuse: heddle: a layout splits a dimension that the tensor does not have
#include <heddle/tensor/redistribute.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
hd::sharded<float, 1, hd::layout<mesh, hd::shard<1, hd::tp>>> make() { return {{}, hd::shape{8}, 0}; }
