// A loss as one expression that names no axis: values, gradients and collectives on meshes and plans, against one rank, central
// differences, PyTorch and a loss that writes its backward.
#include "catch.hpp"

#include "train/golden_lines.hpp"
#include "toy_transformer.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/train/three_functions.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

namespace hd = heddle;
namespace op = heddle::op;
namespace tr = heddle::train;
using hd::dp, hd::tp;

constexpr std::int64_t loss_rows = 6, loss_inputs = 3, loss_hidden = 8, loss_outputs = 4;
struct loss_model {
  static constexpr std::array parameters{hd::named_shape{"mlp/in/kernel", {loss_inputs, loss_hidden}},
                                         hd::named_shape{"mlp/out/kernel", {loss_hidden, loss_outputs}},
                                         hd::named_shape{"mlp/out/bias", {loss_outputs}}};
};
template <int In, int Out>
struct loss_plan {
  static constexpr hd::name_rule given[]{{"in/kernel", In}, {"out/kernel", Out}};
  static constexpr auto rules(std::span<const hd::named_shape> p, int m) {
    return hd::name_rules(p, m, {.given = given});
  }
};
using columns_rows = loss_plan<1, 0>;
using rows_columns = loss_plan<0, 1>;
using by_columns = loss_plan<1, 1>;
template <int Tp>
using loss_mesh = hd::mesh<hd::axis<dp>, hd::axis<tp, Tp>>;

constexpr hd::auto_redistribute fit{};
constexpr auto squares = [](auto w, auto v, auto b, auto x, auto minus_target) {
  const auto h = hd::apply<op::gelu>(fit, hd::einsum<"bi,io->bo">(fit, x, w));
  const auto y = hd::apply<op::add_of<"bo,o->bo">>(fit, hd::einsum<"bo,oc->bc">(fit, h, v), b);
  const auto miss = hd::apply<op::add>(fit, y, minus_target);
  return hd::sum(hd::apply<op::multiply>(fit, miss, miss));
};

struct loss_outcome {
  double loss = 0;
  std::int64_t tokens = 0;
  std::map<std::string, std::vector<double>> gradients;
  std::int64_t along_tp = 0, along_dp = 0;  // collectives of rank 0
};

// Calls f(context, x, minus_target) on each rank; `changed` is added to weight number `of`, its element `at`.
template <class Mesh, class Rules, class F>
loss_outcome on_mesh(const Mesh& mesh, const F& f, std::size_t of = 9, std::size_t at = 0, double changed = 0) {
  loss_outcome o;
  toy::collected gradients;
  std::mutex lock;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    hd::compute::host<> backend;
    tr::named_parameters<double, loss_model, Mesh, Rules> all(world.mesh(), world.rank());
    using world_type = std::remove_reference_t<decltype(world)>;
    tr::named_context<double, loss_model, world_type, Rules, hd::compute::host<>> c(backend, world, all);
    std::size_t which = 0;
    const auto fill = [](auto& x, const std::vector<double>& whole) {
      auto copy =
          hd::shard_of(hd::view<const double, std::remove_cvref_t<decltype(x.shape())>>(whole.data(), x.shape()),
                       x.layout(), x.rank());
      std::copy(copy.elements().begin(), copy.elements().end(), x.elements().begin());
    };
    all.for_each([&](auto& parameter, const hd::named_shape&) {
      auto whole = golden_lines::numbers(static_cast<int>(which), parameter.weight.shape().size());
      if (which++ == of) whole[at] += changed;
      fill(parameter.weight, whole);
    });
    const std::int64_t each = loss_rows / world.mesh().template extent_or_one<dp>();
    auto x = c.make_activations(each, loss_inputs), minus_target = c.make_activations(each, loss_outputs);
    fill(x, golden_lines::numbers(3, loss_rows * loss_inputs));
    auto negated = golden_lines::numbers(4, loss_rows * loss_outputs);
    for (double& e : negated) e = -e;
    fill(minus_target, negated);
    const auto count = [&](auto axis) { return world.template along<decltype(axis)>().counters().collectives(); };
    const std::int64_t tps = count(tp{}), dps = count(dp{});
    const tr::token_loss l = f(c, x, minus_target);
    const std::int64_t more_tps = count(tp{}) - tps, more_dps = count(dp{}) - dps;
    all.for_each(
        [&](auto& parameter, const hd::named_shape& d) { gradients.add(std::string(d.path), parameter.gradient); });
    const std::lock_guard hold(lock);
    if (world.rank() == 0) o.along_tp = more_tps, o.along_dp = more_dps;
    if (world.template coordinate<tp>() != 0) return;
    o.loss += l.sum;
    o.tokens += l.tokens;
  });
  o.gradients = std::move(gradients.values);
  return o;
}

constexpr auto as_expression = [](auto& c, const auto& x, const auto& minus_target) {
  return c.template loss<"mlp/in/kernel", "mlp/out/kernel", "mlp/out/bias">(squares, x, minus_target);
};

double difference_of(const loss_outcome& a, const loss_outcome& b) {
  double worst = std::abs(a.loss - b.loss) / b.loss;
  for (const auto& [path, values] : b.gradients)
    worst = (std::max)(worst, golden_lines::distance(a.gradients.at(path), values));
  return worst;
}

}  // namespace

TEST_CASE("three_functions: a loss as one expression equals one rank, PyTorch and central differences",
          "[train][three_functions][ranks][golden]") {
  const golden_lines::lines golden(HEDDLE_SOURCE_DIR "/tests/golden/redco_golden.txt");
  const loss_outcome one = on_mesh<loss_mesh<1>, columns_rows>(loss_mesh<1>(1), as_expression);
  CHECK(one.tokens == loss_rows);
  CHECK(one.loss == Approx(golden.at("loss")[0]).epsilon(1e-10));
  CHECK(golden_lines::distance(one.gradients.at("mlp/in/kernel"), golden.at("loss.in")) < 1e-10);
  CHECK(golden_lines::distance(one.gradients.at("mlp/out/kernel"), golden.at("loss.out")) < 1e-10);
  CHECK(golden_lines::distance(one.gradients.at("mlp/out/bias"), golden.at("loss.bias")) < 1e-10);

  const auto value_only = [](auto& c, const auto& x, const auto& t) {
    c.set_gradient_scale(0);
    return as_expression(c, x, t);
  };
  const std::string paths[]{"mlp/in/kernel", "mlp/out/kernel", "mlp/out/bias"};
  for (std::size_t which = 0; which < 3; ++which)
    for (const std::size_t at : {std::size_t{0}, std::size_t{3}}) {
      const double h = 1e-4;
      const auto moved = [&](double by) {
        return on_mesh<loss_mesh<1>, columns_rows>(loss_mesh<1>(1), value_only, which, at, by);
      };
      const loss_outcome up = moved(h), down = moved(-h);
      CHECK((up.loss - down.loss) / (2 * h) == Approx(one.gradients.at(paths[which])[at]).epsilon(1e-6));
      CHECK(up.gradients.at(paths[which])[at] == 0);  // dropped
    }
  CHECK(difference_of(on_mesh<loss_mesh<1>, columns_rows>(loss_mesh<1>(2), as_expression), one) < 1e-12);
  for (const int d : {1, 2, 3}) {
    INFO("dp " << d << " x tp 2");
    const loss_mesh<2> mesh(d);
    for (const loss_outcome& o : {on_mesh<loss_mesh<2>, columns_rows>(mesh, as_expression),
                                  on_mesh<loss_mesh<2>, rows_columns>(mesh, as_expression),
                                  on_mesh<loss_mesh<2>, by_columns>(mesh, as_expression)}) {
      CHECK(difference_of(o, one) < 1e-12);
      CHECK(o.tokens == loss_rows);
      CHECK(o.along_dp == 0);  // sums over dp stay open until the step
    }
  }
}

TEST_CASE("three_functions: a loss as one expression has the collectives of the one written by hand",
          "[train][three_functions][ranks]") {
  const auto by_hand = [](auto& c, auto& x, auto& minus_target) {
    using context = std::remove_reference_t<decltype(c)>;
    using in = tr::named_linear<"mlp/in/kernel">;
    using out = tr::named_linear<"mlp/out/kernel">;
    auto [h, saved_in] = in::forward(c, std::move(x));
    auto a = c.copy_of(h);
    hd::compute::run<hd::compute::ops::gelu>(c.compute(), h.elements(), a.elements());
    auto [y, saved_out] = out::forward(c, std::move(a));
    auto miss = c.template convert<typename context::activations>(std::move(y));
    const auto bias = c.template weight<"mlp/out/bias">().elements();
    auto d_bias = c.template zeros<
        hd::dual<typename std::remove_cvref_t<decltype(c.template weight<"mlp/out/bias">())>::layout_type>>(
        hd::shape{loss_outputs});
    tr::token_loss l;
    for (std::size_t i = 0; i < miss.elements().size(); ++i) {
      double& m = miss.elements()[i];
      m += bias[i % bias.size()] + minus_target.elements()[i];
      l.sum += m * m;
      m *= 2;
      d_bias.elements()[i % bias.size()] += m;
    }
    l.tokens = miss.local_shape().extent(0);
    c.template add_gradient<"mlp/out/bias">(std::move(d_bias));
    auto da = c.template convert<hd::dual<typename std::remove_cvref_t<decltype(h)>::layout_type>>(
        out::backward(c, saved_out, std::move(miss)));
    hd::compute::run<hd::compute::ops::gelu_backward>(c.compute(), h.elements(), std::as_const(da).elements(),
                                                      da.elements());
    in::backward(c, saved_in, std::move(da));
    return l;
  };
  const loss_outcome hand = on_mesh<loss_mesh<2>, columns_rows>(loss_mesh<2>(2), by_hand);
  const loss_outcome expression = on_mesh<loss_mesh<2>, columns_rows>(loss_mesh<2>(2), as_expression);
  CHECK(difference_of(expression, hand) < 1e-12);
  CHECK(expression.along_tp == hand.along_tp);
  CHECK(expression.along_dp == hand.along_dp);
}

TEST_CASE("three_functions: weights in bf16 with masters in float train as float ones do",
          "[train][three_functions][ranks]") {
  struct sample {
    float x = 0;
  };
  struct result {
    double first = 0, last = 0;
    bool all_bf16 = true;
  };
  const auto train = [](int d) {
    result r;
    std::mutex lock;
    hd::launch<hd::threads>(loss_mesh<2>(d), [&](auto& world) {
      using strategy = hd::strategy<loss_mesh<2>, hd::zero<1>, hd::precision<hd::weights_in<hd::bf16>>>;
      const auto collate = [](const std::vector<sample>& some) { return some; };
      const auto loss = [](auto& c, const std::vector<sample>& some) {
        auto x = c.make_activations(static_cast<std::int64_t>(some.size()), loss_inputs);
        auto minus_target = c.make_activations(static_cast<std::int64_t>(some.size()), loss_outputs);
        for (std::size_t i = 0; i < some.size(); ++i) {
          for (std::size_t k = 0; k < 3; ++k) x.elements()[3 * i + k] = std::sin(some[i].x + static_cast<float>(k));
          for (std::size_t k = 0; k < 4; ++k)
            minus_target.elements()[4 * i + k] = -std::cos(some[i].x * static_cast<float>(k));
        }
        return as_expression(c, x, minus_target);
      };
      const auto predict = [](auto&, const std::vector<sample>& some) { return std::vector<float>(some.size()); };
      tr::three_functions_options options{.batch = 12, .per_rank = 2, .epochs = 60};
      options.learning_rate = {.peak = 2e-2};
      auto p = tr::three_functions<strategy, loss_model, float, by_columns>(world, collate, loss, predict, options);
      std::vector<sample> data(24);
      for (std::size_t i = 0; i < data.size(); ++i) data[i].x = static_cast<float>(i) / 12 - 1;
      double first = 0, last = 0;
      p.run(data, [&](const tr::three_functions_step& s) {
        last = s.loss;
        if (s.step == 0) first = s.loss;
      });
      const std::lock_guard hold(lock);
      for (const float w : p.all().weights()) r.all_bf16 = r.all_bf16 && static_cast<float>(hd::bf16(w)) == w;
      r.first = first, r.last = last;
    });
    return r;
  };
  const result one = train(1), three = train(3);
  CHECK(one.all_bf16);
  CHECK(three.all_bf16);
  CHECK(one.last < one.first / 10);
  CHECK(three.first == Approx(one.first).epsilon(1e-5));
  CHECK(three.last == Approx(one.last).epsilon(0.1));
}
