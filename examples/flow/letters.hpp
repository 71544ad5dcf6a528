// examples/flow/letters.hpp: a model that guesses the next character of a text, as two functions.
#pragma once

#include <heddle/comm/launch.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/compute/value_and_gradient.hpp>
#include <heddle/core/random.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace letters {

namespace hd = heddle;
namespace op = hd::op;
using ids = std::span<std::int32_t>;
constexpr int rounds = 8;
constexpr hd::shape<32, 8> before_it;  // samples, characters before the one that is guessed
constexpr hd::shape<32> next;
constexpr hd::shape<96, 16> table;
constexpr hd::shape<8, 16, 128> weights;
constexpr hd::shape<32, 128> between;
constexpr hd::shape<128, 96> out;

// No function names an axis or a layout.
constexpr hd::auto_redistribute fit{};
constexpr auto bottom = [](auto e, auto w, auto x) {
  return hd::apply<op::gelu>(fit, hd::einsum<"bce,ceh->bh">(fit, hd::apply<op::embedding<2>>(fit, e, x), w));
};
constexpr auto scores = [](auto v, auto h) { return hd::einsum<"bh,hv->bv">(fit, h, v); };
constexpr auto top = [](auto v, auto h, auto y) {
  return hd::mean(hd::apply<op::cross_entropy<1>>(fit, scores(v, h), y));
};

struct text {
  std::string letters;
  // Samples of a round, or the characters behind them.
  void feed(int step, int round, bool targets, ids to) const {
    const std::size_t length = targets ? 1 : 8;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const std::size_t sample = static_cast<std::size_t>(step * rounds + round) * 32 + i / length;
      const char c = letters[sample * 7919 % (letters.size() - 8) + (targets ? 8 : i % 8)];
      to[i] = c >= ' ' && c <= '~' ? c - ' ' + 1 : 0;
    }
  }
};
inline void initialize(int part, int operand, std::span<double> x) {
  const hd::counter_random random(1, static_cast<std::uint64_t>(10 * part + operand));
  const double scale = part == 0 && operand == 0 ? 1 : 0.09;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = scale * random.normal(i);
}
constexpr auto descend = [](std::span<double> w, std::span<const double> g) {
  for (std::size_t i = 0; i < w.size(); ++i) w[i] -= 0.5 * g[i];
};

struct run {
  std::vector<double> losses;
  double norm = 0;  // squared, of all weights
};
// The same functions as one expression.
template <class Transport>
run on_one_rank(const text& t, int steps) {
  run result;
  struct all;
  using one = hd::mesh<hd::axis<all, 1>>;
  hd::launch<Transport, one>([&](auto& world) {
    hd::compute::host<> backend;
    const hd::layout<one> whole;
    hd::sharded<double, 2, hd::layout<one>> e(whole, table, 0), v(whole, out, 0);
    hd::sharded<double, 3, hd::layout<one>> w(whole, weights, 0);
    hd::sharded<std::int32_t, 2, hd::layout<one>> x(whole, before_it, 0);
    hd::sharded<std::int32_t, 1, hd::layout<one>> y(whole, next, 0);
    initialize(0, 0, e.elements()), initialize(0, 1, w.elements()), initialize(1, 0, v.elements());
    for (int step = 0; step < steps; ++step) {
      std::vector<double> de(e.elements().size()), dw(w.elements().size()), dv(v.elements().size());
      const auto add = [](std::vector<double>& sum, const auto& g) {
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += g.elements()[i] / rounds;
      };
      result.losses.push_back(0);
      for (int round = 0; round < rounds; ++round) {
        t.feed(step, round, false, x.elements()), t.feed(step, round, true, y.elements());
        const auto [loss, ge, gw, gv, gx, gy] = hd::value_and_gradient<hd::reduced_gradients>(
            backend, world, [](auto ae, auto aw, auto av, auto ax, auto ay) { return top(av, bottom(ae, aw, ax), ay); },
            e, w, v, x, y);
        result.losses.back() += loss.elements()[0] / rounds;
        add(de, ge), add(dw, gw), add(dv, gv);
      }
      descend(e.elements(), de), descend(w.elements(), dw), descend(v.elements(), dv);
    }
    result.norm = 0;
    for (const auto some : {e.elements(), w.elements(), v.elements()})
      for (const double a : some) result.norm += a * a;
  });
  return result;
}

}  // namespace letters
