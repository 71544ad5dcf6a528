// refuse: heddle: propagate<formula, layouts...>: every argument after the formula or operator must be a layout
#include <heddle/layout/propagate.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using l = hd::propagate<"bi->b", int>;
