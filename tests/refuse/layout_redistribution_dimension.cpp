// refuse: heddle: a redistribution splits a dimension that the tensor does not have
#include <heddle/layout/redistribution.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
constexpr auto bytes =
    hd::redistribution<hd::layout<mesh, hd::shard<0, hd::tp>>, hd::layout<mesh, hd::shard<1, hd::tp>>>.bytes_sent_per_rank(hd::shape{8}, 4);
