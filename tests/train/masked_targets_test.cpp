// Masked samples: the same on every mesh, with the right share and weights; jumps of trajectories.
#include "catch.hpp"

#include <heddle/io/dataset.hpp>
#include <heddle/train/masked_targets.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace {
namespace hd = heddle;
namespace tr = heddle::train;

constexpr std::int32_t masked_word = 99;

struct masked_samples {
  std::vector<std::int32_t> tokens{}, targets{};
};
masked_samples masked_block(const tr::masked_targets<hd::io::basic_dataset<std::int32_t>>& of, std::int64_t first,
                            std::int64_t count, bool validation = false) {
  masked_samples found;
  const auto n = static_cast<std::size_t>(of.context() * count);
  found.tokens.resize(n);
  found.targets.resize(n * static_cast<std::size_t>(of.numbers), 12345);
  if (validation)
    of.fill_validation({first, count}, std::span(found.tokens), std::span(found.targets));
  else
    of.fill_train({first, count}, std::span(found.tokens), std::span(found.targets));
  return found;
}
bool masked_says(const std::string& what, auto&& work) {
  try {
    work();
  } catch (const hd::config_error& problem) {
    if (std::string(problem.what()).find(what) != std::string::npos) return true;
    UNSCOPED_INFO(problem.what());
  }
  return false;
}
}  // namespace

TEST_CASE("masked samples are the data's with masks, and targets are what was there", "[train][law]") {
  std::vector<std::int32_t> text(4001);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::int32_t>(i * 7 % 90);
  const hd::io::basic_dataset<std::int32_t> data(text, {.context = 40, .batch = 6, .validation = 0.1, .seed = 3});
  for (const bool shifted : {false, true})
    for (const int numbers : {1, 6}) {
      CAPTURE(shifted, numbers);
      const tr::masked_targets<hd::io::basic_dataset<std::int32_t>> of{
          .data = &data, .mask_token = masked_word, .seed = 11, .shifted = shifted, .numbers = numbers};
      CHECK(of.context() == 40);
      CHECK(of.validation_samples() == data.validation_samples());
      const masked_samples all = masked_block(of, 0, 200);
      std::vector<std::int32_t> plain(200 * 40), next(200 * 40);
      data.fill_train({0, 200}, std::span(plain), std::span(next));
      double share = 0;
      std::set<std::int64_t> counts;
      for (std::size_t s = 0; s < 200; ++s) {
        std::int64_t masks = 0;
        float weight = 0;
        for (std::size_t i = 0; i < 40; ++i) {
          const std::int32_t was = plain[s * 40 + i], is = all.tokens[s * 40 + i];
          const bool is_mask = is == masked_word;
          REQUIRE((is_mask || is == was));
          masks += is_mask;
          const std::size_t own = s * 40 * static_cast<std::size_t>(numbers);
          if (shifted && i == 0) continue;
          const std::size_t row = shifted ? i - 1 : i;
          if (numbers == 1) {
            REQUIRE(all.targets[own + row] == (is_mask ? was : -100));
          } else {
            REQUIRE(all.targets[own + row] == was);
            const float w = std::bit_cast<float>(all.targets[own + 5 * 40 + row]);
            REQUIRE((w > 0) == is_mask);
            if (is_mask) {
              REQUIRE((weight == 0 || weight == w));
              weight = w;
            }
          }
        }
        if (shifted) REQUIRE(all.targets[s * 40 * static_cast<std::size_t>(numbers) + 39] == -100);
        if (weight > 0) {  // 1 / p: of 40 tokens p are masked, but for 5 deviations
          REQUIRE(weight >= 1);
          const double p = 1.0 / static_cast<double>(weight);
          REQUIRE(std::abs(static_cast<double>(masks) / 40 - p) <= 5 * std::sqrt(p * (1 - p) / 40) + 1e-6);
        }
        counts.insert(masks);
        share += static_cast<double>(masks) / 8000;
      }
      CHECK(std::abs(share - 0.5) < 0.08);  // t is uniform: a half, with a deviation of 0.29 / sqrt(200)
      CHECK(counts.size() > 20);
      // Cut anywhere, the samples are the same.
      for (std::int64_t first = 0; first < 200; first += 7) {
        const std::int64_t count = first + 7 <= 200 ? 7 : 200 - first;
        const masked_samples part = masked_block(of, first, count);
        const auto at = static_cast<std::size_t>(first * 40);
        REQUIRE(
            std::equal(part.tokens.begin(), part.tokens.end(), all.tokens.begin() + static_cast<std::ptrdiff_t>(at)));
        REQUIRE(std::equal(part.targets.begin(), part.targets.end(),
                           all.targets.begin() + static_cast<std::ptrdiff_t>(at * static_cast<std::size_t>(numbers))));
      }
      CHECK(masked_block(of, 0, 3, true).tokens != masked_block(of, 0, 3).tokens);
    }
  tr::masked_targets<hd::io::basic_dataset<std::int32_t>> of{.data = &data, .mask_token = masked_word};
  CHECK(masked_block(of, 1000, 5).tokens != masked_block(of, 1000 + data.train_samples(), 5).tokens);  // next epoch
  of.mask_token = -1;
  CHECK(masked_says("the mask should be at least 0", [&] { masked_block(of, 0, 1); }));
  of.mask_token = masked_word;
  of.least = 0;
  CHECK(masked_says("least in (0, 1]; got 99, 1 and 0", [&] { masked_block(of, 0, 1); }));
  of.least = 1e-3;
  std::vector<std::int32_t> tokens(40), few(39);
  CHECK(masked_says("1 samples have 40 numbers of targets, got room for 39",
                    [&] { of.fill_train({0, 1}, std::span(tokens), std::span(few)); }));
}

TEST_CASE("samples of trajectories are jumps from a step to a later one", "[train][law]") {
  const std::vector<tr::trajectory> texts = {{{5, 6, 7, 8, 9, 10}, {0, 0, 2, 1, 3, 2}}, {{1, 2, 3}, {0, 1, 1}}};
  for (const bool shifted : {false, true}) {
    const tr::trajectory_targets of{
        .texts = texts, .length = 8, .mask_token = masked_word, .seed = 2, .shifted = shifted};
    CHECK(of.context() == 8);
    CHECK(of.validation_samples() == 0);
    constexpr std::int64_t samples = 400;
    std::vector<std::int32_t> tokens(samples * 8), targets(samples * 8);
    of.fill_train({0, samples}, std::span(tokens), std::span(targets));
    std::set<std::vector<std::int32_t>> kinds;
    for (std::size_t s = 0; s < samples; ++s) {
      const std::vector<std::int32_t> in(tokens.begin() + static_cast<std::ptrdiff_t>(s * 8),
                                         tokens.begin() + static_cast<std::ptrdiff_t>(s * 8 + 8));
      const std::vector<std::int32_t> out(targets.begin() + static_cast<std::ptrdiff_t>(s * 8),
                                          targets.begin() + static_cast<std::ptrdiff_t>(s * 8 + 8));
      const tr::trajectory& t = in[0] == 5 ? texts[0] : texts[1];
      // Which steps i and j explain it: exactly one pair does where steps have tokens.
      int pairs = 0;
      for (std::int32_t i = 0; i < 3; ++i)
        for (std::int32_t j = i + 1; j <= 3; ++j) {
          std::vector<std::int32_t> expected_in(8, masked_word), expected_out(8, -100);
          for (std::size_t k = 0; k < t.tokens.size(); ++k) {
            if (t.steps[k] <= i) expected_in[k] = t.tokens[k];
            if (t.steps[k] > i && t.steps[k] <= j && (!shifted || k > 0))
              expected_out[k - (shifted ? 1 : 0)] = t.tokens[k];
          }
          pairs += expected_in == in && expected_out == out;
        }
      REQUIRE(pairs >= 1);
      kinds.insert(in);
      kinds.insert(out);
    }
    CHECK(kinds.size() ==
          4 + 6 + 1);  // inputs of steps 0, 1, 2 and of the other text's 0; targets of six pairs and of the other's one
    std::vector<std::int32_t> again(8), targets_again(8);
    of.fill_train({123, 1}, std::span(again), std::span(targets_again));
    CHECK(std::equal(again.begin(), again.end(), tokens.begin() + 123 * 8));
  }
  const auto refused = [&](const std::string& what, std::vector<tr::trajectory> wrong) {
    return masked_says(what, [&] {
      std::vector<std::int32_t> a(8), b(8);
      tr::trajectory_targets{.texts = wrong, .length = 8}.fill_train({0, 1}, std::span(a), std::span(b));
    });
  };
  CHECK(refused("at least one text, got none", {}));
  CHECK(refused("text 0 should have a step for each of its 2 tokens, got 1", {{{1, 2}, {0}}}));
  CHECK(refused("should have at most 8 tokens, the context, got 9",
                {{std::vector<std::int32_t>(9, 1), std::vector<std::int32_t>(9, 1)}}));
  CHECK(refused("should have tokens of a step after the prompt's", {{{1, 2}, {0, 0}}}));
  CHECK(refused("has token -3 at step 1", {{{1, -3}, {0, 1}}}));
}
