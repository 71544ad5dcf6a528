// tests/train/own_optimizer_test.cpp: rules of optimizers: PyTorch's numbers, and rules of one's own on any mesh, under any zero, in saves.
#include "catch.hpp"
#include "folder.hpp"
#include "small_network.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/train/make_trainer.hpp>
#include <heddle/train/optimizers/lion.hpp>
#include <heddle/train/optimizers/sgd.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/sharded_optimizer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <mutex>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace tr = hd::train;
using Catch::Matchers::Contains;
using hd::dp, hd::pp, hd::tp;

namespace {

// ---- golden data ----

struct golden {
  std::vector<double> start;
  std::vector<double> rates;
  std::vector<std::vector<double>> gradients;
  std::map<std::string, std::vector<std::vector<double>>> weights;  // of a case, behind each step
};
golden read_golden() {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/optimizers_golden.txt");
  golden all;
  std::string line, name;
  const auto numbers = [](const std::string& text) {
    std::istringstream words(text);
    std::vector<double> values;
    for (double x = 0; words >> x;) values.push_back(x);
    return values;
  };
  while (std::getline(in, line)) {
    if (line.starts_with("case "))
      name = line.substr(5);
    else if (!name.empty())
      all.weights[name].push_back(numbers(line));
    else if (all.start.empty())
      all.start = numbers(line);
    else {
      std::vector<double> values = numbers(line);
      all.rates.push_back(values.front());
      all.gradients.emplace_back(values.begin() + 1, values.end());
    }
  }
  return all;
}

struct tensor {
  std::string name;
  int offset, count;
  bool counted, decay;
};
const std::vector<tensor> tensors{{"w", 0, 12, true, true}, {"b", 12, 5, true, false}};

// The largest difference over all steps from the golden weights.
template <class Rule>
double golden_error(const std::string& name, const typename Rule::options& options) {
  const golden data = read_golden();
  REQUIRE(data.weights.contains(name));
  REQUIRE(data.weights.at(name).size() == 20);
  hd::compute::host<> backend(1);
  tr::sharded_optimizer<double, Rule, hd::precision<>, hd::zero<0>> optimizer(tensors, 17, 0, 1);
  std::vector<double> w = data.start;
  double most = 0;
  for (std::size_t s = 0; s < 20; ++s) {
    optimizer.update(backend, w, data.gradients[s], options, data.rates[s], static_cast<std::int64_t>(s) + 1, 1.0);
    for (std::size_t i = 0; i < w.size(); ++i) most = (std::max)(most, std::abs(w[i] - data.weights.at(name)[s][i]));
  }
  return most;
}

// ---- a rule of one's own, with three moments and no undo ----

// A sum of gradients, one of their squares, and one that forgets; parts of several known rules.
struct mixture {
  using kind = hd::optimizer_kind;
  static constexpr const char* name = "mixture";
  static constexpr int moments = 3;
  struct options {
    double forgets = 0.25;
    double decay = 0.05;
    tr::parameter_rates rates{};
    void validate() const {
      if (!(forgets > 0 && forgets <= 1)) throw hd::config_error("mixture: forgets must be in (0, 1]");
    }
    friend std::string to_string(const options& o) {
      return "forgets=" + std::to_string(o.forgets) + " decay=" + std::to_string(o.decay);
    }
  };
  template <class T>
  struct scalars {
    T rate, forgets, decay;
  };
  template <class T>
  static scalars<T> at(const options& o, double rate, std::int64_t step, bool decays) {
    return {static_cast<T>(rate / std::sqrt(static_cast<double>(step))), static_cast<T>(o.forgets),
            static_cast<T>(decays ? o.decay : 0)};
  }
  template <class T>
  HEDDLE_HD static void update(T& w, T g, T* m, const scalars<T>& s) {
    m[0] += g;
    m[1] += g * g;
    m[2] += s.forgets * (g - m[2]);
    w -= s.rate * ((m[2] + T(0.125) * m[0]) / (std::sqrt(m[1]) + T(1e-3)) + s.decay * w);
  }
};
// Without any state.
struct plain_descent {
  using kind = hd::optimizer_kind;
  static constexpr const char* name = "plain_descent";
  static constexpr int moments = 0;
  struct options {
    void validate() const {}
    friend std::string to_string(const options&) { return "none"; }
  };
  template <class T>
  struct scalars {
    T rate;
  };
  template <class T>
  static scalars<T> at(const options&, double rate, std::int64_t, bool) {
    return {static_cast<T>(rate)};
  }
  template <class T>
  HEDDLE_HD static void update(T& w, T g, T*, const scalars<T>& s) {
    w -= s.rate * g;
  }
  template <class T>
  HEDDLE_HD static void undo(T& w, T g, T*, const scalars<T>& s) {
    w += s.rate * g;
  }
};

// ---- training ----

template <class T>
struct points {
  std::vector<T> x, y;
  points() {
    const hd::counter_random random(3, 0);
    for (std::uint64_t i = 0; i < 128; i += 2) {
      const double a = 2 * random.uniform(i) - 1, b = 2 * random.uniform(i + 1) - 1;
      x.insert(x.end(), {static_cast<T>(a), static_cast<T>(b)});
      y.push_back(static_cast<T>(std::sin(2 * a) * b));
    }
  }
};

struct setup {
  std::int64_t steps = 6, save_at = 0;
  std::string folder{};
  bool resumes = false;
  tr::any_optimizer_options optimizer{};
  double clip = 0.5, adamw_beta1 = 0.9;
};
struct outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> weights;
  std::int64_t first_step = 0, taken_back = 0;
  std::string error{};
};

template <class T, class Mesh, class... Policies>
outcome train(const setup& s) {
  const points<T> all_points;
  const hd::io::pairs data(all_points.x, all_points.y, {.inputs = 2, .targets = 1, .validation = 0.1});
  tr::options<hd::model::network_config> o;
  o.model = {.inputs = 2, .outputs = 1};
  o.batch = 8;
  o.steps = s.steps;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 2, .total_steps = 10};
  o.clip_norm = s.clip;
  o.adamw.beta1 = s.adamw_beta1;
  o.optimizer = s.optimizer;
  o.threads_per_rank = 1;
  outcome all;
  std::mutex guard;
  try {
    hd::launch<hd::threads>(Mesh{}, [&](auto& world) {
      using strategy = hd::strategy<Mesh, hd::schedule::one_f_one_b<hd::microbatches<4>>, Policies...>;
      auto trainer = tr::make_trainer<strategy>(train_test::small_network<T>{}, world, o);
      if (s.resumes) {
        const auto result = tr::resume(trainer, s.folder);
        if (world.rank() == 0) all.first_step = result.step;
      }
      trainer.run(
          data,
          [&](const tr::step_report& r) {
            const std::lock_guard lock(guard);
            if (world.rank() != 0) return;
            all.losses.push_back(r.loss);
            all.norms.push_back(r.gradient_norm);
          },
          tr::every(s.save_at == 0 ? 1000 : s.save_at, [&](auto& t) {
            if (s.save_at > 0 && t.steps_done() == s.save_at) tr::save(t, s.folder);
          }));
      const std::lock_guard lock(guard);
      all.taken_back += trainer.steps_taken_back();
      for (int k = 0; k < trainer.stages(); ++k) {
        auto& optimizer = trainer.optimizer_state(k);
        const auto kept = optimizer.weights_of(trainer.stage(k));
        for (const auto& p : trainer.stage(k).parameters()) {
          auto& whole = all.weights[std::string(p.name)];
          whole.resize(static_cast<std::size_t>(p.global_count()), std::nan(""));
          hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t n) {
            for (std::int64_t j = 0; j < n; ++j)
              if (const std::int64_t at = p.offset + local + j - optimizer.weights_begin();
                  at >= 0 && at < static_cast<std::int64_t>(kept.size()))
                whole[static_cast<std::size_t>(global + j)] = static_cast<double>(kept[static_cast<std::size_t>(at)]);
          });
        }
      }
    });
  } catch (const hd::error& e) {
    all.error = e.what();
  }
  return all;
}
// The largest difference of losses, norms and weights, relative to the largest number of each.
double difference(const outcome& got, const outcome& expected) {
  if (!got.error.empty() || !expected.error.empty() || got.weights.size() != expected.weights.size()) return 1e300;
  double most = 0;
  const auto compare = [&](const std::vector<double>& a, std::span<const double> b) {
    if (a.size() != b.size()) return void(most = 1e300);
    double greatest = 0;
    for (const double x : b) greatest = (std::max)(greatest, std::abs(x));
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::isnan(a[i]) || std::isnan(b[i])) return void(most = 1e300);
      most = (std::max)(most, std::abs(a[i] - b[i]) / (std::max)(greatest, 1e-6));
    }
  };
  const auto last = [&](const std::vector<double>& x) {
    return std::span<const double>(x).last((std::min)(x.size(), got.losses.size()));
  };
  compare(got.losses, last(expected.losses));
  compare(got.norms, last(expected.norms));
  for (const auto& [name, values] : expected.weights) compare(got.weights.at(name), values);
  return most;
}

using one = hd::mesh<>;
using eight = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;
using uneven = hd::mesh<hd::axis<dp, 3>, hd::axis<pp, 1>, hd::axis<tp, 1>>;
using pipeline = hd::mesh<hd::axis<pp, 2>>;

// A rule trains on any mesh what it trains on one rank, and goes on from a save of another mesh.
template <class Rule>
void check_parity(const tr::any_optimizer_options& optimizer) {
  const setup plain{.optimizer = optimizer};
  const outcome alone = train<double, one, Rule>(plain);
  REQUIRE(alone.error == "");
  REQUIRE(alone.losses.size() == 6);
  CHECK(difference(train<double, one>(setup{}), alone) > 1e-3);  // AdamW's are others
  CHECK(difference(train<double, eight, Rule, hd::zero<3>>(plain), alone) < 1e-10);
  CHECK(difference(train<double, eight, Rule, hd::zero<0>>(plain), alone) < 1e-10);
  CHECK(difference(train<double, uneven, Rule, hd::zero<1>>(plain), alone) < 1e-10);
  CHECK(difference(train<double, uneven, Rule, hd::zero<2>>(plain), alone) < 1e-10);

  const train_test::folder saves("optimizer");
  const setup saving{.save_at = 3, .folder = saves.path.string(), .optimizer = optimizer};
  CHECK(train<double, eight, Rule, hd::zero<3>>(saving).error == "");
  const setup resuming{.folder = saves.path.string(), .resumes = true, .optimizer = optimizer};
  for (const outcome& resumed : {train<double, one, Rule>(resuming), train<double, uneven, Rule, hd::zero<2>>(resuming),
                                 train<double, eight, Rule, hd::zero<3>>(resuming)}) {
    CHECK(resumed.error == "");
    CHECK(resumed.first_step == 3);
    CHECK(resumed.losses.size() == 3);
    CHECK(difference(resumed, alone) < 1e-10);
  }
  const outcome other = train<double, one>(setup{.folder = saves.path.string(), .resumes = true});
  CHECK_THAT(other.error, Contains(std::string("is a save of a run whose optimizer is ") + Rule::name +
                                   "; this run's is adamw, which keeps other numbers for each weight"));
}

}  // namespace

TEST_CASE("rules of optimizers take PyTorch's steps, and Lion those of its paper", "[train][optimizer][golden]") {
  using namespace hd::optimizers;
  CHECK(golden_error<sgd>("sgd", {.momentum = 0.9, .weight_decay = 0.1}) < 1e-10);
  CHECK(golden_error<sgd>("sgd_plain", {.momentum = 0, .weight_decay = 0.1}) < 1e-10);
  CHECK(golden_error<sgd>("sgd_dampening", {.momentum = 0.8, .dampening = 0.3, .weight_decay = 0.1}) < 1e-10);
  CHECK(golden_error<sgd>("sgd_nesterov", {.momentum = 0.9, .weight_decay = 0.1, .nesterov = true}) < 1e-10);
  CHECK(golden_error<adamw>("adamw", {}) < 1e-10);
  CHECK(golden_error<lion>("lion", {.weight_decay = 0.1}) < 1e-10);
  CHECK(golden_error<sgd>("lion", {}) > 1e-3);
}

TEST_CASE("a rule of one's own trains on any mesh and under any zero", "[train][optimizer][parity]") {
  check_parity<mixture>({});
  check_parity<mixture>(mixture::options{.forgets = 0.5, .rates = {{"block.", 0.25}, {"out", 2}}});
}
TEST_CASE("Lion and SGD train on any mesh and under any zero", "[train][optimizer][parity]") {
  check_parity<hd::optimizers::lion>({});
  check_parity<hd::optimizers::sgd>(hd::optimizers::sgd::options{.weight_decay = 0.1, .nesterov = true});
}

TEST_CASE("a rule without state trains and is saved", "[train][optimizer]") {
  const outcome alone = train<double, one, plain_descent>({});
  const train_test::folder saves("optimizer");
  const outcome many = train<double, eight, plain_descent, hd::zero<3>>({.save_at = 3, .folder = saves.path.string()});
  CHECK(difference(many, alone) < 1e-10);
  const outcome resumed = train<double, one, plain_descent>({.folder = saves.path.string(), .resumes = true});
  CHECK(resumed.first_step == 3);
  CHECK(difference(resumed, alone) < 1e-10);
}

TEST_CASE("steps of a rule with undo are taken back, others from copies", "[train][optimizer]") {
  using hd::optimizers::sgd;
  // Each rank alone is below the limit, all together are above.
  const auto clip_of = [](const outcome& o) { return 0.99 * *std::max_element(o.norms.begin(), o.norms.end()); };
  for (const bool nesterov : {false, true}) {
    setup s{.optimizer = sgd::options{.weight_decay = 0.1, .nesterov = nesterov}, .clip = 1e9};
    s.clip = clip_of(train<double, pipeline, sgd>(s));
    const outcome undone = train<double, pipeline, sgd, hd::post_validation>(s);
    CHECK(undone.taken_back > 0);
    CHECK(difference(undone, train<double, pipeline, sgd>(s)) < 1e-10);
  }
  const double clip = clip_of(train<double, pipeline, mixture>({.clip = 1e9}));
  const outcome copied = train<double, pipeline, mixture, hd::post_validation_with_copy>({.clip = clip});
  CHECK(copied.taken_back > 0);
  CHECK(difference(copied, train<double, pipeline, mixture>({.clip = clip})) == 0);
  const setup steep{.optimizer = sgd::options{.weight_decay = 200, .nesterov = true}};
  CHECK_THAT((train<double, pipeline, sgd, hd::post_validation>(steep).error),
             Contains("whose greatest() times weight decay is below 1 under sgd with nesterov"));
}

TEST_CASE("a rule of one's own steps masters and moments of other types", "[train][optimizer][precision]") {
  const setup s{.optimizer = mixture::options{}};
  using hd::bf16;
  const outcome alone = train<float, one, mixture>(s);
  using wide = hd::precision<hd::masters_in<double>, hd::moments_in<double>>;
  CHECK(difference(train<float, one, mixture, wide>(s), alone) < 1e-4);
  CHECK(difference(train<float, eight, mixture, hd::zero<3>, wide>(s), alone) < 1e-4);
  using narrow = hd::precision<hd::weights_in<bf16>, hd::moments_in<bf16>>;
  const outcome rounded = train<float, one, mixture, narrow>(s);
  CHECK(rounded.error == "");
  for (const auto& [name, values] : rounded.weights)
    for (const double x : values) REQUIRE(static_cast<double>(static_cast<float>(bf16(static_cast<float>(x)))) == x);
  CHECK(difference(rounded, alone) < 0.1);
  CHECK(difference(rounded, alone) > 0);
  using by_chance =
      hd::precision<hd::weights_in<bf16, hd::rounding::stochastic>, hd::moments_in<bf16, hd::rounding::stochastic>>;
  CHECK(difference(train<float, one, mixture, by_chance>(s), alone) < 0.1);

  const train_test::folder saves("optimizer");
  const setup saving{.save_at = 3, .folder = saves.path.string(), .optimizer = s.optimizer};
  CHECK(train<float, eight, mixture, hd::zero<2>, narrow>(saving).error == "");
  const outcome resumed =
      train<float, one, mixture, narrow>({.folder = saves.path.string(), .resumes = true, .optimizer = s.optimizer});
  CHECK(resumed.first_step == 3);
  CHECK(difference(resumed, rounded) < 0.05);
}

TEST_CASE("options of another rule are errors that name both", "[train][optimizer][options]") {
  using namespace hd::optimizers;
  CHECK_THAT((train<double, one, lion>({.optimizer = sgd::options{}}).error),
             Contains("options.optimizer has the options of another rule (momentum=") &&
                 Contains("than the strategy's, lion"));
  CHECK_THAT((train<double, one>({.optimizer = lion::options{}}).error), Contains("than the strategy's, adamw"));
  CHECK_THAT(
      (train<double, one, lion>({.adamw_beta1 = 0.5}).error),
      Contains(
          "options.adamw is set and the strategy's optimizer is lion; set options.optimizer = lion::options{...}"));
  CHECK_THAT((train<double, one, mixture>({.optimizer = mixture::options{.forgets = 2}}).error),
             Contains("forgets must be in (0, 1]"));
  CHECK_THAT((train<double, one, mixture>({.optimizer = mixture::options{.rates = {{"nothing", 2}}}}).error),
             Contains("rates: no trained parameter's name begins with 'nothing'"));
  const auto refused = [](const auto& o, const char* text) { CHECK_THROWS_WITH(o.validate(), Contains(text)); };
  refused(sgd::options{.momentum = 1}, "momentum must be in [0, 1), got 1");
  refused(sgd::options{.dampening = -1}, "dampening must be in [0, 1], got -1");
  refused(sgd::options{.momentum = 0, .nesterov = true},
          "nesterov must be with a momentum above 0 and a dampening of 0");
  refused(lion::options{.beta2 = 2}, "beta2 must be in [0, 1), got 2");
  refused(lion::options{.weight_decay = -1}, "weight_decay must be at least 0 and finite");
  refused(lion::options{.rates = {{"in", -2}}}, "rates must be at least 0 and finite, got -2 for 'in'");
}
