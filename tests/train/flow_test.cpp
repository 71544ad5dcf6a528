// tests/train/flow_test.cpp: chains of parts on rank sets against one rank; bytes against plans.
#include "catch.hpp"
#include "flow_trial.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/core/error.hpp>
#include <heddle/train/flow.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace flow_test {
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

constexpr std::int64_t batch = 7, in = 5, hidden = 9, out = 3;  // uneven on every axis
const hd::dynamic_shape<2> x{batch, in}, h{batch, hidden}, t{batch, out};
template <class... E>
auto bottom_weight() {
  return flow::weight<E...>(hd::dynamic_shape<2>{in, hidden});
}
template <class... E>
auto top_weight() {
  return flow::weight<E...>(hd::dynamic_shape<2>{hidden, out});
}
const auto middle_weight = flow::weight<B>(hd::dynamic_shape<2>{hidden, hidden});

template <class Order = flow::order::planned, class... Parts>
outcome run(int ranks, int slots, const Parts&... parts) {
  return flow_trial::run(ranks, [&](auto& world, auto& backend) {
    return flow::chain<double, Order>(world, backend, flow_trial::rounds, slots, parts...);
  });
}

// Two parts and three of one expression on one rank.
outcome two_parts() {
  return flow_trial::by_one_rank(
      {{0, 0, in, hidden}, {1, 0, hidden, out}}, [](auto& backend, auto& world, const auto& w, int round) {
        return hd::value_and_gradient<hd::reduced_gradients>(
            backend, world,
            [](auto w0, auto w1, auto ex, auto et) { return flow_trial::top(w1, flow_trial::bottom(w0, ex), et); },
            w[0], w[1], flow_trial::fed(x, 0, 1, round), flow_trial::fed(t, 1, 2, round));
      });
}
outcome three_parts() {
  return flow_trial::by_one_rank(
      {{0, 0, in, hidden}, {1, 0, hidden, hidden}, {2, 0, hidden, out}},
      [](auto& backend, auto& world, const auto& w, int round) {
        return hd::value_and_gradient<hd::reduced_gradients>(
            backend, world,
            [](auto w0, auto w1, auto w2, auto ex, auto et) {
              return flow_trial::top(w2, flow_trial::bottom(w1, flow_trial::bottom(w0, ex)), et);
            },
            w[0], w[1], w[2], flow_trial::fed(x, 0, 1, round), flow_trial::fed(t, 2, 2, round));
      });
}

}  // namespace

TEST_CASE("two parts on rank sets have the losses and gradients of one expression on one rank",
          "[train][flow][ranks]") {
  const outcome one = two_parts();
  const int most = transport_test::most_ranks();
  for (const int slots : {1, 2, 0}) {
    if (most < 4) break;
    const outcome o = run(
        4, slots, flow::on<flow::placement<columns, 0>>(flow_trial::bottom, bottom_weight<S<1>>(), flow::input<B>(x)),
        flow::on<flow::placement<rows, 2>>(flow_trial::top, top_weight<B>(), flow::before<S<0>>(h),
                                           flow::input<S<0>>(t)));
    CAPTURE(slots, o.text, o.error);
    CHECK(same(o, one));
  }
  if (most >= 6) {
    const outcome o = run(
        6, 0, flow::on<flow::placement<both, 1>>(flow_trial::bottom, bottom_weight<B, S<1>>(), flow::input<S<0>, B>(x)),
        flow::on<flow::placement<single, 0>>(flow_trial::top, top_weight<B>(), flow::before<B>(h), flow::input<B>(t)));
    CAPTURE(o.text, o.error);
    CHECK(same(o, one));
  }
}

TEST_CASE("three parts on rank sets have the losses and gradients of one expression on one rank",
          "[train][flow][ranks]") {
  const outcome one = three_parts();
  const int most = transport_test::most_ranks();
  const auto last =
      flow::on<flow::placement<rows, 1>>(flow_trial::top, top_weight<B>(), flow::before<S<0>>(h), flow::input<S<0>>(t));
  const auto middle = flow::on<flow::placement<single, 0>>(flow_trial::bottom, middle_weight, flow::before<B>(h));
  for (const int slots : {1, 3, 0}) {
    if (most >= 4) {
      const outcome o =
          run(4, slots, flow::on<flow::placement<single, 3>>(flow_trial::bottom, bottom_weight<B>(), flow::input<B>(x)),
              middle, last);
      CAPTURE(slots, o.text, o.error);
      CHECK(same(o, one));
    }
    if (most >= 6) {
      const outcome o = run(
          6, slots, flow::on<flow::placement<columns, 3>>(flow_trial::bottom, bottom_weight<S<1>>(), flow::input<B>(x)),
          middle, last);
      CAPTURE(slots, o.text, o.error);
      CHECK(same(o, one));
    }
  }
}

TEST_CASE("parts of one rank each act when they are ready, with the same losses and gradients",
          "[train][flow][ranks]") {
  if (transport_test::most_ranks() < 4) return;
  const auto first = flow::on<flow::placement<single, 3>>(flow_trial::bottom, bottom_weight<B>(), flow::input<B>(x));
  const auto middle = flow::on<flow::placement<single, 0>>(flow_trial::bottom, middle_weight, flow::before<B>(h));
  const auto last =
      flow::on<flow::placement<single, 1>>(flow_trial::top, top_weight<B>(), flow::before<B>(h), flow::input<B>(t));
  const outcome planned = run(4, 0, first, middle, last);
  CHECK(same(planned, three_parts()));
  for (const int slots : {1, 3, 0}) {
    const outcome o = run<flow::order::ready>(4, slots, first, middle, last);
    CAPTURE(slots, o.text, o.error);
    CHECK(o.bytes_as_planned);
    CHECK(o.losses == planned.losses);  // the same bits: each part takes its rounds in order
    CHECK(o.gradients == planned.gradients);
  }
}

TEST_CASE("a part that throws is named with its round where it acts when it is ready", "[train][flow][ranks]") {
  if (transport_test::most_ranks() < 2) return;
  const auto results = transport_test::on_ranks(hd::mesh<hd::axis<flow_trial::all_ranks>>{2}, [&](auto& world) {
    hd::compute::host<> backend;
    auto model = flow::chain<double, flow::order::ready>(
        world, backend, 6, 2,
        flow::on<flow::placement<single, 0>>(flow_trial::bottom, bottom_weight<B>(), flow::input<B>(x)),
        flow::on<flow::placement<single, 1>>(flow_trial::top, top_weight<B>(), flow::before<B>(h), flow::input<B>(t)));
    model.initialize([](int part, int operand, std::span<double> w) { flow_trial::values(part, operand, 100, w); });
    static_cast<void>(model.step([](int part, int operand, int round, std::span<double> v) {
      if (part == 1 && round == 3) throw hd::config_error("the disk is full");
      flow_trial::values(part, operand, round, v);
    }));
  });
  CHECK(results.error.find("actor 'forward1', round 3, rank 1: the disk is full") != std::string::npos);
}

namespace {
// Two parts of one rank each whose forwards take as long as their inputs, for so many rounds: seconds of a step, and
// the makespan.
template <class Order>
std::pair<double, double> time_of_flow(int rounds, int slots, std::chrono::milliseconds each) {
  std::pair<double, double> result;
  hd::launch<hd::threads>(hd::mesh<hd::axis<flow_trial::all_ranks>>{2}, [&](auto& world) {
    hd::compute::host<> backend;
    auto model = flow::chain<double, Order>(
        world, backend, rounds, slots,
        flow::on<flow::placement<single, 0>>(flow_trial::bottom, bottom_weight<B>(), flow::input<B>(x)),
        flow::on<flow::placement<single, 1>>(flow_trial::top, top_weight<B>(), flow::before<B>(h), flow::input<B>(t)));
    model.initialize([](int part, int operand, std::span<double> w) { flow_trial::values(part, operand, 100, w); });
    const auto start = std::chrono::steady_clock::now();
    static_cast<void>(model.step([&](int part, int operand, int round, std::span<double> v) {
      std::this_thread::sleep_for(each);
      flow_trial::values(part, operand, round, v);
    }));
    world.all().barrier();
    if (world.rank() == 0)
      result = {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), model.makespan()};
  });
  return result;
}
}  // namespace

TEST_CASE("parts work at the same time where there are slots", "[train][flow]") {
  const auto one = time_of_flow<flow::order::planned>(40, 1, std::chrono::milliseconds(0)),
             four = time_of_flow<flow::order::planned>(40, 4, std::chrono::milliseconds(0));
  CHECK(one.second == 160);  // forward, forward, backward, backward for each round
  CHECK(four.second == 82);  // and with more than one slot both parts, but for the first round and the last
}
TEST_CASE("parts that wait do so at the same time where there are slots", "[train][flow][slow]") {
  const auto faster = [](const auto& slow, const auto& fast) {
    CAPTURE(slow.first, fast.first);
    CHECK(slow.first > 1.4 * fast.first);
  };
  const std::chrono::milliseconds each(15);
  faster(time_of_flow<flow::order::planned>(8, 1, each), time_of_flow<flow::order::planned>(8, 4, each));
  faster(time_of_flow<flow::order::ready>(8, 1, each), time_of_flow<flow::order::ready>(8, 4, each));
}

TEST_CASE("a chain refuses ranks that are not there, rounds and slots", "[train][flow]") {
  const auto refused = [](int ranks, int rounds, int slots) {
    std::string said;
    hd::launch<hd::threads>(hd::mesh<hd::axis<flow_trial::all_ranks>>{ranks}, [&](auto& world) {
      hd::compute::host<> backend;
      try {
        static_cast<void>(flow::chain<double>(
            world, backend, rounds, slots,
            flow::on<flow::placement<single, 1>>([](auto v) { return hd::mean(v); }, flow::input<B>(x))));
      } catch (const hd::config_error& e) {
        if (world.rank() == 0) said = e.what();
      }
    });
    return said;
  };
  CHECK(refused(2, 1, 1).empty());
  CHECK(refused(1, 1, 1).find("part 0 is on ranks up to 1, and the world has 1") != std::string::npos);
  CHECK(refused(2, 0, 1).find("rounds: expected at least 1, got 0") != std::string::npos);
  CHECK(refused(2, 1, -1).find("or 0 for the formula, got -1") != std::string::npos);
}

TEST_CASE("a chain says what must be called before", "[train][flow]") {
  std::vector<std::string> said;
  hd::launch<hd::threads>(hd::mesh<hd::axis<flow_trial::all_ranks>>{1}, [&](auto& world) {
    hd::compute::host<> backend;
    auto model = flow::chain<double>(world, backend, 1, 1,
                                     flow::on<flow::placement<single, 0>>(
                                         [](auto w, auto v) { return hd::mean(hd::apply<op::multiply>(fit, w, v)); },
                                         flow::weight<B>(x), flow::input<B>(x)));
    const auto call = [&](const auto& what) {
      try {
        what();
        said.push_back("");
      } catch (const hd::config_error& e) {
        said.push_back(e.what());
      }
    };
    const auto feed = [](int part, int operand, int round, std::span<double> v) {
      flow_trial::values(part, operand, round, v);
    };
    const auto step = [&] { static_cast<void>(model.step(feed)); };
    const auto update = [&] { model.update([](auto, auto) {}); };
    call(step);
    call(update);
    model.initialize([&](int part, int operand, std::span<double> w) { feed(part, operand, 0, w); });
    call(update);
    call(step);
    call(update);
  });
  REQUIRE(said.size() == 5);
  CHECK(said[0].find("expected a call of initialize before") != std::string::npos);
  CHECK(said[1].find("expected a call of initialize before") != std::string::npos);
  CHECK(said[2].find("expected a call of step before") != std::string::npos);
  CHECK(said[3].empty());
  CHECK(said[4].empty());
}

}  // namespace flow_test
