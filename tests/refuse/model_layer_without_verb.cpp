// refuse: heddle: a layer needs a verb backward_input(b, x, dy, dx), which fills dx; in the place of a norm
// and: forward_only
#include <heddle/compute/host/host.hpp>
#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/norms.hpp>

#include <span>

namespace hd = heddle;
namespace ly = hd::model::layers;
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
using width = hd::model::dims<hd::dim::width>;
struct forward_only : ly::leaf {
  const char* name = "";
  template <class B>
  auto forward(const B&, typename B::const_view, typename B::view) const {
    return ly::made<typename B::layouts::template edge<width>>{};
  }
};
using layer = ly::residual<ly::rms_norm<>, forward_only>;
using call = ly::call<layer, run>;
void use(const call& b, call::const_view x, call::view dx) {
  b.backward_input(x, x, dx);
}
