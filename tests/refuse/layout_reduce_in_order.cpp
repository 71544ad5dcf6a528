// refuse: heddle: op::reduce<Op, dims...>: the operator must be commutative
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
struct compose {
  template <class T>
  static constexpr T identity() {
    return T{};
  }
  template <class T>
  constexpr T operator()(const T& a, const T&) const {
    return a;
  }
};
using l = hd::propagate_through<hd::op::reduce<compose, 0>, hd::layout<mesh>>;
