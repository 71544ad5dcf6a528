// refuse: heddle: zero<2> and zero<3> keep shares of gradients and weights in the host's memory only; with this backend take zero<0> or zero<1>
#include <heddle/compute/host/host.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
hd::strategy<mesh, hd::zero<2>, hd::testing::checked_backend<hd::compute::host<>>> odd;
