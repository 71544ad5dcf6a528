// refuse: heddle: layout<Mesh, ...>: every argument after the mesh must be shard<dim, axes...>, halo<dim, width, axes...>, partial<op, axes...>
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using l = hd::layout<mesh, hd::dp>;
