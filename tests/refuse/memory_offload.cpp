// refuse: heddle: this policy keeps saved activations in the host's memory only; with this backend take activations::keep, activations::recompute or activations::offload
#include <heddle/compute/host/host.hpp>
#include <heddle/model/saved_activations.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/activations/file_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
namespace act = hd::activations;
struct of_the_host {
  using kind = hd::activations_kind;
  template <class T>
  using layers = hd::model::resident_layers<T>;
};
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using backend = hd::testing::checked_backend<hd::compute::host<>>;
hd::strategy<mesh, backend, act::recompute<act::full, act::offload<act::file_store>>> fine;
hd::strategy<mesh, backend, act::recompute<act::full, of_the_host>> odd;
