// refuse: heddle: products_in<bf16> keeps rounded operands in the host's memory only; with this backend leave it out of precision<...>
#include <heddle/compute/host/host.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using backend = hd::testing::checked_backend<hd::compute::host<>>;
hd::strategy<mesh, backend, hd::precision<hd::weights_in<hd::bf16>, hd::products_in<hd::bf16>>> odd;
