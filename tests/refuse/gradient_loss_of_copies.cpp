// refuse: each rank along an axis has a copy of the loss to differentiate, so every gradient would be counted once per copy
#include <heddle/layout/gradient.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
// all_reduce over tp to replicated, where each rank goes on by itself, instead of to identical.
using loss = hd::layout<mesh, hd::partial<hd::plus, hd::dp>, hd::replicate<hd::tp>>;
hd::seed_gradient<loss> one;
