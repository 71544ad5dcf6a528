// heddle/rl/rollout.hpp: groups of answers by an engine whose weights change.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/infer/any_engine.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/rl/completion.hpp>
#include <heddle/rl/sample.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl {

using infer::kv;

/// The seed of an answer's draws, from that of a rollout and the answer's id.
constexpr std::uint64_t seed_of_sample(std::uint64_t seed, std::int64_t id) noexcept {
  constexpr std::uint64_t stream = 0x726f6c6c6f7574u;
  return counter_random(seed, stream).integer(static_cast<std::uint64_t>(id));
}

/// Settings of a rollout.
struct rollout_options {
  std::int64_t groups = 32;      ///< that a round delivers, unless `start` says another number
  std::int64_t answers = 8;      ///< to each prompt: a group
  bool compared = true;          ///< advantages compare the answers of a group, which has at least 2 then
  std::int64_t max_tokens = 16;  ///< of an answer
  /// Temperature (above 0), and the seed from which, with its id, that of each answer follows. Nothing else may be set:
  /// a trainer takes log-probabilities over all tokens, and would not know what filters left.
  infer::sampling_options sampling{};
  std::vector<std::int32_t> stop_tokens{};  ///< end an answer, beside the engine's own end tokens
  std::int64_t window = 0;                  ///< most groups that are started and not consumed; 0: any number
};

/// A prompt, and the number of the group of its answers.
struct rollout_prompt {
  std::int64_t group = 0;
  std::vector<std::int32_t> tokens{};
  friend bool operator==(const rollout_prompt&, const rollout_prompt&) = default;
};

/// What a rollout did since it began. Units: groups, tokens of answers, requests.
struct rollout_counts {
  std::int64_t started = 0, taken = 0, consumed = 0;
  std::int64_t generated = 0;  ///< tokens: those of answers that were taken, and of those that are here
  std::int64_t delivered = 0;  ///< of these, those of answers that were taken
  std::int64_t requests = 0;   ///< to the engine
  std::int64_t cancelled = 0;  ///< of these, those that were cancelled, to go on later
  friend bool operator==(const rollout_counts&, const rollout_counts&) = default;
};

/// All that a rollout has to save to go on elsewhere. Answers that are under way are in it with what they have.
struct rollout_state {
  std::int64_t version = 0, wanted = 0;
  rollout_counts counts{};
  std::vector<rollout_prompt> prompts{};      ///< not started
  std::vector<std::vector<sample>> groups{};  ///< started and not taken, the oldest first
  friend bool operator==(const rollout_state&, const rollout_state&) = default;
};

namespace detail {
template <bool Ok, class Completion>
inline constexpr bool takes_completion = Ok;
template <bool Ok, class Decoding>
inline constexpr bool draws_all_tokens = Ok;
}  // namespace detail

/// Answers prompts by an engine, `answers` to each: a group, of which all are taken together. A round (`start`) ends
/// when enough groups have all their answers, as the completion policy says. Of each token there is the log-probability
/// of the distribution that it was drawn from, with the temperature, and the version of the weights that drew it. An
/// answer that is cancelled goes on as a request for prompt and tokens with the same seed, whose draws depend on the
/// token's position alone: at the same weights it gets the tokens that it would have got. Token ids are kept, never
/// text. A new group starts only where no answer of an older one waits to begin, the engine's cache has room and no
/// request waits for it, and `started - consumed < window`. It lives where the engine does, on the rank that leads;
/// other ranks are in `follow`. One thread owns it.
class rollout {
 public:
  /// The engine must outlive it, and answer nothing else. `how`: `wait_all`, `partial<Over>`, `slots<H>` or a
  /// `completion_rule`.
  /// Errors: `config_error` naming the setting: filters or penalties, a temperature of 0, fewer than 2 answers that are
  /// compared, a window of fewer groups than a round delivers, an engine with a bounded queue.
  template <class Engine, class Completion>
  rollout(Engine& engine, const Completion& how, rollout_options options = {}) {
    constexpr bool completes = completion_policy<Completion>;
    static_assert(detail::takes_completion<completes, Completion>,
                  "heddle: rl::rollout: a completion policy is wait_all, partial<Over>, slots<H>, a completion_rule or "
                  "a type of completion_kind with `completion_rule rule() const`");
    if constexpr (std::derived_from<Engine, infer::any_engine>) {
      engine_ = &engine;
    } else {
      static_assert(detail::draws_all_tokens<Engine::decoding::lossless, typename Engine::decoding>,
                    "heddle: rl::rollout: a rule of acceptance takes tokens that no distribution drew, so that their "
                    "log-probabilities cannot be told to a trainer: take another way "
                    "to decode");
      own_ = std::make_unique<infer::held_engine<Engine&>>(engine);
      engine_ = own_.get();
    }
    if constexpr (completes) begin(how.rule(), std::move(options));
  }
  rollout(const rollout&) = delete;
  rollout& operator=(const rollout&) = delete;

  /// A prompt to be answered after those that were added before. Errors: `config_error` for one that leaves no room for
  /// an answer or has unknown tokens, and for groups that do not ascend.
  void add(rollout_prompt prompt);
  /// Begins a round that delivers n groups (0: `options().groups`). Errors: `config_error` for more than the window.
  void start(std::int64_t n = 0);
  /// One step of the engine, and before it what can start. True while the round needs further ones; where none was
  /// begun, `slots` go on while there is anything to do. False: it is complete, or `finished()` says that groups are
  /// missing, and nothing can start: no prompts are left, or the window is closed.
  /// Errors: whatever the engine throws, and then the step may be tried again; `numeric_error` where an answer ended by
  /// an error, which all others of the step survive.
  bool step();
  /// Groups with all their answers that were not taken.
  std::int64_t finished() const noexcept { return finished_; }
  /// Takes the oldest groups with all their answers, at most n (0: as many as the round delivers; all, where none was
  /// begun), the answers of a group beside each other.
  std::vector<sample> take_finished(std::int64_t n = 0);
  /// So many groups that were taken were trained on, or dropped: others may start. Errors: `config_error` for more than
  /// were taken.
  void consumed(std::int64_t groups);
  /// Cancels all that is under way. It goes on with the next step.
  void cancel_rest();
  /// The engine's weights were written, between two steps. Errors: `config_error` for a version below the last one.
  void weights_changed(std::int64_t version, kv what);

  /// All that has to be saved, between two steps. Nothing is cancelled.
  rollout_state state() const;
  /// Goes on from a state. At the same weights answers get the tokens that they would have got; those under way are
  /// computed again, as after `kv::recompute`.
  /// Errors: `config_error` where this one has begun, and for a state of other settings.
  void restore(rollout_state state);

  const rollout_counts& counts() const noexcept { return counts_; }
  /// Tokens of answers that were not taken.
  std::int64_t buffered_tokens() const;
  std::int64_t version() const noexcept { return version_; }
  /// Answers that the engine has now.
  std::int64_t in_flight() const noexcept { return std::ssize(in_flight_); }
  /// Prompts that are not started.
  std::int64_t waiting_prompts() const noexcept { return std::ssize(prompts_); }
  const rollout_options& options() const noexcept { return options_; }
  const completion_rule& rule() const noexcept { return rule_; }

 private:
  struct group {
    std::vector<sample> samples{};
    std::int64_t unfinished = 0;
  };
  struct place {
    group* of = nullptr;
    std::size_t at = 0;
    sample& get() const { return of->samples[at]; }
  };

  void begin(const completion_rule& rule, rollout_options options);
  void admit();
  bool may_start() const;
  void start_group();
  void submit(place p);
  void end(place p, infer::finish_reason why);
  void wait_again();
  void require_prompt(const rollout_prompt& p) const;

  std::unique_ptr<infer::any_engine> own_{};
  infer::any_engine* engine_ = nullptr;
  completion_rule rule_{};
  rollout_options options_{};
  std::int64_t version_ = 0, wanted_ = 0, finished_ = 0, last_group_ = -1;
  rollout_counts counts_{};
  std::deque<rollout_prompt> prompts_{};
  std::list<group> groups_{};    // started and not taken, the oldest first
  std::deque<place> pending_{};  // of these, answers without a request
  std::unordered_map<infer::request_id, place> in_flight_{};
};

}  // namespace heddle::inline v0::rl

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rl/impl/rollout.hpp>
#endif
