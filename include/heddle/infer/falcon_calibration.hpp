// heddle/infer/falcon_calibration.hpp: training features of block drafters; hit rates.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/falcon_speculation.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/infer/text_streams.hpp>
#include <heddle/model/feature_text.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Texts with the features that a runner's model has at their tokens. Blocks of the runner's cache are overwritten: no engine may have sequences in it.
/// Errors: `config_error` for a text longer than the runner's context or cache or with tokens that the vocabulary does not have, and what the
/// runner throws.
template <step_runner Runner, class Drafter>
  requires stream_runner<Runner> && std::same_as<typename Runner::scalar, typename Drafter::scalar>
std::vector<model::feature_text<typename Runner::scalar>> features_of_texts(
    Runner& runner, Drafter& drafter, const std::vector<std::vector<std::int32_t>>& texts) {
  using T = typename Runner::scalar;
  std::vector<model::feature_text<T>> found;
  for (const std::vector<std::int32_t>& text : texts) {
    model::feature_text<T> t{text, {}};
    each_stream_of_text(runner, text, "features_of_texts", runner.limits().max_rows, [&](auto streams, auto, auto) {
      t.features.resize(t.features.size() + streams.size());
      drafter.features_of(streams, std::span<T>(t.features).last(streams.size()));
    });
    found.push_back(std::move(t));
  }
  return found;
}

/// How often the r-th likeliest token of a drafter is right at each depth of `passes` passes, where all tokens before it in the draft are right: what `token_tree::best` takes. Counts
/// every `stride`-th place of the texts. Shapes: the result [passes * block][ranks]. Errors: `config_error` for no passes, no ranks or more than the vocabulary has tokens, a stride
/// below 1, and texts that are all shorter than block + 1 + passes * block tokens; `layout_error` for features that are not one row of `width` for each token; what the drafter throws.
template <class Drafter>
std::vector<std::vector<double>> draft_accuracies(
    Drafter& drafter, const std::vector<model::feature_text<typename Drafter::scalar>>& texts, std::int64_t passes,
    std::int64_t ranks, std::int64_t stride = 1) {
  using T = typename Drafter::scalar;
  const std::int64_t k = drafter.shape().block, width = drafter.shape().width;
  if (passes < 1 || stride < 1 || ranks < 1 || ranks > drafter.vocabulary())
    throw config_error("heddle: draft_accuracies: passes and stride should be at least 1 and ranks from 1 to " +
                       std::to_string(drafter.vocabulary()) + ", got " + std::to_string(passes) + ", " +
                       std::to_string(stride) + " and " + std::to_string(ranks));
  for (const auto& text : texts)
    if (std::ssize(text.features) != std::ssize(text.tokens) * width)
      throw layout_error("heddle: draft_accuracies: a text of " + std::to_string(text.tokens.size()) +
                         " tokens should have " + std::to_string(std::ssize(text.tokens) * width) +
                         " elements of features, got " + std::to_string(text.features.size()));
  std::vector<std::vector<double>> right(static_cast<std::size_t>(passes * k),
                                         std::vector<double>(static_cast<std::size_t>(ranks)));
  double places = 0;
  for (const auto& text : texts) {
    typename Drafter::prefix p;
    const std::span<const std::int32_t> tokens(text.tokens);
    for (std::int64_t known = k; known + 1 + passes * k <= std::ssize(tokens); known += stride) {
      const auto more = static_cast<std::size_t>(known - p.rows), begin = static_cast<std::size_t>(p.rows);
      drafter.append(p, tokens.subspan(begin + 1, more),
                     std::span<const T>(text.features)
                         .subspan(begin * static_cast<std::size_t>(width), more * static_cast<std::size_t>(width)));
      auto blocks = drafter.begin_drafts(p);
      const auto next = tokens.subspan(static_cast<std::size_t>(known + 1));
      for (std::int64_t pass = 0; pass < passes; ++pass) {
        if (pass > 0) {
          const std::int64_t parent = std::ssize(blocks) - 1;
          drafter.draft(p, blocks, std::span(&parent, 1),
                        next.subspan(static_cast<std::size_t>((pass - 1) * k), static_cast<std::size_t>(k)));
        }
        const auto found = likeliest_tokens(std::span<const T>(blocks.back().logits), k, ranks);
        for (std::size_t i = 0; i < found.size(); ++i) {
          const std::size_t depth = static_cast<std::size_t>(pass * k) + i / static_cast<std::size_t>(ranks);
          if (found[i] == next[depth]) right[depth][i % static_cast<std::size_t>(ranks)] += 1;
        }
      }
      drafter.end_drafts(p);
      places += 1;
    }
  }
  if (places == 0)
    throw config_error("heddle: draft_accuracies: a text should have at least " + std::to_string(k + 1 + passes * k) +
                       " tokens, got none that has");
  for (auto& depth : right)
    for (double& x : depth) x /= places;
  return right;
}

}  // namespace heddle::inline v0::infer
