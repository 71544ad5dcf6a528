// heddle/infer/beam_search.hpp: beam search whose beams share blocks of the cache.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/infer/cache.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Settings of a beam search. `length_penalty` p: a text of n tokens with log-probability s has the score s / n^p, so that p above 0 favours long texts.
/// `early_stopping`: it ends when `beams` texts have ended; else when no text that goes on can beat the worst of them at its present length.
struct beam_options {
  std::int64_t beams = 4;
  std::int64_t max_tokens = 16;
  double length_penalty = 1;
  bool early_stopping = false;
  std::vector<std::int32_t> end_tokens{};
};

/// A text that a beam search found: the answer, with the end token if one ended it.
struct found_text {
  std::vector<std::int32_t> tokens{};
  double log_probability = 0;  ///< of all tokens, the end token among them
  double score = 0;
  friend bool operator==(const found_text&, const found_text&) = default;
};

namespace detail {

// Blocks with the number of beams that hold each; a block that several hold is copied before a row of it is written.
class shared_blocks {
 public:
  shared_blocks(std::int64_t blocks, std::int64_t block_rows)
      : block_rows_(block_rows), holders_(static_cast<std::size_t>(blocks)) {
    for (std::int64_t b = blocks; b-- > 0;) free_.push_back(static_cast<std::int32_t>(b));
  }
  void hold(const std::vector<std::int32_t>& table) {
    for (const std::int32_t b : table) ++of(b);
  }
  void release(const std::vector<std::int32_t>& table) {
    for (const std::int32_t b : table)
      if (--of(b) == 0) free_.push_back(b);
  }
  // Makes the row of `position` writable for the holder of the table.
  void write(std::vector<std::int32_t>& table, std::int64_t position, std::vector<block_copy>& copies) {
    const auto at = static_cast<std::size_t>(position / block_rows_);
    if (at == table.size()) return table.push_back(take());
    if (of(table[at]) == 1) return;
    const std::int32_t fresh = take();
    copies.push_back({table[at], fresh});
    --of(table[at]);
    table[at] = fresh;
  }

 private:
  std::int64_t& of(std::int32_t b) { return holders_[static_cast<std::size_t>(b)]; }
  std::int32_t take() {
    const std::int32_t b = free_.back();
    free_.pop_back();
    of(b) = 1;
    return b;
  }
  std::int64_t block_rows_;
  std::vector<std::int64_t> holders_;
  std::vector<std::int32_t> free_{};
};

inline void require_beams(const beam_options& o, const step_limits& l, std::int64_t prompt) {
  const auto refuse = [](const std::string& what, std::int64_t most, std::int64_t got) {
    throw config_error("heddle: beam_search: " + what + " should be from 1 to " + std::to_string(most) + ", got " +
                       std::to_string(got));
  };
  if (o.beams < 1 || o.beams > l.max_rows) refuse("beams, each a row of a step,", l.max_rows, o.beams);
  if (prompt < 1 || prompt >= l.context) refuse("tokens of the prompt", l.context - 1, prompt);
  if (o.max_tokens < 1 || o.max_tokens > l.context - prompt) refuse("max_tokens", l.context - prompt, o.max_tokens);
  if (!std::isfinite(o.length_penalty))
    throw config_error("heddle: beam_search: length_penalty should be finite, got " + number_text(o.length_penalty));
  const std::int64_t of_prompt = detail::blocks_of_tokens(prompt, l.block_rows);
  const std::int64_t own = detail::blocks_of_tokens(prompt + o.max_tokens, l.block_rows) - prompt / l.block_rows;
  if (of_prompt + o.beams * own > l.blocks)
    throw config_error("heddle: beam_search: " + std::to_string(o.beams) + " beams of " + std::to_string(o.max_tokens) +
                       " tokens behind " + std::to_string(prompt) + " need up to " +
                       std::to_string(of_prompt + o.beams * own) + " blocks of the cache, which has " +
                       std::to_string(l.blocks));
}

}  // namespace detail

/// The texts with the best scores that a beam search finds behind `prompt`, the best first, at most `beams`. In each step the beams' continuations with the best
/// log-probabilities go on, of equals the one of the better beam, then of the lower token. The runner's cache is this search's while it lasts.
/// The procedure is that of Hugging Face's `generate(num_beams=..., do_sample=False)`: an end token among the best `beams` candidates of a
/// step ends a text, candidates are max(2, 1 + end tokens) times as many as beams, and at `max_tokens` the beams that are left count as ended.
/// Errors: `config_error` for options that do not fit the runner's limits; `numeric_error` for logits that are no numbers; what the runner throws.
template <step_runner Runner>
std::vector<found_text> beam_search(Runner& runner, std::span<const std::int32_t> prompt, const beam_options& options) {
  static_assert(detail::all_offered<capabilities<causal_rows, next_token>, runner_capabilities<Runner>>::value,
                "heddle: beam_search: beams share rows of the cache, and a row says the token behind it; take a causal model "
                "(next_token) whose layers keep no states (causal_rows)");
  using scalar = typename Runner::scalar;
  const step_limits limits = runner.limits();
  const std::int64_t first = std::ssize(prompt), words = limits.vocabulary;
  detail::require_beams(options, limits, first);
  struct beam {
    found_text text{};
    std::vector<std::int32_t> blocks{};
  };
  struct candidate {
    double sum = 0;
    std::size_t from = 0;
    std::int32_t token = 0;
  };
  detail::shared_blocks shared(limits.blocks, limits.block_rows);
  std::vector<beam> beams(1);
  std::vector<found_text> ended;
  std::vector<scalar> logits;
  std::vector<candidate> candidates;
  step now;
  const auto add_rows = [&](beam& b, std::int64_t position, std::span<const std::int32_t> tokens, bool wanted) {
    const auto count = std::ssize(tokens);
    for (std::int64_t i = 0; i < count; ++i) shared.write(b.blocks, position + i, now.copies);
    now.sequences.push_back({now.rows(), count, position, std::ssize(now.blocks), std::ssize(b.blocks)});
    now.blocks.insert(now.blocks.end(), b.blocks.begin(), b.blocks.end());
    now.tokens.insert(now.tokens.end(), tokens.begin(), tokens.end());
    if (wanted) now.wanted.push_back(now.rows() - 1);
  };
  const auto run = [&] {
    logits.resize(now.wanted.size() * static_cast<std::size_t>(words));
    runner.run(std::as_const(now), std::span<scalar>(logits));
    now = {};
  };
  const auto score = [&](double sum, std::int64_t tokens) {
    return sum / std::pow(static_cast<double>(tokens), options.length_penalty);
  };
  const auto keep = [&](found_text text) {
    text.score = score(text.log_probability, std::ssize(text.tokens));
    const auto worse = [&](const found_text& t) { return t.score < text.score; };
    ended.insert(std::find_if(ended.begin(), ended.end(), worse), std::move(text));
    if (std::ssize(ended) > options.beams) ended.pop_back();
  };
  const auto is_end = [&](std::int32_t t) {
    return std::find(options.end_tokens.begin(), options.end_tokens.end(), t) != options.end_tokens.end();
  };

  for (std::int64_t at = 0; at < first; at += limits.max_rows) {
    const std::int64_t rows = (std::min)(limits.max_rows, first - at);
    add_rows(beams[0], at, prompt.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(rows)),
             at + rows == first);
    run();
  }
  for (std::int64_t length = 1;; ++length) {
    candidates.clear();
    for (std::size_t b = 0; b < beams.size(); ++b) {
      const std::span<const scalar> row(logits.data() + static_cast<std::int64_t>(b) * words,
                                        static_cast<std::size_t>(words));
      const double top = static_cast<double>(*std::max_element(row.begin(), row.end()));
      double total = 0;
      for (const scalar x : row) total += std::exp(static_cast<double>(x) - top);
      if (!std::isfinite(top) || !std::isfinite(total))
        throw numeric_error("heddle: beam_search: logits of token " + std::to_string(length - 1) +
                            " of an answer are no numbers");
      const double before = beams[b].text.log_probability - top - std::log(total);
      for (std::int64_t t = 0; t < words; ++t)
        candidates.push_back(
            {before + static_cast<double>(row[static_cast<std::size_t>(t)]), b, static_cast<std::int32_t>(t)});
    }
    const auto most = static_cast<std::ptrdiff_t>((std::min)(
        std::ssize(candidates), options.beams * (std::max)(std::ptrdiff_t{2}, 1 + std::ssize(options.end_tokens))));
    const auto better = [](const candidate& a, const candidate& b) {
      if (a.sum > b.sum || b.sum > a.sum) return a.sum > b.sum;
      return a.from != b.from ? a.from < b.from : a.token < b.token;
    };
    std::partial_sort(candidates.begin(), candidates.begin() + most, candidates.end(), better);
    std::vector<beam> next;
    for (std::int64_t rank = 0; rank < most && std::ssize(next) < options.beams; ++rank) {
      const candidate& c = candidates[static_cast<std::size_t>(rank)];
      found_text text = beams[c.from].text;
      text.tokens.push_back(c.token);
      text.log_probability = c.sum;
      if (!is_end(c.token))
        next.push_back({std::move(text), beams[c.from].blocks});
      else if (rank < options.beams)
        keep(std::move(text));
    }
    for (const beam& b : next) shared.hold(b.blocks);
    for (const beam& b : beams) shared.release(b.blocks);
    beams = std::move(next);
    const bool enough = std::ssize(ended) == options.beams;
    if (enough && (options.early_stopping || ended.back().score >= score(candidates[0].sum, length))) return ended;
    if (length == options.max_tokens || beams.empty()) break;
    for (beam& b : beams)
      add_rows(b, first + length - 1, std::span<const std::int32_t>(&b.text.tokens.back(), 1), true);
    run();
  }
  for (beam& b : beams) keep(std::move(b.text));
  return ended;
}

}  // namespace heddle::inline v0::infer
