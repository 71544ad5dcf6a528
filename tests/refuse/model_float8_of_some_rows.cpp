// refuse: heddle: products_in<float8> scales whole tensors: a sharding must not say overlapped<Pieces>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/layers/multiply.hpp>

namespace hd = heddle;
namespace md = hd::model;
using backend = hd::compute::float8_products<hd::compute::host<>>;

struct call_of_layer {
  using scalar = float;
  using sum = float;
  using space = hd::host_memory;
  using layouts =
      md::layouts<hd::mesh<hd::axis<hd::tp, 2>>, md::megatron_sequence<hd::dp, hd::tp, hd::overlapped<1>>>;
  using view = hd::matrix_view<float>;
  using const_view = hd::matrix_view<const float>;
  backend& kernels;
  backend& compute() const { return kernels; }
};
using weights = call_of_layer::layouts::parameter<md::dims<hd::dim::width, hd::dim::ffn>>;
constexpr auto no = hd::compute::transpose::no;
constexpr auto value = md::layers::float8_operand::value;
void product(const call_of_layer& b, hd::matrix_view<float> y) {
  md::layers::multiply<no, no, value, value, weights, weights>(b, y, y, y, 0.0f);
}
