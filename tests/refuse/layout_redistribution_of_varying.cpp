// refuse: heddle: a redistribution cannot make or use up values that vary over an axis
#include <heddle/layout/redistribution.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
constexpr auto plan = hd::redistribution<hd::layout<mesh, hd::varying<hd::dp>>, hd::layout<mesh, hd::shard<0, hd::dp>>>;
