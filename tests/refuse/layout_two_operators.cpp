// refuse: heddle: a layout holds partial values under two operators, whose order would change the result
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using l = hd::layout<mesh, hd::partial<hd::plus, hd::dp>, hd::partial<hd::maximum, hd::tp>>;
