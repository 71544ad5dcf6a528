// refuse: heddle: seed_gradient<loss>: each rank along an axis has a loss of its own, so a reduction over it is missing
#include <heddle/layout/gradient.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
// Cross-entropy over this rank's own words only: the ranks' normalisers were never combined.
using loss = hd::layout<mesh, hd::partial<hd::plus, hd::dp>, hd::varying<hd::tp>>;
hd::seed_gradient<loss> one;
