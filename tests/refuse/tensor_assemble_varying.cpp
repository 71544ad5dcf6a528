// refuse: heddle: assemble: the values vary along an axis
#include <heddle/tensor/sharded.hpp>
namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using part = hd::sharded<float, 1, hd::layout<mesh, hd::shard<0, hd::tp>, hd::varying<hd::dp>>>;
hd::buffer<float> f(std::span<const part> parts) { return hd::assemble(parts); }
