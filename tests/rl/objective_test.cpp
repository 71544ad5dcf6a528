// tests/rl/objective_test.cpp: objectives, divergences, aggregations and advantages equal those of verl, and slopes are
// derivatives.
#include "catch.hpp"

#include <heddle/rl/advantage.hpp>
#include <heddle/rl/experience.hpp>
#include <heddle/rl/objective.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace hd = heddle;
namespace rl = heddle::rl;

namespace {

// As in tests/golden/rl_golden.py.
struct generator {
  std::uint64_t x;
  std::uint64_t integer(std::uint64_t below) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    return (x >> 33) % below;
  }
  double number(int least, int most) {
    return least + static_cast<double>(integer(static_cast<std::uint64_t>((most - least) * 1024 + 1))) / 1024;
  }
  std::vector<double> numbers(std::size_t n, int least, int most) {
    std::vector<double> all(n);
    for (double& e : all) e = number(least, most);
    return all;
  }
};

std::vector<std::vector<double>> golden() {
  std::ifstream file(HEDDLE_SOURCE_DIR "/tests/golden/rl_golden.txt");
  REQUIRE(file);
  std::vector<std::vector<double>> lines;
  for (std::string line; std::getline(file, line);) {
    std::vector<double>& numbers = lines.emplace_back();
    std::istringstream words(line);
    for (std::string word; words >> word;) numbers.push_back(std::strtod(word.c_str(), nullptr));
  }
  REQUIRE(lines.size() == 1000 + 400 + 50);
  return lines;
}

double distance(double a, double b) {
  return std::abs(a - b) / (std::max)(1.0, std::abs(b));
}
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = (std::max)(most, distance(a[i], b[i]));
  return most;
}

rl::any_objective objective_of(std::uint64_t kind, std::uint64_t kl) {
  const auto with = [&](const auto& o) -> rl::any_objective {
    if (kl == 4) return o;
    return rl::with_kl<std::remove_cvref_t<decltype(o)>>{o, .125, static_cast<rl::kl_form>(kl)};
  };
  if (kind == 0) return with(rl::reinforce{0});
  if (kind == 1) return with(rl::aipo{5});
  return with(rl::ppo{.25, .375, 3});
}

}  // namespace

TEST_CASE("losses and gradients of 1000 random batches equal verl's", "[rl][objective][golden]") {
  const auto lines = golden();
  generator g{42};
  double worst = 0, worst_of_floats = 0;
  for (std::uint64_t batch = 0; batch < 1000; ++batch) {
    CAPTURE(batch);
    const std::size_t rows = 1 + g.integer(4), columns = 1 + g.integer(6), n = rows * columns;
    const auto lp = g.numbers(n, -4, 0);
    const int spread = batch % 10 == 0 ? 25 : 1;
    auto behaviour = g.numbers(n, -spread, spread), proximal = g.numbers(n, -spread, spread),
         reference = g.numbers(n, -spread, spread);
    const auto advantages = g.numbers(n, -2, 2);
    std::vector<bool> mask(n);
    for (std::size_t i = 0; i < n; ++i) mask[i] = g.integer(4) > 0;
    if (batch % 7 == 0)
      for (std::size_t i = 0; i < columns; ++i) mask[i] = false;
    if (std::count(mask.begin(), mask.end(), true) == 0) mask[n - 1] = true;
    const std::uint64_t mode = g.integer(3), kind = g.integer(4), kl = g.integer(5);
    const auto c = g.numbers(n, -1, 1);

    std::vector<double> own(rows, 0.0);
    double all = 0, answers = 0;
    for (std::size_t i = 0; i < n; ++i)
      if (mask[i]) ++own[i / columns], ++all;
    for (const double o : own) answers += o > 0 ? 1 : 0;
    const auto aggregated = [&](double of_row) {
      if (mode == 0) return rl::aggregate::token_mean{}.weight(of_row, answers, all);
      // verl divides by the tokens and 1e-8
      if (mode == 1) return rl::aggregate::sequence_mean{}.weight(of_row, answers, all) * of_row / (of_row + 1e-8);
      return rl::aggregate::constant{16}.weight(of_row, answers, all);
    };
    const rl::any_objective objective = objective_of(kind, kl), of_loss = objective_of(kind, 4);
    double loss = 0, projected = 0, magnitude = 0, as_floats = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (!mask[i]) continue;
      const rl::token t{advantages[i], lp[i] + behaviour[i], lp[i] + proximal[i], lp[i] + reference[i]};
      rl::term x = objective(lp[i], t);
      if (kind == 3) {  // the divergence is not weighted by verl
        const rl::term plain = of_loss(lp[i], t);
        const double w = rl::decoupled_weight(t.proximal, t.behaviour, 2);
        x.loss += (w - 1) * plain.loss, x.slope += (w - 1) * plain.slope;
      }
      const double weight = aggregated(own[i / columns]) / all;
      loss += weight * x.loss, projected += weight * x.slope * c[i], magnitude += std::abs(weight * x.slope);
      as_floats += static_cast<float>(weight) * x.loss;
    }
    worst = (std::max)(worst, distance({loss, projected, magnitude}, lines[batch]));
    worst_of_floats = (std::max)(worst_of_floats, distance(as_floats, lines[batch][0]));
  }
  CHECK(worst <= 1e-12);
  CHECK(worst_of_floats <= 1e-5);
}

TEST_CASE("advantages of groups equal verl's, and are 0 where rewards are equal", "[rl][advantage][golden]") {
  const auto lines = golden();
  generator g{43};
  for (std::size_t i = 0; i < 200; ++i) {
    CAPTURE(i);
    const std::size_t size = 2 + g.integer(7), count = 1 + g.integer(3);
    auto rewards = g.numbers(size * count, -2, 2);
    if (i % 5 == 0) std::fill_n(rewards.begin(), size, .5);
    const auto normalised = rl::group_normalised(rewards, size), others = rl::leave_one_out(rewards, size);
    CHECK(distance(normalised, lines[1000 + 2 * i]) <= 1e-12);
    CHECK(distance(others, lines[1000 + 2 * i + 1]) <= 1e-12);
  }
  const std::vector<double> equal(7, .1);  // their mean is not .1 when added up
  CHECK(rl::group_normalised(equal, 7) == std::vector<double>(7, 0.0));
  CHECK(rl::leave_one_out(equal, 7) == std::vector<double>(7, 0.0));
  CHECK_THROWS_AS(rl::group_normalised(equal, 1), hd::config_error);
  CHECK_THROWS_AS(rl::leave_one_out(equal, 3), hd::config_error);
}

TEST_CASE("generalised advantages equal verl's", "[rl][advantage][golden]") {
  const auto lines = golden();
  generator g{44};
  for (std::size_t i = 0; i < 50; ++i) {
    const std::size_t n = 2 + g.integer(8);
    const auto rewards = g.numbers(n, -2, 2), values = g.numbers(n, -2, 2);
    std::vector<bool> mask(n);
    for (std::size_t t = 0; t < n; ++t) mask[t] = g.integer(4) > 0;
    mask.front() = mask.back() = true;
    const auto got = rl::gae(rewards, values, .875, .9375, mask);
    CHECK(distance(got.advantages, lines[1400 + i]) <= 1e-12);
    for (std::size_t t = 0; t < n; ++t) CHECK(got.returns[t] == got.advantages[t] + values[t]);
  }
  CHECK_THROWS_AS(rl::gae(std::vector<double>(3), std::vector<double>(2), 1, 1), hd::config_error);
}

TEST_CASE("slopes are derivatives of losses that keep nothing fixed", "[rl][objective]") {
  generator g{7};
  INFO("seed 7");
  for (int i = 0; i < 2000; ++i) {
    const double lp = g.number(-4, 0), h = 1e-6;
    const rl::token t{g.number(-2, 2), lp + g.number(-1, 1), lp + g.number(-1, 1), lp + g.number(-1, 1)};
    const auto check = [&](const rl::any_objective& o) {
      const double before = o(lp - h, t).slope, after = o(lp + h, t).slope;
      if (std::abs(before - after) > 1e-3) return;  // a bend between
      CAPTURE(i, to_string(o));
      CHECK(std::abs((o(lp + h, t).loss - o(lp - h, t).loss) / (2 * h) - o(lp, t).slope) <= 1e-7);
    };
    check(rl::ppo{});
    for (const auto form : {rl::kl_form::k1, rl::kl_form::k2, rl::kl_form::k3})
      check(rl::with_kl<rl::ppo>{{}, .5, form});
    check(rl::reinforce{0});
  }
}

// Two actions, softmax of one logit: J = E_pi[reward], dJ/dlogit exact; samples of mu, every action as often as mu has
// it.
TEST_CASE("the gradient of aipo without a bound is the exact off-policy gradient", "[rl][objective]") {
  const double logit = .3, reward[] = {1.25, -.5}, mu[] = {.85, .15};
  const double p = 1 / (1 + std::exp(-logit)), pi[] = {p, 1 - p}, d_lp[] = {1 - p, -p};
  const double exact = pi[0] * reward[0] * d_lp[0] + pi[1] * reward[1] * d_lp[1];
  double got = 0;
  for (int a = 0; a < 2; ++a) {
    const rl::term x = rl::aipo{std::numeric_limits<double>::infinity()}(std::log(pi[a]), {reward[a], std::log(mu[a])});
    got -= mu[a] * x.slope * d_lp[a];
  }
  CHECK(std::abs(got - exact) <= 1e-15);
}

TEST_CASE("settings of objectives that cannot be are refused by their names", "[rl][objective]") {
  const auto refused = [](const auto& o) -> std::string {
    try {
      rl::any_objective(o).validate();
    } catch (const hd::config_error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(refused(rl::aipo{-1}) == "heddle: aipo.rho must be positive, got -1");
  CHECK(refused(rl::reinforce{-2}).find("reinforce.cap") != std::string::npos);
  CHECK(refused(rl::ppo{.2, -.1}).find("ppo.high") != std::string::npos);
  CHECK(refused(rl::ppo{2}).find("ppo.low") != std::string::npos);
  CHECK(refused(rl::ppo{.2, .2, .5}).find("ppo.dual") != std::string::npos);
  CHECK(refused(rl::with_kl<rl::aipo>{{-1}}).find("aipo.rho") != std::string::npos);
  CHECK(refused(rl::with_kl<rl::ppo>{{}, -1}).find("with_kl.beta") != std::string::npos);
  CHECK(refused(rl::with_kl<rl::ppo>{}).empty());
  CHECK(to_string(rl::any_objective(rl::with_kl<rl::ppo>{})) == "ppo low=0.2 high=0.28 dual=3, 0.001 times k3");
}

TEST_CASE("samples that do not fit are refused, and experience lays out what counts", "[rl][experience]") {
  const auto refused = [](rl::sample s) -> std::string {
    try {
      rl::experience({std::move(s)}, 4, 0);
    } catch (const hd::config_error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(refused({{1}, {2, 3, 4, 5}}).empty());
  CHECK(refused({{1}, {2, 3, 4, 5, 6}}) == "heddle: rl::experience: sample 0 has 6 tokens; a context of 4 takes 5");
  CHECK(refused({{}, {2}}).find("has no prompt") != std::string::npos);
  CHECK(refused({{1}, {2, 3}, {-.5}}).find("1 log_probabilities") != std::string::npos);
  CHECK(refused({{1}, {2, -3}}).find("the token -3") != std::string::npos);

  rl::sample s{{7, 8}, {1, 2, 3}, {-.5, -.25, -.125}};
  s.advantage = 2, s.mask = {true, false, true}, s.reference = {-1, -2, -4};
  const rl::experience made({s, {{5}, {6}}}, 4, 100, rl::aggregate::sequence_mean{});
  CHECK(made.counted_tokens() == 3);
  std::vector<std::int32_t> x(12), y(72);
  made.fill_train({100, 3}, x, y);
  CHECK(x == std::vector<std::int32_t>{7, 8, 1, 2, 5, 6, 0, 0, 0, 0, 0, 0});
  const auto ids = [&](std::size_t i) {
    return std::vector<std::int32_t>(y.begin() + 24 * static_cast<long>(i), y.begin() + 24 * static_cast<long>(i) + 4);
  };
  CHECK(ids(0) == std::vector<std::int32_t>{-1, 1, -1, 3});
  CHECK(ids(1) == std::vector<std::int32_t>{6, -1, -1, -1});
  CHECK(ids(2) == std::vector<std::int32_t>(4, -1));
  const auto number = [&](std::size_t column, std::size_t row) { return std::bit_cast<float>(y[column * 4 + row]); };
  CHECK(number(1, 1) == 2.f);
  CHECK(number(2, 3) == -.125f);
  CHECK(number(3, 3) == -.125f);
  CHECK(number(4, 3) == -4.f);
  CHECK(number(5, 1) == .75f);  // 3 tokens over 2 answers of which this one has 2
  CHECK(hd::model::batch_contents<rl::batch<float>>::counted(y, {4, 24, 1, 6}) == 3);
}
