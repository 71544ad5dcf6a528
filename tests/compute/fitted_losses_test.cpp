// One loss that names no axis and no layout, on weights of several layouts: one rank's numbers, central differences, and no more
// collectives than the loss written by hand.
#include "catch.hpp"
#include "gradient_trials.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/value_and_gradient.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace fitted_losses {
using namespace gradient_trials;

constexpr std::int64_t b = 5, i = 3, h = 7, o = 4;  // no axis of more than one rank divides them

struct square {
  template <class T>
  static T value(T x) {
    return x * x;
  }
  template <class T>
  static T derivative(T x) {
    return 2 * x;
  }
};
// Mean squared miss of a perceptron; t: the targets, negated.
struct any_loss {
  template <class W, class V, class X, class T>
  constexpr auto operator()(W w, V v, X x, T t) const {
    constexpr hd::auto_redistribute fit{};
    const auto hidden = hd::apply<op::gelu>(fit, hd::einsum<"bi,ih->bh">(fit, x, w));
    const auto miss = hd::apply<op::add>(fit, hd::einsum<"bh,ho->bo">(fit, hidden, v), t);
    return hd::mean(hd::apply<op::map<square>>(fit, miss));
  }
};
// As one writes it for columns and rows: the contributions are scattered, which sends half of an all_reduce.
template <class M>
struct columns_and_rows {
  template <class W, class V, class X, class T>
  constexpr auto operator()(W w, V v, X x, T t) const {
    const auto hidden = hd::apply<op::gelu>(hd::einsum<"bi,ih->bh">(x, w));
    const auto miss = hd::apply<op::add>(hd::redistribute<heads<M>>(hd::einsum<"bh,ho->bo">(hidden, v)),
                                         hd::redistribute<heads<M>>(t));
    return hd::mean(hd::apply<op::map<square>>(miss));
  }
};

std::vector<numbers> operands() {
  return {random_numbers(i * h, 1), random_numbers(h * o, 2), random_numbers(b * i, 3), random_numbers(b * o, 4)};
}
template <template <class> class W, template <class> class V, class Loss>
std::vector<numbers> run(flexible mesh, const std::vector<numbers>& x, std::int64_t& calls) {
  return on_all(mesh, [&](auto& backend, auto& world) {
    const auto w = spread<W<flexible>>(x[0], hd::shape<i, h>{}).part(W<flexible>{mesh}, world.rank());
    const auto v = spread<V<flexible>>(x[1], hd::shape<h, o>{}).part(V<flexible>{mesh}, world.rank());
    const auto in = spread<rows<flexible>>(x[2], hd::shape<b, i>{}).part(rows<flexible>{mesh}, world.rank());
    const auto t = spread<rows<flexible>>(x[3], hd::shape<b, o>{}).part(rows<flexible>{mesh}, world.rank());
    const auto called = [&] {
      return world.template along<dp>().counters().collectives() + world.template along<tp>().counters().collectives() +
             world.all().counters().collectives();
    };
    const std::int64_t before = called();
    auto found = hd::value_and_gradient<hd::reduced_gradients>(backend, world, Loss{}, w, v, in, t);
    if (world.rank() == 0) calls = called() - before;
    return found;
  });
}

TEST_CASE("a loss without axes and layouts fits weights of any layout", "[compute][gradient]") {
  const std::vector<numbers> x = operands();
  const loss_function loss = [](const std::vector<numbers>& p) {
    double sum = 0;
    for (std::int64_t s = 0; s < b; ++s)
      for (std::int64_t c = 0; c < o; ++c) {
        double y = p[3][at(s * o + c)];
        for (std::int64_t k = 0; k < h; ++k) {
          double z = 0;
          for (std::int64_t j = 0; j < i; ++j) z += p[2][at(s * i + j)] * p[0][at(j * h + k)];
          y += 0.5 * z * (1 + std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z))) * p[1][at(k * o + c)];
        }
        sum += y * y;
      }
    return sum / (b * o);
  };
  std::int64_t calls = 0, by_hand = 0;
  const auto alone = run<column, row, any_loss>(flexible{1, 1}, x, calls);
  CHECK(std::abs(alone[0][0] - loss(x)) < 1e-12);
  for (std::size_t k = 0; k < x.size(); ++k)
    CHECK(worst_difference(alone[k + 1], central_differences(loss, x, k)) < 1e-8);
  for (const auto& [d, t] : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {1, 2}, {2, 2}, {3, 2}, {2, 4}}) {
    CAPTURE(d, t);
    const flexible mesh{d, t};
    const auto same = [&](const std::vector<numbers>& found) {
      REQUIRE(found.size() == alone.size());
      for (std::size_t k = 0; k < found.size(); ++k) CHECK(worst_difference(found[k], alone[k]) < 1e-12);
    };
    same(run<column, row, any_loss>(mesh, x, calls));
    same(run<column, row, columns_and_rows<flexible>>(mesh, x, by_hand));
    CHECK(calls == by_hand);
    same(run<row, column, any_loss>(mesh, x, calls));
    same(run<column, column, any_loss>(mesh, x, calls));
  }
}

// PPO's objective of an element: the smaller of ratio and clipped ratio, times the advantage.
struct clipped {
  static double bounded(double r) { return r < 0.8 ? 0.8 : r > 1.2 ? 1.2 : r; }
  static double value(double r, double a) { return std::min(r * a, bounded(r) * a); }
  static std::array<double, 2> gradient(double r, double a) {
    const bool free = r * a <= bounded(r) * a;
    return {free ? a : 0, free ? r : bounded(r)};
  }
};

TEST_CASE("a map of two operands has the gradients of central differences", "[compute][gradient]") {
  std::vector<numbers> x{random_numbers(b * o, 5, 0.9), random_numbers(b * o, 6)};
  for (double& r : x[0]) r = 1 + (std::abs(std::abs(r) - 0.2) < 0.01 ? 0.5 : r);  // not at the corners
  const loss_function loss = [](const std::vector<numbers>& p) {
    double sum = 0;
    for (std::size_t k = 0; k < p[0].size(); ++k) sum += clipped::value(p[0][k], p[1][k]);
    return sum / (b * o);
  };
  check(loss, x, [&](flexible mesh) {
    return on_all(mesh, [&](auto& backend, auto& world) {
      const auto r = spread<rows<flexible>>(x[0], hd::shape<b, o>{}).part(rows<flexible>{mesh}, world.rank());
      const auto a = spread<column<flexible>>(x[1], hd::shape<b, o>{}).part(column<flexible>{mesh}, world.rank());
      return hd::value_and_gradient<hd::reduced_gradients>(
          backend, world,
          [](auto p, auto q) { return hd::mean(hd::apply<op::map<clipped>>(hd::auto_redistribute{}, p, q)); }, r, a);
    });
  });
}

}  // namespace fitted_losses
