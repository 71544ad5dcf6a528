// refuse: heddle: a context split divides documents of tokens: the model's batch must be model::batch<scalar>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/norms.hpp>
#include <heddle/model/layers/readouts.hpp>
#include <heddle/model/network.hpp>
#include <heddle/train/context.hpp>

namespace hd = heddle;
namespace ly = hd::model::layers;
using hd::model::dims;
namespace dim = hd::dim;
struct net : hd::model::described<net, double, hd::model::pair_batch<double>, hd::model::network_config,
                                  hd::model::megatron_context<>> {
  static auto describe(const config& c) {
    using linear = ly::linear<dims<dim::width>, dims<dim::width>>;
    using in = ly::linear<dims<dim::features>, dims<dim::width>>;
    using out = ly::linear<dims<dim::width>, dims<dim::outputs>>;
    return ly::network(in("in", {c.inputs}, {c.width}, 0.1), "block.", c.layers,
                       ly::residual(ly::rms_norm<>{"n", c.width, 1e-6}, linear("l", {c.width}, {c.width}, 0.1)),
                       ly::squared_error(out("out", {c.width}, {c.outputs}, 0.1)));
  }
};
using world = hd::world<hd::threads, hd::mesh<hd::axis<hd::cp, 2>>>;
std::int64_t bytes(const net::stage<world, hd::compute::host<>>& s) { return s.deferred_bytes(); }
