// refuse: heddle: op::transpose<perm...>: name each dimension from 0 up once
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using l = hd::propagate_through<hd::op::transpose<-1, 0>, hd::layout<mesh, hd::shard<0, tp>>>;
