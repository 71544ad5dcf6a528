// refuse: heddle: a layout splits a dimension that the tensor does not have
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
auto s = hd::layout<mesh, hd::shard<2, hd::tp>>::local_shape(hd::shape{8, 4}, 0);
