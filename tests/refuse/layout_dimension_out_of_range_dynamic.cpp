// refuse: heddle: a layout splits a dimension that the tensor does not have
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::tp>>;
bool owns(const hd::layout<mesh, hd::shard<1, hd::tp>>& l) { return l.owns(hd::shape{8}, 0, {3}); }
