// refuse: heddle: propagate_shape<formula>: a shape has another number of dimensions than its operand has letters
#include <heddle/layout/propagate.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using sum = hd::layout<mesh, hd::partial<hd::plus, hd::tp>>;
using row = hd::layout<mesh, hd::shard<0, hd::tp>>;
using column = hd::layout<mesh, hd::shard<1, hd::tp>>;
using whole = hd::layout<mesh>;
auto s = hd::propagate_shape<"bi,io->bo">(hd::shape{8, 4}, hd::shape{4});
