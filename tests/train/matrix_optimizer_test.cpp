// tests/train/matrix_optimizer_test.cpp: rules of optimizers that act on whole matrices: PyTorch's numbers, shares cut between tensors, saves, state.
#include "catch.hpp"
#include "folder.hpp"
#include "optimizer_runs.hpp"

#include <heddle/compute/bf16_products.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/train/optimizers/adafactor.hpp>
#include <heddle/train/optimizers/muon.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/sharded_optimizer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace tr = hd::train;
using Catch::Matchers::Contains;
using hd::dp, hd::pp, hd::tp;
using hd::optimizers::adafactor, hd::optimizers::muon;

namespace {

using optimizer_runs::difference, optimizer_runs::outcome, optimizer_runs::setup, optimizer_runs::train;

hd::model::parameter tensor(std::string name, std::vector<std::int64_t> shape, std::int64_t offset) {
  hd::model::parameter p;
  p.name = std::move(name);
  p.shape = p.logical = p.local = shape;
  p.start.resize(shape.size());
  p.offset = offset;
  p.count = p.global_count();
  p.decay = shape.size() >= 2;
  return p;
}
// `count` matrices of one name in one parameter.
hd::model::parameter stack(std::string name, std::int64_t count, std::int64_t rows, std::int64_t columns,
                           std::int64_t offset) {
  hd::model::parameter p = tensor(std::move(name), {count * rows, columns}, offset);
  p.logical = p.local = {count, rows, columns};
  p.start = {0, 0, 0};
  return p;
}
const std::vector<hd::model::parameter> tensors{tensor("wide", {3, 4}, 0), tensor("tall", {6, 2}, 12),
                                                tensor("square", {4, 4}, 24), tensor("b", {5}, 40)};

template <class F>
void each_rule(F&& f) {
  f(muon{});
  f(adafactor{});
}

// The largest difference over all steps from the golden weights.
template <class Rule>
double golden_error(const std::string& name, const typename Rule::options& options) {
  const optimizer_runs::golden data =
      optimizer_runs::read_golden(HEDDLE_SOURCE_DIR "/tests/golden/matrix_optimizers_golden.txt");
  REQUIRE(data.weights.contains(name));
  REQUIRE(data.weights.at(name).size() == 20);
  hd::compute::host<> backend(1);
  tr::sharded_optimizer<double, Rule, hd::precision<>, hd::zero<0>> optimizer(tensors, 45, 0, 1);
  std::vector<double> w = data.start;
  double most = 0;
  for (std::size_t s = 0; s < 20; ++s) {
    std::vector<double> g = data.gradients[s];
    for (double& x : g) x *= 4;
    optimizer.update(backend, w, g, options, data.rates[s], static_cast<std::int64_t>(s) + 1, 0.25);
    for (std::size_t i = 0; i < w.size(); ++i) most = (std::max)(most, std::abs(w[i] - data.weights.at(name)[s][i]));
  }
  return most;
}

using one = hd::mesh<>;
using two = hd::mesh<hd::axis<dp, 2>>;
using uneven = hd::mesh<hd::axis<dp, 3>, hd::axis<pp, 1>>;
using four = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>>;
using pipeline = hd::mesh<hd::axis<pp, 2>>;

// A rule trains on any mesh what it trains on one rank, and goes on from a save of another mesh.
template <class Rule>
void check_parity(const tr::any_optimizer_options& optimizer) {
  const setup plain{.optimizer = optimizer};
  const outcome alone = train<double, one, Rule>(plain);
  REQUIRE(alone.error == "");
  REQUIRE(alone.losses.size() == 6);
  CHECK(difference(train<double, one>(setup{}), alone) > 1e-3);  // AdamW's are others
  CHECK(difference(train<double, two, Rule, hd::zero<1>>(plain), alone) < 1e-10);
  CHECK(difference(train<double, uneven, Rule, hd::zero<2>>(plain), alone) < 1e-10);
  CHECK(difference(train<double, uneven, Rule, hd::zero<3>>(plain), alone) < 1e-10);
  CHECK(difference(train<double, four, Rule, hd::zero<0>>(plain), alone) < 1e-10);
  CHECK(difference(train<double, four, Rule, hd::zero<3>>(plain), alone) < 1e-10);

  const train_test::folder saves("optimizer");
  const setup saving{.save_at = 3, .folder = saves.path.string(), .optimizer = optimizer};
  CHECK(train<double, four, Rule, hd::zero<3>>(saving).error == "");
  const setup resuming{.folder = saves.path.string(), .resumes = true, .optimizer = optimizer};
  for (const outcome& resumed : {train<double, one, Rule>(resuming), train<double, uneven, Rule, hd::zero<2>>(resuming),
                                 train<double, two, Rule, hd::zero<1>>(resuming)}) {
    CHECK(resumed.error == "");
    CHECK(resumed.first_step == 3);
    CHECK(resumed.losses.size() == 3);
    CHECK(difference(resumed, alone) < 1e-10);
  }
  const outcome other = train<double, one>(setup{.folder = saves.path.string(), .resumes = true});
  CHECK_THAT(other.error, Contains(std::string("is a save of a run whose optimizer is ") + Rule::name +
                                   "; this run's is adamw, which keeps other numbers for each weight"));
}

// Steps of a rule on ranks of its own, each with its share, are those of one rank.
template <class Rule, class Zero>
std::vector<std::int64_t> shares_of(const std::vector<hd::model::parameter>& table, std::int64_t elements, int ranks) {
  std::vector<std::int64_t> shares;
  std::int64_t begin = 0;
  for (int r = 0; r < ranks; ++r) {
    const tr::sharded_optimizer<double, Rule, hd::precision<>, Zero> optimizer(table, elements, r, ranks);
    CHECK(optimizer.owned_begin() == begin);
    begin = optimizer.owned_end();
    shares.push_back(begin - optimizer.owned_begin());
  }
  CHECK(begin == elements);
  return shares;
}

}  // namespace

TEST_CASE("shares of a rule of whole tensors are cut between tensors", "[train][optimizer][shares]") {
  using shares = std::vector<std::int64_t>;
  const auto of = [](int ranks) { return shares_of<muon, hd::zero<1>>(tensors, 45, ranks); };
  CHECK(of(1) == shares{45});
  CHECK(of(2) == shares{24, 21});
  CHECK(of(3) == shares{12, 12, 21});
  CHECK(of(4) == shares{12, 12, 16, 5});
  CHECK(of(6) == shares{12, 12, 16, 5, 0, 0});
  CHECK(shares_of<muon, hd::zero<3>>({tensor("w", {6, 8}, 0)}, 64, 3) == shares{64, 0, 0});  // with its padding
  CHECK(shares_of<muon, hd::zero<2>>({}, 0, 2) == shares{0, 0});
  // Of a stack each tensor is one.
  CHECK(shares_of<muon, hd::zero<1>>({stack("experts.*.w", 5, 2, 4, 0)}, 40, 3) == shares{16, 16, 8});

  hd::model::parameter cut = tensor("w", {6, 8}, 0);
  cut.local = {6, 4}, cut.count = 24;
  CHECK_THROWS_WITH((shares_of<muon, hd::zero<1>>({cut}, 24, 2)),
                    Contains("heddle: the rule muon acts on whole matrices, and this rank has a part of 'w' only"));
}

TEST_CASE("of a stack of matrices each is stepped as one", "[train][optimizer]") {
  const hd::counter_random random(11, 0);
  std::vector<double> apart(48), g(48);
  for (std::size_t i = 0; i < 48; ++i) apart[i] = random.normal(i), g[i] = random.normal(100 + i);
  std::vector<double> together = apart;
  std::vector<hd::model::parameter> each;
  for (int e = 0; e < 4; ++e) each.push_back(tensor("experts." + std::to_string(e) + ".w", {4, 3}, 12 * e));
  each_rule([&]<class Rule>(Rule) {
    hd::compute::host<> backend(1);
    using optimizer_type = tr::sharded_optimizer<double, Rule, hd::precision<>, hd::zero<0>>;
    optimizer_type one_stack(std::vector{stack("experts.*.w", 4, 4, 3, 0)}, 48, 0, 1), four_matrices(each, 48, 0, 1);
    for (int step = 1; step <= 2; ++step) {
      one_stack.update(backend, together, g, {}, 0.1, step, 1.0);
      four_matrices.update(backend, apart, g, {}, 0.1, step, 1.0);
    }
    CHECK(together == apart);
  });
}

TEST_CASE("products of rules on whole matrices are not those of the model that products_in rounds",
          "[train][optimizer]") {
  each_rule([]<class Rule>(Rule) {
    const auto stepped = [](auto backend) {
      std::vector<float> w(45, 1.0f), g(45);
      for (std::size_t i = 0; i < 45; ++i) g[i] = std::cos(static_cast<float>(i * i));
      tr::sharded_optimizer<float, Rule, hd::precision<>, hd::zero<0>> optimizer(tensors, 45, 0, 1);
      for (int step = 1; step <= 2; ++step) optimizer.update(*backend, w, g, {}, 0.1, step, 1.0);
      return w;
    };
    CHECK(stepped(std::make_unique<hd::compute::bf16_products<hd::compute::host<>>>(1)) ==
          stepped(std::make_unique<hd::compute::host<>>(1)));
  });
}

TEST_CASE("Muon takes PyTorch's steps, and AdamW's where a tensor is no matrix", "[train][optimizer][golden]") {
  CHECK(golden_error<muon>("muon", {}) < 1e-10);
  CHECK(golden_error<muon>("muon_plain", {.momentum = 0.8, .nesterov = false, .iterations = 3}) < 1e-10);
  CHECK(golden_error<muon>("muon_match_rms", {.scale = muon::scaled::match_rms_adamw}) < 1e-10);
  CHECK(golden_error<muon>("muon_by_adamw", {.by_adamw = {"squ"}, .adamw_rate = 0.5}) < 1e-10);
  CHECK(golden_error<muon>("muon_plain", {}) > 1e-3);
}

TEST_CASE("Adafactor takes PyTorch's steps, and those of its paper", "[train][optimizer][golden]") {
  CHECK(golden_error<adafactor>("adafactor", {}) < 1e-10);
  CHECK(golden_error<adafactor>(
            "adafactor_decay",
            {.beta2_decay = -0.6, .epsilon1 = 1e-10, .epsilon2 = 1e-2, .threshold = 1.5, .weight_decay = 0.1}) < 1e-10);
  CHECK(golden_error<adafactor>("adafactor_unscaled", {.scales_by_parameter = false}) < 1e-10);
  CHECK(golden_error<adafactor>("adafactor_absolute", {.relative_step = false}) < 1e-10);
  CHECK(golden_error<adafactor>("adafactor_unscaled", {}) > 1e-3);
}
TEST_CASE("the step of Adafactor is relative to the step's number where the learning rate is greater",
          "[train][optimizer]") {
  hd::compute::host<> backend(1);
  const auto stepped = [&](double rate, bool relative, int step) {
    std::vector<double> w(45, 1.0), g(45);
    for (std::size_t i = 0; i < 45; ++i) g[i] = std::cos(static_cast<double>(i));
    tr::sharded_optimizer<double, adafactor, hd::precision<>, hd::zero<0>> optimizer(tensors, 45, 0, 1);
    optimizer.update(backend, w, g, {.relative_step = relative}, rate, step, 1.0);
    return w;
  };
  CHECK(stepped(2, true, 4) == stepped(0.5, false, 4));
  CHECK(stepped(2, true, 4) != stepped(2, false, 4));
}

TEST_CASE("Adafactor trains on any mesh that leaves matrices whole", "[train][optimizer][parity]") {
  check_parity<adafactor>({});
  const adafactor::options o{.weight_decay = 0.1, .relative_step = false, .rates = {{"block.", 0.25}, {"out", 2}}};
  const outcome alone = train<double, one, adafactor>({.optimizer = o});
  CHECK(difference(train<double, uneven, adafactor, hd::zero<2>>({.optimizer = o}), alone) < 1e-10);
}

TEST_CASE("Muon trains on any mesh that leaves matrices whole", "[train][optimizer][parity]") {
  check_parity<muon>({});
}
TEST_CASE("Muon's options go with its parameters on any mesh", "[train][optimizer][parity]") {
  const muon::options o{.momentum = 0.8, .by_adamw = {"in", "block.1"}, .rates = {{"block.", 0.25}, {"out", 2}}};
  const outcome alone = train<double, one, muon>({.optimizer = o});
  CHECK(difference(train<double, uneven, muon, hd::zero<2>>({.optimizer = o}), alone) < 1e-10);
  CHECK(difference(train<double, one, muon>({.optimizer = muon::options{.momentum = 0.8}}), alone) > 1e-3);

  const train_test::folder saves("optimizer");
  CHECK(train<double, four, muon, hd::zero<3>>({.save_at = 3, .folder = saves.path.string(), .optimizer = o}).error ==
        "");
  const setup resuming{.folder = saves.path.string(), .resumes = true, .optimizer = o};
  const outcome resumed = train<double, uneven, muon, hd::zero<2>>(resuming);
  CHECK(resumed.first_step == 3);
  CHECK(difference(resumed, alone) < 1e-10);
  // What went by Muon has no second moment.
  const setup other{.folder = saves.path.string(), .resumes = true, .optimizer = muon::options{.by_adamw = {"out"}}};
  CHECK_THAT((train<double, one, muon>(other).error), Contains("second_moment/out"));
}

TEST_CASE("a rule of whole tensors steps masters and moments of other types", "[train][optimizer][precision]") {
  using hd::bf16;
  each_rule([]<class Rule>(Rule) {
    const outcome alone = train<float, one, Rule>({});
    using wide = hd::precision<hd::masters_in<double>, hd::moments_in<double>>;
    CHECK(difference(train<float, one, Rule, wide>({}), alone) < 1e-3);
    CHECK(difference(train<float, four, Rule, hd::zero<3>, wide>({}), train<float, one, Rule, wide>({})) < 1e-3);
    using narrow = hd::precision<hd::weights_in<bf16>, hd::moments_in<bf16>>;
    const outcome rounded = train<float, one, Rule, narrow>({});
    CHECK(rounded.error == "");
    for (const auto& [name, values] : rounded.weights)
      for (const double x : values) REQUIRE(static_cast<double>(static_cast<float>(bf16(static_cast<float>(x)))) == x);
    CHECK(difference(rounded, alone) < 0.1);
    CHECK(difference(rounded, alone) > 0);

    using by_chance = hd::precision<hd::weights_in<bf16, hd::rounding::stochastic>, hd::moments_in<bf16>>;
    CHECK(difference(train<float, one, Rule, by_chance>({}), alone) < 0.1);

    const train_test::folder saves("optimizer");
    CHECK(train<float, uneven, Rule, hd::zero<2>, narrow>({.save_at = 3, .folder = saves.path.string()}).error == "");
    const outcome resumed = train<float, one, Rule, narrow>({.folder = saves.path.string(), .resumes = true});
    CHECK(resumed.first_step == 3);
    CHECK(difference(resumed, rounded) < 0.1);
  });
}

TEST_CASE("steps of a rule of whole tensors are taken back from copies", "[train][optimizer]") {
  each_rule([]<class Rule>(Rule) {
    const outcome free = train<double, pipeline, Rule>({.clip = 1e9});
    const double clip = 0.99 * *std::max_element(free.norms.begin(), free.norms.end());
    const outcome copied = train<double, pipeline, Rule, hd::post_validation_with_copy>({.clip = clip});
    CHECK(copied.taken_back > 0);
    CHECK(difference(copied, train<double, pipeline, Rule>({.clip = clip})) == 0);
  });
}

TEST_CASE("options of rules of whole tensors that cannot be followed are refused", "[train][optimizer][options]") {
  const auto refused = [](const auto& o, const char* text) { CHECK_THROWS_WITH(o.validate(), Contains(text)); };
  refused(muon::options{.momentum = 1}, "momentum must be in [0, 1), got 1");
  refused(muon::options{.epsilon = 0}, "epsilon must be positive and finite, got 0");
  refused(muon::options{.iterations = 0}, "iterations must be 1 to 99, got 0");
  refused(muon::options{.coefficients = {1, 2, INFINITY}}, "coefficients must be finite, got inf");
  refused(muon::options{.adamw_rate = -1}, "adamw_rate must be at least 0 and finite, got -1");
  refused(muon::options{.adamw_epsilon = 0}, "adamw_epsilon must be positive and finite, got 0");
  refused(adafactor::options{.beta2_decay = 1}, "beta2_decay must be at most 0 and finite, got 1");
  refused(adafactor::options{.threshold = 0.5}, "threshold must be at least 1 and finite, got 0.5");
  refused(adafactor::options{.rates = {{"in", -2}}}, "rates must be at least 0 and finite, got -2 for 'in'");
  CHECK(to_string(muon::options{}).find("by_adamw=wte.,wpe.,lm_head.,model.embed_tokens.,") != std::string::npos);
  CHECK(to_string(muon::options{.scale = muon::scaled::match_rms_adamw}) != to_string(muon::options{}));
  CHECK(to_string(adafactor::options{.scales_by_parameter = false}) != to_string(adafactor::options{}));
}

TEST_CASE("Muon keeps one number for each element of a matrix, Adafactor one for each row and column",
          "[train][optimizer][memory]") {
  const auto bytes = []<class Rule, class Zero>(Rule, Zero, int rank, int ranks, const typename Rule::options& o) {
    tr::sharded_optimizer<float, Rule, hd::precision<>, Zero> optimizer(tensors, 45, rank, ranks);
    optimizer.prepare(o);
    return optimizer.state_bytes() - optimizer.room_bytes();
  };
  CHECK(bytes(muon{}, hd::zero<0>{}, 0, 1, {}) == 4 * 40 + 8 * 5);
  CHECK(bytes(muon{}, hd::zero<0>{}, 0, 1, {.by_adamw = {"tall"}}) == 4 * 28 + 8 * 17);
  CHECK(bytes(muon{}, hd::zero<1>{}, 0, 2, {}) == 4 * 24);
  CHECK(bytes(muon{}, hd::zero<1>{}, 1, 2, {}) == 4 * 16 + 8 * 5);
  CHECK(bytes(muon{}, hd::zero<1>{}, 5, 6, {}) == 0);
  // Adafactor: rows and columns of a matrix, one for each element of another tensor.
  CHECK(bytes(adafactor{}, hd::zero<0>{}, 0, 1, {}) == 4 * (3 + 4 + 6 + 2 + 4 + 4 + 5));
  CHECK(bytes(adafactor{}, hd::zero<1>{}, 0, 2, {}) == 4 * (3 + 4 + 6 + 2));
  CHECK(bytes(adafactor{}, hd::zero<1>{}, 1, 2, {}) == 4 * (4 + 4 + 5));
}
