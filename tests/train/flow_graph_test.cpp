// tests/train/flow_graph_test.cpp: parts with several inputs and readers against one rank and loops.
#include "catch.hpp"
#include "flow_trial.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/core/error.hpp>
#include <heddle/train/flow.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace flow_graph_test {
namespace {

namespace hd = heddle;
namespace flow = hd::flow;
namespace op = hd::op;
using flow_trial::B, flow_trial::S, flow_trial::fit, flow_trial::outcome, flow_trial::same;
using hd::dp, hd::tp;

using single = hd::mesh<hd::axis<tp, 1>>;
using columns = hd::mesh<hd::axis<tp, 2>>;
using rows = hd::mesh<hd::axis<dp, 2>>;
using both = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;

constexpr std::int64_t batch = 7, in = 5, hidden = 9, out = 3;
const hd::dynamic_shape<2> x{batch, in}, h{batch, hidden}, t{batch, out};
template <class... E>
auto matrix(std::int64_t m, std::int64_t n) {
  return flow::weight<E...>(hd::dynamic_shape<2>{m, n});
}

constexpr auto layer = [](auto w, auto from) {
  return hd::apply<op::silu>(fit, hd::einsum<"bi,io->bo">(fit, from, w));
};
// Of the first layer and the second, or of both and a third.
constexpr auto skipped = [](auto v, auto h0, auto h1, auto target) {
  return flow_trial::top(v, hd::apply<op::add>(fit, h0, h1), target);
};
constexpr auto diamond = [](auto v, auto h0, auto h1, auto h2, auto target) {
  return flow_trial::top(v, hd::apply<op::add>(fit, h0, hd::apply<op::multiply>(fit, h1, h2)), target);
};

template <class Order = flow::order::planned, class... Parts>
outcome run(int ranks, int slots, const Parts&... parts) {
  return flow_trial::run(ranks, [&](auto& world, auto& backend) {
    return flow::graph<double, Order>(world, backend, flow_trial::rounds, slots, parts...);
  });
}
template <class P0, class P1, class P2, class Order = flow::order::planned, class S0, class S1, class S2, class S3>
outcome run_skipped(int ranks, int slots, S0 w0, S1 w1, S2 h0, S3 h1) {
  return run<Order>(ranks, slots, flow::on<P0>(layer, w0, flow::input<B>(x)),
                    flow::on<P1>(layer, w1, flow::before<B>(h)),
                    flow::on<P2>(skipped, matrix<B>(hidden, out), h0, h1, flow::input<B>(t)));
}

outcome skipped_by_one_rank() {
  return flow_trial::by_one_rank({{0, 0, in, hidden}, {1, 0, hidden, hidden}, {2, 0, hidden, out}},
                                 [](auto& backend, auto& world, const auto& w, int round) {
                                   return hd::value_and_gradient<hd::reduced_gradients>(
                                       backend, world,
                                       [](auto w0, auto w1, auto w2, auto ex, auto et) {
                                         const auto h0 = layer(w0, ex);
                                         return skipped(w2, h0, layer(w1, h0), et);
                                       },
                                       w[0], w[1], w[2], flow_trial::fed(x, 0, 1, round),
                                       flow_trial::fed(t, 2, 3, round));
                                 });
}
outcome diamond_by_one_rank() {
  return flow_trial::by_one_rank(
      {{0, 0, in, hidden}, {1, 0, hidden, hidden}, {2, 0, hidden, hidden}, {3, 0, hidden, out}},
      [](auto& backend, auto& world, const auto& w, int round) {
        return hd::value_and_gradient<hd::reduced_gradients>(
            backend, world,
            [](auto w0, auto w1, auto w2, auto w3, auto ex, auto et) {
              const auto h0 = layer(w0, ex);
              return diamond(w3, h0, layer(w1, h0), layer(w2, h0), et);
            },
            w[0], w[1], w[2], w[3], flow_trial::fed(x, 0, 1, round), flow_trial::fed(t, 3, 4, round));
      });
}

// The loss of the first step in loops, with `by` added to element `at` of weight `which`.
double loss_in_loops(std::size_t which, std::size_t at, double by) {
  const auto made = [](std::int64_t m, std::int64_t n, int part, int operand, int round) {
    std::vector<double> v(static_cast<std::size_t>(m * n));
    flow_trial::values(part, operand, round, std::span<double>(v));
    return v;
  };
  const auto product = [](const std::vector<double>& a, const std::vector<double>& b, std::int64_t k, std::int64_t n) {
    std::vector<double> c(static_cast<std::size_t>(batch * n), 0.0);
    for (std::int64_t i = 0; i < batch; ++i)
      for (std::int64_t l = 0; l < k; ++l)
        for (std::int64_t j = 0; j < n; ++j)
          c[static_cast<std::size_t>(i * n + j)] +=
              a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(l * n + j)];
    return c;
  };
  const auto silu = [](std::vector<double> v) {
    for (double& e : v) e = e / (1 + std::exp(-e));
    return v;
  };
  std::vector<std::vector<double>> w{made(in, hidden, 0, 0, 100), made(hidden, hidden, 1, 0, 100),
                                     made(hidden, out, 2, 0, 100)};
  w[which][at] += by;
  double loss = 0;
  for (int round = 0; round < flow_trial::rounds; ++round) {
    auto h0 = silu(product(made(batch, in, 0, 1, round), w[0], in, hidden));
    const auto h1 = silu(product(h0, w[1], hidden, hidden));
    for (std::size_t i = 0; i < h0.size(); ++i) h0[i] += h1[i];
    const auto y = product(h0, w[2], hidden, out), target = made(batch, out, 2, 3, round);
    for (std::size_t i = 0; i < y.size(); ++i) loss += (y[i] + target[i]) * (y[i] + target[i]);
  }
  return loss / static_cast<double>(batch * out * flow_trial::rounds);
}

}  // namespace

TEST_CASE("a skip connection over placements has the losses and gradients of one rank", "[train][flow][ranks]") {
  const outcome one = skipped_by_one_rank();
  const int most = transport_test::most_ranks();
  const auto check = [&](const outcome& o) {
    CAPTURE(o.text, o.error);
    CHECK(same(o, one));
  };
  const auto b0 = flow::from<0, B>(h);
  const auto b1 = flow::from<1, B>(h);
  for (const int slots : {1, 2, 0}) {
    CAPTURE(slots);
    if (most >= 3)
      check(run_skipped<flow::placement<single, 2>, flow::placement<single, 0>, flow::placement<single, 1>>(
          3, slots, matrix<B>(in, hidden), matrix<B>(hidden, hidden), b0, b1));
    if (most >= 4)
      check(run_skipped<flow::placement<columns, 2>, flow::placement<single, 0>, flow::placement<single, 1>>(
          4, slots, matrix<S<1>>(in, hidden), matrix<B>(hidden, hidden), b0, b1));
    if (most >= 6)
      check(run_skipped<flow::placement<columns, 2>, flow::placement<rows, 4>, flow::placement<rows, 0>>(
          6, slots, matrix<S<1>>(in, hidden), matrix<S<0>>(hidden, hidden), flow::from<0, S<0>>(h),
          flow::from<1, S<1>>(h)));
  }
}

TEST_CASE("gradients of a skip connection are central differences of the loss in loops", "[train][flow]") {
  const outcome one = run_skipped<flow::placement<columns, 2>, flow::placement<single, 0>, flow::placement<single, 1>>(
      4, 0, matrix<S<1>>(in, hidden), matrix<B>(hidden, hidden), flow::from<0, B>(h), flow::from<1, B>(h));
  REQUIRE(one.error.empty());
  CHECK(flow_trial::close(one.losses[0], loss_in_loops(0, 0, 0)));
  constexpr double e = 1e-6;
  for (int w = 0; w < 3; ++w) {
    const auto& g = one.gradients.at(10 * w);  // of the first step
    for (std::size_t i = 0; i < g.size(); ++i) {
      const auto which = static_cast<std::size_t>(w);
      const double slope = (loss_in_loops(which, i, e) - loss_in_loops(which, i, -e)) / (2 * e);
      CAPTURE(w, i);
      CHECK(g[i] == Approx(slope).margin(1e-8));
    }
  }
}

TEST_CASE("a diamond of parts has the losses and gradients of one rank", "[train][flow][ranks]") {
  const outcome one = diamond_by_one_rank();
  const int most = transport_test::most_ranks();
  if (most < 4) return;
  const auto model = [&]<class Order>(Order, int slots) {
    return run<Order>(
        4, slots, flow::on<flow::placement<single, 1>>(layer, matrix<B>(in, hidden), flow::input<B>(x)),
        flow::on<flow::placement<single, 0>>(layer, matrix<B>(hidden, hidden), flow::from<0, B>(h)),
        flow::on<flow::placement<single, 3>>(layer, matrix<B>(hidden, hidden), flow::from<0, B>(h)),
        flow::on<flow::placement<single, 2>>(diamond, matrix<B>(hidden, out), flow::from<0, B>(h), flow::from<1, B>(h),
                                             flow::from<2, B>(h), flow::input<B>(t)));
  };
  for (const int slots : {1, 2, 0}) {
    const outcome planned = model(flow::order::planned{}, slots), ready = model(flow::order::ready{}, slots);
    CAPTURE(slots, planned.text, planned.error, ready.error);
    CHECK(same(planned, one));
    CHECK(ready.bytes_as_planned);
    CHECK(ready.losses == planned.losses);  // the same bits: gradients are added in the order of their readers
    CHECK(ready.gradients == planned.gradients);
  }
  if (most >= 7) {
    const outcome o =
        run(7, 0, flow::on<flow::placement<both, 1>>(layer, matrix<B, S<1>>(in, hidden), flow::input<S<0>, B>(x)),
            flow::on<flow::placement<single, 0>>(layer, matrix<B>(hidden, hidden), flow::from<0, B>(h)),
            flow::on<flow::placement<single, 6>>(layer, matrix<B>(hidden, hidden), flow::from<0, B>(h)),
            flow::on<flow::placement<single, 5>>(diamond, matrix<B>(hidden, out), flow::from<0, B>(h),
                                                 flow::from<1, B>(h), flow::from<2, B>(h), flow::input<B>(t)));
    CAPTURE(o.text, o.error);
    CHECK(same(o, one));
  }
}

TEST_CASE("parts read whole numbers: an embedding, and classes of a cross-entropy", "[train][flow][ranks]") {
  if (transport_test::most_ranks() < 4) return;
  constexpr std::int64_t words = 6, width = 5;
  const hd::dynamic_shape<1> ids{batch};
  const hd::dynamic_shape<2> e{batch, width};
  constexpr auto read = [](auto table, auto i) { return hd::apply<op::embedding<1>>(fit, table, i); };
  constexpr auto guess = [](auto v, auto from, auto labels) {
    return hd::mean(hd::apply<op::cross_entropy<1>>(fit, hd::einsum<"bi,io->bo">(fit, from, v), labels));
  };
  const outcome one = flow_trial::by_one_rank(
      {{0, 0, words, width}, {1, 0, width, words}}, [&](auto& backend, auto& world, const auto& w, int round) {
        return hd::value_and_gradient<hd::reduced_gradients>(
            backend, world, [=](auto w0, auto w1, auto i, auto l) { return guess(w1, read(w0, i), l); }, w[0], w[1],
            flow_trial::fed<std::int32_t, 1>(ids, 0, 1, round), flow_trial::fed<std::int32_t, 1>(ids, 1, 2, round));
      });
  const outcome o = run(
      4, 0, flow::on<flow::placement<columns, 0>>(read, matrix<S<0>>(words, width), flow::ids<B>(ids)),
      flow::on<flow::placement<rows, 2>>(guess, matrix<B>(width, words), flow::before<S<0>>(e), flow::ids<S<0>>(ids)));
  CAPTURE(o.text, o.error);
  CHECK(same(o, one));
}

TEST_CASE("parts that take one value in two shapes are named", "[train][flow]") {
  std::string said;
  hd::launch<hd::threads>(hd::mesh<hd::axis<flow_trial::all_ranks>>{3}, [&](auto& world) {
    hd::compute::host<> backend;
    try {
      static_cast<void>(flow::graph<double>(
          world, backend, 1, 1, flow::on<flow::placement<single, 0>>(layer, matrix<B>(in, hidden), flow::input<B>(x)),
          flow::on<flow::placement<single, 1>>(layer, matrix<B>(hidden, hidden), flow::before<B>(h)),
          flow::on<flow::placement<single, 2>>(skipped, matrix<B>(hidden, out), flow::from<0, B>(t),
                                               flow::from<1, B>(h), flow::input<B>(t))));
    } catch (const hd::layout_error& e) {
      if (world.rank() == 0) said = e.what();
    }
  });
  CHECK(said.find("part 2 takes the value of part 0 as 7 x 3, another part as 7 x 9") != std::string::npos);
}

}  // namespace flow_graph_test
