// refuse: heddle: redistribute_in_place<From, To> combines contributions, with one all_reduce along each axis
// and: for other rows redistribute_in_place<From, To>(from, to)
#include <heddle/compute/host/host.hpp>
#include <heddle/model/layers/feed_forward.hpp>

namespace hd = heddle;
namespace ly = hd::model::layers;
namespace dim = hd::dim;
using how = hd::sharding<dim::split<dim::ffn, hd::tp>, dim::split<dim::sequence, hd::tp>>;
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using layouts = hd::model::layouts<mesh, how>;
struct group {
  int size() const { return 2; }
};
struct world {
  hd::mesh<hd::axis<hd::tp, 2>> mesh() const { return {}; }
  int rank() const { return 0; }
  template <class>
  group along_if() {
    return {};
  }
};
using run = ly::layer_run<float, layouts, hd::compute::host<>, world>;
using up = ly::linear<hd::model::dims<dim::width>, hd::model::dims<dim::ffn>>;
// The gradient of the stream is a sum of all rows, of which each rank takes its own: into other memory.
struct own_mlp : ly::leaf {
  const char* name = "";
  template <class B>
  void backward_input(const B& b, typename B::const_view, typename B::const_view, typename B::view dx) const {
    using l = typename up::laid<typename B::layouts>;
    b.template redistribute_in_place<typename l::dx_made, hd::dual<typename l::x_edge>>(dx);
  }
};
using call = ly::call<own_mlp, run>;
void use(const call& b, call::const_view x, call::view dx) {
  b.backward_input(x, x, dx);
}
