// refuse: heddle: shard<dim, policy, axes...>: the policy gives another number of parts than the axis has ranks
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using l = hd::layout<mesh, hd::shard<0, hd::split::ragged<1, 2, 3>, tp>>;
