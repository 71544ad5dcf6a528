// tests/compute/expert_choice_test.cpp: choice of experts by biased scores in groups, and copies and sums of parts of heads, against slow formulas.
#include "catch.hpp"
#include "support.hpp"

#include <heddle/compute/ops/expert_choice.hpp>
#include <heddle/compute/ops/head_parts.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

using namespace compute_test;

namespace {

using ids = std::vector<std::int32_t>;

template <class Scores>
std::vector<double> slow_scores(const double* row, int64_t experts) {
  std::vector<double> s(row, row + experts);
  double sum = 0;
  for (double& x : s) sum += x = std::is_same_v<Scores, hc::sigmoid_scores> ? 1 / (1 + std::exp(-x)) : std::exp(x);
  if constexpr (std::is_same_v<Scores, hc::softmax_scores>)
    for (double& x : s) x /= sum;
  return s;
}

// The choice of one row, by sorting groups and then the experts of those that are kept.
ids slow_choice(const std::vector<double>& biased, const hc::grouped_choice& rule, int64_t k) {
  const auto each = static_cast<int64_t>(biased.size()) / rule.groups;
  std::vector<std::pair<double, int64_t>> groups;
  for (int64_t g = 0; g < rule.groups; ++g) {
    std::vector<double> in(biased.begin() + g * each, biased.begin() + (g + 1) * each);
    std::sort(in.rbegin(), in.rend());
    groups.emplace_back(-std::accumulate(in.begin(), in.begin() + (std::min)(rule.best, each), 0.0), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<double, std::int32_t>> left;
  for (int64_t i = 0; i < rule.kept; ++i)
    for (int64_t j = 0; j < each; ++j) {
      const int64_t e = groups[static_cast<std::size_t>(i)].second * each + j;
      left.emplace_back(-biased[static_cast<std::size_t>(e)], static_cast<std::int32_t>(e));
    }
  std::sort(left.begin(), left.end());
  ids chosen;
  for (int64_t j = 0; j < k; ++j) chosen.push_back(left[static_cast<std::size_t>(j)].second);
  return chosen;
}

}  // namespace

TEMPLATE_TEST_CASE(
    "experts are chosen by biased scores in the best groups, weighed without the bias, and differentiated",
    "[compute][experts]", hc::sigmoid_scores, hc::softmax_scores) {
  struct size {
    int64_t tokens, experts, k;
    hc::grouped_choice rule;
  };
  for (const auto& [tokens, experts, k, rule] :
       {size{0, 4, 2, {}}, size{5, 1, 1, {}}, size{9, 6, 3, {3, 2, 2, true, 1.7}}, size{9, 6, 2, {3, 1, 1, false, 1}},
        size{11, 12, 4, {4, 2, 9, true, 2.5}}, size{300, 32, 5, {8, 3, 2, true, 2.5}}}) {
    CAPTURE(seed, tokens, experts, k, rule.groups);
    hc::host<> backend(2);
    auto logits = normal<double>(tokens * experts, 31, 2.0);
    // Some biased scores are below zero: an expert of a group that is not kept is not chosen for it.
    auto bias = normal<double>(experts, 32, 0.6);
    for (double& b : bias) b -= 1;
    ids chosen(static_cast<std::size_t>(tokens * k)), want_chosen;
    std::vector<double> weights(chosen.size()), want, dlogits(logits.size(), NAN);
    const auto forward = [&] {
      hc::run<hc::ops::choose_experts<TestType>>(backend, matrix(std::as_const(logits), tokens, experts), bias, rule,
                                                 matrix(chosen, tokens, k), matrix(weights, tokens, k));
    };
    // No bias: the choice of a bias of zeros.
    const std::vector<double> zeros(bias.size()), none;
    ids of_zeros(chosen.size()), of_none(chosen.size());
    for (const auto& [from, to] : {std::pair(&zeros, &of_zeros), std::pair(&none, &of_none)})
      hc::run<hc::ops::choose_experts<TestType>>(backend, matrix(std::as_const(logits), tokens, experts), *from, rule,
                                                 matrix(*to, tokens, k), matrix(weights, tokens, k));
    CHECK(of_none == of_zeros);
    forward();
    for (int64_t t = 0; t < tokens; ++t) {
      const auto s = slow_scores<TestType>(logits.data() + t * experts, experts);
      auto biased = s;
      for (std::size_t e = 0; e < s.size(); ++e) biased[e] += bias[e];
      const ids best = slow_choice(biased, rule, k);
      want_chosen.insert(want_chosen.end(), best.begin(), best.end());
      double sum = 0;
      for (const std::int32_t e : best) sum += s[static_cast<std::size_t>(e)];
      for (const std::int32_t e : best)
        want.push_back(rule.scale * s[static_cast<std::size_t>(e)] / (rule.normed ? sum : 1));
    }
    CHECK(chosen == want_chosen);
    CHECK(distance(weights, want) <= 1e-14);
    if (tokens > 20) continue;
    const auto dweights = normal<double>(tokens * k, 33);
    hc::run<hc::ops::choose_experts_backward<TestType>>(backend, matrix(std::as_const(logits), tokens, experts),
                                                        matrix(std::as_const(chosen), tokens, k), rule,
                                                        matrix(dweights, tokens, k), matrix(dlogits, tokens, experts));
    const auto value = [&] {
      forward();
      return dot(weights, dweights);
    };
    CHECK(distance(dlogits, finite_differences(logits, value)) <= 1e-8);
  }
}

TEST_CASE("a bias selects experts and is not in their weights; balancing moves it by the sign of the load's error",
          "[compute][experts]") {
  hc::host<> backend;
  const std::vector<double> logits{1, 2, 0.5, -1}, bias{0, -0.5, 0.3, 0};
  ids chosen(2);
  std::vector<double> weights(2);
  hc::run<hc::ops::choose_experts<hc::sigmoid_scores>>(backend, matrix(logits, 1, 4), bias, hc::grouped_choice{},
                                                       matrix(chosen, 1, 2), matrix(weights, 1, 2));
  CHECK(chosen == ids{2, 0});
  CHECK(weights[0] == Approx(0.4598825968).epsilon(1e-9));
  CHECK(weights[1] == Approx(0.5401174032).epsilon(1e-9));
  const std::vector<float> far{-2000, 2000};
  std::vector<float> w(2);
  hc::run<hc::ops::choose_experts<hc::sigmoid_scores>>(backend, matrix(far, 1, 2), std::vector<float>{0, 0},
                                                       hc::grouped_choice{}, matrix(chosen, 1, 2), matrix(w, 1, 2));
  CHECK(chosen == ids{1, 0});
  CHECK(w == std::vector<float>{1, 0});
  const hc::grouped_choice narrow{.groups = 4, .kept = 1};
  CHECK_THROWS_WITH(hc::run<hc::ops::choose_experts<hc::sigmoid_scores>>(backend, matrix(logits, 1, 4), bias, narrow,
                                                                         matrix(chosen, 1, 2), matrix(weights, 1, 2)),
                    "heddle: choose_experts: 2 of 4 experts should be in 1 of 4 groups of the same size, which have at "
                    "least so many experts");
  std::vector<double> balanced = bias;
  hc::run<hc::ops::balance_bias>(backend, std::vector<double>{3, 9, 0, 4}, 0.125, vec(balanced));
  CHECK(balanced == std::vector<double>{0.125, -0.625, 0.425, 0});
}

TEST_CASE("parts of heads are copied head by head or from one head, and summed into one", "[compute][heads]") {
  hc::host<> backend(2);
  const int64_t rows = 5, heads = 3, each = 4;
  const auto x = normal<double>(rows * heads * each, 41), one = normal<double>(rows * 6, 42);
  const auto at = [](int64_t r, int64_t columns, int64_t c) { return static_cast<std::size_t>(r * columns + c); };
  std::vector<double> y(static_cast<std::size_t>(rows * heads * 5), -7), sum(static_cast<std::size_t>(rows * 2), NAN);
  hc::run<hc::ops::copy_heads>(backend, hc::part_of_heads(matrix(x, rows, heads * each), heads, each, 1), 2,
                               hc::part_of_heads(matrix(y, rows, heads * 5), heads, 5, 3));
  hc::run<hc::ops::copy_heads>(backend, hc::part_of_heads(matrix(one, rows, 6), 1, 6, 4), 2,
                               hc::part_of_heads(matrix(y, rows, heads * 5), heads, 5));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < 2; ++i) {
        CHECK(y[at(r, heads * 5, h * 5 + 3 + i)] == x[at(r, heads * each, h * each + 1 + i)]);
        CHECK(y[at(r, heads * 5, h * 5 + i)] == one[at(r, 6, 4 + i)]);
      }
      CHECK(y[at(r, heads * 5, h * 5 + 2)] == -7);
    }
  hc::run<hc::ops::sum_heads>(backend, hc::part_of_heads(matrix(x, rows, heads * each), heads, each, 2), 2,
                              hc::part_of_heads(matrix(sum, rows, 2), 1, 2));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < 2; ++i)
      CHECK(sum[at(r, 2, i)] == Approx(x[at(r, 12, 2 + i)] + x[at(r, 12, 6 + i)] + x[at(r, 12, 10 + i)]));
  const std::vector<double> none;
  hc::run<hc::ops::sum_heads>(backend, hc::part_of_heads(matrix(none, rows, 0), 0, each), 2,
                              hc::part_of_heads(matrix(sum, rows, 2), 1, 2));
  CHECK(sum == std::vector<double>(sum.size(), 0.0));
  CHECK_THROWS_WITH(hc::part_of_heads(matrix(x, rows, 12), 5, 2), Catch::Contains("should have those of 5 heads of 2"));
  CHECK_THROWS_WITH(hc::run<hc::ops::copy_heads>(backend, hc::part_of_heads(matrix(x, rows, 12), 3, 4), 5,
                                                 hc::part_of_heads(matrix(y, rows, 15), 3, 5)),
                    "heddle: copy_heads: columns should be from 0 to those of a head, 4, got 5");
}
