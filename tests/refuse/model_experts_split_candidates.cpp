// refuse: heddle: a router scores all experts for each token: a sharding may split dim::experts and dim::ffn of a mixture
#include <heddle/compute/host/host.hpp>
#include <heddle/model/layers/experts.hpp>

namespace hd = heddle;
namespace ly = hd::model::layers;
using how = hd::sharding<hd::dim::split<hd::dim::candidates, hd::ep>>;
using layouts = hd::model::layouts<hd::mesh<hd::axis<hd::ep, 2>>, how>;
using mixture = ly::detail::experts_laid<layouts>;
static_assert(!mixture::exchanges);
