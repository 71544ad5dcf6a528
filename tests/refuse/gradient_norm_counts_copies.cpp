// refuse: the ranks along this axis already hold the whole value, so a reduction would count it once per copy
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/gradient.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using norm_weight = hd::layout<mesh, hd::identical<hd::tp>>;
// The squared norm of a weight that every rank along tp has, summed over tp: sqrt(2) times the norm.
auto norm(const hd::sharded<float, 1, norm_weight>& w, hd::world<hd::threads, mesh>& world) {
  return hd::reduce<hd::tp>(hd::sum_of_squares(w), world);
}
