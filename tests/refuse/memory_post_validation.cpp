// refuse: heddle: post_validation takes steps back in the host's memory only; with this backend leave it out
#include <heddle/compute/host/host.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using backend = hd::testing::checked_backend<hd::compute::host<>>;
hd::strategy<mesh, backend, hd::post_validation_with_copy> odd;
