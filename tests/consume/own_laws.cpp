// tests/consume/own_laws.cpp: a user's own operator, split policy and layouts, tested without a test framework.
#include <heddle/layout/propagate.hpp>
#include <heddle/testing/layout_laws.hpp>
#include <heddle/testing/monoid_laws.hpp>
#include <heddle/testing/split_laws.hpp>
#include <heddle/testing/tensor_laws.hpp>

#include <cstdio>

namespace hd = heddle;
using hd::dp, hd::tp;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using input = hd::layout<mesh, hd::shard<0, dp>>;
using weight = hd::layout<mesh, hd::shard<1, tp>>;
using product = hd::propagate<"bi,io->bo", input, weight>;

HEDDLE_STATIC_LAW(hd::testing::partition(weight{}, hd::shape<3, 5>{}));

// The largest magnitude: an operator of the user's own.
struct loudest {
  static constexpr bool commutative = true;
  template <class T>
  static constexpr T identity() {
    return T(0);
  }
  template <class T>
  constexpr T operator()(const T& a, const T& b) const {
    const T x = a < T(0) ? -a : a, y = b < T(0) ? -b : b;
    return x < y ? y : x;
  }
};

int main() {
  bool ok = true;
  const auto law = [&](const char* name, const hd::testing::report& r, bool holds) {
    std::printf("%s: %s\n", name, to_string(r).c_str());
    ok = ok && r.ok() == holds;
  };
  law("heddle's own policy", hd::testing::check_split_policy<hd::split::zigzag>(), true);
  law("loudest", hd::testing::check_monoid<loudest, unsigned>(), true);
  law("loudest of signed numbers", hd::testing::check_monoid<loudest, int>(), false);  // 0 is no identity of -3
  law("input", hd::testing::check_partition(input{}, hd::shape{7, 4}), true);
  law("product to input", hd::testing::check_redistribution<input>(product{}, hd::shape{7, 5}), true);
  return ok ? 0 : 1;
}
