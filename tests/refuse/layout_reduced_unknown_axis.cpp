// refuse: heddle: reduced<layout, axes...>: the layout is not partial over an axis
#include <heddle/layout/gradient.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using l = hd::reduced<hd::layout<mesh, hd::partial<hd::plus, tp>>, hd::ep>;
