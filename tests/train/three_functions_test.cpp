// Three functions on every mesh: loss and gradients of a plan made from names equal the serial model's.
#include "catch.hpp"

#include "folder.hpp"
#include "toy_transformer.hpp"
#include "transport.hpp"

#include <heddle/core/observer.hpp>
#include <heddle/io/permutation.hpp>
#include <heddle/train/optimizers/lion.hpp>
#include <heddle/train/save.hpp>

#include <algorithm>
#include <atomic>
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

tr::three_functions_options as_serial() {
  tr::three_functions_options options{.batch = 8, .per_rank = 2, .epochs = 6};
  options.learning_rate = {.peak = 1e-2};
  options.clip_norm = 0.5;
  return options;
}

template <class Mesh, class Rules = hd::redco_rules>
outcome train(int examples = 16, std::int64_t epochs = 6) {
  outcome o;
  toy::collected gradients;
  std::mutex lock;
  const auto data = toy::examples(examples);
  auto options = as_serial();
  options.epochs = epochs;
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

// Elements of the parameters that are not split.
std::int64_t copies(const std::vector<hd::model::parameter>& table) {
  std::int64_t n = 0;
  for (const auto& entry : table)
    if (entry.count == entry.global_count()) n += entry.count;
  return n;
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

TEST_CASE("a pair of columns and rows sends one all_reduce forward and one backward",
          "[train][three_functions][ranks]") {
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

TEST_CASE("parameters are tensors in the flat buffers of the trainer", "[train][three_functions]") {
  using all = tr::named_parameters<double, toy::model, grid<2, 2>>;
  using column = hd::layout<grid<2, 2>, hd::shard<1, tp>>;
  using fc1 = std::remove_reference_t<decltype(std::declval<all&>().of<"block/0/mlp/fc1/kernel">())>;
  STATIC_REQUIRE(std::same_as<fc1::layout_type, column>);
  STATIC_REQUIRE(std::derived_from<decltype(fc1::weight), hd::sharded<double, 2, column>>);
  STATIC_REQUIRE(!std::movable<decltype(fc1::weight)>);
  STATIC_REQUIRE(
      std::same_as<fc1::gradient_layout, hd::layout<grid<2, 2>, hd::shard<1, tp>, hd::partial<hd::plus, dp>>>);
  using scale = std::remove_reference_t<decltype(std::declval<all&>().of<"block/0/norm/scale">())>;
  STATIC_REQUIRE(std::same_as<scale::layout_type, hd::layout<grid<2, 2>, hd::identical<tp>>>);

  for (const int rank : {0, 3}) {
    all p(grid<2, 2>{}, rank);
    std::size_t at = 0;
    std::int64_t counted = 0;
    p.for_each([&](auto& parameter, const hd::named_shape& d) {
      const auto& entry = p.table()[at++];
      CHECK(entry.name == d.path);
      CHECK(entry.decay == (d.rank >= 2));
      CHECK(parameter.weight.elements().data() == p.weights().data() + entry.offset);
      CHECK(parameter.gradient.elements().data() == p.gradients().data() + entry.offset);
      CHECK(static_cast<std::int64_t>(parameter.weight.elements().size()) == entry.count);
      counted += entry.counted ? entry.count : 0;
    });
    CHECK(at == p.table().size());
    // The three parameters of a norm and a bias that are copies along tp count on the first of its ranks.
    std::int64_t split = 0;
    for (const auto& entry : p.table())
      if (entry.count != entry.global_count()) split += entry.count;
    CHECK(split > 0);
    CHECK(counted == (rank == 0 ? split + copies(p.table()) : split));
  }
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
      CHECK_THROWS_AS(p.update(step, bad), hd::config_error);
      CHECK_THROWS_AS(p.update(step, -1e-2), hd::config_error);
      CHECK(kernel.weight.elements()[3] == before);
      kernel.weight.elements()[0] = bad;
      CHECK_THROWS_AS(p.loss_and_gradients(data, all), hd::numeric_error);
    });
  }
}

TEST_CASE("the rule's options are those that are set", "[train][three_functions]") {
  const auto last = [](const hd::train::any_optimizer_options& rule) {
    double loss = 0;
    with_pipeline<grid<1, 1>>(
        [&](auto&, auto& p) { p.run(toy::examples(16), [&](const tr::three_functions_step& s) { loss = s.loss; }); },
        {.batch = 8, .per_rank = 2, .optimizer = rule});
    return loss;
  };
  const double by_default = last({});
  CHECK(last(tr::adamw_options{}) == by_default);
  CHECK(last(tr::adamw_options{.weight_decay = 0}) != by_default);
}

TEST_CASE("wrong settings and lists of examples are refused", "[train][three_functions]") {
  const auto refused = [](auto&& change) {
    tr::three_functions_options options;
    change(options);
    with_pipeline<grid<1, 1>>([](auto&, auto&) {}, options);
  };
  CHECK_THROWS_WITH(refused([](auto& o) { o.clip_norm = 0; }), Contains("clip_norm must be positive"));
  CHECK_THROWS_WITH(refused([](auto& o) { o.epochs = -1; }), Contains("epochs must be at least 0"));
  CHECK_THROWS_WITH(refused([](auto& o) { o.optimizer = tr::adamw_options{.beta1 = 1}; }),
                    Contains("beta1 must be in [0, 1)"));
  CHECK_THROWS_WITH(refused([](auto& o) { o.optimizer = tr::adamw_options{.epsilon = 0}; }),
                    Contains("epsilon must be positive"));
  CHECK_THROWS_WITH(refused([](auto& o) { o.optimizer = hd::optimizers::lion::options{}; }),
                    Contains("options of another rule") && Contains("than the strategy's, adamw"));
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
// Counts the events of one rank.
struct event_counts {
  using kind = hd::observer_kind;
  static constexpr bool enabled = true;
  std::map<std::string, int> calls;
  std::map<std::string, std::int64_t> bytes;
  std::int64_t forwards = 0;
  bool in_steps = true;
  void record(const hd::event& e) {
    ++calls[e.name];
    if (e.bytes > 0) bytes[e.name] += e.bytes;
    forwards += e.kind == hd::activity::forward ? 1 : 0;
    in_steps = in_steps && e.step >= 0;
  }
};
// Loss and norm of a step of one's own, and the loss behind it.
template <class Pipeline>
std::vector<double> one_more_step(Pipeline& p, const std::vector<toy::example>& data) {
  const std::vector<std::int64_t> some{8, 1, 2, 3, 4, 5, 6, 7};
  const auto step = p.update(p.loss_and_gradients(data, some), 1e-3);
  return {step.loss, step.gradient_norm, p.loss_and_gradients(data, some).loss};
}
}  // namespace

TEST_CASE("zero<1>, an observer and saves train the same; a save goes on, on another mesh",
          "[train][three_functions][ranks]") {
  using strategy = hd::strategy<grid<2, 2>, hd::zero<1>, event_counts>;
  const train_test::folder saves("three-functions");
  const auto data = toy::examples(16);
  std::mutex lock;
  std::vector<double> losses, norms, own;
  std::vector<std::int64_t> shares;
  bool observed = true;
  transport_test::launch<grid<2, 2>>([&](auto& world) {
    event_counts counts;
    auto p = tr::three_functions<strategy, toy::model, double>(world, toy::collate, toy::loss_function{},
                                                               toy::predict_function{}, as_serial(), counts);
    std::vector<double> mine, of_norms;
    const auto listen = [&](const tr::step_report& r) {
      mine.push_back(r.loss);
      of_norms.push_back(r.gradient_norm);
    };
    p.run(data, listen, [&](auto& trainer) {
      if (trainer.steps_done() == 5) tr::save(trainer, saves.path);  // in the middle of the third epoch
    });
    const auto bytes = static_cast<std::int64_t>(p.trainer().stage().gradients().size_bytes());
    const event_counts of_run = counts;
    const auto own_step = one_more_step(p, data);
    const std::lock_guard hold(lock);
    observed =
        observed && counts.in_steps && of_run.forwards == 12 * 2 && of_run.bytes.at("reduce gradients") == 12 * bytes;
    for (const char* name : {"reduce gradients", "all_reduce of loss and norm", "optimizer", "gather weights"})
      observed = observed && of_run.calls.at(name) == 12;
    shares.push_back(p.trainer().optimizer_state().state_bytes() * 2 - 2 * bytes);
    if (world.rank() != 0) return;
    losses = mine;
    norms = of_norms;
    own = own_step;
  });
  for (auto* values : {&losses, &norms, &own}) transport_test::tell(*values, 0);
  transport_test::merge(shares);
  transport_test::merge(observed, [](bool& all, bool other) { all = all && other; });
  CHECK(observed);
  CHECK(shares == std::vector<std::int64_t>(4, 0));  // moments for half of the parameters
  REQUIRE(losses.size() == 12);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CHECK(losses[i] == Approx(serial().losses[i]).epsilon(1e-10));
    CHECK(norms[i] == Approx(serial().norms[i]).epsilon(1e-10));
  }

  std::vector<double> resumed, own_of_one;
  std::vector<std::int64_t> first;
  std::vector<std::int32_t> predictions;
  transport_test::launch<grid<1, 1>>([&](auto& world) {
    auto p = tr::three_functions<toy::model, double>(world, toy::collate, toy::loss_function{}, toy::predict_function{},
                                                     as_serial());
    first.push_back(tr::resume(p.trainer(), saves.path).step);
    p.run(data, [&](const tr::three_functions_step& s) {
      first.push_back(s.step);
      resumed.push_back(s.loss);
    });
    predictions = p.predict(std::vector<toy::example>(data.begin(), data.begin() + 7));
    own_of_one = one_more_step(p, data);
  });
  transport_test::tell(own_of_one, 0);
  transport_test::tell(resumed, 0);
  transport_test::tell(first, 0);
  transport_test::tell(predictions, 0);
  CHECK(first == std::vector<std::int64_t>{5, 5, 6, 7, 8, 9, 10, 11});
  REQUIRE(resumed.size() == 7);
  for (std::size_t i = 0; i < resumed.size(); ++i) CHECK(resumed[i] == Approx(serial().losses[i + 5]).epsilon(1e-10));
  CHECK(predictions == serial().predictions);
  REQUIRE(own.size() == 3);
  REQUIRE(own_of_one.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(own_of_one[i] == Approx(own[i]).epsilon(1e-10));
}

TEST_CASE("a run that is stopped goes on; another list begins an epoch of its own", "[train][three_functions]") {
  std::atomic<bool> stop = false;
  auto options = as_serial();
  options.stop = &stop;
  with_pipeline<grid<1, 1>>(
      [&](auto&, auto& p) {
        std::vector<double> losses;
        const auto listen = [&](const tr::three_functions_step& s) {
          losses.push_back(s.loss);
          stop = losses.size() == 4;
        };
        const auto data = toy::examples(16);
        p.run(data, listen);
        CHECK(losses.size() == 5);
        CHECK(p.trainer().stopped());
        p.run(data, listen);
        REQUIRE(losses.size() == 12);
        for (std::size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == Approx(serial().losses[i]).epsilon(1e-10));
        // A step of one's own counts as a step, and not in the order of the list.
        p.update(p.loss_and_gradients(data, {0, 1, 2, 3, 4, 5, 6, 7}), 1e-3);
        CHECK(p.trainer().steps_done() == 13);
        CHECK(p.trainer().samples_consumed() == 12 * 8);
        p.run(toy::examples(24), listen);  // three steps in an epoch
        CHECK(losses.size() == 12 + 6 * 3);
        CHECK(p.trainer().steps_done() == 13 + 6 * 3);
        p.trainer().set_position(1, 8);  // as a save from the first list would
        p.run(toy::examples(24), listen);
        CHECK(p.trainer().steps_done() == 6 * 3);
      },
      options);
}

TEST_CASE("ranks may have no token that counts, all ranks together may not", "[train][three_functions][ranks]") {
  auto data = toy::examples(4);
  data[1].targets.fill(-1);
  data[2].targets.fill(-1);
  std::int64_t valid = 0;
  for (const auto& e : data) valid += std::count_if(e.targets.begin(), e.targets.end(), [](auto t) { return t >= 0; });
  auto options = as_serial();
  options.batch = 4;
  bool alone = false;  // in some epoch both are on one of two ranks
  for (std::uint64_t epoch = 0; epoch < 6; ++epoch) {
    const hd::io::permutation order(4, options.seed, epoch);
    alone = alone || order(0) + order(1) == 3;
  }
  REQUIRE(alone);
  const auto losses = [&]<class Mesh>(Mesh) {
    std::vector<double> all;
    std::mutex lock;
    with_pipeline<Mesh>(
        [&](auto& world, auto& p) {
          std::vector<double> mine;
          p.run(data, [&](const tr::three_functions_step& s) { mine.push_back(s.tokens == valid ? s.loss : -1); });
          const std::lock_guard hold(lock);
          if (world.rank() == 0) all = mine;
        },
        options);
    transport_test::tell(all, 0);
    return all;
  };
  const auto one = losses(grid<1, 1>{}), two = losses(grid<2, 1>{});
  REQUIRE(one.size() == 6);
  REQUIRE(two.size() == 6);
  for (std::size_t i = 0; i < 6; ++i) CHECK(two[i] == Approx(one[i]).epsilon(1e-12));
  CHECK(one.back() > 0);

  for (auto& e : data) e.targets.fill(-1);
  CHECK_THROWS_WITH(losses(grid<1, 1>{}), Contains("no target to learn from"));
}

TEST_CASE("a schedule of several stages is refused", "[train][three_functions]") {
  using model = tr::three_functions_model<double, toy::model, hd::redco_rules, int, int>;
  CHECK(model::layers_of({}, 0, 1) == 0);
  CHECK_THROWS_WITH(model::layers_of({}, 1, 2), Contains("cannot be cut into the 2 stages"));
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
