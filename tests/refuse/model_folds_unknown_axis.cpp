// refuse: heddle: folded_sharding: a sharding of two meshes names an axis that neither of them has
// and: cp
#include <heddle/model/folded_sharding.hpp>

namespace hd = heddle;
struct edp {};
using attention = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::tp>>;
using experts = hd::mesh<hd::axis<edp>, hd::axis<hd::ep>>;
using how = hd::sharding<hd::dim::split<hd::dim::samples, hd::dp>, hd::dim::split<hd::dim::experts, hd::cp>>;
hd::model::folded_sharding<how, attention, experts> all;
