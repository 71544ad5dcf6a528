// refuse: heddle: a layout uses one mesh axis twice; an axis can do one thing to a tensor, so remove one of its uses
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using l = hd::layout<mesh, hd::shard<0, hd::tp>, hd::shard<1, hd::tp>>;
