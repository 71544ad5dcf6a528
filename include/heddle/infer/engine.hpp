// heddle/infer/engine.hpp: the inference engine: one loop over requests, batches, the cache and a runner of steps.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/policy.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/text.hpp>
#include <heddle/infer/cache.hpp>
#include <heddle/infer/drawing_runner.hpp>
#include <heddle/infer/engine_counts.hpp>
#include <heddle/infer/engine_policies.hpp>
#include <heddle/infer/event.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/sampling.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Continues prompts with a runner's logits. A step computes a row for each sequence that decodes and as many rows of prompts as the batching
/// policy has left, draws tokens, and returns them as events. Requests begin in the order of `submit`; if the cache is full, the youngest that
/// runs gives its blocks back and is computed again later, so a request that fits alone always ends. A request's tokens depend on its
/// prompt, options, seed and on the runner's logits, not on what runs beside it, if the runner's rows do not either.
/// `Policies`, in any order: a batching policy, a cache, a way to decode (`engine_policies`). One thread owns an engine.
template <step_runner Runner, class... Policies>
class engine {
 public:
  using policies = engine_policies<Runner, Policies...>;
  using batching = typename policies::batching;
  using cache = typename policies::cache;
  using decoding = typename policies::decoding;
  using scalar = typename Runner::scalar;

  /// The runner must outlive the engine, and nothing else may use its cache. `decode`: a decoding policy that holds something.
  /// Takes the runner's memory for logits of its largest step, where the runner draws tokens.
  /// Errors: `config_error` for limits or options that leave no room for a single request, and for a decoding policy of another vocabulary; `memory_error`.
  explicit engine(Runner& runner, engine_options options = {}, decoding decode = {})
      : runner_(&runner),
        limits_(runner.limits()),
        options_(std::move(options)),
        decoding_(std::move(decode)),
        blocks_(limits_) {
    if (limits_.vocabulary < 1 || limits_.max_rows < 1 || options_.max_running < 1 || options_.max_waiting < 0)
      throw config_error(
          "heddle: an engine needs a vocabulary, rows of a step and max_running of at least 1, and max_waiting of at "
          "least 0; got " +
          std::to_string(limits_.vocabulary) + ", " + std::to_string(limits_.max_rows) + ", " +
          std::to_string(options_.max_running) + " and " + std::to_string(options_.max_waiting));
    if constexpr (requires { std::int64_t{decoding_.vocabulary()}; })
      if (decoding_.vocabulary() != limits_.vocabulary)
        throw config_error("heddle: an engine's decoding policy should have the runner's vocabulary of " +
                           std::to_string(limits_.vocabulary) + " tokens, got " +
                           std::to_string(decoding_.vocabulary()));
    rows_per_step_ = batching::rows_per_step(limits_.max_rows);
    most_running_ = (std::min)(options_.max_running, rows_per_step_);
    if constexpr (fuses) blocks_.use_slots((std::min)(batching::slots, most_running_));
    if constexpr (drawing_runner<Runner>)  // at once, so that no step takes memory of its host that a device reaches
      if (runner.draws()) runner.logits_memory(static_cast<std::size_t>(most_wanted() * limits_.vocabulary));
  }

  /// Queues a request. Errors: `context_error`, `request_error` (`require_request`); `queue_full_error` if `max_waiting` others wait.
  request_id submit(request r) {
    require_request(r, limits_.vocabulary, context());
    if constexpr (detail::accepts_by_threshold<decoding>)
      if (r.log_probabilities && r.log_probabilities_of == log_probability_of::drawn)
        throw request_error("log_probabilities_of",
                            "a rule of acceptance takes tokens that no distribution drew; ask for those of the model");
    if (options_.max_waiting > 0 && std::ssize(waiting_) >= options_.max_waiting)
      throw queue_full_error("heddle: " + std::to_string(waiting_.size()) + " requests wait, as many as may");
    auto s = std::make_unique<sequence>();
    s->id = ++last_id_;
    s->tokens = r.prompt;
    s->seed = r.sampling.seed ? *r.sampling.seed : counter_random(options_.seed, 0).integer(s->id);
    if (has_penalties(r.sampling)) s->counts.add_prompt(r.prompt);
    s->asked = std::move(r);
    waiting_.push_back(std::move(s));
    ++counts_.submitted;
    return last_id_;
  }

  /// Ends a request; the next step has its last event. False if it had ended before, or never was.
  bool cancel(request_id id) { return end_from_outside(id, finish_reason::cancelled); }
  /// As `cancel`, with the reason `stop`: for a caller that finds the end in the text.
  bool finish(request_id id) { return end_from_outside(id, finish_reason::stop); }

  /// Between two steps, after the runner's weights were written: no later prompt finds rows of the cache that the old ones computed, and what runs goes on
  /// as `what` says. Tokens that were drawn stay, no request ends, and a request that is computed again counts among `preemptions`.
  void weights_changed(kv what) {
    if constexpr (requires { blocks_.forget(); }) blocks_.forget();
    if (what == kv::recompute)
      while (!running_.empty()) send_back_youngest();
  }

  /// Computes one step; the events are valid until the next call. Does nothing while `idle()`.
  /// Errors: whatever the runner throws; the step is then as if it had not been tried, and can be tried again. Not so a step with moves (`step::moves`,
  /// that trees of proposals make): rows of the cache may be lost, so that each later call throws `schedule_error`.
  std::span<const event> step() {
    if (failed_)
      throw schedule_error(
          "heddle: an engine should take no step after one that moved rows of the cache and failed: answers would be "
          "wrong; make another engine");
    form();
    if (!step_.sequences.empty()) {
      try {
        logits_ = step_results_.run(*runner_, std::as_const(step_), limits_.vocabulary);
      } catch (...) {
        failed_ = !step_.moves.empty();
        throw;
      }
      moves_.clear();
      slot_copies_.clear();
      if constexpr (fuses) blocks_.closed();
    }
    events_.clear();
    std::swap(events_, ended_);
    if (step_.sequences.empty()) return events_;
    ++counts_.steps;
    counts_.rows += step_.rows();
    std::size_t wanted = 0;
    for (const scheduled& s : scheduled_) take_results(s, wanted);
    std::erase_if(running_, [&](const auto& s) {
      if (s->ended) decoding_.ended(s->id);
      return s->ended;
    });
    return events_;
  }

  /// Whether a step failed so that no other can be taken.
  bool failed() const noexcept { return failed_; }
  /// Whether there is nothing to compute and no event to hand out.
  bool idle() const noexcept { return running_.empty() && waiting_.empty() && ended_.empty(); }

  engine_counts counts() const {
    engine_counts c = counts_;
    c.running = std::ssize(running_);
    c.waiting = std::ssize(waiting_);
    c.cache = blocks_.counts();
    return c;
  }
  /// Most tokens of a prompt and its answer together: of the runner, or what its cache has room for.
  std::int64_t context() const { return (std::min)(limits_.context, blocks_.tokens_per_sequence()); }
  /// Of the runner.
  const step_limits& limits() const noexcept { return limits_; }
  const engine_options& options() const noexcept { return options_; }
  /// The decoding policy, for what it counts.
  const decoding& decoder() const noexcept { return decoding_; }

 private:
  struct sequence {
    request_id id = 0;
    request asked{};
    std::uint64_t seed = 0;
    std::vector<std::int32_t> tokens{};  // prompt and answer
    std::int64_t computed = 0;           // of them, those whose rows are in the cache
    sequence_blocks blocks{};
    token_counts counts{};
    std::int64_t cached_prompt_tokens = 0;
    bool began = false;
    bool ended = false;

    std::int64_t length() const noexcept { return std::ssize(tokens); }
    std::int64_t pending() const noexcept { return length() - computed; }
    std::int64_t answered() const noexcept { return length() - std::ssize(asked.prompt); }
    std::span<const std::int32_t> answer() const {
      return std::span<const std::int32_t>(tokens).subspan(asked.prompt.size());
    }
  };
  using sequence_pointer = std::unique_ptr<sequence>;
  static constexpr bool trees = detail::proposes_trees<decoding>;
  static constexpr bool all_streams = detail::reads_all_streams<decoding>;
  static constexpr bool fuses = detail::needs_slots<batching>;
  // A sequence with rows in the step; tokens `first_proposed` and on of `proposals_` are its last ones.
  struct scheduled {
    sequence* of = nullptr;
    std::int64_t rows = 0;
    std::size_t first_proposed = 0;
    std::int64_t proposed = 0;
  };

  // Rows of a step whose logits are wanted.
  std::int64_t most_wanted() const noexcept {
    return all_streams ? rows_per_step_
                       : (std::min)(rows_per_step_, most_running_ * (1 + std::int64_t{decoding::most_proposed}));
  }

  // ---- the batch of a step ----
  void form() {
    step_.tokens.clear();
    step_.sequences.clear();
    step_.blocks.clear();
    step_.wanted.clear();
    step_.parents.clear();
    step_.moves = moves_;
    step_.streams = detail::reads_streams<decoding>;
    scheduled_.clear();
    proposals_.clear();
    parents_.clear();
    std::int64_t left = rows_per_step_;
    if constexpr (fuses) {
      if (running_.empty()) {  // nobody is left for whom a failed step would have moved anything
        slot_copies_.clear();
        blocks_.closed();
      }
      if (!batching::closes_holes) left -= std::ssize(blocks_.holes());
    }
    for (std::size_t i = 0; i < running_.size(); ++i)  // the youngest may leave meanwhile
      if (running_[i]->pending() == 1 && make_room(*running_[i])) {
        scheduled_.push_back({.of = running_[i].get(), .rows = 1});
        --left;
      }
    if constexpr (decoding::most_proposed > 0) left -= propose(left);
    bool first = true;
    for (const sequence_pointer& s : running_)
      if (s->pending() > 1) left -= schedule_prompt(*s, left, first);
    admit(left, first);
    step_.copies.clear();
    step_results_.clear();
    if constexpr (fuses) {
      write_window();
    } else {
      for (const scheduled& s : scheduled_) write(s);
    }
  }

  // Rows in the order of slots; a hole that is kept has a row at its beginning, whose logits nobody wants.
  void write_window() {
    if (batching::closes_holes && slot_copies_.empty()) counts_.slot_moves += blocks_.close(running_, slot_copies_);
    step_.copies = slot_copies_;
    const auto slot = [&](const scheduled& s) { return blocks_.slot_of(s.of->blocks); };
    std::sort(scheduled_.begin(), scheduled_.end(), [&](const auto& a, const auto& b) { return slot(a) < slot(b); });
    std::span<const std::int64_t> holes;
    if (!batching::closes_holes && !scheduled_.empty()) holes = blocks_.holes();
    auto hole = holes.begin();
    for (const scheduled& s : scheduled_) {
      for (; hole != holes.end() && *hole < slot(s); ++hole) {
        step_.sequences.push_back(
            {.first_row = step_.rows(), .rows = 1, .first_block = std::ssize(step_.blocks), .blocks = 1});
        step_.blocks.push_back(blocks_.first_block(*hole));
        step_.tokens.push_back(0);
        if constexpr (trees) step_.parents.push_back(-1);
      }
      write(s);
    }
  }

  // A block for the row after those in the cache, the youngest sequences giving theirs back. False if `s` itself had to.
  bool make_room(sequence& s) {
    while (!blocks_.grow(s.blocks, s.computed + 1))
      if (send_back_youngest() == &s) return false;
    return true;
  }
  // The one that began last waits again, before all others.
  const sequence* send_back_youngest() {
    sequence& youngest = *running_.back();
    blocks_.release(youngest.blocks);
    youngest.computed = 0;
    ++counts_.preemptions;
    waiting_.push_front(std::move(running_.back()));
    running_.pop_back();
    return &youngest;
  }

  // Proposals for sequences that decode; a row is left for each prompt. Returns the number of rows.
  std::int64_t propose(std::int64_t left) {
    left -= std::ssize(running_) - std::ssize(scheduled_) + (waiting_.empty() ? 0 : 1);
    std::size_t n = 0;
    for (scheduled& s : scheduled_) {
      const std::int64_t longest = most_tokens(*s.of) - 1;
      const std::int64_t room = trees && longest > 0 ? context() - s.of->length() : longest;
      const std::int64_t most = (std::min)({std::int64_t{decoding::most_proposed}, left, room});
      if (most <= 0) continue;
      left -= most;
      if (n == asked_.size()) asked_.emplace_back();
      proposal& p = asked_[n++];
      p.id = s.of->id;
      p.asked = &s.of->asked;
      p.seed = s.of->seed;
      p.text = s.of->tokens;
      p.most = most;
      p.tokens.clear();
      p.parents.clear();
    }
    decoding_.propose(std::span<proposal>(asked_).first(n));
    auto s = scheduled_.begin();
    for (const proposal& p : std::span<const proposal>(asked_).first(n)) {
      while (s->of->id != p.id) ++s;
      const auto is_token = [&](std::int32_t t) { return t >= 0 && t < limits_.vocabulary; };
      const auto end = std::find_if_not(p.tokens.begin(), p.tokens.end(), is_token);
      std::int64_t count = (std::min)(p.most, std::int64_t{end - p.tokens.begin()});
      if (trees && !p.parents.empty()) count = (std::min)(count, std::ssize(p.parents));
      if (count == 0 || !blocks_.grow(s->of->blocks, s->of->length() + count)) continue;
      s->first_proposed = proposals_.size();
      s->proposed = count;
      s->rows += count;
      proposals_.insert(proposals_.end(), p.tokens.begin(), p.tokens.begin() + count);
      if constexpr (trees || detail::accepts_by_threshold<decoding>)
        for (std::int64_t i = 0; i < count; ++i)
          parents_.push_back(!trees || p.parents.empty() ? i - 1 : p.parents[static_cast<std::size_t>(i)]);
      counts_.proposed_tokens += count;
    }
    return std::ssize(proposals_);
  }

  std::int64_t schedule_prompt(sequence& s, std::int64_t left, bool& first) {
    const std::int64_t rows = left > 0 ? batching::prompt_rows(s.pending(), left, first) : 0;
    if (rows > 0) {
      scheduled_.push_back({.of = &s, .rows = rows});
      first = false;
    }
    return rows;
  }

  void admit(std::int64_t left, bool first) {
    std::int64_t begun = 0;
    while (!waiting_.empty() && std::ssize(running_) < most_running_ &&
           batching::admits(std::ssize(running_), begun, left)) {
      sequence& s = *waiting_.front();
      if (!blocks_.start(s.blocks, s.tokens, std::ssize(running_))) return;
      s.computed = s.blocks.cached;
      left -= schedule_prompt(s, left, first);
      ++begun;
      if (!std::exchange(s.began, true)) {
        s.cached_prompt_tokens = s.blocks.cached;
        counts_.prompt_tokens += std::ssize(s.asked.prompt);
      }
      running_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
  }

  void write(const scheduled& s) {
    const sequence& q = *s.of;
    const std::int64_t first = step_.rows();
    const std::int64_t own = s.rows - s.proposed;
    const auto begin = q.tokens.begin() + q.computed;
    step_.tokens.insert(step_.tokens.end(), begin, begin + own);
    const auto proposed = proposals_.begin() + static_cast<std::ptrdiff_t>(s.first_proposed);
    step_.tokens.insert(step_.tokens.end(), proposed, proposed + s.proposed);
    if constexpr (trees) {
      for (std::int64_t i = 0; i < own; ++i) step_.parents.push_back(i - 1);
      for (std::int64_t i = 0; i < s.proposed; ++i)
        step_.parents.push_back(own + parents_[s.first_proposed + static_cast<std::size_t>(i)]);
    }
    const std::int64_t blocks = detail::blocks_of_tokens(q.computed + s.rows, limits_.block_rows);
    step_.sequences.push_back({.first_row = first,
                               .rows = s.rows,
                               .position = q.computed,
                               .first_block = std::ssize(step_.blocks),
                               .blocks = blocks});
    step_.blocks.insert(step_.blocks.end(), q.blocks.blocks.begin(), q.blocks.blocks.begin() + blocks);
    if (q.blocks.copy.from >= 0) step_.copies.push_back(q.blocks.copy);
    const bool draws = own == q.pending();
    if constexpr (!trees && !all_streams &&
                  !detail::accepts_by_threshold<decoding>)  // in a tree the text before a row depends on what is drawn
      if (draws) step_results_.ask(*runner_, step_.wanted.size(), q.asked, q.seed, q.length(), s.proposed + 1);
    for (std::int64_t i = all_streams ? 0 : draws ? own - 1 : s.rows; i < s.rows; ++i)
      step_.wanted.push_back(first + i);
  }

  // ---- what comes of it ----
  void take_results(const scheduled& s, std::size_t& wanted) {
    sequence& q = *s.of;
    blocks_.copied(q.blocks);
    const std::int64_t own = s.rows - s.proposed;
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
    blocks_.computed(q.blocks, std::span<const std::int32_t>(q.tokens).first(static_cast<std::size_t>(q.computed)));
    if (s.proposed > 0) blocks_.shrink(q.blocks, q.computed);
    if (q.ended) blocks_.release(q.blocks);
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
      q.ended = true;
      ++counts_.ended;
      blocks_.release(q.blocks);
      e.finish = finish_reason::error;
      e.message =
          "heddle: request " + std::to_string(q.id) + ", token " + std::to_string(q.answered()) + " of the answer: ";
      e.message += heddle::v0::detail::without_prefix(problem.what());
      events_.push_back(std::move(e));
      return std::nullopt;
    }
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
  // Tokens that an answer may still get.
  std::int64_t most_tokens(const sequence& q) const {
    return (std::min)(q.asked.max_tokens - q.answered(), context() - q.length());
  }

  bool end_from_outside(request_id id, finish_reason reason) {
    const auto with_id = [&](const sequence_pointer& s) { return s->id == id; };
    const auto end = [&](auto& sequences) {
      const auto at = std::find_if(sequences.begin(), sequences.end(), with_id);
      if (at == sequences.end()) return false;
      sequence& q = **at;
      blocks_.release(q.blocks);
      decoding_.ended(id);
      ended_.push_back(
          {.id = id, .index = q.answered(), .finish = reason, .cached_prompt_tokens = q.cached_prompt_tokens});
      ++counts_.ended;
      sequences.erase(at);
      return true;
    };
    return end(running_) || end(waiting_);
  }

  Runner* runner_;
  step_limits limits_;
  engine_options options_;
  decoding decoding_;
  typename cache::blocks blocks_;
  std::int64_t rows_per_step_ = 0;
  std::int64_t most_running_ = 0;
  bool failed_ = false;
  request_id last_id_ = 0;
  std::vector<sequence_pointer> running_{};  // by id: the youngest last
  std::deque<sequence_pointer> waiting_{};   // by id, all behind those that run
  infer::step step_{};
  std::vector<scheduled> scheduled_{};
  std::vector<std::int32_t> proposals_{};  // of all sequences of the step
  std::vector<std::int64_t> parents_{};    // of these, in a tree, within their sequence
  std::vector<std::int64_t> path_{};       // of proposals that a rule accepted
  std::vector<row_move> moves_{};          // that the next step makes first
  std::vector<block_copy> slot_copies_{};  // of sequences to other slots, until a step has made them
  std::vector<proposal> asked_{};          // of those that decode
  step_results<scalar> step_results_{};
  std::span<const scalar> logits_{};  // of the step, but of rows whose token the runner drew
  token_sampler sampler_{};
  std::vector<event> events_{};
  std::vector<event> ended_{};
  engine_counts counts_{};
};

}  // namespace heddle::inline v0::infer
