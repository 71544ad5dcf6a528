// Choice of experts, experts, rotary positions and shared heads of keys and values on sharded tensors: one rank's numbers and
// central differences on every mesh.
#include "catch.hpp"
#include "gradient_trials.hpp"

#include <heddle/compute/rotary_table.hpp>
#include <heddle/testing/propagation_laws.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

using namespace gradient_trials;
using Catch::Matchers::Contains;

namespace {

double silu(double x) {
  return x / (1 + std::exp(-x));
}
// The places of the k largest of n numbers, descending.
std::vector<std::size_t> largest(const double* x, std::size_t n, std::size_t k) {
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return x[a] > x[b]; });
  order.resize(k);
  return order;
}

}  // namespace

TEST_CASE("a mixture of experts equals one rank and central differences", "[compute][gradient][ranks]") {
  constexpr std::int64_t tokens = 5, features = 3, experts = 4, inner = 5, outputs = 2;
  constexpr int k = 2;
  const std::vector<numbers> x{random_numbers(tokens * features, 1, 2), random_numbers(features * experts, 2),
                               random_numbers(experts * features * inner, 3),
                               random_numbers(experts * features * inner, 4),
                               random_numbers(experts * inner * outputs, 5)};
  const auto loss_with = [&](bool of_all) {
    return [=](const std::vector<numbers>& w) {
      double sum = 0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        numbers logits(experts, 0), y(outputs, 0);
        for (std::int64_t e = 0; e < experts; ++e)
          for (std::int64_t i = 0; i < features; ++i)
            logits[at(e)] += w[0][at(t * features + i)] * w[1][at(i * experts + e)];
        const auto chosen = largest(logits.data(), experts, k);
        double all = 0;
        if (of_all)
          for (const double l : logits) all += std::exp(l);
        else
          for (const std::size_t e : chosen) all += std::exp(logits[e]);
        for (const std::size_t e : chosen)
          for (std::int64_t f = 0; f < inner; ++f) {
            double gate = 0, up = 0;
            for (std::int64_t i = 0; i < features; ++i) {
              const auto place = (e * features + at(i)) * inner + at(f);
              gate += w[0][at(t * features + i)] * w[2][place];
              up += w[0][at(t * features + i)] * w[3][place];
            }
            for (std::int64_t o = 0; o < outputs; ++o)
              y[at(o)] += std::exp(logits[e]) / all * silu(gate) * up * w[4][(e * inner + at(f)) * outputs + at(o)];
          }
        for (const double v : y) sum += v * v;
      }
      return sum;
    };
  };
  const auto check_rule = [&]<class Rule>(Rule) {
    check(loss_with(std::is_same_v<Rule, hc::softmax_of_all>), x, [&](auto mesh) {
      using M = decltype(mesh);
      return on_all(mesh, [&](auto& backend, auto& world) {
        const auto part = [&]<class L>(L, std::size_t i, auto shape) {
          return spread<L>(x[i], shape).part(L{mesh}, world.rank());
        };
        // Experts over tp: five of them on two ranks are uneven, as four on eight are more ranks than experts.
        const auto tokens_in = part(rows<M>{mesh}, 0, hd::shape{tokens, features});
        const auto router = part(copies<M>{mesh}, 1, hd::shape{features, experts});
        const auto gate = part(row<M>{mesh}, 2, hd::shape{experts, features, inner});
        const auto up = part(row<M>{mesh}, 3, hd::shape{experts, features, inner});
        const auto down = part(row<M>{mesh}, 4, hd::shape{experts, inner, outputs});
        return hd::value_and_gradient<hd::reduced_gradients>(
            backend, world,
            [](auto x, auto router, auto gate, auto up, auto down) {
              const auto logits = hd::einsum<"ti,ie->te">(x, router);
              const auto weights = hd::apply<op::top_k_weights<1, k, Rule>>(logits);
              const auto ids = hd::apply<op::top_k_ids<1, k>>(logits);
              static_assert(std::is_same_v<typename decltype(ids)::value_type, std::int32_t> &&
                            !decltype(ids)::needs_gradient);
              const auto y = hd::redistribute<rows<M>>(hd::apply<op::experts<>>(x, ids, weights, gate, up, down));
              return hd::sum(hd::apply<op::multiply>(y, y));
            },
            tokens_in, router, gate, up, down);
      });
    });
  };
  check_rule(hc::softmax_of_chosen{});
  check_rule(hc::softmax_of_all{});
}

TEST_CASE("the inner dimension of experts may be split, and frozen operands get no gradient",
          "[compute][gradient][ranks]") {
  constexpr std::int64_t tokens = 4, features = 3, experts = 3, inner = 5, outputs = 2;
  const auto x = random_numbers(tokens * features, 6), w = random_numbers(tokens, 7),
             stack = random_numbers(experts * features * inner, 8), last = random_numbers(experts * inner * outputs, 9);
  const std::vector<std::int32_t> chosen{2, 0, 0, 2};
  const auto run = [&](const flexible& mesh) {
    return on_all(mesh, [&](auto& backend, auto& world) {
      using inner_of_gate = hd::layout<flexible, hd::shard<2, tp>>;
      using inner_of_down = hd::layout<flexible, hd::shard<1, tp>>;
      const auto in = spread<rows<flexible>>(x, hd::shape{tokens, features}).part(rows<flexible>{mesh}, world.rank());
      const auto weights = spread<rows<flexible>>(w, hd::shape{tokens, 1}).part(rows<flexible>{mesh}, world.rank());
      const auto gate =
          spread<inner_of_gate>(stack, hd::shape{experts, features, inner}).part(inner_of_gate{mesh}, world.rank());
      const auto down =
          spread<inner_of_down>(last, hd::shape{experts, inner, outputs}).part(inner_of_down{mesh}, world.rank());
      const auto ids = hd::shard_of(hd::matrix_view<const std::int32_t>(chosen.data(), {tokens, 1}),
                                    rows<flexible>{mesh}, world.rank());
      auto [value, din, dids, dweights, dgate, dup, ddown] = hd::value_and_gradient<hd::reduced_gradients>(
          backend, world,
          [](auto in, auto ids, auto weights, auto gate, auto up, auto down) {
            const auto y = hd::apply<op::experts<hc::gelu_tanh>>(in, ids, weights, gate, up, down);
            return hd::sum(y);
          },
          hd::constant(in), ids, weights, gate, hd::constant(gate), down);
      static_assert(std::is_same_v<decltype(din), hc::no_gradient> && std::is_same_v<decltype(dids), hc::no_gradient> &&
                    std::is_same_v<decltype(dup), hc::no_gradient>);
      return std::tuple{std::move(value), std::move(dweights), std::move(dgate), std::move(ddown)};
    });
  };
  const auto alone = run(flexible{1, 1});
  for (const auto& [d, t] : std::vector<std::pair<int, int>>{{2, 1}, {1, 2}, {3, 2}, {1, 7}}) {
    CAPTURE(d, t);
    const auto found = run(flexible{d, t});
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(worst_difference(found[i], alone[i]) < 1e-12);
  }
}

TEST_CASE("rotary positions and shared heads of keys and values equal one rank and central differences",
          "[compute][gradient][ranks]") {
  constexpr std::int64_t b = 3, h = 8, shared = 4, s = 3, d = 4, rotating = 2;
  const hc::rotary_setting how{.theta = 100, .first = 2, .rotating = rotating};
  const std::vector<numbers> x{random_numbers(b * h * s * d, 9), random_numbers(b * shared * s * d, 10),
                               random_numbers(b * shared * s * d, 12)};
  // Row r of a sequence that begins at `from`, turned by the formula.
  const auto turned = [&](const numbers& a, std::int64_t from, std::int64_t r) {
    numbers y(a.begin() + from + r * d, a.begin() + from + (r + 1) * d);
    for (std::int64_t i = 0; i < rotating / 2; ++i) {
      const double angle =
          static_cast<double>(how.first + r) * std::pow(how.theta, -2.0 * static_cast<double>(i) / double(rotating));
      const double u = y[at(i)], v = y[at(i + rotating / 2)];
      y[at(i)] = u * std::cos(angle) - v * std::sin(angle);
      y[at(i + rotating / 2)] = v * std::cos(angle) + u * std::sin(angle);
    }
    return y;
  };
  const loss_function loss = [&](const std::vector<numbers>& w) {
    double sum = 0;
    for (std::int64_t g = 0; g < b * h; ++g)
      for (std::int64_t r = 0; r < s; ++r) {
        const std::int64_t keys = (g / h * shared + g % h / (h / shared)) * s * d;
        const numbers q = turned(w[0], g * s * d, r);
        numbers p(at(r + 1)), out(at(d));
        double all = 0;
        for (std::int64_t t = 0; t <= r; ++t) {
          const numbers k = turned(w[1], keys, t);
          double score = 0;
          for (std::int64_t c = 0; c < d; ++c) score += q[at(c)] * k[at(c)];
          all += p[at(t)] = std::exp(score / std::sqrt(double(d)));
        }
        for (std::int64_t t = 0; t <= r; ++t)
          for (std::int64_t c = 0; c < d; ++c) out[at(c)] += p[at(t)] / all * w[2][at(keys + t * d + c)];
        for (const double o : out) sum += o * o;
      }
    return sum;
  };
  check(loss, x, [&](auto mesh) {
    using M = decltype(mesh);
    return on_all(mesh, [&](auto& backend, auto& world) {
      const auto part = [&](std::size_t i, std::int64_t n) {
        return spread<heads<M>>(x[i], hd::shape{b, n, s, d}).part(heads<M>{mesh}, world.rank());
      };
      return hd::value_and_gradient<hd::reduced_gradients>(
          backend, world,
          [how](auto q, auto k, auto v) {
            const auto out =
                hd::apply<op::attention>(hd::apply<op::rotary<>>(q, how), hd::apply<op::rotary<>>(k, how), v);
            return hd::sum(hd::apply<op::multiply>(out, out));
          },
          part(0, h), part(1, shared), part(2, shared));
    });
  });
}

TEST_CASE("rotary turns by positions of the whole sequence, however it is split", "[compute][apply][ranks]") {
  constexpr std::int64_t b = 2, h = 3, s = 5, d = 6;
  const auto x = random_numbers(b * h * s * d, 20), y = random_numbers(b * h * s * d, 21);
  const auto run = [&](const flexible& mesh) {
    return on_all(mesh, [&](auto& backend, auto& world) {
      using split = hd::layout<flexible, hd::shard<0, dp>, hd::shard<2, tp>>;
      const auto q = spread<split>(x, hd::shape{b, h, s, d}).part(split{mesh}, world.rank());
      const auto k = spread<split>(y, hd::shape{b, h, s, d}).part(split{mesh}, world.rank());
      return hd::value_and_gradient<hd::reduced_gradients>(
          backend, world,
          [](auto q, auto k) {
            const auto turned = hd::apply<op::rotary<hc::rotary_pairs::neighbours>>(q);
            return hd::sum(hd::apply<op::multiply>(turned, k));
          },
          q, k);
    });
  };
  const auto alone = run(flexible{1, 1});
  double value = 0;
  for (std::int64_t r = 0; r < b * h * s; ++r)
    for (std::int64_t i = 0; i < d / 2; ++i) {
      const double angle =
          static_cast<double>(r % s) * std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(d));
      const auto u = at(r * d + 2 * i);
      value += (x[u] * std::cos(angle) - x[u + 1] * std::sin(angle)) * y[u] +
               (x[u + 1] * std::cos(angle) + x[u] * std::sin(angle)) * y[u + 1];
    }
  CHECK(alone[0][0] == Approx(value).epsilon(1e-12));
  for (const auto& [p, t] : std::vector<std::pair<int, int>>{{1, 2}, {2, 3}, {1, 7}}) {
    const auto found = run(flexible{p, t});
    CAPTURE(p, t);
    for (std::size_t i = 0; i < 3; ++i) CHECK(worst_difference(found[i], alone[i]) < 1e-12);
  }
}

TEST_CASE("operators of tokens say what is wrong with their operands", "[compute][apply][ranks]") {
  using mesh = flexible;
  const auto refused = [](const mesh& m, auto&& call) {
    const auto results = hd::testing::on_ranks(m, [&](auto& world) {
      hc::host<> backend;
      call(backend, world);
      return 0;
    });
    return to_string(results);
  };
  const auto zeros = []<class L>(L, const mesh& m, auto shape, int rank) {
    return hd::sharded<double, decltype(shape)::rank(), L>(L{m}, shape, rank);
  };
  // 6 query heads on 2 ranks are 3 each; of 3 key-value heads the first rank has 2.
  CHECK_THAT(refused(mesh{1, 2},
                     [&](auto& backend, auto& world) {
                       using l = heads<mesh>;
                       const mesh m{1, 2};
                       hd::apply<op::attention>(backend, world, zeros(l{m}, m, hd::shape{1, 6, 2, 2}, world.rank()),
                                                zeros(l{m}, m, hd::shape{1, 3, 2, 2}, world.rank()),
                                                zeros(l{m}, m, hd::shape{1, 3, 2, 2}, world.rank()));
                     }),
             Contains("the split cuts a group of heads") && Contains("redistribute q, k and v to whole heads"));
  const mesh one{1, 1};
  using l = copies<mesh>;
  CHECK_THAT(refused(one,
                     [&](auto& backend, auto& world) {
                       const auto kv = zeros(l{one}, one, hd::shape{1, 4, 2, 2}, 0);
                       hd::apply<op::attention>(backend, world, zeros(l{one}, one, hd::shape{1, 6, 2, 2}, 0), kv, kv);
                     }),
             Contains("operand 1 should be of shape"));
  CHECK_THAT(refused(one,
                     [&](auto& backend, auto& world) {
                       hd::apply<op::top_k_ids<1, 4>>(backend, world, zeros(l{one}, one, hd::shape{2, 3}, 0));
                     }),
             Contains("4 experts should be chosen of 3"));
  CHECK_THAT(refused(one,
                     [&](auto& backend, auto& world) {
                       hd::apply<op::rotary<>>(backend, world, zeros(l{one}, one, hd::shape{1, 1, 2, 3}, 0));
                     }),
             Contains("should be an even number, got 3"));
  CHECK_THAT(refused(one,
                     [&](auto& backend, auto& world) {
                       hd::apply<op::rotary<>>(backend, world, zeros(l{one}, one, hd::shape{1, 1, 2, 4}, 0),
                                               hc::rotary_setting{.rotating = 6});
                     }),
             Contains("6 elements should rotate of heads of 4"));
  CHECK_THAT(refused(one,
                     [&](auto& backend, auto& world) {
                       const auto x = zeros(l{one}, one, hd::shape{2, 3}, 0);
                       const auto stack = zeros(l{one}, one, hd::shape{2, 3, 3}, 0);
                       hd::sharded<std::int32_t, 2, l> ids(l{one}, hd::shape{2, 1}, 0);
                       ids.elements()[1] = 2;
                       hd::apply<op::experts<>>(backend, world, x, ids, zeros(l{one}, one, hd::shape{2, 1}, 0), stack,
                                                stack, stack);
                     }),
             Contains("ids should be in [0, 2), got 2"));
}
