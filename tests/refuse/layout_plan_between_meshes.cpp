// refuse: heddle: a redistribution needs source and target on one mesh; give both layouts the same mesh type
#include <heddle/layout/redistribution.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::tp>>;
using other = hd::mesh<hd::axis<hd::dp, 4>, hd::axis<hd::tp, 2>>;
std::size_t steps(const hd::layout<mesh, hd::shard<0, hd::tp>>& from,
                  const hd::layout<other, hd::shard<0, hd::tp>>& to) {
  return hd::plan_redistribution(from, to).steps.size();
}
