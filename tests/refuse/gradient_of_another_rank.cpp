// refuse: the contribution has another number of dimensions than the parameter
#include <heddle/comm/threads.hpp>
#include <heddle/train/three_functions.hpp>
namespace hd = heddle;
struct model {
  static constexpr hd::named_shape parameters[]{{"fc1/bias", {16}}};
};
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using world_type = hd::world<hd::threads, mesh>;
using context = hd::train::named_context<double, model, world_type, hd::redco_rules, hd::compute::host<>>;
using matrix = hd::sharded<double, 2, hd::layout<mesh, hd::identical<hd::tp>>>;
void add(context& c, matrix g) {
  c.add_gradient<"fc1/bias">(static_cast<matrix&&>(g));
}
