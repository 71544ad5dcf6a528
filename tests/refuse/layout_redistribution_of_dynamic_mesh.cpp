// refuse: heddle: redistribution<From, To> needs a mesh whose extents are all static
#include <heddle/layout/redistribution.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using some = hd::mesh<hd::axis<hd::dp>>;
constexpr auto plan = hd::redistribution<hd::layout<some, hd::shard<0, hd::dp>>, hd::layout<some>>;
