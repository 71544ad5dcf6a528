// tests/train/own_optimizer_test.cpp: rules of optimizers: PyTorch's numbers, and rules of one's own on any mesh, under any zero, in saves.
#include "catch.hpp"
#include "folder.hpp"
#include "optimizer_runs.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/train/optimizers/lion.hpp>
#include <heddle/train/optimizers/sgd.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/sharded_optimizer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace hd = heddle;
namespace tr = hd::train;
using Catch::Matchers::Contains;
using hd::dp, hd::pp, hd::tp;

namespace {

using optimizer_runs::difference, optimizer_runs::outcome, optimizer_runs::setup, optimizer_runs::train;

struct tensor {
  std::string name;
  int offset, count;
  bool counted, decay;
};
const std::vector<tensor> tensors{{"w", 0, 12, true, true}, {"b", 12, 5, true, false}};

// The largest difference over all steps from the golden weights.
template <class Rule>
double golden_error(const std::string& name, const typename Rule::options& options) {
  const optimizer_runs::golden data = optimizer_runs::read_golden(HEDDLE_SOURCE_DIR "/tests/golden/optimizers_golden.txt");
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
