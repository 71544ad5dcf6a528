// refuse: heddle: sbp::signature: give one entry per mesh axis, in the order of the mesh
#include <heddle/layout/sbp.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using l = hd::sbp::signature<mesh, hd::sbp::S<0>>;
