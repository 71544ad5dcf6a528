// refuse: heddle: this redistribution goes via two steps
#include <heddle/layout/redistribution.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::tp>>;
auto plan(const mesh& m) {
  return hd::plan_redistribution(hd::layout<mesh, hd::shard<0, hd::dp, hd::tp>>{m}, hd::layout<mesh, hd::shard<0, hd::tp, hd::dp>>{m});
}
