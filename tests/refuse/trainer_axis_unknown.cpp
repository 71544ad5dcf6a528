// refuse: heddle: the mesh has an axis that the model's stage does not name, in flat_weights or in samples: ranks along it would do the same work twice; name it there, or give the trainer the world.sub<...>() of the other axes
#include <heddle/model/gpt2.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 1>, hd::axis<hd::cp, 2>>;
using trainer = hd::train::trainer<hd::model::gpt2<float>, hd::strategy<mesh>>;
std::size_t size = sizeof(trainer);
