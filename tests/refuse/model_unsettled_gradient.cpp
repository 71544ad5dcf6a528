// refuse: heddle: a layer leaves a tensor in another layout than its neighbour takes: a settlement is missing
// and: split_product
#include <heddle/compute/host/host.hpp>
#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/norms.hpp>

#include <span>

namespace hd = heddle;
namespace ly = hd::model::layers;
namespace dim = hd::dim;
using layouts = hd::model::layouts<hd::mesh<hd::axis<hd::dp, 1>, hd::axis<hd::tp, 2>>, hd::model::megatron<>>;
struct group {
  int size() const { return 2; }
  template <class Op>
  void all_reduce(std::span<float>, Op) {}
};
struct world {
  template <class>
  group along_if() {
    return {};
  }
};
using run = ly::layer_run<float, layouts, hd::compute::host<>, world>;
using width = hd::model::dims<dim::width>;
using up = ly::linear<width, hd::model::dims<dim::ffn>>;
// backward_input leaves the sum over hidden units in parts: where is its redistribute_in_place?
struct split_product : ly::leaf {
  const char* name = "";
  template <class B>
  auto backward_input(const B&, typename B::const_view, typename B::const_view, typename B::view) const {
    return ly::made<typename up::laid<typename B::layouts>::dx_made>{};
  }
};
using layer = ly::residual<ly::rms_norm<>, split_product>;
using call = ly::call<layer, run>;
void use(const call& b, call::const_view x, call::view dx) {
  b.backward_input(x, x, dx);
}
