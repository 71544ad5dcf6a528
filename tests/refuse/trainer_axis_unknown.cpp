// refuse: heddle: a trainer knows the axes dp, pp and tp; give it the world.sub<dp, pp, tp>() of a mesh with more
#include <heddle/heddle.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 1>, hd::axis<hd::cp, 2>>;
using trainer = hd::train::trainer<hd::model::gpt2<float>, hd::strategy<mesh>>;
std::size_t size = sizeof(trainer);
