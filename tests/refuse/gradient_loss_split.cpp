// refuse: heddle: seed_gradient<loss>: an axis splits the loss, but a loss is one number
#include <heddle/layout/gradient.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using per_row = hd::layout<mesh, hd::shard<0, hd::dp>, hd::identical<hd::tp>>;
hd::seed_gradient<per_row> one;
