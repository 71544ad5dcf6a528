// refuse: heddle: shard<dim, axes...>: the dimension must not be negative
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using l = hd::layout<mesh, hd::shard<-1, hd::dp>>;
