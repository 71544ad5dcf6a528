// refuse: heddle: a strategy with determinism::mesh_to_mesh needs #include <heddle/train/mesh_to_mesh.hpp>
#include "trainer_parts.hpp"

template void trainer_parts::train<heddle::model::gpt2<float>, heddle::determinism::mesh_to_mesh>(
    const trainer_parts::options&);
