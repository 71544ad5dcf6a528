// refuse: einsum multiplies two tensors, or sums and permutes one
#include <heddle/comm/threads.hpp>
#include <heddle/compute/einsum.hpp>
#include <heddle/compute/host/host.hpp>
namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using matrix = hd::sharded<float, 2, hd::layout<mesh>>;
void f(hd::compute::host<>& backend, hd::world<hd::threads, mesh>& world, matrix& a, matrix& b, matrix& c) {
  hd::compute::einsum<"ab,bc,cd->ad">(backend, world, a, b, c);
}
