#include <heddle/compute/host/host.hpp>
#include <heddle/model/falcon_drafter.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
using backend = hd::compute::host<>;
using drafter_type = md::falcon_drafter<double, backend>;
using Catch::Matchers::Contains;

namespace {

md::falcon_shape small(std::int64_t block) {
  return {.width = 8, .heads = 2, .ffn = 12, .vocabulary = 11, .block = block, .context = 40};
}
drafter_type random_drafter(backend& kernels, std::int64_t block, unsigned seed) {
  drafter_type d(kernels, small(block));
  d.initialize(seed, 0.4);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  for (const auto w : {d.embedding(), d.head(), d.final_norm()})
    for (double& x : w) x = normal(random);
  for (const std::size_t p : {drafter_type::norm_1, drafter_type::norm_2, drafter_type::bias_1, drafter_type::bias_2})
    for (double& x : d.weights(p)) x += 0.3 * normal(random);
  return d;
}
struct rows {
  std::vector<std::int32_t> next;
  std::vector<double> features;
};
rows random_rows(std::int64_t n, unsigned seed) {
  rows r;
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < n; ++i) r.next.push_back(static_cast<std::int32_t>(random() % 11));
  for (std::int64_t i = 0; i < n * 8; ++i) r.features.push_back(normal(random));
  return r;
}

}  // namespace

TEST_CASE("slices of the relaxed causal mask are those of its definition", "[compute][law]") {
  for (const std::int64_t block : {1, 2, 3, 5})
    for (const std::int64_t n : {1, 4, 9, 10}) {
      std::vector<int> seen(static_cast<std::size_t>(2 * n * 2 * n), 0);
      for (const auto& s : hd::compute::relaxed_causal_slices(2, n, block))
        for (std::int64_t q = s.q_begin; q < s.q_end; ++q)
          for (std::int64_t key = s.first_key(q); key < s.last_key(q); ++key)
            ++seen[static_cast<std::size_t>(q * 2 * n + key)];
      for (std::int64_t q = 0; q < 2 * n; ++q)
        for (std::int64_t key = 0; key < 2 * n; ++key) {
          const bool allowed = q / n == key / n && (key % n) / block <= (q % n) / block;
          CHECK(seen[static_cast<std::size_t>(q * 2 * n + key)] == (allowed ? 1 : 0));
        }
    }
  CHECK_THROWS_AS(hd::compute::relaxed_causal_slices(1, 4, 0), hd::layout_error);
}

TEST_CASE("gradients of a drafter are those of central differences, with dropout, too", "[model][falcon]") {
  const unsigned seed = 5;
  CAPTURE(seed);
  backend kernels{1};
  for (const auto& [block, rate] : {std::pair(1, 0.0), std::pair(2, 0.0), std::pair(3, 0.0), std::pair(2, 0.3)}) {
    CAPTURE(rate);
    const md::falcon_dropout dropout{.rate = rate, .random = {seed, 1}};  // one mask for all passes
    drafter_type d = random_drafter(kernels, block, seed);
    const std::int64_t sequences = 2, n = 7;
    const rows r = random_rows(sequences * n, seed + 1);
    const rows direction = random_rows(sequences * n, seed + 2);  // the loss is a sum of outputs times these
    const auto loss = [&] {
      const auto z = d.forward(r.next, r.features, sequences, n, dropout);
      double sum = 0;
      for (std::size_t i = 0; i < z.size(); ++i) sum += z[i] * direction.features[i];
      return sum;
    };
    loss();
    std::fill(d.gradients().begin(), d.gradients().end(), 0.0);
    d.backward(direction.features);
    const std::vector<double> found(d.gradients().begin(), d.gradients().end());
    std::size_t place = 0;
    for (std::size_t p = 0; p < drafter_type::parts; ++p) {
      const auto w = d.weights(p);
      double worst = 0, size = 0;
      for (std::size_t i = 0; i < w.size(); i += 1 + w.size() / 40) {
        const double before = w[i], h = 1e-5;
        w[i] = before + h;
        const double above = loss();
        w[i] = before - h;
        const double below = loss();
        w[i] = before;
        const double difference = (above - below) / (2 * h);
        worst = (std::max)(worst, std::abs(difference - found[place + i]));
        size = (std::max)(size, std::abs(difference));
      }
      place += w.size();
      CAPTURE(block, drafter_type::names[p], size);
      CHECK(worst < 1e-7 * (1 + size));
      CHECK(size > 1e-4);
    }
    CHECK(place == d.weights().size());
  }
}

TEST_CASE("dropout is that of its random numbers, and drafting has none", "[model][falcon]") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  backend kernels{1};
  drafter_type d = random_drafter(kernels, 2, seed);
  const rows r = random_rows(8, seed + 1);
  const auto pass = [&](const md::falcon_dropout& dropout) {
    const auto z = d.forward(r.next, r.features, 2, 4, dropout);
    return std::vector<double>(z.begin(), z.end());
  };
  const auto drafts = [&] {
    typename drafter_type::prefix p;
    d.append(p, r.next, r.features);
    return d.begin_drafts(p)[0].features;
  };
  const auto plain = pass({}), drafted = drafts(), dropped = pass({.rate = 0.5, .random = {seed, 3}});
  CHECK(drafts() == drafted);
  CHECK(dropped != plain);
  CHECK(pass({.rate = 0.5, .random = {seed, 3}}) == dropped);
  CHECK(pass({.rate = 0.5, .random = {seed, 4}}) != dropped);
  CHECK(pass({.rate = 0, .random = {seed, 3}}) == plain);
  // The first row of a text: without what its first LSTM layer gives, features come of the second one's bias alone, whatever the text is.
  const auto nothing = pass({.rate = 1 - 1e-15, .random = {seed, 3}});
  rows other = random_rows(8, seed + 2);
  CHECK_FALSE(std::equal(plain.begin(), plain.end(), d.forward(other.next, other.features, 2, 4).begin()));
  const auto same = d.forward(other.next, other.features, 2, 4, {.rate = 1 - 1e-15, .random = {seed, 3}});
  CHECK(std::equal(nothing.begin(), nothing.end(), same.begin()));
  for (const double rate : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()})
    CHECK_THROWS_WITH(pass({.rate = rate}), Contains("rate from 0 to below 1"));
}

TEST_CASE("what a drafter keeps of a text is a pass over the whole text", "[model][falcon][law]") {
  const unsigned seed = 9;
  CAPTURE(seed);
  backend kernels{1};
  for (const std::int64_t block : {1, 2, 3, 4}) {
    drafter_type d = random_drafter(kernels, block, seed);
    const std::int64_t n = 4 * block;
    const rows r = random_rows(n, seed + 1);
    const auto whole = d.forward(r.next, r.features, 1, n);
    const std::vector<double> expected(whole.begin(), whole.end());
    for (const std::int64_t part : {std::int64_t{1}, std::int64_t{3}, n}) {
      typename drafter_type::prefix p;
      for (std::int64_t i = 0; i < n; i += part) {
        const auto count = static_cast<std::size_t>((std::min)(part, n - i));
        d.append(p, std::span(r.next).subspan(static_cast<std::size_t>(i), count),
                 std::span<const double>(r.features).subspan(static_cast<std::size_t>(i) * 8, count * 8));
      }
      CHECK(p.rows == n);
      const auto blocks = d.begin_drafts(p);
      for (std::size_t i = 0; i < static_cast<std::size_t>(block * 8); ++i)  // the last block of the text
        CHECK(blocks[0].features[i] == Approx(expected[static_cast<std::size_t>((n - block) * 8) + i]).margin(1e-10));
    }
  }
}

TEST_CASE("blocks of a tree of drafts are those of a text that has their path", "[model][falcon][law]") {
  const unsigned seed = 12;
  CAPTURE(seed);
  backend kernels{1};
  for (const std::int64_t block : {1, 2, 3}) {
    drafter_type d = random_drafter(kernels, block, seed);
    const std::int64_t n = 3 * block;
    const auto length = static_cast<std::size_t>(block);
    const rows r = random_rows(n, seed + 1), tokens = random_rows(7 * block, seed + 2);
    typename drafter_type::prefix p;
    d.append(p, r.next, r.features);
    auto blocks = d.begin_drafts(p);
    const std::vector<std::int64_t> second{0, 0}, third{1, 2, 2}, fourth{4, 3};  // parents of passes 2, 3 and 4
    std::size_t used = 0;
    for (const auto& parents : {second, third, fourth}) {
      d.draft(p, blocks, parents, std::span(tokens.next).subspan(used * length, parents.size() * length));
      used += parents.size();
    }
    REQUIRE(blocks.size() == 8);
    for (std::size_t leaf = 1; leaf < blocks.size(); ++leaf) {
      std::vector<std::size_t> path;
      for (auto b = static_cast<std::int64_t>(leaf); b > 0; b = blocks[static_cast<std::size_t>(b)].parent)
        path.insert(path.begin(), static_cast<std::size_t>(b));
      rows text = r;
      for (const std::size_t b : path) {
        const auto& features = blocks[static_cast<std::size_t>(blocks[b].parent)].features;
        text.features.insert(text.features.end(), features.begin(), features.end());
        for (std::size_t i = 0; i < length; ++i) text.next.push_back(tokens.next[(b - 1) * length + i]);
      }
      const auto whole = d.forward(text.next, text.features, 1, std::ssize(text.next));
      CAPTURE(block, leaf, path.size());
      double worst = 0;
      for (std::size_t i = 0; i < length * 8; ++i)
        worst = (std::max)(worst, std::abs(blocks[leaf].features[i] - whole[whole.size() - length * 8 + i]));
      CHECK(worst < 1e-10);
    }
    d.end_drafts(p);
    CHECK(std::ssize(p.keys) == n * 8);
    const auto again = d.begin_drafts(p);
    CHECK(again[0].features == blocks[0].features);
  }
}

TEST_CASE("a drafter of sizes that do not fit is refused", "[model][falcon][error]") {
  backend kernels{1};
  CHECK_THROWS_WITH(drafter_type(kernels, {.width = 6, .heads = 2, .ffn = 1, .vocabulary = 1, .context = 1}),
                    Contains("width 6, heads 2"));
  drafter_type d(kernels, small(2));
  typename drafter_type::prefix p;
  CHECK_THROWS_AS(d.begin_drafts(p), hd::layout_error);
  const rows r = random_rows(3, 1);
  CHECK_THROWS_AS(d.forward(r.next, r.features, 2, 3), hd::layout_error);
  CHECK_THROWS_AS(d.append(p, r.next, std::span(r.features).first(23)), hd::layout_error);
  // Tokens that the vocabulary of 11 does not have.
  for (const std::int32_t token : {-1, 11, std::numeric_limits<std::int32_t>::max()}) {
    CAPTURE(token);
    rows bad = random_rows(4, 1);
    bad.next[2] = token;
    const auto says = Contains("from 0 to 10, got " + std::to_string(token));
    CHECK_THROWS_WITH(d.forward(bad.next, bad.features, 2, 2), says);
    CHECK_THROWS_WITH(d.append(p, bad.next, bad.features), says);
    CHECK(p.rows == 0);
    typename drafter_type::prefix good;
    d.append(good, r.next, r.features);
    auto blocks = d.begin_drafts(good);
    const std::int64_t first = 0, none = 1;
    CHECK_THROWS_WITH(d.draft(good, blocks, std::span(&first, 1), std::vector<std::int32_t>{1, token}), says);
    CHECK_THROWS_WITH(d.draft(good, blocks, std::span(&none, 1), std::vector<std::int32_t>{1, 1}), Contains("got 1"));
    CHECK(blocks.size() == 1);
  }
}

TEST_CASE("a drafter takes embedding, head and norm from stages in any order", "[model][falcon]") {
  // Ranks of a pipeline: one has the embedding, the other what follows the blocks.
  struct stage {
    std::vector<md::parameter> table{};
    std::vector<double> values{};
    const std::vector<md::parameter>& parameters() const { return table; }
    const std::vector<md::parameter>& frozen_parameters() const { return none; }
    std::span<const double> weights() const { return values; }
    std::span<const double> frozen_weights() const { return {}; }
    void add(const char* name, const std::vector<std::int64_t>& shape, double first) {
      md::parameter p{.name = name,
                      .shape = shape,
                      .logical = shape,
                      .local = shape,
                      .start = std::vector<std::int64_t>(shape.size())};
      p.offset = std::ssize(values);
      p.count = p.global_count();
      for (std::int64_t i = 0; i < p.count; ++i) values.push_back(first + static_cast<double>(i));
      table.push_back(p);
    }
    std::vector<md::parameter> none{};
  };
  backend kernels{1};
  const auto vector_of = [](std::span<const double> x) { return std::vector<double>(x.begin(), x.end()); };
  for (const bool own_head : {true, false}) {
    stage first, last;
    first.add("model.embed_tokens.weight", {11, 8}, 100);
    if (own_head) last.add("lm_head.weight", {11, 8}, 300);
    last.add("model.norm.weight", {8}, 500);
    const std::vector<double> embedding = first.values;
    const std::vector<double> head = own_head ? std::vector(last.values.begin(), last.values.begin() + 88) : embedding;
    const std::vector<double> norm(last.values.end() - 8, last.values.end());
    for (const bool forwards : {true, false}) {
      CAPTURE(own_head, forwards);
      drafter_type d(kernels, small(2));
      CHECK(d.take(forwards ? first : last) + d.take(forwards ? last : first) == (own_head ? 184 : 96));
      CHECK(vector_of(d.embedding()) == embedding);
      CHECK(vector_of(d.head()) == head);
      CHECK(vector_of(d.final_norm()) == norm);
    }
    first.table[0].shape = {10, 8};
    drafter_type d(kernels, small(2));
    CHECK_THROWS_WITH(d.take(first), Contains("'model.embed_tokens.weight' should have 88 elements, got 80"));
  }
}
