// refuse: heddle: a tensor's layout is on another mesh than the world that computes with it
#include <heddle/comm/threads.hpp>
#include <heddle/compute/apply.hpp>
#include <heddle/compute/host/host.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using world = hd::world<hd::threads, hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>>;
using rows = hd::layout<hd::mesh<hd::axis<dp, 4>>, hd::shard<0, dp>>;
auto f(hd::compute::host<>& backend, world& w, const hd::sharded<float, 2, rows>& x) {
  return hd::apply<hd::op::gelu>(backend, w, x);
}
