// refuse: heddle: experts with gather_rows or send_to_nodes gather rows in the host's memory only
// and: ep
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/layers/experts.hpp>
#include <heddle/testing/checked_backend.hpp>

namespace hd = heddle;
namespace ly = hd::model::layers;
using mesh = hd::mesh<hd::axis<hd::dp, 1>, hd::axis<hd::ep, 2>, hd::axis<hd::tp, 1>>;
using layouts = hd::model::layouts<mesh, hd::model::expert_parallel<>>;
using run =
    ly::layer_run<float, layouts, hd::testing::checked_backend<hd::compute::host<>>, hd::world<hd::threads, mesh>>;
using mixture = ly::experts<hd::compute::softmax_of_chosen, hd::compute::silu, ly::dropless, ly::gather_rows>;
using call = ly::call<mixture, run>;
void use(const call& b, call::const_view x, call::view y) {
  b.forward(x, y);
}
