// refuse: heddle: the backend lacks kernels that a layer needs; layer_needs<layer, facet, backend, element type> names them
// and: rms_norm<
// and: rms_norm_facet, no_norms, float>
#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/norms.hpp>

#include <span>

namespace hd = heddle;
namespace ly = hd::model::layers;
using layouts = hd::model::layouts<hd::mesh<hd::axis<hd::tp, 2>>, hd::model::megatron<>>;
struct world {};
// A backend of some kernels only.
struct no_norms {};
namespace ops = hd::compute::ops;
void body(ops::gelu, no_norms&, std::int64_t, const float*, float*);
void body(ops::gelu_backward, no_norms&, std::int64_t, const float*, const float*, float*);
void body(ops::add, no_norms&, std::int64_t, const float*, const float*, float*);
void body(ops::scale, no_norms&, std::int64_t, float*, float);
void body(ops::fill, no_norms&, std::int64_t, float*, float);
void body(ops::copy, no_norms&, std::int64_t, const float*, float*);
using run = ly::layer_run<float, layouts, no_norms, world>;
using width = hd::model::dims<hd::dim::width>;
struct nothing : ly::leaf {
  const char* name = "";
  template <class B>
  auto forward(const B&, typename B::const_view, typename B::view) const {
    return ly::made<typename B::layouts::template edge<width>>{};
  }
};
using call = ly::call<ly::residual<ly::rms_norm<>, nothing>, run>;
void use(const call& b, call::const_view x, call::view y) {
  b.forward(x, y);
}
