#include <heddle/compute/host/host.hpp>
#include <heddle/model/falcon_drafter.hpp>
#include <heddle/train/glancing_distillation.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace tr = heddle::train;
using backend = hd::compute::host<>;
using drafter_type = md::falcon_drafter<double, backend>;
using distillation = tr::glancing_distillation<drafter_type, backend>;
using Catch::Matchers::Contains;

namespace {

constexpr std::int64_t width = 12, words = 16;

// A source of pairs: an even token, nine times of ten the one that follows the last token, then the odd one that belongs to it. Features are rows of a table, of the token that comes next, so that the
// model's head is right about it.
struct source {
  std::vector<double> table = std::vector<double>(static_cast<std::size_t>(words * width));
  std::mt19937 random;
  explicit source(unsigned seed) : random(seed) {
    for (double& x : table) x = std::normal_distribution<double>()(random);
  }
  md::feature_text<double> text(std::int64_t length) {
    md::feature_text<double> t;
    std::int32_t last = 0;
    for (std::int64_t i = 0; i <= length; ++i) {
      if (i % 2 == 0)
        last = (last * 5 + 2) % words | 1;
      else if (std::uniform_real_distribution<double>()(random) < 0.9)
        last = (last * 3 + 4) % words & ~1;
      else
        last = static_cast<std::int32_t>(random() % (words / 2)) * 2;
      t.tokens.push_back(last);
    }
    for (std::size_t i = 1; i < t.tokens.size(); ++i)
      t.features.insert(t.features.end(), table.begin() + t.tokens[i] * width,
                        table.begin() + (t.tokens[i] + 1) * width);
    t.tokens.pop_back();
    return t;
  }
};
void begin(drafter_type& d, const source& s, std::uint64_t seed) {
  d.initialize(seed, 0.2);
  std::copy(s.table.begin(), s.table.end(), d.embedding().begin());
  std::copy(s.table.begin(), s.table.end(), d.head().begin());
}

}  // namespace

TEST_CASE("the gradient of a distillation is that of central differences", "[train][falcon]") {
  const unsigned seed = 3;
  CAPTURE(seed);
  backend kernels{1};
  drafter_type d(kernels, {.width = width, .heads = 2, .ffn = 9, .vocabulary = words, .context = 20});
  source s(seed);
  begin(d, s, seed);
  const std::int64_t rows = 5;
  std::vector<double> drafted(rows * width), target(rows * width), gradient(rows * width), unused(rows * width);
  std::vector<std::int32_t> tokens;
  for (double& x : drafted) x = 1.5 * std::normal_distribution<double>()(s.random);
  for (double& x : target) x = std::normal_distribution<double>()(s.random);
  for (std::int64_t i = 0; i < rows; ++i) tokens.push_back(static_cast<std::int32_t>(s.random() % words));
  const auto loss = [&](std::vector<double>& g) {
    return tr::distillation_loss<double>(d, drafted, target, tokens, {.head_weight = 0.7, .divergence_weight = 0.6}, g);
  };
  loss(gradient);
  double worst = 0;
  for (std::size_t i = 0; i < drafted.size(); ++i) {
    const double before = drafted[i], h = 1e-5;
    drafted[i] = before + h;
    const double above = loss(unused);
    drafted[i] = before - h;
    const double below = loss(unused);
    drafted[i] = before;
    worst = (std::max)(worst, std::abs((above - below) / (2 * h) - gradient[i]));
  }
  CHECK(worst < 1e-9);
  // Of equal features it is the entropy of the model, and the token's share.
  drafted = target;
  CHECK(tr::distillation_loss<double>(d, drafted, target, tokens, {.head_weight = 1, .divergence_weight = 1}, unused) ==
        Approx(0).margin(1e-12));
}

TEST_CASE("rows that are shown are whole blocks, as many as the share says", "[train][falcon][law]") {
  const hd::counter_random random(8, 1);
  for (const std::int64_t block : {1, 2, 3, 4})
    for (std::int64_t count = 0; count <= 24; ++count) {
      const auto shown = tr::glanced_rows(24, block, count, random, static_cast<std::uint64_t>(count * 100));
      CAPTURE(block, count);
      CHECK(std::ssize(shown) == count);
      CHECK(std::ssize(std::set<std::int64_t>(shown.begin(), shown.end())) == count);
      for (std::int64_t i = 0; i < count; ++i)
        CHECK(shown[static_cast<std::size_t>(i)] % block == i % block);  // each block from its first row on
    }
  CHECK(tr::glance_ratio(0.4, 1, 20) == Approx(0.38));
  CHECK(tr::glance_ratio(0.4, 20, 20) == 0);
}

TEST_CASE(
    "a drafter learns pairs of tokens, is shown fewer in each epoch and none in the last, and whole blocks come out "
    "better",
    "[train][falcon][slow]") {
  constexpr std::int64_t block = 4, rows = 8 * block, epochs = 15, count = 64;
  backend kernels{1};
  // How often all tokens of a block are right after training, over texts that were not seen.
  const auto matches = [&](double glance, unsigned seed) {
    CAPTURE(seed, glance);
    source s(seed);
    std::vector<md::feature_text<double>> texts, unseen;
    for (std::int64_t i = 0; i < count; ++i) texts.push_back(s.text(rows + block + 1));
    for (int i = 0; i < 300; ++i) unseen.push_back(s.text(rows + block + 1));
    drafter_type d(kernels,
                   {.width = width, .heads = 2, .ffn = 24, .vocabulary = words, .block = block, .context = 64});
    begin(d, s, seed);
    distillation train(d, kernels,
                       {.epochs = epochs,
                        .batch = 8,
                        .learning_rate = {.peak = 5e-3, .minimum = 5e-4, .warmup_steps = 6, .total_steps = 120},
                        .glance = glance,
                        .dropout = 0,
                        .seed = seed});
    double first = 0;
    tr::distillation_epoch e;
    for (std::int64_t i = 1; i <= epochs; ++i) {
      e = train.run_epoch(texts, i);
      if (i == 1) first = e.loss;
      CHECK(e.rows == count * rows);
      const double share = tr::glance_ratio(glance, i, epochs) * static_cast<double>(e.wrong);
      CHECK(static_cast<double>(e.shown) <= share + 1e-9);  // a floor for each text
      CHECK(static_cast<double>(e.shown) > share - static_cast<double>(count));
      if (i == epochs) CHECK(e.shown == 0);
    }
    CHECK(e.loss < 0.75 * first);
    double right = 0;
    for (const auto& t : unseen) {
      typename drafter_type::prefix p;
      d.append(p, std::span(t.tokens).subspan(1, rows), std::span<const double>(t.features).first(rows * width));
      const auto blocks = d.begin_drafts(p);
      bool all = true;
      for (std::int64_t r = 0; r < block; ++r) {
        const auto row = blocks[0].logits.begin() + r * words;
        all = all && std::max_element(row, row + words) - row == t.tokens[static_cast<std::size_t>(rows + 1 + r)];
      }
      right += all ? 1 : 0;
    }
    return right / static_cast<double>(unseen.size());
  };
  double with = 0, without = 0;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    with += matches(0.4, seed) / 6;
    without += matches(0, seed) / 6;
  }
  // 0.358 and 0.321 with g++ 12, for single seeds from 0.95 to 3 times as many; another compiler may round otherwise.
  CAPTURE(with, without);
  CHECK(with > 0.97 * without);
  CHECK(with > 0.25);
}

TEST_CASE("a distillation with dropout is that of its seed", "[train][falcon]") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  backend kernels{1};
  const auto trained = [&](std::uint64_t of, double dropout) {
    source s(seed);
    std::vector<md::feature_text<double>> texts;
    texts.push_back(s.text(9));  // the seed orders several, and changes glances and noise
    drafter_type d(kernels, {.width = width, .heads = 2, .ffn = 9, .vocabulary = words, .context = 20});
    begin(d, s, seed);
    distillation train(d, kernels,
                       {.epochs = 2,
                        .batch = 2,
                        .learning_rate = {.peak = 1e-2},
                        .glance = 0,
                        .noise = 0,
                        .dropout = dropout,
                        .seed = of});
    std::vector<double> losses;
    for (int e = 1; e <= 2; ++e) losses.push_back(train.run_epoch(texts, e).loss);
    losses.insert(losses.end(), d.weights().begin(), d.weights().end());
    return losses;
  };
  const auto one = trained(1, 0.1);
  CHECK(std::all_of(one.begin(), one.end(), [](double x) { return std::isfinite(x); }));
  CHECK(trained(1, 0.1) == one);
  CHECK(trained(2, 0) == trained(1, 0));
  CHECK(trained(2, 0.1) != one);
  CHECK(trained(1, 0) != one);
}

TEST_CASE("texts that do not fit a distillation are refused", "[train][falcon][error]") {
  backend kernels{1};
  drafter_type d(kernels, {.width = width, .heads = 2, .ffn = 9, .vocabulary = words, .context = 20});
  source s(1);
  distillation train(d, kernels, {.epochs = 2, .learning_rate = {.peak = 1e-3, .total_steps = 2}});
  CHECK_THROWS_WITH(train.run_epoch({s.text(9), s.text(8)}, 1), Contains("9 tokens"));
  CHECK_THROWS_WITH(train.run_epoch({s.text(4)}, 1), Contains("at least 5 tokens"));
  CHECK_THROWS_AS(distillation(d, kernels, {.epochs = 0}), hd::config_error);
  constexpr double no_number = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_WITH(distillation(d, kernels, {.glance = no_number}), Contains("nan"));
  for (const double rate : {-0.1, 1.0, no_number})
    CHECK_THROWS_WITH(distillation(d, kernels, {.dropout = rate}), Contains("dropout must be from 0 to below 1"));
  // Each token is looked at, also those that no row reads.
  for (const std::size_t at : {std::size_t{0}, std::size_t{4}, std::size_t{8}})
    for (const std::int32_t token : {-1, 16, std::numeric_limits<std::int32_t>::min()}) {
      CAPTURE(at, token);
      std::vector<md::feature_text<double>> texts{s.text(9), s.text(9)};
      texts[1].tokens[at] = token;
      CHECK_THROWS_WITH(train.run_epoch(texts, 1), Contains("from 0 to 15, got " + std::to_string(token)));
    }
  std::vector<double> features(2 * width), gradient(2 * width);
  const auto loss = [&](const std::vector<std::int32_t>& tokens) {
    return tr::distillation_loss<double>(d, features, features, tokens, {}, gradient);
  };
  CHECK_THROWS_WITH(loss({1, 16}), Contains("from 0 to 15, got 16"));
  CHECK_THROWS_AS(loss({}), hd::layout_error);
  CHECK_THROWS_AS(loss({1, 2, 3}), hd::layout_error);
  CHECK_THROWS_WITH(tr::glanced_rows(4, 0, 1, hd::counter_random(1, 1), 0), Contains("got 0"));
}
