// refuse: heddle: a layout uses one mesh axis twice; an axis can do one thing to a tensor, so remove one of its uses
#include <heddle/layout/gradient.hpp>
#include <heddle/tensor/sharded.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using bad = hd::layout<mesh, hd::shard<0, hd::dp>, hd::partial<hd::plus, hd::dp>>;
using gradient = hd::dual<bad>;
auto shape = bad{}.local_shape(hd::shape{4, 6}, 0);
hd::sharded<float, 2, gradient> x(gradient{}, hd::shape{4, 6}, 0);
