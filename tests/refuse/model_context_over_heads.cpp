// refuse: heddle: the axis of a context split divides the rows of documents, and neither samples nor heads
#include <heddle/model/sharding.hpp>

namespace hd = heddle;
using how = hd::sharding<hd::dim::split<hd::dim::heads, hd::tp>, hd::dim::split<hd::dim::sequence, hd::tp, hd::context<>>>;
using layouts = hd::model::layouts<hd::mesh<hd::axis<hd::tp, 2>>, how>;
constexpr auto axes = layouts::context_axes::size;
