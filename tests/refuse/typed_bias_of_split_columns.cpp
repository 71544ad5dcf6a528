// refuse: heddle: propagate: an axis splits a letter in one operand but not in the other that has it
// and: operand<1
// and: repaired_by<
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using output = hd::layout<mesh, hd::shard<0, dp>, hd::shard<1, tp>>;
using whole = hd::layout<mesh>;
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 2, output>& y,
       const hd::sharded<float, 1, whole>& bias) {
  return hd::add_bias(backend, w, y, bias);
}
