// refuse: heddle: a sharding has one context split at most
#include <heddle/model/sharding.hpp>

namespace hd = heddle;
struct cp_between;
using how = hd::sharding<hd::dim::split<hd::dim::sequence, hd::cp, hd::context<>>,
                         hd::dim::split<hd::dim::sequence, cp_between, hd::context<>>>;
using layouts = hd::model::layouts<hd::mesh<hd::axis<hd::cp, 2>, hd::axis<cp_between, 2>>, how>;
constexpr auto axes = layouts::context_axes::size;
