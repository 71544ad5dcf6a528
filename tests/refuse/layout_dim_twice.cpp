// refuse: heddle: a layout splits one dimension in two shard<> placements; write one shard<dim, major, minor>
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using l = hd::layout<mesh, hd::shard<0, hd::dp>, hd::shard<0, hd::tp>>;
