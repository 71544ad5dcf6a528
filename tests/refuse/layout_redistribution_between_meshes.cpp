// refuse: heddle: a redistribution needs source and target on one mesh; give both layouts the same mesh type
#include <heddle/layout/redistribution.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using other = hd::mesh<hd::axis<hd::dp, 4>, hd::axis<hd::tp, 2>>;
constexpr auto plan = hd::redistribution<hd::layout<mesh, hd::shard<0, hd::tp>>, hd::layout<other, hd::shard<0, hd::tp>>>;
