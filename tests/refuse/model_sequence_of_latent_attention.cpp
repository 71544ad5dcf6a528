// refuse: heddle: latent attention takes all rows of its rank's samples: leave out split<dim::sequence, ...>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/layers/latent_attention.hpp>

namespace hd = heddle;
namespace ly = hd::model::layers;
namespace dim = hd::dim;
using how = hd::sharding<dim::split<dim::heads, hd::tp>, dim::split<dim::sequence, hd::tp>>;
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using layouts = hd::model::layouts<mesh, how>;
struct group {
  int size() const { return 2; }
  template <class... A>
  void reduce_scatter(A&&...) {}
  template <class... A>
  void reduce_scatter_v(A&&...) {}
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
using call = ly::call<ly::latent_attention<>, run>;
void use(const call& b, call::const_view x, call::view y) {
  b.forward(x, y);
}
