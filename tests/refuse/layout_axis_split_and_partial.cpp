// refuse: heddle: a layout uses one mesh axis twice
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using l = hd::layout<mesh, hd::shard<0, hd::tp>, hd::partial<hd::plus, hd::dp, hd::tp>>;
