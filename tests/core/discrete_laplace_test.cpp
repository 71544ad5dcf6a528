#include <heddle/core/discrete_laplace.hpp>

#include "catch.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace {
using heddle::counter_words;
using heddle::laplace_scale;

constexpr std::int64_t laplace_draw(std::uint64_t seed, std::uint32_t i, laplace_scale t) {
  counter_words words(seed, i, 0, 0);
  return heddle::discrete_laplace(words, t);
}

// P(draw <= k) in closed form.
double laplace_below(std::int64_t k, double t) {
  const double q = std::exp(-1 / t);
  const auto x = static_cast<double>(k);
  return k >= 0 ? 1 - std::pow(q, x + 1) / (1 + q) : std::pow(q, -x) / (1 + q);
}

struct goodness {
  double chi2;
  double bound;  // at the 1 % level
};

// Pearson's statistic over cells of about 4 % each, of draws at scale `drawn` against the closed form at scale `t`.
goodness laplace_fit(std::uint64_t seed, laplace_scale drawn, double t, int draws) {
  const double farthest = std::ceil(t * 3.5);  // beyond: one cell on either side
  std::vector<std::int64_t> last;              // the last integer of each cell but the last cell
  double before = 0;
  for (auto k = -static_cast<std::int64_t>(farthest); k <= static_cast<std::int64_t>(farthest); ++k)
    if (laplace_below(k, t) - before > 0.04 && 1 - laplace_below(k, t) > 0.02) {
      last.push_back(k);
      before = laplace_below(k, t);
    }
  std::vector<int> hits(last.size() + 1);
  for (int i = 0; i < draws; ++i) {
    const std::int64_t x = laplace_draw(seed, static_cast<std::uint32_t>(i), drawn);
    std::size_t cell = 0;
    while (cell < last.size() && x > last[cell]) ++cell;
    ++hits[cell];
  }
  double chi2 = 0;
  before = 0;
  for (std::size_t c = 0; c < hits.size(); ++c) {
    const double upto = c < last.size() ? laplace_below(last[c], t) : 1;
    const double wanted = (upto - before) * draws;
    chi2 += (hits[c] - wanted) * (hits[c] - wanted) / wanted;
    before = upto;
  }
  const auto freedom = static_cast<double>(last.size());
  const double root = 1 - 2 / (9 * freedom) + 2.3263 * std::sqrt(2 / (9 * freedom));  // Wilson and Hilferty
  return {chi2, freedom * root * root * root};
}
}  // namespace

// HEDDLE_LAPLACE_DRAWS=1000000 in the environment draws more by hand.
TEST_CASE("draws have the discrete Laplace distribution of their scale", "[core][property]") {
  const char* asked = std::getenv("HEDDLE_LAPLACE_DRAWS");
  const int draws = asked != nullptr ? std::atoi(asked) : 100'000;
  const std::uint64_t seed = 48;
  for (const laplace_scale t : {laplace_scale{3, 2}, {15, 1}, {4080, 1}, {40800, 1}}) {
    const double scale = static_cast<double>(t.numerator) / t.denominator;
    const goodness fit = laplace_fit(seed, t, scale, draws);
    UNSCOPED_INFO("scale " << scale << ": chi^2 " << fit.chi2 << ", bound " << fit.bound);
    CHECK(fit.chi2 < fit.bound);
    // The same draws do not pass for another scale.
    const goodness other = laplace_fit(seed, t, scale * 1.05, draws);
    CHECK(other.chi2 > other.bound);
  }
}

TEST_CASE("a draw is the same in constant evaluation and at run time", "[core][law]") {
  constexpr std::int64_t small = laplace_draw(7, 1, {3, 2}) + 100 * laplace_draw(7, 2, {3, 2});
  constexpr std::int64_t large = laplace_draw(7, 3, {40800, 1});
  constexpr std::int64_t largest = laplace_draw(7, 4, {0xffffffffu, 1});
  volatile std::uint64_t seed = 7;
  CHECK(laplace_draw(seed, 1, {3, 2}) + 100 * laplace_draw(seed, 2, {3, 2}) == small);
  CHECK(laplace_draw(seed, 3, {40800, 1}) == large);
  CHECK(laplace_draw(seed, 4, {0xffffffffu, 1}) == largest);
  CHECK(large != 0);
}

TEST_CASE("numbers below a bound are uniform", "[core][property]") {
  for (const std::uint32_t n : {1u, 2u, 3u, 10u}) {
    counter_words words(3, n, 0, 0);
    std::vector<int> hits(n);
    for (int i = 0; i < 30'000; ++i) ++hits[words.below(n)];
    double chi2 = 0;
    for (const int h : hits) chi2 += (h - 30'000.0 / n) * (h - 30'000.0 / n) / (30'000.0 / n);
    CHECK(chi2 < 21.67);  // 1 % level of 9 degrees of freedom, the most there are
  }
  // Three quarters of all words are taken for 3 2^30: the others must be drawn again.
  counter_words words(4, 0, 0, 0);
  int upper = 0;
  for (int i = 0; i < 30'000; ++i) upper += words.below(3u << 30) >= (3u << 29);
  CHECK(std::abs(upper - 15'000) < 400);
}
