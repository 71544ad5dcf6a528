#include <heddle/core/half_precision.hpp>
#include <heddle/infer/drawing_runner.hpp>
#include <heddle/infer/sampling.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <vector>

namespace hd = heddle;
namespace inf = heddle::infer;
using Catch::Matchers::Contains;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
using logits = std::vector<double>;

std::map<std::int32_t, double> probabilities(const logits& l, const inf::request& r,
                                             const inf::token_counts& counts = {}) {
  inf::token_sampler sampler;
  std::map<std::int32_t, double> p;
  for (const inf::token_probability& t : sampler.candidates(std::span<const double>(l), r, {}, counts))
    p[t.token] = std::exp(t.log_probability);
  return p;
}

std::int32_t drawn(const logits& l, const inf::request& r, std::uint64_t seed = 1, std::int64_t position = 0,
                   const inf::token_counts& counts = {}) {
  inf::token_sampler sampler;
  return sampler.draw(std::span<const double>(l), r, seed, position, {}, counts).token;
}

std::map<std::int32_t, double> softmax(const logits& l, double temperature) {
  std::map<std::int32_t, double> p;
  double sum = 0;
  for (const double x : l) sum += std::exp(x / temperature);
  for (std::size_t i = 0; i < l.size(); ++i) p[static_cast<std::int32_t>(i)] = std::exp(l[i] / temperature) / sum;
  return p;
}

std::map<std::int32_t, double> normalized(std::map<std::int32_t, double> p) {
  double sum = 0;
  for (const auto& [t, x] : p) sum += x;
  for (auto& [t, x] : p) x /= sum;
  return p;
}

void check_same(const std::map<std::int32_t, double>& a, const std::map<std::int32_t, double>& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [token, p] : a) {
    REQUIRE(b.contains(token));
    CHECK(b.at(token) == Approx(p).epsilon(1e-10));
  }
}

// The definitions, one after the other, on sorted probabilities.
std::map<std::int32_t, double> filtered(const logits& l, const inf::sampling_options& s) {
  std::map<std::int32_t, double> p = softmax(l, s.temperature);
  const auto sorted = [&] {
    std::vector<std::pair<double, std::int32_t>> v;
    for (const auto& [t, x] : p) v.emplace_back(-x, t);
    std::sort(v.begin(), v.end());
    return v;
  };
  if (s.top_k > 0) {
    const auto v = sorted();
    for (std::size_t i = static_cast<std::size_t>(s.top_k); i < v.size(); ++i) p.erase(v[i].second);
    p = normalized(p);
  }
  double before = 0;
  for (const auto& [x, t] : sorted()) {
    if (before >= s.top_p) p.erase(t);
    before -= x;
  }
  p = normalized(p);
  const double most =
      std::max_element(p.begin(), p.end(), [](auto& a, auto& b) { return a.second < b.second; })->second;
  std::erase_if(p, [&](const auto& t) { return t.second < s.min_p * most; });
  return normalized(p);
}

}  // namespace

TEST_CASE("temperature 0 takes the first of the likeliest tokens", "[infer][sampling]") {
  inf::request r{.sampling = {.temperature = 0}};
  CHECK(drawn({1, 3, 2, 3}, r) == 1);
  CHECK(drawn({-infinity, -infinity, -5}, r) == 2);
  r.sampling.top_k = 2;  // filters keep the likeliest
  r.sampling.min_p = 0.9;
  CHECK(drawn({1, 3, 2, 3}, r) == 1);
}

TEST_CASE("filters follow their definitions, in their order", "[infer][sampling]") {
  const unsigned seed = 31;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 2);
  for (int trial = 0; trial < 200; ++trial) {
    logits l(trial % 4 == 0 ? 523 : 17);
    for (double& x : l) x = trial % 3 == 0 ? std::round(normal(random)) : normal(random);  // equal ones, too
    inf::request r;
    inf::sampling_options& s = r.sampling;
    s.temperature = std::uniform_real_distribution<double>(0.3, 3)(random);
    if (random() % 2 == 0) s.top_k = static_cast<std::int64_t>(random() % 20);
    if (random() % 2 == 0) s.top_p = std::uniform_real_distribution<double>(0.05, 1)(random);
    if (random() % 2 == 0) s.min_p = std::uniform_real_distribution<double>(0, 1)(random);
    CAPTURE(trial, s.temperature, s.top_k, s.top_p, s.min_p);
    check_same(probabilities(l, r), filtered(l, s));
  }
}

TEST_CASE("filters by hand", "[infer][sampling]") {
  const logits l = {std::log(0.5), std::log(0.25), std::log(0.15), std::log(0.1)};
  check_same(probabilities(l, {}), {{0, 0.5}, {1, 0.25}, {2, 0.15}, {3, 0.1}});
  check_same(probabilities(l, {.sampling = {.temperature = 0.5}}),
             normalized({{0, 0.25}, {1, 0.0625}, {2, 0.0225}, {3, 0.01}}));
  check_same(probabilities(l, {.sampling = {.top_k = 2}}), {{0, 2. / 3}, {1, 1. / 3}});
  check_same(probabilities(l, {.sampling = {.top_p = 0.7}}), {{0, 2. / 3}, {1, 1. / 3}});
  check_same(probabilities(l, {.sampling = {.top_p = 0.3}}), {{0, 1}});
  check_same(probabilities(l, {.sampling = {.min_p = 0.25}}), normalized({{0, 0.5}, {1, 0.25}, {2, 0.15}}));
  // top-p sees the probabilities behind top-k: 0.5 / 0.75 of two tokens is less than 0.7, 0.5 / 0.65 of others would not be
  check_same(probabilities(l, {.sampling = {.top_k = 2, .top_p = 0.7}}), {{0, 2. / 3}, {1, 1. / 3}});
  check_same(probabilities(l, {.sampling = {.top_k = 2, .top_p = 0.6}}), {{0, 1}});
  check_same(probabilities({0, 0, 0}, {.sampling = {.top_k = 2}}), {{0, 0.5}, {1, 0.5}});  // of equals the lower id
}

TEST_CASE("penalties follow their definitions", "[infer][sampling]") {
  inf::token_counts counts;
  counts.add_prompt(std::vector<std::int32_t>{0, 1, 1});
  for (const std::int32_t t : {1, 2, 2, 2}) counts.add_answer(t);
  logits l = {2, -2, 3, 1};
  inf::apply_penalties(l, counts, {.repetition_penalty = 2, .frequency_penalty = 0.25, .presence_penalty = 0.5});
  CHECK(l == logits{1, -4 - 0.25 - 0.5, 1.5 - 0.75 - 0.5, 1});
  const inf::request r{.sampling = {.temperature = 0, .presence_penalty = 2.5}};
  CHECK(drawn({2, -2, 3, 1}, r, 1, 0, counts) == 0);
  CHECK(drawn({2, -2, 3, 1}, r, 1, 0, {}) == 2);
}

TEST_CASE("a mask constrains what is drawn, after penalties", "[infer][sampling]") {
  inf::request r{.sampling = {.temperature = 0}};
  std::vector<std::int32_t> seen;
  r.mask = [&](std::span<const std::int32_t> answer, std::span<double> l) {
    seen.assign(answer.begin(), answer.end());
    l[1] = -infinity;
  };
  inf::token_sampler sampler;
  const std::vector<float> l = {0, 5, 1};
  CHECK(sampler.draw(std::span<const float>(l), r, 1, 9, std::vector<std::int32_t>{4, 2}, {}).token == 2);
  CHECK(seen == std::vector<std::int32_t>{4, 2});
  r.sampling.temperature = 1;
  check_same(probabilities({0, 5, 1}, r), normalized({{0, 1}, {2, std::exp(1)}}));
}

TEST_CASE("log-probabilities are those of the model's own logits", "[infer][sampling]") {
  const logits l = {1, 4, -infinity, 2, 4};
  inf::request r{.sampling = {.temperature = 0, .presence_penalty = 8}, .log_probabilities = 3};
  inf::token_counts counts;
  for (const std::int32_t t : {1, 4}) counts.add_answer(t);
  inf::token_sampler sampler;
  const inf::drawn_token d = sampler.draw(std::span<const double>(l), r, 1, 0, {}, counts);
  const std::map<std::int32_t, double> p = softmax(l, 1);
  CHECK(d.token == 3);
  CHECK(*d.log_probability == Approx(std::log(p.at(3))).epsilon(1e-12));
  REQUIRE(d.likeliest.size() == 3);
  const std::vector<std::int32_t> order = {1, 4, 3};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(d.likeliest[i].token == order[i]);
    CHECK(d.likeliest[i].log_probability == Approx(std::log(p.at(order[i]))).epsilon(1e-12));
  }
  r.log_probabilities = std::nullopt;
  CHECK_FALSE(sampler.draw(std::span<const double>(l), r, 1, 0, {}, counts).log_probability.has_value());
}

TEST_CASE("log-probabilities of what tokens are drawn from follow its definition", "[infer][sampling]") {
  const unsigned seed = 57;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 2);
  inf::token_sampler sampler;
  for (int trial = 0; trial < 200; ++trial) {
    logits l(trial % 4 == 0 ? 523 : 17);
    for (double& x : l) x = normal(random);
    inf::request r{.log_probabilities = trial % 3, .log_probabilities_of = inf::log_probability_of::drawn};
    r.sampling.temperature = std::uniform_real_distribution<double>(0.3, 3)(random);
    if (random() % 2 == 0) r.sampling.top_k = static_cast<std::int64_t>(random() % 20);
    if (random() % 2 == 0) r.sampling.top_p = std::uniform_real_distribution<double>(0.05, 1)(random);
    CAPTURE(trial, r.sampling.temperature, r.sampling.top_k, r.sampling.top_p);
    const std::map<std::int32_t, double> p = filtered(l, r.sampling);
    const inf::drawn_token d = sampler.draw(std::span<const double>(l), r, seed, trial, {}, {});
    REQUIRE(p.contains(d.token));
    CHECK(*d.log_probability == Approx(std::log(p.at(d.token))).margin(1e-12));
    CHECK(d.token == drawn(l, r, seed, trial));  // which token is drawn does not depend on it
    std::vector<double> sorted;
    for (const auto& [token, x] : p) sorted.push_back(x);
    std::sort(sorted.rbegin(), sorted.rend());
    REQUIRE(d.likeliest.size() == (std::min)(p.size(), static_cast<std::size_t>(trial % 3)));
    for (std::size_t i = 0; i < d.likeliest.size(); ++i) {
      CHECK(d.likeliest[i].log_probability == Approx(std::log(sorted[i])).margin(1e-12));
      CHECK(p.at(d.likeliest[i].token) == Approx(sorted[i]));
    }
    r.sampling.temperature = 0;
    CHECK(*sampler.draw(std::span<const double>(l), r, seed, trial, {}, {}).log_probability == 0);
  }
  // Behind a mask only what it leaves counts.
  inf::request r{.log_probabilities = 0, .log_probabilities_of = inf::log_probability_of::drawn};
  r.mask = [](std::span<const std::int32_t>, std::span<double> l) { l[1] = -infinity; };
  const inf::drawn_token d = sampler.draw(std::span<const double>(logits{0, 5, 0}), r, 1, 0, {}, {});
  CHECK(*d.log_probability == Approx(std::log(.5)).epsilon(1e-14));
  r.mask = {};
  CHECK(inf::is_drawn_by_runner(r));
  r.sampling.top_p = .9;
  CHECK_FALSE(inf::is_drawn_by_runner(r));
  r.log_probabilities_of = inf::log_probability_of::model;
  CHECK(inf::is_drawn_by_runner(r));
}

TEST_CASE("tokens are drawn as often as their probabilities say", "[infer][sampling]") {
  // Chi-square with 6, 3 and 2 degrees of freedom: the bounds are exceeded once in 10^5 draws of a seed.
  const std::uint64_t seed = 4242;
  CAPTURE(seed);
  const logits l = {0.3, -1, 2, 1, 0, -0.5, 1.5};
  struct trial {
    inf::sampling_options options;
    double bound;
  };
  const std::vector<trial> trials = {
      {{}, 33.1}, {{.temperature = 1.7}, 33.1}, {{.top_k = 4}, 25.9}, {{.top_p = 0.75}, 23.0}};
  for (const trial& t : trials) {
    const inf::request r{.sampling = t.options};
    std::map<std::int32_t, double> count;
    const int draws = 20000;
    for (int i = 0; i < draws; ++i) count[drawn(l, r, seed, i)] += 1;
    const std::map<std::int32_t, double> p = filtered(l, t.options);
    double chi_square = 0;
    for (const auto& [token, x] : p) chi_square += std::pow(count[token] - draws * x, 2) / (draws * x);
    CAPTURE(t.options.temperature, t.options.top_k, t.options.top_p, p.size());
    CHECK(chi_square < t.bound);
    CHECK(chi_square > 0.01);
    CHECK(count.size() == p.size());
  }
}

TEST_CASE("a draw depends on seed and position alone", "[infer][sampling]") {
  const logits l(50, 0.0);
  std::vector<std::int32_t> first, other_seed;
  inf::token_sampler used;
  for (int i = 0; i < 40; ++i) {
    first.push_back(drawn(l, {}, 5, i));
    other_seed.push_back(drawn(l, {}, 6, i));
  }
  for (int i = 39; i >= 0; --i) {
    const std::int32_t again = used.draw(std::span<const double>(l), {}, 5, i, {}, {}).token;
    CHECK(again == first[static_cast<std::size_t>(i)]);
  }
  CHECK(first != other_seed);
  CHECK(std::count(first.begin(), first.end(), first[0]) < 10);
}

TEST_CASE("logits that are no numbers are a named error", "[infer][sampling][error]") {
  CHECK_THROWS_WITH(
      drawn({1, std::nan(""), 2}, {}),
      Contains("the logit of token 1 should be a number below infinity, got nan") || Contains("got -nan"));
  CHECK_THROWS_WITH(drawn({infinity, 1}, {.sampling = {.temperature = 0}}), Contains("token 0") && Contains("got inf"));
  CHECK_THROWS_WITH(drawn({-infinity, -infinity}, {}), "heddle: every logit is minus infinity: no token may follow");
  CHECK_THROWS_AS(drawn({}, {}), hd::numeric_error);
}

TEST_CASE("logits of 16 bits are drawn from as those numbers in float", "[infer][sampling]") {
  const unsigned seed = 31;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  const auto check = [&]<class T>(T) {
    for (int i = 0; i < 60; ++i) {
      std::vector<T> narrow;
      for (int j = 0; j < 37; ++j) narrow.push_back(T(normal(random)));
      const std::vector<float> wide(narrow.begin(), narrow.end());
      inf::request r{.log_probabilities = 3};
      r.sampling.temperature = i % 3 == 0 ? 0 : 0.8;
      r.sampling.top_k = i % 4 == 1 ? 9 : 0;
      r.sampling.top_p = i % 5 == 2 ? 0.7 : 1;
      r.sampling.repetition_penalty = i % 7 == 3 ? 1.2 : 1;
      inf::token_counts counts;
      counts.add_prompt(std::vector<std::int32_t>{4, 9, 20});
      inf::token_sampler a, b;
      const inf::drawn_token got = a.draw(std::span<const T>(narrow), r, 3, i, {}, counts),
                             want = b.draw(std::span<const float>(wide), r, 3, i, {}, counts);
      CHECK(got.token == want.token);
      CHECK(got.log_probability == want.log_probability);
      CHECK(got.likeliest == want.likeliest);
      const auto x = a.candidates(std::span<const T>(narrow), r, {}, counts),
                 y = b.candidates(std::span<const float>(wide), r, {}, counts);
      CHECK(x == y);
    }
    inf::token_sampler sampler;
    const std::vector<T> odd{T(1.0F), std::numeric_limits<T>::quiet_NaN(), T(2.0F)};
    CHECK_THROWS_WITH(sampler.draw(std::span<const T>(odd), {}, 1, 0, {}, {}), Contains("token 1"));
    const std::vector<T> none(20, T(-std::numeric_limits<float>::infinity()));
    CHECK_THROWS_AS(sampler.draw(std::span<const T>(none), {}, 1, 0, {}, {}), hd::numeric_error);
  };
  check(hd::bf16{});
  check(hd::f16{});
}
