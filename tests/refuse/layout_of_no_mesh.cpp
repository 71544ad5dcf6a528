// refuse: heddle: layout<Mesh, ...>: the first argument must be a mesh<...> type
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using bad = hd::layout<hd::axis<hd::dp, 2>, hd::shard<0, hd::dp>>;
auto shape = bad{}.local_shape(hd::shape{4, 6}, 0);
