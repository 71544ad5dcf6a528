// refuse: heddle: a placement names no mesh axis; name at least one, or leave the placement out
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using l = hd::layout<mesh, hd::shard<0>>;
