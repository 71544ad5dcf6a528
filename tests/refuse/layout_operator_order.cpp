// refuse: heddle: partial<op, axes...>: the operator must be commutative, because axes are combined in any order
#include <heddle/layout/layout.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
struct first {
  template <class T>
  T operator()(const T& a, const T&) const {
    return a;
  }
};
using l = hd::layout<mesh, hd::partial<first, hd::tp>>;
