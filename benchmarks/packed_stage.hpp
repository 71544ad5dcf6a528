// benchmarks/packed_stage.hpp: bytes of a weight that a backend reads in a step, and packing of a stage's weights where the backend packs them.
#pragma once

template <class Backend>
double bytes_per_weight() {
  if constexpr (requires { typename Backend::format; })
    return Backend::format::bytes_per_weight;
  else
    return sizeof(float);
}
template <class Backend, class Stage>
void pack(Backend& kernels, Stage& stage) {
  if constexpr (requires { kernels.pack(stage.weights()); }) kernels.pack(stage.weights());
}
