// refuse: heddle: split<Dim, Axis, context<...>>: a context split is one of dim::sequence
#include <heddle/model/sharding.hpp>

namespace hd = heddle;
using how = hd::sharding<hd::dim::split<hd::dim::heads, hd::cp, hd::context<>>>;
using stream = hd::model::layouts<hd::mesh<hd::axis<hd::cp, 2>>, how>::edge<hd::model::dims<hd::dim::width>>;
