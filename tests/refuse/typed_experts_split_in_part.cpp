// refuse: heddle: propagate: an axis splits a letter in one operand but not in the other that has it, so their parts do not match
// and: experts<
// and: repaired_by<
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

// The matrices down are all experts' on each rank, those of gate and up are not.
namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::ep, 2>>;
using some = hd::layout<mesh, hd::shard<0, hd::ep>>;
using all = hd::layout<mesh>;
auto f(hd::compute::host<>& backend, hd::world<hd::threads, mesh>& w, const hd::sharded<float, 2, all>& x,
       const hd::sharded<std::int32_t, 2, all>& ids, const hd::sharded<float, 3, some>& gate,
       const hd::sharded<float, 3, all>& down) {
  return hd::apply<hd::op::experts<>>(backend, w, x, ids, x, gate, gate, down);
}
