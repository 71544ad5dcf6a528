// Three functions on every mesh: loss and gradients of a plan made from names equal the serial model's.
#include "catch.hpp"

#include "toy_transformer.hpp"
#include "transport.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace hd = heddle;
namespace tr = heddle::train;
using Catch::Matchers::Contains;
using hd::dp, hd::tp;

namespace {

template <int D, int M>
using grid = hd::mesh<hd::axis<dp, D>, hd::axis<tp, M>>;

struct outcome {
  double loss = 0;
  std::int64_t tokens = 0;
  std::map<std::string, std::vector<double>> gradients;
  std::vector<double> losses, norms;
  std::vector<std::int32_t> predictions, of_reversed;
  std::int64_t bytes = 0;  // given to collectives along tp, all ranks together
};

template <class Mesh, class Rules = hd::redco_rules>
outcome train(int examples = 16, std::int64_t epochs = 6) {
  outcome o;
  toy::collected gradients;
  std::mutex lock;
  const auto data = toy::examples(examples);
  tr::three_functions_options options;
  options.batch = 8;
  options.per_rank = 2;
  options.epochs = epochs;
  options.learning_rate = {.peak = 1e-2};
  options.clip_norm = 0.5;
  transport_test::launch<Mesh>([&](auto& world) {
    auto p = tr::three_functions<toy::model, double, Rules>(world, toy::collate, toy::loss_function{},
                                                            toy::predict_function{}, options);
    const auto first = p.loss_and_gradients(data, {0, 1, 2, 3, 4, 5, 6, 7});
    p.all().for_each(
        [&](auto& parameter, const hd::named_shape& d) { gradients.add(std::string(d.path), parameter.gradient); });
    std::int64_t bytes = 0;
    const auto counters = world.template along_if<tp>().counters();
    for (const auto& c : counters.by_operation) bytes += c.bytes;
    std::vector<double> losses, norms;
    p.run(data, [&](const tr::three_functions_step& s) {
      losses.push_back(s.loss);
      norms.push_back(s.gradient_norm);
    });
    const auto predictions = p.predict(std::vector<toy::example>(data.begin(), data.begin() + 7));
    std::vector<toy::example> backward(data.begin(), data.begin() + 7);
    std::reverse(backward.begin(), backward.end());
    const auto of_reversed = p.predict(backward);
    const std::lock_guard hold(lock);
    o.bytes += bytes;
    if (world.rank() != 0) return;
    o.loss = first.loss;
    o.tokens = first.tokens;
    o.losses = losses;
    o.norms = norms;
    o.predictions = predictions;
    o.of_reversed = of_reversed;
  });
  o.gradients = std::move(gradients.values);
  transport_test::merge(o.gradients, [](auto& all, const auto& other) {
    for (const auto& [path, values] : other)
      for (std::size_t i = 0; i < values.size(); ++i) all.at(path)[i] += values[i];
  });
  for (auto* values : {&o.losses, &o.norms}) transport_test::tell(*values, 0);
  for (auto* values : {&o.predictions, &o.of_reversed}) transport_test::tell(*values, 0);
  transport_test::tell(o.loss, 0);
  transport_test::tell(o.tokens, 0);
  transport_test::merge(o.bytes, [](std::int64_t& all, std::int64_t other) { all += other; });
  return o;
}

const outcome& serial() {
  static const outcome one = train<grid<1, 1>>();
  return one;
}

// The largest difference of any gradient, relative to the largest element of that parameter's gradient.
double distance(const outcome& a, const outcome& b) {
  double worst = a.gradients.size() == b.gradients.size() ? 0 : 1e300;
  for (const auto& [path, values] : a.gradients) {
    const auto& other = b.gradients.at(path);
    double most = 1e-300;
    for (const double v : values) most = (std::max)(most, std::abs(v));
    for (std::size_t i = 0; i < values.size(); ++i) worst = (std::max)(worst, std::abs(values[i] - other[i]) / most);
  }
  return worst;
}

template <class Mesh, class Rules = hd::redco_rules>
outcome same_as_serial() {
  const outcome o = train<Mesh, Rules>();
  INFO(hd::to_string(Mesh{}));
  CHECK(o.tokens == serial().tokens);
  CHECK(o.loss == Approx(serial().loss).epsilon(1e-12));
  CHECK(distance(serial(), o) < 1e-12);
  REQUIRE(o.losses.size() == serial().losses.size());
  for (std::size_t i = 0; i < o.losses.size(); ++i) {
    CHECK(o.losses[i] == Approx(serial().losses[i]).epsilon(1e-10));
    CHECK(o.norms[i] == Approx(serial().norms[i]).epsilon(1e-10));
  }
  CHECK(o.predictions == serial().predictions);
  CHECK(o.predictions.size() == 7);  // no multiple of the two or four examples at a time
  CHECK(std::vector<std::int32_t>(o.of_reversed.rbegin(), o.of_reversed.rend()) == o.predictions);
  return o;
}

}  // namespace

TEST_CASE("the serial gradients are those of finite differences", "[train][three_functions][ranks]") {
  const auto data = toy::examples(8);
  tr::three_functions_options options;
  options.per_rank = 8;
  double worst = 0;
  transport_test::launch<grid<1, 1>>([&](auto& world) {
    auto p = tr::three_functions<toy::model, double>(world, toy::collate, toy::loss_function{}, toy::predict_function{},
                                                     options);
    const std::vector<std::int64_t> all{0, 1, 2, 3, 4, 5, 6, 7};
    const auto at = p.loss_and_gradients(data, all);
    const auto tokens = static_cast<double>(at.tokens);
    p.all().for_each([&](auto& parameter, const hd::named_shape&) {
      for (const std::size_t i : {std::size_t{1}, parameter.weight.elements().size() - 2}) {
        p.loss_and_gradients(data, all);
        const double gradient = parameter.gradient.elements()[i] / tokens;
        double& w = parameter.weight.elements()[i];
        const double kept = w, h = 1e-5;
        w = kept + h;
        const double above = p.loss_and_gradients(data, all).loss;
        w = kept - h;
        const double below = p.loss_and_gradients(data, all).loss;
        w = kept;
        worst = (std::max)(worst, std::abs((above - below) / (2 * h) - gradient));
      }
    });
  });
  transport_test::tell(worst, 0);
  CHECK(worst < 1e-8);
}

TEST_CASE("the same three functions give the same numbers on every mesh", "[train][three_functions][ranks]") {
  CHECK(serial().losses.back() < serial().losses.front());
  CHECK(*std::max_element(serial().norms.begin(), serial().norms.end()) > 0.5);  // clipping happened
  same_as_serial<grid<2, 1>>();
  same_as_serial<grid<1, 2>>();
  same_as_serial<grid<2, 2>>();
  same_as_serial<hd::mesh<hd::axis<tp, 4>>>();  // no dp axis at all
  if (transport_test::most_ranks() >= 8) same_as_serial<grid<2, 4>>();
}

TEST_CASE("both layers of a pair by columns: equal numbers, more bytes", "[train][three_functions][ranks]") {
  const outcome wrong = same_as_serial<grid<1, 2>, toy::both_by_columns>();
  CHECK(wrong.bytes > train<grid<1, 2>>().bytes);
}

TEST_CASE("a pair of columns and rows sends one all_reduce forward and one backward", "[train][three_functions][ranks]") {
  std::mutex lock;
  std::vector<std::int64_t> forward, backward, others;
  transport_test::launch<grid<2, 2>>([&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    hd::compute::host<> backend;
    tr::named_parameters<double, toy::model, grid<2, 2>> all(world.mesh(), world.rank());
    all.initialize(3);
    tr::named_context<double, toy::model, world_type, hd::redco_rules, hd::compute::host<>> c(backend, world, all);
    const auto counted = [&] { return world.template along<tp>().counters(); };
    const auto start = counted();
    auto [y, s] = toy::mlp<0>(c, c.make_activations(4, toy::width));
    const auto middle = counted();
    toy::mlp_backward<0>(c, s, std::move(y));
    const auto end = counted();
    const std::lock_guard hold(lock);
    using op = hd::comm_operation;
    forward.push_back(middle[op::all_reduce].calls - start[op::all_reduce].calls);
    backward.push_back(end[op::all_reduce].calls - middle[op::all_reduce].calls);
    // The bias is one value on all ranks, so that its gradient is gathered; nothing else moves.
    others.push_back(end.collectives() - start.collectives() -
                     (end[op::all_reduce].calls - start[op::all_reduce].calls));
  });
  for (auto* all : {&forward, &backward, &others}) transport_test::merge(*all);
  CHECK(forward == std::vector<std::int64_t>(4, 1));
  CHECK(backward == std::vector<std::int64_t>(4, 1));
  CHECK(others == std::vector<std::int64_t>(4, 1));
}

TEST_CASE("layouts of optimizer state are those of the parameters", "[train][three_functions]") {
  using all = tr::named_parameters<double, toy::model, grid<2, 2>>;
  using column = hd::layout<grid<2, 2>, hd::shard<1, tp>>;
  using fc1 = std::remove_reference_t<decltype(std::declval<all&>().of<"block/0/mlp/fc1/kernel">())>;
  STATIC_REQUIRE(std::same_as<fc1::layout_type, column>);
  STATIC_REQUIRE(std::same_as<decltype(fc1::first_moment), decltype(fc1::weight)>);
  STATIC_REQUIRE(std::same_as<decltype(fc1::second_moment), decltype(fc1::weight)>);
  STATIC_REQUIRE(
      std::same_as<fc1::gradient_layout, hd::layout<grid<2, 2>, hd::shard<1, tp>, hd::partial<hd::plus, dp>>>);
  using scale = std::remove_reference_t<decltype(std::declval<all&>().of<"block/0/norm/scale">())>;
  STATIC_REQUIRE(std::same_as<scale::layout_type, hd::layout<grid<2, 2>, hd::identical<tp>>>);
}

TEST_CASE("a batch that is no whole number of micro-batches is refused", "[train][three_functions]") {
  tr::three_functions_options options;
  options.batch = 6;
  options.per_rank = 2;
  CHECK_THROWS_WITH((transport_test::launch<grid<2, 1>>([&](auto& world) {
                      tr::three_functions<toy::model, double>(world, toy::collate, toy::loss_function{},
                                                              toy::predict_function{}, options);
                    })),
                    Contains("a batch of 6 examples") && Contains("a multiple of 4"));
}

namespace {
// A pipeline of the toy model on one rank, or on two dp ranks.
template <class Mesh, class F>
void with_pipeline(F&& f, const tr::three_functions_options& options = {.batch = 8, .per_rank = 2}) {
  transport_test::launch<Mesh>([&](auto& world) {
    auto p = tr::three_functions<toy::model, double>(world, toy::collate, toy::loss_function{}, toy::predict_function{},
                                                     options);
    f(world, p);
  });
}
}  // namespace

TEST_CASE("a contribution to a gradient has the shape of its parameter", "[train][three_functions]") {
  with_pipeline<grid<1, 1>>([](auto& world, auto& p) {
    using pipeline = std::remove_reference_t<decltype(p)>;
    using whole = hd::layout<grid<1, 1>, hd::identical<tp>>;
    hd::compute::host<> backend;
    typename pipeline::context c(backend, world, p.all());
    CHECK_THROWS_WITH(c.template add_gradient<"block/0/mlp/fc1/kernel">(
                          hd::sharded<double, 2, whole>({}, hd::shape{toy::inner, toy::width}, 0)),
                      Contains("block/0/mlp/fc1/kernel is of shape"));
  });
}

TEST_CASE("a second run goes on where the first ended", "[train][three_functions]") {
  const auto data = toy::examples(16);
  std::vector<std::int64_t> steps;
  std::vector<double> rates, losses;
  with_pipeline<grid<1, 1>>([&](auto&, auto& p) {
    for (int run = 0; run < 2; ++run)
      p.run(data, [&](const tr::three_functions_step& s) {
        steps.push_back(s.step);
        rates.push_back(s.learning_rate);
        losses.push_back(s.loss);
      });
  });
  CHECK(steps == std::vector<std::int64_t>{0, 1, 2, 3});
  for (const double rate : rates) CHECK(rate > 0);
  // Two epochs at once: the same examples in the same order, so that the first step of the second epoch differs by the
  // learning rate alone.
  with_pipeline<grid<1, 1>>(
      [&](auto&, auto& p) {
        std::vector<double> at_once;
        p.run(data, [&](const tr::three_functions_step& s) { at_once.push_back(s.loss); });
        CHECK(at_once[0] == losses[0]);
        CHECK(at_once[1] == losses[1]);
      },
      {.batch = 8, .per_rank = 2, .epochs = 2});
}

TEST_CASE("a loss or a gradient that is not finite leaves the weights alone", "[train][three_functions]") {
  const auto data = toy::examples(8);
  const std::vector<std::int64_t> all{0, 1, 2, 3, 4, 5, 6, 7};
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    with_pipeline<grid<1, 1>>([&](auto&, auto& p) {
      const auto step = p.loss_and_gradients(data, all);
      auto& kernel = p.all().template of<"block/0/mlp/fc1/kernel">();
      const double before = kernel.weight.elements()[3];
      kernel.gradient.elements()[0] = bad;
      CHECK_THROWS_AS(p.update(step, 1e-2), hd::numeric_error);
      CHECK(kernel.weight.elements()[3] == before);
      kernel.weight.elements()[0] = bad;
      CHECK_THROWS_AS(p.loss_and_gradients(data, all), hd::numeric_error);
    });
  }
}

TEST_CASE("wrong settings and lists of examples are refused", "[train][three_functions]") {
  const auto refused = [](auto&& change) {
    tr::three_functions_options options;
    change(options);
    with_pipeline<grid<1, 1>>([](auto&, auto&) {}, options);
  };
  CHECK_THROWS_WITH(refused([](auto& o) { o.clip_norm = 0; }), Contains("clip_norm must be positive"));
  CHECK_THROWS_WITH(refused([](auto& o) { o.epochs = -1; }), Contains("epochs must be at least 0"));
  CHECK_THROWS_WITH(refused([](auto& o) { o.adamw.beta1 = 1; }), Contains("beta1 must be in [0, 1)"));
  CHECK_THROWS_WITH(refused([](auto& o) { o.adamw.epsilon = 0; }), Contains("epsilon must be positive"));
  CHECK_THROWS_AS(refused([](auto& o) { o.learning_rate.peak = -1; }), hd::config_error);
  const auto data = toy::examples(4);
  with_pipeline<grid<1, 1>>([&](auto&, auto& p) {
    CHECK_THROWS_WITH(p.loss_and_gradients(data, {0, 1, 2}), Contains("3 chosen examples are no whole number"));
    CHECK_THROWS_WITH(p.loss_and_gradients(data, {}), Contains("0 chosen examples"));
    CHECK_THROWS_WITH(p.loss_and_gradients(data, {0, 4}), Contains("example 4 was chosen of 4"));
    CHECK_THROWS_AS(p.loss_and_gradients(data, {-1, 0}), hd::config_error);
  });
}

namespace {
// Multiplies the loss of each example by a random number, as a dropout would, and keeps what was drawn.
template <class Mesh>
std::map<std::pair<std::int64_t, std::int64_t>, double> drawn_numbers() {
  std::map<std::pair<std::int64_t, std::int64_t>, double> drawn;
  std::mutex lock;
  const auto data = toy::examples(16);
  transport_test::launch<Mesh>([&](auto& world) {
    std::int64_t step = 0;
    const auto loss = [&](auto& c, const auto& batch) {
      const auto result = toy::loss_function{}(c, batch);
      const std::lock_guard hold(lock);
      for (std::int64_t i = 0; i < batch.rows() / toy::length; ++i) {
        const std::int64_t place = c.first_example() + i;
        const double value = c.random(5).uniform(static_cast<std::uint64_t>(place));
        const auto [at, is_new] = drawn.emplace(std::pair(step, place), value);
        if (!is_new && at->second != value) at->second = -1;  // another rank drew another number
      }
      return result;
    };
    auto p = tr::three_functions<toy::model, double>(world, toy::collate, loss, toy::predict_function{},
                                                     {.batch = 8, .per_rank = 2});
    p.run(data, [&](const tr::three_functions_step&) { ++step; });
  });
  transport_test::merge(drawn, [](auto& all, const auto& other) {
    for (const auto& [place, value] : other)
      if (const auto [at, is_new] = all.emplace(place, value); !is_new && at->second != value) at->second = -1;
  });
  return drawn;
}
}  // namespace

TEST_CASE("a loss draws the same numbers on every mesh", "[train][three_functions][ranks]") {
  const auto serial_numbers = drawn_numbers<grid<1, 1>>();
  CHECK(serial_numbers.size() == 16);  // two steps of eight examples
  std::map<double, int> distinct;
  for (const auto& [place, value] : serial_numbers) {
    CHECK(value >= 0);
    ++distinct[value];
  }
  CHECK(distinct.size() == 16);
  CHECK(drawn_numbers<grid<2, 2>>() == serial_numbers);
}
