// heddle/infer/engine_results.hpp: draws the tokens of a step, and verifies proposed ones.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/infer/decoding.hpp>
#include <heddle/infer/engine_batch.hpp>
#include <heddle/infer/event.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/sampling.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer::detail {

template <class Runner, class Policies>
class engine_results : protected engine_batch<Runner, Policies> {
 protected:
  using base = engine_batch<Runner, Policies>;
  using base::base;
  using base::trees, base::all_streams, base::blocks_, base::counts_, base::decoding_, base::limits_, base::most_tokens,
      base::moves_, base::options_, base::parents_, base::proposals_, base::release, base::runner_, base::step_,
      base::step_results_;
  using typename base::decoding, typename base::scalar, typename base::scheduled, typename base::sequence;

  void take_results(const scheduled& s, std::size_t& wanted) {
    if constexpr (base::windows) return take_window(*s.of, wanted);
    sequence& q = *s.of;
    blocks_.copied(q.blocks);
    const std::int64_t own = s.rows - s.proposed, begin = q.computed;
    q.old_state = false;
    if constexpr (all_streams) {
      decoding_.computed(q.id, q.computed, streams_of(wanted, static_cast<std::size_t>(own)));
      wanted += static_cast<std::size_t>(own - (own == q.pending() ? 1 : 0));
    }
    q.computed += own;
    if (q.pending() == 0) {
      const std::size_t first = wanted;
      wanted += static_cast<std::size_t>(s.proposed + 1);
      if (!verify(s, first)) return;
    }
    if constexpr (base::restores) {
      q.replays = q.replays && q.pending() > 1;
      if (q.state >= 0 && !q.ended && q.computed < begin + s.rows) {  // a proposal was not drawn
        q.computed = begin;
        q.old_state = q.replays = true;
      }
    }
    blocks_.computed(q.blocks, std::span<const std::int32_t>(q.tokens).first(static_cast<std::size_t>(q.computed)));
    if (s.proposed > 0) blocks_.shrink(q.blocks, (std::max)(q.computed, q.length() - 1));
    if (q.ended) release(q);
  }

  // Tokens that the decoding policy commits; those come out that follow others.
  void take_window(sequence& q, std::size_t& wanted) {
    const auto vocabulary = static_cast<std::size_t>(limits_.vocabulary);
    const std::size_t rows = decoding_.wanted(q.id).size(), first = std::exchange(wanted, wanted + rows);
    event e{.id = q.id, .index = q.answered(), .cached_prompt_tokens = q.cached_prompt_tokens};
    try {
      decoding_.commit(q.id, q.asked, q.seed, logits_.subspan(first * vocabulary, rows * vocabulary),
                       limits_.vocabulary);
    } catch (const std::exception& problem) {
      return end_with_error(q, e, problem);
    }
    for (drawn_token drawn; !q.ended && decoding_.take(q.id, drawn);) {
      e.index = q.answered();
      e.token = drawn.token;
      if (q.asked.log_probabilities) e.log_probability = drawn.log_probability;
      event of_token = e;
      append(q, of_token);
    }
    if (q.ended) release(q);
  }

  // Draws tokens at the rows of the last token and of proposals, as long as there is a proposal that was drawn. False if an error ended the sequence.
  bool verify(const scheduled& s, std::size_t first) {
    sequence& q = *s.of;
    const std::int64_t begin = q.computed;
    std::int64_t at = -1;  // the proposal that was drawn last
    bool by_threshold = false;
    if constexpr (detail::accepts_by_threshold<decoding>) {
      by_threshold = q.asked.sampling.temperature > 0 && !q.asked.mask && !has_penalties(q.asked.sampling);
      if (by_threshold) find_path(s, first);
    }
    for (std::size_t depth = 0;; ++depth) {
      const std::size_t row = first + static_cast<std::size_t>(at + 1);
      std::optional<std::int32_t> token;
      if (!by_threshold) {
        token = draw(q, row);
      } else {
        std::optional<std::int32_t> given;
        if (depth < path_.size()) given = proposals_[s.first_proposed + static_cast<std::size_t>(path_[depth])];
        const double temperature = std::exchange(q.asked.sampling.temperature, 0);
        token = draw(q, row, given);
        q.asked.sampling.temperature = temperature;
      }
      if (!token) return false;
      const std::int64_t next = proposal_after(s, at, *token);
      if (next < 0) break;
      ++counts_.accepted_tokens;
      ++counts_.accepted_at[(std::min)(depth, counts_.accepted_at.size() - 1)];
      if (q.ended) break;
      if (begin + next != q.computed) moves_.push_back({cache_row(q, begin + next), cache_row(q, q.computed)});
      at = next;
      if constexpr (all_streams)
        decoding_.computed(q.id, q.computed, streams_of(first + static_cast<std::size_t>(at + 1), 1));
      ++q.computed;
    }
    if constexpr (detail::reads_streams<decoding>)
      if (!q.ended) decoding_.verified(q.id, q.length(), streams_of(first + static_cast<std::size_t>(at + 1), 1));
    return true;
  }
  // Residual streams of wanted rows of the step.
  auto streams_of(std::size_t first, std::size_t rows) {
    const auto streams = runner_->streams();
    const std::size_t width = streams.size() / step_.wanted.size();
    return streams.subspan(first * width, rows * width);
  }
  // Of the paths of proposals whose probabilities are above the rule's threshold the longest, of these the likeliest, to `path_`.
  void find_path(const scheduled& s, std::size_t first) {
    path_.clear();
    struct reached {
      bool is = false;
      std::size_t depth = 0;
      double log_probability = 0;
    };
    const auto vocabulary = static_cast<std::size_t>(limits_.vocabulary);
    std::vector<reached> nodes(static_cast<std::size_t>(s.proposed) + 1);
    nodes[0].is = true;
    std::size_t best = 0;
    try {
      for (std::size_t parent = 0; parent < nodes.size(); ++parent) {
        if (!nodes[parent].is) continue;
        std::vector<token_probability> distribution;
        double threshold = 0;
        for (std::size_t i = parent + 1; i < nodes.size(); ++i) {
          const std::size_t place = s.first_proposed + i - 1;
          if (parents_[place] + 1 != static_cast<std::int64_t>(parent)) continue;
          if (distribution.empty()) {
            distribution = sampler_.candidates(logits_.subspan((first + parent) * vocabulary, vocabulary), s.of->asked,
                                               s.of->answer(), s.of->counts);
            threshold = decoding_.acceptance().threshold(std::span<const token_probability>(distribution));
          }
          const auto is_this = [&](const token_probability& t) { return t.token == proposals_[place]; };
          const auto found = std::find_if(distribution.begin(), distribution.end(), is_this);
          if (found == distribution.end() || !(std::exp(found->log_probability) > threshold)) continue;
          nodes[i] = {true, nodes[parent].depth + 1, nodes[parent].log_probability + found->log_probability};
          if (nodes[i].depth > nodes[best].depth ||
              (nodes[i].depth == nodes[best].depth && nodes[i].log_probability > nodes[best].log_probability))
            best = i;
        }
      }
    } catch (const numeric_error&) {  // `draw` says so where it comes to that row
    }
    for (std::size_t i = best; i > 0; i = static_cast<std::size_t>(parents_[s.first_proposed + i - 1] + 1))
      path_.insert(path_.begin(), static_cast<std::int64_t>(i) - 1);
  }
  // The proposal with this token that follows proposal `at`; -1 if there is none.
  std::int64_t proposal_after(const scheduled& s, std::int64_t at, std::int32_t token) const {
    for (std::int64_t i = at + 1; i < s.proposed; ++i) {
      const std::size_t place = s.first_proposed + static_cast<std::size_t>(i);
      if constexpr (trees) {
        if (parents_[place] == at && proposals_[place] == token) return i;
      } else {
        return proposals_[place] == token ? i : -1;
      }
    }
    return -1;
  }
  std::int32_t cache_row(const sequence& q, std::int64_t token) const {
    const std::int32_t block = q.blocks.blocks[static_cast<std::size_t>(token / limits_.block_rows)];
    return static_cast<std::int32_t>(block * limits_.block_rows + token % limits_.block_rows);
  }

  // Draws the next token of a sequence from a row of logits, or takes the given one; none if that ended it with an error.
  std::optional<std::int32_t> draw(sequence& q, std::size_t row, std::optional<std::int32_t> given = {}) {
    const auto vocabulary = static_cast<std::size_t>(limits_.vocabulary);
    event e{.id = q.id, .index = q.answered(), .cached_prompt_tokens = q.cached_prompt_tokens};
    try {
      std::optional<drawn_token> there = step_results_.drawn(row);
      drawn_token drawn = there ? std::move(*there)
                                : sampler_.draw(logits_.subspan(row * vocabulary, vocabulary), q.asked, q.seed,
                                                q.length(), q.answer(), q.counts);
      if (given && drawn.log_probability) {
        const auto logit = [&](std::int32_t t) {
          return static_cast<double>(logits_[row * vocabulary + static_cast<std::size_t>(t)]);
        };
        *drawn.log_probability += logit(*given) - logit(drawn.token);
      }
      e.token = given.value_or(drawn.token);
      e.log_probability = drawn.log_probability;
      e.likeliest = std::move(drawn.likeliest);
    } catch (const std::exception& problem) {
      end_with_error(q, e, problem);
      return std::nullopt;
    }
    return append(q, e);
  }
  void end_with_error(sequence& q, event& e, const std::exception& problem) {
    q.ended = true;
    ++counts_.ended;
    release(q);
    e.finish = finish_reason::error;
    e.message =
        "heddle: request " + std::to_string(q.id) + ", token " + std::to_string(q.answered()) + " of the answer: ";
    e.message += without_prefix(problem.what());
    events_.push_back(std::move(e));
  }
  // The event's token behind the answer.
  std::int32_t append(sequence& q, event& e) {
    const std::int32_t token = *e.token;
    q.tokens.push_back(token);
    ++counts_.answer_tokens;
    if (has_penalties(q.asked.sampling)) q.counts.add_answer(token);
    e.finish = reason_after(q, token);
    q.ended = e.finish != finish_reason::none;
    counts_.ended += q.ended ? 1 : 0;
    events_.push_back(std::move(e));
    return token;
  }
  finish_reason reason_after(const sequence& q, std::int32_t token) const {
    const auto is_one_of = [&](const std::vector<std::int32_t>& ends) {
      return std::find(ends.begin(), ends.end(), token) != ends.end();
    };
    if (is_one_of(q.asked.stop_tokens) || (!q.asked.ignore_end_tokens && is_one_of(options_.end_tokens)))
      return finish_reason::stop;
    return most_tokens(q) <= 0 ? finish_reason::length : finish_reason::none;
  }

  std::span<const scalar> logits_{};  // of the step, but of rows whose token the runner drew
  std::vector<std::int64_t> path_{};  // of proposals that a rule accepted
  token_sampler sampler_{};
  std::vector<event> events_{};
};

}  // namespace heddle::inline v0::infer::detail
