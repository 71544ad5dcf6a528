// refuse: heddle: dual<layout>: partial values under another operator than plus have a gradient only through replicated
#include <heddle/layout/gradient.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using greatest = hd::layout<mesh, hd::shard<0, hd::dp>, hd::partial<hd::maximum, hd::tp>>;
hd::dual<greatest> gradient;
