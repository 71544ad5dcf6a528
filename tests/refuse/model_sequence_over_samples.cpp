// refuse: heddle: an axis splits samples or sequences, not both: name it once
#include <heddle/model/sharding.hpp>

namespace hd = heddle;
namespace dim = hd::dim;
using how = hd::sharding<dim::split<dim::samples, hd::dp>, dim::split<dim::sequence, hd::dp>>;
using layouts = hd::model::layouts<hd::mesh<hd::axis<hd::dp, 2>>, how>;
using stream = layouts::edge<hd::model::dims<dim::width>>;
