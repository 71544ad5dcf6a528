// refuse: heddle: assume<To> gives a meaning to varying axes only
#include <heddle/tensor/sharded.hpp>
namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using copies = hd::layout<mesh, hd::varying<hd::dp>>;
using sums = hd::layout<mesh, hd::varying<hd::dp>, hd::partial<hd::plus, hd::tp>>;
auto f(hd::sharded<float, 1, copies> x) { return hd::assume<sums>(std::move(x)); }
