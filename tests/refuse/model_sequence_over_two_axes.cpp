// refuse: heddle: the sequences of a model are split over one axis
#include <heddle/model/sharding.hpp>

namespace hd = heddle;
namespace dim = hd::dim;
struct cp;
using how =
    hd::sharding<dim::split<dim::heads, hd::tp>, dim::split<dim::sequence, cp>, dim::split<dim::sequence, hd::tp>>;
using layouts = hd::model::layouts<hd::mesh<hd::axis<cp, 2>, hd::axis<hd::tp, 2>>, how>;
using stream = layouts::edge<hd::model::dims<dim::width>>;
