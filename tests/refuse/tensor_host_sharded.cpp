// refuse: host_accessible_space
// and: checked_memory
#include <heddle/tensor/sharded.hpp>
#include <heddle/testing/checked_memory.hpp>
namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using part = hd::sharded<float, 1, hd::layout<mesh, hd::shard<0, hd::dp>>, hd::testing::checked_memory>;
float f(const part& x) { return x.elements()[0]; }
