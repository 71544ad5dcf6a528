// heddle/infer/head_accuracies.hpp: measures hit rates of heads, for trees of proposals.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/medusa_speculation.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/infer/text_streams.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::infer {

/// How often the r-th likeliest token of each head is the one that a text has, over all places of `texts`, such as answers of the model with their prompts: what
/// `token_tree::best` takes. Blocks of the runner's cache are overwritten: no engine may have sequences in it.
/// Shapes: the result [heads][ranks]. Errors: `config_error` for heads of another vocabulary than the runner's, for ranks below 1 or above it, for a text longer than the runner's context or with
/// tokens that the vocabulary does not have, and what the runner throws.
template <step_runner Runner, token_heads Heads>
  requires stream_runner<Runner> && std::same_as<typename Runner::scalar, typename Heads::scalar>
std::vector<std::vector<double>> head_accuracies(Runner& runner, Heads& heads,
                                                 const std::vector<std::vector<std::int32_t>>& texts,
                                                 std::int64_t ranks) {
  using T = typename Runner::scalar;
  const step_limits limits = runner.limits();
  if (heads.vocabulary() != limits.vocabulary)
    throw config_error("heddle: head_accuracies: heads should have the runner's vocabulary of " +
                       std::to_string(limits.vocabulary) + " tokens, got " + std::to_string(heads.vocabulary()));
  if (ranks < 1 || ranks > limits.vocabulary)
    throw config_error("heddle: head_accuracies: ranks should be from 1 to the vocabulary's " +
                       std::to_string(limits.vocabulary) + " tokens, got " + std::to_string(ranks));
  const auto words = static_cast<std::size_t>(limits.vocabulary);
  const auto count = static_cast<std::size_t>(heads.heads());
  std::vector<std::vector<double>> right(count, std::vector<double>(static_cast<std::size_t>(ranks)));
  std::vector<double> places(count);
  std::vector<T> found;
  constexpr std::int64_t most_rows = 32;  // at once: each has logits of all heads
  for (const std::vector<std::int32_t>& text : texts) {
    const std::int64_t length = std::ssize(text);
    each_stream_of_text(
        runner, text, "head_accuracies", most_rows, [&](auto streams, std::int64_t first, std::int64_t rows) {
          found.resize(static_cast<std::size_t>(rows) * words * count);
          heads.run(streams, rows, std::span<T>(found));
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::size_t k = 0; k < count; ++k) {
              const std::int64_t at = first + r + 2 + static_cast<std::int64_t>(k);
              if (at >= length) continue;
              const std::span<const T> of_head(found.data() + (static_cast<std::size_t>(r) * count + k) * words, words);
              const auto token = static_cast<std::size_t>(text[static_cast<std::size_t>(at)]);
              std::size_t rank = 0;  // of the text's token: those that are likelier, or as likely and of a lower id
              for (std::size_t v = 0; v < words; ++v)
                rank += of_head[v] > of_head[token] || (of_head[v] == of_head[token] && v < token);
              places[k] += 1;
              if (rank < right[k].size()) right[k][rank] += 1;
            }
        });
  }
  for (std::size_t k = 0; k < count; ++k)
    for (double& x : right[k]) x /= (std::max)(places[k], 1.0);
  return right;
}

}  // namespace heddle::inline v0::infer
