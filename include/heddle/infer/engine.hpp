// heddle/infer/engine.hpp: the inference engine: one loop over requests, cache and runner.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/infer/drawing_runner.hpp>
#include <heddle/infer/engine_counts.hpp>
#include <heddle/infer/engine_policies.hpp>
#include <heddle/infer/engine_results.hpp>
#include <heddle/infer/engine_sequence.hpp>
#include <heddle/infer/event.hpp>
#include <heddle/infer/hand_over.hpp>
#include <heddle/infer/kv.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
class engine : detail::engine_results<Runner, engine_policies<Runner, Policies...>> {
  using base = detail::engine_results<Runner, engine_policies<Runner, Policies...>>;
  using typename base::scheduled, typename base::sequence;
  using sequence_pointer = detail::sequence_pointer;
  using base::blocks_, base::counts_, base::decoding_, base::events_, base::free_states_, base::fuses, base::form,
      base::limits_, base::logits_, base::most_running_, base::release, base::most_wanted, base::moves_, base::options_,
      base::rows_per_step_, base::runner_, base::running_, base::scheduled_, base::send_back_youngest,
      base::slot_copies_, base::step_, base::step_results_, base::take_results, base::waiting_;

 public:
  using policies = engine_policies<Runner, Policies...>;
  using batching = typename policies::batching;
  using cache = typename policies::cache;
  using decoding = typename policies::decoding;
  using scalar = typename Runner::scalar;

  /// The runner must outlive the engine, and nothing else may use its cache. `decode`: a decoding policy that holds something.
  /// Takes the runner's memory for logits of its largest step, where the runner draws tokens.
  /// Errors: `config_error` for limits or options that leave no room for a single request, for a decoding policy of another vocabulary, and for one with trees where
  /// the runner's limits have none; `memory_error`.
  explicit engine(Runner& runner, engine_options options = {}, decoding decode = {})
      : base(runner, std::move(options), std::move(decode)) {
    if (limits_.vocabulary < 1 || limits_.max_rows < 1 || options_.max_running < 1 || options_.max_waiting < 0)
      throw config_error(
          "heddle: an engine needs a vocabulary, rows of a step and max_running of at least 1, and max_waiting of at "
          "least 0; got " +
          std::to_string(limits_.vocabulary) + ", " + std::to_string(limits_.max_rows) + ", " +
          std::to_string(options_.max_running) + " and " + std::to_string(options_.max_waiting));
    if constexpr (base::restores)
      if (limits_.states == 1)
        throw config_error(
            "heddle: an engine that restores states needs two for a sequence whose tokens are proposed; the runner has "
            "1");
    if constexpr (fuses)
      if (limits_.states > 0 && !batching::closes_holes)
        throw config_error(
            "heddle: holes in a window of slots have rows without a sequence, which states do not take; give "
            "temporal_fusion close_holes");
    if constexpr (base::trees)  // a runner without its type
      if (!limits_.trees)
        throw config_error(
            "heddle: rows of this runner's steps do not form trees, which the engine's decoding policy proposes; take "
            "n-grams or a draft model");
    if constexpr (requires { std::int64_t{decoding_.vocabulary()}; })
      if (decoding_.vocabulary() != limits_.vocabulary)
        throw config_error("heddle: an engine's decoding policy should have the runner's vocabulary of " +
                           std::to_string(limits_.vocabulary) + " tokens, got " +
                           std::to_string(decoding_.vocabulary()));
    rows_per_step_ = batching::rows_per_step(limits_.max_rows);
    most_running_ = (std::min)(options_.max_running, rows_per_step_);
    if constexpr (base::windows) decoding_.require(limits_, rows_per_step_);
    if constexpr (fuses) blocks_.use_slots((std::min)(batching::slots, most_running_));
    if constexpr (drawing_runner<Runner>)  // at once, so that no step takes memory of its host that a device reaches
      if (runner.draws()) runner.logits_memory(static_cast<std::size_t>(most_wanted() * limits_.vocabulary));
  }

  /// Whether a request can be taken at all. Reads what no step changes. Errors: `context_error`, `request_error` (`require_request`).
  void require(const request& r) const {
    require_request(r, limits_.vocabulary, context());
    if constexpr (detail::accepts_by_threshold<decoding>)
      if (r.log_probabilities && r.log_probabilities_of == log_probability_of::drawn)
        throw request_error("log_probabilities_of",
                            "a rule of acceptance takes tokens that no distribution drew; ask for those of the model");
    if constexpr (base::windows) decoding_.require(r, context(), rows_per_step_);
  }
  /// Queues a request. Errors: `context_error`, `request_error` (`require_request`); `queue_full_error` if `max_waiting` others wait.
  request_id submit(request r) {
    require(r);
    if (options_.max_waiting > 0 && std::ssize(waiting_) >= options_.max_waiting)
      throw queue_full_error("heddle: " + std::to_string(waiting_.size()) + " requests wait, as many as may");
    auto s = std::make_unique<sequence>();
    s->id = ++last_id_;
    s->tokens = r.prompt;
    s->seed = r.sampling.seed ? *r.sampling.seed : counter_random(options_.seed, 0).integer(s->id);
    if (has_penalties(r.sampling)) s->counts.add_prompt(r.prompt);
    if constexpr (base::windows) decoding_.begin(s->id, r, context());
    s->asked = std::move(r);
    waiting_.push_back(std::move(s));
    ++counts_.submitted;
    return last_id_;
  }

  /// Of the request that came last, by `submit` or `adopt`; 0: none has.
  request_id last_id() const noexcept { return last_id_; }

  /// Ends a request; the next step has its last event. False if it had ended before, or never was.
  bool cancel(request_id id) { return end_from_outside(id, finish_reason::cancelled); }
  /// As `cancel`, with the reason `stop`: for a caller that finds the end in the text.
  bool finish(request_id id) { return end_from_outside(id, finish_reason::stop); }

  /// Between two steps: takes out a request whose prompt is computed, so that it goes on in another engine of the same model (`adopt`). Its blocks stay as they are until
  /// `handed`. None if it ended, or its prompt is not computed yet.
  std::optional<handed_sequence> hand_over(request_id id) {
    static_assert(
        stays_in_place,
        "heddle: engine::hand_over: slots of a window move between steps, and a text with masks has rows that "
        "change; take no temporal_fusion and no diffusion");
    static_assert(!base::trees,
                  "heddle: engine::hand_over: rows of trees move in the step after the one that accepts them; take "
                  "one_token, n-grams or a draft model");
    const auto at = with_id(running_, id);
    if (at == running_.end() || (*at)->pending() != 1) return std::nullopt;
    sequence& q = **at;
    handed_sequence h = handed_of(q);
    decoding_.ended(id);
    q.ended = true;
    held_.push_back(std::move(*at));
    running_.erase(at);
    return h;
  }
  /// Between two steps: takes out all requests, those that wait behind those that run, each in the order of their numbers. Their blocks are free at once: nothing may be computed
  /// here before their rows were read. Events that are due still come from `step`.
  std::vector<handed_sequence> hand_over_all() {
    static_assert(stays_in_place,
                  "heddle: engine::hand_over_all: slots of a window move between steps, and a text with masks has rows "
                  "that change; take no temporal_fusion and no diffusion");
    static_assert(!base::trees,
                  "heddle: engine::hand_over_all: rows of trees move in the step after the one that accepts them; take "
                  "one_token, n-grams or a draft model");
    std::vector<handed_sequence> all;
    const auto take = [&](const sequence_pointer& s) {
      all.push_back(handed_of(*s));
      decoding_.ended(s->id);
      release(*s);
    };
    for (const sequence_pointer& s : running_) take(s);
    for (const sequence_pointer& s : waiting_) take(s);
    running_.clear();
    waiting_.clear();
    return all;
  }
  /// Takes a request of another engine, whose first `computed` rows lie in these blocks, at once; without blocks, or
  /// where as many run as may, it waits behind the others and is computed again. As `adopt` else.
  /// Errors: `config_error` for blocks that are not free, or fewer than those rows take, and for any where layers keep states, which blocks do not hold; `context_error`, `request_error`.
  request_id adopt_into(const handed_sequence& h, std::span<const std::int32_t> blocks) {
    require_request(h.asked, limits_.vocabulary, context());
    if (limits_.states > 0 && !blocks.empty())
      throw config_error(
          "heddle: engine::adopt_into: layers keep states, which blocks do not hold; expected no blocks, so that the "
          "request is computed again, got " +
          std::to_string(blocks.size()));
    sequence_pointer s = adopted_from(h);
    if (blocks.empty() || std::ssize(running_) >= most_running_) {
      s->computed = 0;
      s->id = ++last_id_;
      waiting_.push_back(std::move(s));
      return last_id_;
    }
    static_assert(detail::adopts_into_own_blocks<typename cache::blocks> && stays_in_place,
                  "heddle: engine::adopt_into: rows that arrive are written to blocks of their request alone, which "
                  "stay where they are; take the cache paged, no temporal_fusion and no diffusion");
    if (std::ssize(blocks) < detail::blocks_of_tokens(h.computed, limits_.block_rows) ||
        !blocks_.take(s->blocks, blocks))
      throw config_error("heddle: engine::adopt_into: a request should get free blocks for its " +
                         std::to_string(h.computed) + " rows, got " + std::to_string(blocks.size()) +
                         ", of which some are not free or missing");
    s->id = ++last_id_;
    running_.push_back(std::move(s));
    return last_id_;
  }
  /// The rows of a request that left have been read, or never will be: its blocks are free.
  void handed(request_id id) { end_hold(id); }
  /// Gives a request of another engine blocks for its text, which somebody fills with its first `computed` rows; it runs after `arrived`. None, and nothing has changed, while
  /// there is no room, or requests that this engine sent back wait. Its tokens are those that the other engine would have drawn.
  /// Errors: `context_error`, `request_error` (`require_request`).
  std::optional<adopted_sequence> adopt(const handed_sequence& h) {
    static_assert(detail::adopts_into_own_blocks<typename cache::blocks> && stays_in_place,
                  "heddle: engine::adopt: rows that arrive are written to blocks of their request alone, which stay "
                  "where they are; take the cache paged or contiguous, no temporal_fusion and no diffusion");
    require_request(h.asked, limits_.vocabulary, context());
    if (!waiting_.empty() || std::ssize(running_) + std::ssize(held_) >= most_running_) return std::nullopt;
    auto s = adopted_from(h);
    if (!blocks_.start(s->blocks, h.tokens, std::ssize(running_) + std::ssize(held_))) return std::nullopt;
    if (!base::take_states(*s)) return release(*s), std::nullopt;
    s->id = ++last_id_;
    held_.push_back(std::move(s));
    return adopted_sequence{last_id_, held_.back()->blocks.blocks, held_.back()->state};
  }
  /// The rows of an adopted request are there, so that it runs from the next step on; or they never will be, after `cancel`: its blocks are free. Whether it runs.
  bool arrived(request_id id) { return end_hold(id); }

  /// Between two steps, after the runner's weights were written: no later prompt finds rows of the cache that the old ones computed, and what runs goes on
  /// as `what` says. Tokens that were drawn stay, no request ends, and a request that is computed again counts among `preemptions`.
  void weights_changed(kv what) {
    if constexpr (requires { blocks_.forget(); }) blocks_.forget();
    if (what == kv::recompute)
      while (!running_.empty()) send_back_youngest();
    if (what == kv::recompute)
      for (const auto& s : held_) s->computed = 0;
  }

  /// Computes one step; the events are valid until the next call. Does nothing while `idle()`.
  /// Errors: whatever the runner throws; the step is then as if it had not been tried, and can be tried again. Not so with states, and a step with moves (`step::moves`,
  /// that trees of proposals make): rows of the cache may be lost, so that each later call throws `schedule_error`.
  std::span<const event> step() {
    if (failed_)
      throw schedule_error(
          "heddle: an engine should take no step after one that moved rows of the cache and failed, or one that failed "
          "with states: answers would be wrong; make another engine");
    form();
    if (!step_.sequences.empty()) {
      try {
        logits_ = step_results_.run(*runner_, std::as_const(step_), limits_.vocabulary);
      } catch (...) {
        failed_ = !step_.moves.empty() || limits_.states > 0;
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
  using base::context;
  /// Of the runner.
  const step_limits& limits() const noexcept { return limits_; }
  const engine_options& options() const noexcept { return options_; }
  /// The decoding policy, for what it counts.
  const decoding& decoder() const noexcept { return decoding_; }

 private:
  // Whether rows that are computed stay as and where they are.
  static constexpr bool stays_in_place = !fuses && !requires { requires decoding::windows; };

  static handed_sequence handed_of(const sequence& q) {
    return {.id = q.id,
            .asked = q.asked,
            .seed = q.seed,
            .tokens = q.tokens,
            .computed = q.computed,
            .cached_prompt_tokens = q.cached_prompt_tokens,
            .blocks = q.blocks.blocks,
            .state = q.state};
  }
  static sequence_pointer adopted_from(const handed_sequence& h) {
    static_assert(!detail::reads_streams<decoding>,
                  "heddle: engine::adopt: this decoding policy reads the residual stream of the whole text, of which "
                  "the rows of the cache know nothing; take one_token, n-grams or a draft model");
    auto s = std::make_unique<sequence>();
    s->asked = h.asked;
    s->seed = h.seed;
    s->tokens = h.tokens;
    s->computed = h.computed;
    s->cached_prompt_tokens = h.cached_prompt_tokens;
    s->began = h.computed > 0 || s->answered() > 0;
    if (has_penalties(h.asked.sampling)) {
      s->counts.add_prompt(h.asked.prompt);
      for (const std::int32_t t : s->answer()) s->counts.add_answer(t);
    }
    return s;
  }
  static auto with_id(auto& sequences, request_id id) {
    return std::find_if(sequences.begin(), sequences.end(), [&](const sequence_pointer& s) { return s->id == id; });
  }
  bool end_hold(request_id id) {
    const auto at = with_id(held_, id);
    if (at == held_.end()) return false;
    const bool runs = !(*at)->ended;
    if (runs)
      running_.insert(std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s->id > id; }),
                      std::move(*at));
    else
      release(**at);
    held_.erase(at);
    return runs;
  }
  bool end_from_outside(request_id id, finish_reason reason) {
    const auto end = [&](auto& sequences, bool holds = false) {
      const auto at = with_id(sequences, id);
      if (at == sequences.end() || (*at)->ended) return false;
      sequence& q = **at;
      if (!holds) release(q);
      decoding_.ended(id);
      ended_.push_back(
          {.id = id, .index = q.answered(), .finish = reason, .cached_prompt_tokens = q.cached_prompt_tokens});
      ++counts_.ended;
      q.ended = true;
      if (!holds) sequences.erase(at);
      return true;
    };
    return end(running_) || end(waiting_) || end(held_, true);
  }

  bool failed_ = false;
  request_id last_id_ = 0;
  std::vector<event> ended_{};
  std::vector<sequence_pointer>
      held_{};  // that left, or whose rows have not arrived: somebody reads or writes their blocks
};

}  // namespace heddle::inline v0::infer
