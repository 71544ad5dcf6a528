// refuse: heddle: propagate: the rule of an operator reduces a dimension under a monoid that is not commutative
#include <heddle/layout/operations.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
struct later {
  template <class T>
  static constexpr T identity() {
    return T{};
  }
  template <class T>
  constexpr T operator()(const T&, const T& b) const {
    return b;
  }
};
struct last {
  using kind = hd::operation_kind;
  using monoid = later;
  static constexpr int least = 1, most = 1;
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>&) {
    hd::factor_rule<> made;
    auto& x = made.operand();
    x.letters[x.count++] = made.factor(hd::factor_kind::reduction);
    made.result();
    return made;
  }
};
using l = hd::propagate_through<last, hd::layout<mesh, hd::shard<0, tp>>>;
