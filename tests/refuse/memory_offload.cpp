// refuse: heddle: this policy keeps saved activations in the host's memory only; with this backend take activations::keep or activations::recompute
#include <heddle/compute/host/host.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/activations/file_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
namespace act = hd::activations;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using backend = hd::testing::checked_backend<hd::compute::host<>>;
hd::strategy<mesh, backend, act::recompute<act::full>> fine;
hd::strategy<mesh, backend, act::recompute<act::full, act::offload<act::file_store>>> odd;
