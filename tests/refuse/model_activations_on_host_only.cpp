// refuse: heddle: this policy keeps activations in the host's memory only; for a backend with another memory take
// and: on_the_host
#include <heddle/compute/host/host.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/testing/checked_backend.hpp>

namespace hd = heddle;
struct world {
  int rank() const { return 0; }
  hd::mesh<> mesh() const { return {}; }
};
struct on_the_host {
  using kind = hd::activations_kind;
  template <class T>
  using layers = hd::model::resident_layers<T>;
};
using stage = hd::model::gpt2_stage<float, world, hd::testing::checked_backend<hd::compute::host<>>, on_the_host>;
bool use(const stage& s) {
  return s.is_first();
}
