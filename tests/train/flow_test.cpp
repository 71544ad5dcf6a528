// tests/train/flow_test.cpp: parts of a model on rank sets give the losses and gradients of one rank, and send what plans say.
#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/train/flow.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hd = heddle;

namespace flow_test {
namespace {
namespace flow = hd::flow;
namespace op = hd::op;
using hd::dp, hd::tp;
using hd::sbp::B, hd::sbp::S;

struct flow_ranks {};
constexpr hd::auto_redistribute fit{};
constexpr int flow_rounds = 5;
constexpr auto flow_bottom = [](auto w, auto x) {
  return hd::apply<op::gelu>(fit, hd::einsum<"bi,io->bo">(fit, x, w));
};
constexpr auto flow_top = [](auto v, auto h, auto t) {
  const auto miss = hd::apply<op::add>(fit, hd::einsum<"bo,oc->bc">(fit, h, v), t);
  return hd::mean(hd::apply<op::multiply>(fit, miss, miss));
};
void flow_values(int part, int operand, int round, std::span<double> x) {
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = std::sin(0.37 * static_cast<double>(i) + 1.3 * operand + 0.7 * part + 0.11 * round) / 2;
}

struct flow_outcome {
  std::vector<double> losses;                    // of two steps
  std::map<int, std::vector<double>> gradients;  // by part, whole, of the second
  bool bytes_as_planned = true;
  std::string text;
};

// Two steps of a chain on so many ranks, with an update between.
template <class... Parts>
flow_outcome run_flow(int ranks, int slots, const Parts&... parts) {
  flow_outcome result;
  std::mutex guard;
  hd::launch<hd::threads>(hd::mesh<hd::axis<flow_ranks>>{ranks}, [&](auto& world) {
    hd::compute::host<> backend;
    auto model = flow::chain<double>(world, backend, flow_rounds, slots, parts...);
    model.initialize([](int part, int operand, std::span<double> x) { flow_values(part, operand, 100, x); });
    std::vector<double> losses;
    for (int step = 0; step < 2; ++step) {
      if (step > 0)
        model.update([](std::span<double> w, std::span<const double> g) {
          for (std::size_t i = 0; i < w.size(); ++i) w[i] -= 0.5 * g[i];
        });
      losses.push_back(model.step(
          [&](int part, int operand, int round, std::span<double> x) { flow_values(part, operand, round + step, x); }));
    }
    const std::lock_guard lock(guard);
    result.bytes_as_planned = result.bytes_as_planned && model.bytes_sent() == 2 * model.predicted_bytes();
    if (losses[0] != 0) result.losses = losses;
    if (world.rank() == 0) result.text = to_string(model);
    model.each_weight([&](int part, int, const auto& w, const auto& g) {
      auto& to = result.gradients[part];
      to.resize(static_cast<std::size_t>(w.shape().size()));
      const auto held = w.layout().part(w.shape(), w.rank());
      std::size_t at = 0;
      for (std::int64_t i = 0; i < w.shape()[0]; ++i)
        for (std::int64_t k = 0; k < w.shape()[1]; ++k) {
          const auto o = w.local_offset();
          const auto n = w.valid_shape();
          if (i >= o[0] && i < o[0] + n[0] && k >= o[1] && k < o[1] + n[1])
            to[static_cast<std::size_t>(i * w.shape()[1] + k)] = g.elements()[at++];
        }
      static_cast<void>(held);
    });
  });
  return result;
}

bool close(const std::vector<double>& a, const std::vector<double>& b) {
  bool ok = a.size() == b.size() && !a.empty();
  for (std::size_t i = 0; ok && i < a.size(); ++i)
    ok = std::abs(a[i] - b[i]) <= 1e-12 * (std::max)(1.0, std::abs(b[i]));
  return ok;
}

constexpr std::int64_t flow_batch = 7, flow_in = 5, flow_hidden = 9, flow_out = 3;  // uneven on every axis
template <class... E>
auto bottom_weight() {
  return flow::weight<E...>(hd::dynamic_shape<2>{flow_in, flow_hidden});
}
template <class... E>
auto top_weight() {
  return flow::weight<E...>(hd::dynamic_shape<2>{flow_hidden, flow_out});
}
const hd::dynamic_shape<2> flow_x{flow_batch, flow_in}, flow_h{flow_batch, flow_hidden}, flow_t{flow_batch, flow_out};

}  // namespace

TEST_CASE("two parts on rank sets have the losses and gradients of one rank each", "[train][flow]") {
  using single = hd::mesh<hd::axis<tp, 1>>;
  const flow_outcome one = run_flow(
      2, 0, flow::on<flow::placement<single, 0>>(flow_bottom, bottom_weight<B>(), flow::input<B>(flow_x)),
      flow::on<flow::placement<single, 1>>(flow_top, top_weight<B>(), flow::before<B>(flow_h), flow::input<B>(flow_t)));
  REQUIRE(one.losses.size() == 2);
  CHECK(one.bytes_as_planned);
  const auto same = [&](const flow_outcome& o) {
    CAPTURE(o.text);
    CHECK(o.bytes_as_planned);
    CHECK(close(o.losses, one.losses));
    for (const auto& [part, g] : one.gradients) CHECK(close(o.gradients.at(part), g));
  };
  using columns = hd::mesh<hd::axis<tp, 2>>;
  using rows = hd::mesh<hd::axis<dp, 2>>;
  using both = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  for (const int slots : {1, 2, 0}) {
    CAPTURE(slots);
    same(run_flow(4, slots,
                  flow::on<flow::placement<columns, 0>>(flow_bottom, bottom_weight<S<1>>(), flow::input<B>(flow_x)),
                  flow::on<flow::placement<rows, 2>>(flow_top, top_weight<B>(), flow::before<S<0>>(flow_h),
                                                     flow::input<S<0>>(flow_t))));
  }
  same(run_flow(6, 0,
                flow::on<flow::placement<both, 1>>(flow_bottom, bottom_weight<B, S<1>>(), flow::input<S<0>, B>(flow_x)),
                flow::on<flow::placement<single, 0>>(flow_top, top_weight<B>(), flow::before<B>(flow_h),
                                                     flow::input<B>(flow_t))));
}

TEST_CASE("parts have the losses and gradients of one expression on one rank", "[train][flow]") {
  using single = hd::mesh<hd::axis<tp, 1>>;
  const flow_outcome parts = run_flow(
      2, 1, flow::on<flow::placement<single, 0>>(flow_bottom, bottom_weight<B>(), flow::input<B>(flow_x)),
      flow::on<flow::placement<single, 1>>(flow_top, top_weight<B>(), flow::before<B>(flow_h), flow::input<B>(flow_t)));
  double loss = 0;
  std::vector<double> dw(static_cast<std::size_t>(flow_in * flow_hidden)),
      dv(static_cast<std::size_t>(flow_hidden * flow_out));
  hd::launch<hd::threads>(single{}, [&](auto& world) {
    hd::compute::host<> backend;
    const auto tensor = [&](const hd::dynamic_shape<2>& s, int part, int operand, int round) {
      hd::sharded<double, 2, hd::layout<single>> x(hd::layout<single>{}, s, 0);
      flow_values(part, operand, round, x.elements());
      return x;
    };
    auto w = tensor({flow_in, flow_hidden}, 0, 0, 100), v = tensor({flow_hidden, flow_out}, 1, 0, 100);
    for (int step = 0; step < 2; ++step) {
      loss = 0;
      std::fill(dw.begin(), dw.end(), 0.0);
      std::fill(dv.begin(), dv.end(), 0.0);
      for (int round = 0; round < flow_rounds; ++round) {
        const auto x = tensor(flow_x, 0, 1, round + step), t = tensor(flow_t, 1, 2, round + step);
        const auto [l, gw, gv, gx, gt] = hd::value_and_gradient<hd::reduced_gradients>(
            backend, world, [](auto ew, auto ev, auto ex, auto et) { return flow_top(ev, flow_bottom(ew, ex), et); }, w,
            v, x, t);
        loss += l.elements()[0] / flow_rounds;
        for (std::size_t i = 0; i < dw.size(); ++i) dw[i] += gw.elements()[i] / flow_rounds;
        for (std::size_t i = 0; i < dv.size(); ++i) dv[i] += gv.elements()[i] / flow_rounds;
      }
      if (step > 0) continue;
      for (std::size_t i = 0; i < dw.size(); ++i) w.elements()[i] -= 0.5 * dw[i];
      for (std::size_t i = 0; i < dv.size(); ++i) v.elements()[i] -= 0.5 * dv[i];
    }
  });
  CHECK(close({parts.losses.at(1)}, {loss}));
  CHECK(close(parts.gradients.at(0), dw));
  CHECK(close(parts.gradients.at(1), dv));
}

TEST_CASE("three parts on rank sets have the losses and gradients of one rank each", "[train][flow]") {
  using single = hd::mesh<hd::axis<tp, 1>>;
  using columns = hd::mesh<hd::axis<tp, 2>>;
  using rows = hd::mesh<hd::axis<dp, 2>>;
  const auto middle_weight = flow::weight<B>(hd::dynamic_shape<2>{flow_hidden, flow_hidden});
  const flow_outcome one = run_flow(
      3, 0, flow::on<flow::placement<single, 2>>(flow_bottom, bottom_weight<B>(), flow::input<B>(flow_x)),
      flow::on<flow::placement<single, 0>>(flow_bottom, middle_weight, flow::before<B>(flow_h)),
      flow::on<flow::placement<single, 1>>(flow_top, top_weight<B>(), flow::before<B>(flow_h), flow::input<B>(flow_t)));
  for (const int slots : {1, 3, 0}) {
    const flow_outcome o = run_flow(
        6, slots, flow::on<flow::placement<columns, 3>>(flow_bottom, bottom_weight<S<1>>(), flow::input<B>(flow_x)),
        flow::on<flow::placement<single, 0>>(flow_bottom, middle_weight, flow::before<B>(flow_h)),
        flow::on<flow::placement<rows, 1>>(flow_top, top_weight<B>(), flow::before<S<0>>(flow_h),
                                           flow::input<S<0>>(flow_t)));
    CAPTURE(slots, o.text);
    CHECK(o.bytes_as_planned);
    CHECK(close(o.losses, one.losses));
    for (const auto& [part, g] : one.gradients) CHECK(close(o.gradients.at(part), g));
  }
}

// Two parts of one rank each whose forwards take as long as their inputs, for so many rounds: seconds of a step, and the makespan.
std::pair<double, double> time_of_flow(int rounds, int slots, std::chrono::milliseconds each) {
  using single = hd::mesh<hd::axis<tp, 1>>;
  std::pair<double, double> result;
  hd::launch<hd::threads>(hd::mesh<hd::axis<flow_ranks>>{2}, [&](auto& world) {
    hd::compute::host<> backend;
    auto model = flow::chain<double>(
        world, backend, rounds, slots,
        flow::on<flow::placement<single, 0>>(flow_bottom, bottom_weight<B>(), flow::input<B>(flow_x)),
        flow::on<flow::placement<single, 1>>(flow_top, top_weight<B>(), flow::before<B>(flow_h),
                                             flow::input<B>(flow_t)));
    model.initialize([](int part, int operand, std::span<double> x) { flow_values(part, operand, 100, x); });
    const auto start = std::chrono::steady_clock::now();
    static_cast<void>(model.step([&](int part, int operand, int round, std::span<double> x) {
      std::this_thread::sleep_for(each);
      flow_values(part, operand, round, x);
    }));
    world.all().barrier();
    if (world.rank() == 0)
      result = {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), model.makespan()};
  });
  return result;
}
TEST_CASE("parts work at the same time where there are slots", "[train][flow]") {
  const auto one = time_of_flow(40, 1, std::chrono::milliseconds(0)),
             four = time_of_flow(40, 4, std::chrono::milliseconds(0));
  CHECK(one.second == 160);  // forward, forward, backward, backward for each round
  CHECK(four.second == 82);  // and with more than one slot both parts, but for the first round and the last
}
TEST_CASE("parts that wait do so at the same time where there are slots", "[train][flow][slow]") {
  const auto slow = time_of_flow(8, 1, std::chrono::milliseconds(15)),
             fast = time_of_flow(8, 4, std::chrono::milliseconds(15));
  CAPTURE(slow.first, fast.first);
  CHECK(slow.first > 1.4 * fast.first);
}

TEST_CASE("a chain refuses ranks that are not there, rounds and slots", "[train][flow]") {
  using single = hd::mesh<hd::axis<tp, 1>>;
  const auto refused = [](int ranks, int rounds, int slots) {
    std::string said;
    hd::launch<hd::threads>(hd::mesh<hd::axis<flow_ranks>>{ranks}, [&](auto& world) {
      hd::compute::host<> backend;
      try {
        static_cast<void>(flow::chain<double>(
            world, backend, rounds, slots,
            flow::on<flow::placement<single, 1>>([](auto x) { return hd::mean(x); }, flow::input<B>(flow_x))));
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
  using single = hd::mesh<hd::axis<tp, 1>>;
  std::vector<std::string> said;
  hd::launch<hd::threads>(hd::mesh<hd::axis<flow_ranks>>{1}, [&](auto& world) {
    hd::compute::host<> backend;
    auto model =
        flow::chain<double>(world, backend, 1, 1,
                            flow::on<flow::placement<single, 0>>(
                                [](auto w, auto x) { return hd::mean(hd::apply<op::multiply>(fit, w, x)); },
                                flow::weight<B>(flow_x), flow::input<B>(flow_x)));
    const auto call = [&](const auto& what) {
      try {
        what();
        said.push_back("");
      } catch (const hd::config_error& e) {
        said.push_back(e.what());
      }
    };
    const auto step = [&] { static_cast<void>(model.step(flow_values)); };
    const auto update = [&] { model.update([](auto, auto) {}); };
    call(step);
    call(update);
    model.initialize([](int part, int operand, std::span<double> x) { flow_values(part, operand, 0, x); });
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
