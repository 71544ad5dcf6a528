// Beam search: all texts of a tiny vocabulary in the order of their scores, and narrow beams as a search over whole texts finds them.
#include "catch.hpp"

#include "fake_runner.hpp"

#include <heddle/infer/beam_search.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace {

namespace hd = heddle;
namespace inf = heddle::infer;
using ids = std::vector<std::int32_t>;

// Log-probabilities behind a text, of the text alone.
std::vector<double> behind(const fake::language& of, const ids& text) {
  std::vector<double> v(static_cast<std::size_t>(of.vocabulary));
  of.logits(std::ssize(text), [&](std::int64_t i) { return text[static_cast<std::size_t>(i)]; }, v);
  double total = 0;
  for (const double x : v) total += std::exp(x);
  for (double& x : v) x -= std::log(total);
  return v;
}
bool is_end(const inf::beam_options& o, std::int32_t t) {
  return std::find(o.end_tokens.begin(), o.end_tokens.end(), t) != o.end_tokens.end();
}

// Every text that ends by an end token or by its length.
void all_texts(const fake::language& of, const inf::beam_options& o, ids text, std::size_t prompt, double sum,
               std::vector<inf::found_text>& to) {
  const auto length = static_cast<std::int64_t>(text.size() - prompt);
  if (length > 0 && (length == o.max_tokens || is_end(o, text.back()))) {
    const ids answer(text.begin() + static_cast<std::ptrdiff_t>(prompt), text.end());
    to.push_back({answer, sum, sum / std::pow(static_cast<double>(length), o.length_penalty)});
    return;
  }
  const std::vector<double> next = behind(of, text);
  for (std::size_t t = 0; t < next.size(); ++t) {
    text.push_back(static_cast<std::int32_t>(t));
    all_texts(of, o, text, prompt, sum + next[t], to);
    text.pop_back();
  }
}

// The search of transformers' BeamSearchScorer, over whole texts.
std::vector<inf::found_text> slow_search(const fake::language& of, const ids& prompt, const inf::beam_options& o) {
  std::vector<inf::found_text> beams(1), ended;
  const auto by_score = [](const auto& a, const auto& b) { return a.score > b.score; };
  const auto add = [&](inf::found_text t) {
    t.score = t.log_probability / std::pow(static_cast<double>(t.tokens.size()), o.length_penalty);
    ended.push_back(t);
    std::stable_sort(ended.begin(), ended.end(), by_score);
    if (std::ssize(ended) > o.beams) ended.pop_back();
  };
  for (std::int64_t length = 1; length <= o.max_tokens; ++length) {
    std::vector<inf::found_text> all;
    for (const inf::found_text& b : beams) {
      ids text = prompt;
      text.insert(text.end(), b.tokens.begin(), b.tokens.end());
      const std::vector<double> next = behind(of, text);
      for (std::size_t t = 0; t < next.size(); ++t) {
        all.push_back(b);
        all.back().tokens.push_back(static_cast<std::int32_t>(t));
        all.back().log_probability += next[t];
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.log_probability > b.log_probability; });
    beams.clear();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (std::ssize(beams) == o.beams) break;
      if (!is_end(o, all[rank].tokens.back()))
        beams.push_back(all[rank]);
      else if (static_cast<std::int64_t>(rank) < o.beams)
        add(all[rank]);
    }
    const double best = all[0].log_probability / std::pow(static_cast<double>(length), o.length_penalty);
    if (std::ssize(ended) == o.beams && (o.early_stopping || ended.back().score >= best)) return ended;
  }
  for (const inf::found_text& b : beams) add(b);
  return ended;
}

void check_same(const std::vector<inf::found_text>& found, const std::vector<inf::found_text>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].tokens == expected[i].tokens);
    CHECK(std::abs(found[i].score - expected[i].score) < 1e-12);
    CHECK(std::abs(found[i].log_probability - expected[i].log_probability) < 1e-12);
  }
}

}  // namespace

TEST_CASE("beams that hold all texts find them in the order of their scores", "[infer]") {
  inf::step_limits limits = fake::small_limits;
  limits.vocabulary = 3;
  limits.blocks = 300;
  limits.max_rows = 100;
  for (const double penalty : {0.0, 1.0, 2.0})
    for (const ids& ends : {ids{}, ids{1}}) {
      CAPTURE(penalty, ends);
      fake::runner runner(limits);
      const inf::beam_options options{.beams = 81, .max_tokens = 4, .length_penalty = penalty, .end_tokens = ends};
      const ids prompt{0, 2, 1, 1, 2};
      std::vector<inf::found_text> expected;
      all_texts({.vocabulary = 3}, options, prompt, prompt.size(), 0, expected);
      std::stable_sort(expected.begin(), expected.end(),
                       [](const auto& a, const auto& b) { return a.score > b.score; });
      auto found = inf::beam_search(runner, prompt, options);
      REQUIRE(found.size() == expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) CHECK(std::abs(found[i].score - expected[i].score) < 1e-12);
      const auto by_tokens = [](const auto& a, const auto& b) { return a.tokens < b.tokens; };  // some scores are equal
      std::sort(found.begin(), found.end(), by_tokens);
      std::sort(expected.begin(), expected.end(), by_tokens);
      check_same(found, expected);
    }
}

TEST_CASE("narrow beams find what a search over whole texts finds", "[infer]") {
  for (std::int32_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    fake::runner runner;
    const ids prompt(static_cast<std::size_t>(1 + seed % 30), seed % 13);  // also longer than a step has rows
    const inf::beam_options options{.beams = 1 + seed % 5,
                                    .max_tokens = 1 + seed % 12,
                                    .length_penalty = 0.5 * (seed % 4),
                                    .early_stopping = seed % 2 == 1,
                                    .end_tokens = seed % 3 == 0   ? ids{}
                                                  : seed % 3 == 1 ? ids{4}
                                                                  : ids{4, 9, 11}};
    check_same(inf::beam_search(runner, prompt, options), slow_search({}, prompt, options));
  }
}

TEST_CASE("a beam search that does not fit is refused with the numbers", "[infer]") {
  fake::runner runner;
  const auto refused = [&](const ids& prompt, const inf::beam_options& options) {
    try {
      inf::beam_search(runner, prompt, options);
    } catch (const hd::config_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refused({1}, {.beams = 25}) ==
        "heddle: beam_search: beams, each a row of a step, should be from 1 to 24, got 25");
  CHECK(refused({}, {}) == "heddle: beam_search: tokens of the prompt should be from 1 to 47, got 0");
  CHECK(refused({1}, {.max_tokens = 48}) == "heddle: beam_search: max_tokens should be from 1 to 47, got 48");
  for (const double penalty : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    CHECK_THAT(refused({1}, {.length_penalty = penalty}), Catch::Contains("length_penalty should be finite, got"));
  CHECK(refused({1, 2, 3, 4, 5}, {.beams = 20, .max_tokens = 20}) ==
        "heddle: beam_search: 20 beams of 20 tokens behind 5 need up to 122 blocks of the cache, which has 60");
}
