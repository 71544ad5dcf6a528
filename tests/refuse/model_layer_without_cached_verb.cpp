// refuse: heddle: a layer whose rows see others of their sequence needs a verb forward_cached(b, x, y) to run with a cache
// and: sees_neighbours
#include <heddle/compute/host/host.hpp>
#include <heddle/model/layers/call.hpp>

namespace hd = heddle;
namespace ly = hd::model::layers;
using layouts = hd::model::layouts<hd::mesh<hd::axis<hd::tp, 2>>, hd::model::megatron<>>;
struct world {};
using cache = ly::token_cache<float, hd::host_memory>;
using run = ly::layer_run<float, layouts, hd::compute::host<>, world, cache>;
struct sees_neighbours : ly::leaf {
  static constexpr bool reads_sequences = true;
  template <class B>
  void forward(const B&, typename B::const_view, typename B::view) const {}
};
using call = ly::call<sees_neighbours, run>;
void use(const call& b, call::const_view x, call::view y) {
  b.forward(x, y);
}
