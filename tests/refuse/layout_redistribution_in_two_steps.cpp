// refuse: heddle: this redistribution goes via two steps
#include <heddle/layout/redistribution.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
constexpr auto plan = hd::redistribution<hd::layout<mesh, hd::shard<0, hd::dp, hd::tp>>, hd::layout<mesh, hd::shard<0, hd::tp>>>;
