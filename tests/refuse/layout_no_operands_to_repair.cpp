// refuse: heddle: propagate<formula, layouts...>: no layouts are given
#include <heddle/layout/propagate.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using l = hd::propagate<"bi->b", hd::auto_redistribute>;
