// refuse: layout_names_each_axis_once<false, heddle::
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using l = hd::layout<mesh, hd::shard<0, hd::dp>, hd::replicate<hd::dp>>;
