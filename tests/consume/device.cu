// tests/consume/device.cu: heddle's numbers inside a kernel.
#include <heddle/mesh/mesh.hpp>

using mesh = heddle::mesh<heddle::axis<heddle::dp, 2>, heddle::axis<heddle::tp, 2>>;

template <class Mesh>
__global__ void write_size(int* out) {
  constexpr int size = heddle::axis<heddle::dp, 2>::fixed_size;
  *out = size * heddle::axis<heddle::tp, 2>::size();
}

void launch(int* out) { write_size<mesh><<<1, 1>>>(out); }
