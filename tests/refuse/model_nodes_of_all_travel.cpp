// refuse: heddle: send_to_nodes<Axes...> names the axes inside a node: some, not all, of those that rows travel along
// and: ep
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/layers/experts.hpp>

namespace hd = heddle;
namespace ly = hd::model::layers;
using mesh = hd::mesh<hd::axis<hd::dp, 1>, hd::axis<hd::ep, 2>, hd::axis<hd::tp, 2>>;
using layouts =
    hd::model::layouts<mesh, hd::model::expert_parallel<>>;  // rows travel along ep alone: no axis is between nodes
using run = ly::layer_run<float, layouts, hd::compute::host<>, hd::world<hd::threads, mesh>>;
using layer = ly::experts<hd::compute::softmax_of_chosen, hd::compute::silu, ly::dropless, ly::send_to_nodes<hd::ep>>;
using call = ly::call<layer, run>;
void use(const call& b, call::const_view x, call::view y) {
  b.forward(x, y);
}
