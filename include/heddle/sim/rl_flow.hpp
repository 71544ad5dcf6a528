// heddle/sim/rl_flow.hpp: simulates reinforcement learning in virtual time.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace heddle::inline v0::sim {

/// When engines get new weights, and whether they wait.
enum class rl_rule {
  sync,  ///< they generate the answers of some steps, then the trainer learns of them, then they go on with its weights
  one_step_off,   ///< they generate while the trainer learns of what came before; both wait for each other
  bounded_stale,  ///< they go on all the time, as far as the window reaches
  in_flight,      ///< the same; sequences go on under new weights
};
/// When a round of generation ends (`sync`, `one_step_off`).
enum class rl_completion {
  wait_all,  ///< with the last answer
  partial,   ///< with the last group that is needed; what is not finished goes on in the next round
};
/// How engines that go on all the time take new weights.
enum class rl_load {
  token_boundary,  ///< each after its next token
  stop,            ///< all together after their next token; the trainer waits, too
  rolling,         ///< `at_once` after the other
  drain,           ///< each when it has finished its answers, and starts none before
};

/// What a pipeline does, as plain values. Of each prompt a group of answers; a step of the trainer takes `groups` groups.
struct rl_flow {
  rl_rule rule = rl_rule::sync;
  rl_completion completion = rl_completion::wait_all;
  rl_load load = rl_load::token_boundary;
  int engines = 1;
  int slots = 0;  ///< answers that an engine works at together; 0: any number
  int groups = 32;
  int of_group = 8;
  /// Groups that a round of `partial` starts, with those that it goes on with; 0: as many as it needs.
  int started = 0;
  int steps_per_sync = 1;  ///< steps of the trainer between weights
  /// Of `bounded_stale`: groups for (1 + eta) steps_per_sync steps may be started beyond those of the last weights.
  double eta = 0;
  int window = 0;   ///< the same of `in_flight`, in groups; 0: any
  int at_once = 1;  ///< engines that load together (`rolling`)
  /// Groups are learned of in the order in which they began; otherwise one that takes long may miss any number of steps.
  bool in_order = false;
  bool recompute = false;  ///< whether the cache of running answers is computed again after new weights
};

/// What things take. Units: seconds, tokens.
struct rl_times {
  double step = 0.01, step_per_answer = 0;  ///< of an engine for one token of all its answers
  double prefill = 0;                       ///< for each token of a prompt, or of an answer that goes on
  double train = 0, train_per_token = 0;    ///< of a step of the trainer
  double publish = 0;  ///< until the weights have come, while engines go on where their rule says so
  double load = 0;     ///< in which an engine stands still
  /// Tokens of an answer's whole, at least 1, and of its prompt; seconds of its reward.
  std::function<int(std::int64_t group, int member)> length{};
  std::function<int(std::int64_t group)> prompt{};
  std::function<double(std::int64_t group, int member)> reward{};
};

/// Lengths as answers have them: exp of normal numbers, of which one is the group's and one the answer's own, at most `cap`.
struct rl_lengths {
  double median = 1000, between = 0.8, within = 0.3;  ///< standard deviations of the logarithm
  int cap = 8192;
  std::uint64_t seed = 1;
  HEDDLE_INLINE int operator()(std::int64_t group, int member) const;
};

/// A step of the trainer.
struct rl_flow_step {
  double begin = 0, end = 0;
  std::int64_t tokens = 0;
  int greatest_lag = 0;
};

/// What came of it; numbers behind `steps` are of the time after the first `skip` steps. A lag is the number of steps
/// that the trainer has made since the weights that drew a token.
struct rl_flow_report {
  std::vector<rl_flow_step> steps{};
  double seconds = 0;
  std::int64_t generated = 0, learned = 0;   ///< tokens
  std::int64_t prefilled = 0;                ///< tokens of prompts and of answers that went on
  double engine_idle = 0, trainer_idle = 0;  ///< shares of the time
  std::vector<std::int64_t> tokens_of_lag{};
  double stale = 0;  ///< share of learned tokens of an earlier version than the newest of their step
  double inherited =
      0;  ///< tokens that answers had which rounds went on with, of those and all that the rounds generated
  int most_versions = 0;  ///< of an answer
  int most_standing = 0;  ///< engines that load at the same time
  std::int64_t answers = 0;
  std::int64_t buffered = 0;  ///< tokens of answers that are not finished or not learned of, at the end, of all time
  std::int64_t all_generated = 0, all_learned = 0;

  double seconds_per_step(std::size_t skip) const {
    return skip < steps.size() ? seconds / static_cast<double>(steps.size() - skip) : 0;
  }
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(generated) / seconds : 0; }
  double mean_lag() const {
    double sum = 0;
    for (std::size_t l = 0; l < tokens_of_lag.size(); ++l)
      sum += static_cast<double>(l) * static_cast<double>(tokens_of_lag[l]);
    return learned > 0 ? sum / static_cast<double>(learned) : 0;
  }
};
/// The report in a line for people.
HEDDLE_INLINE std::string to_string(const rl_flow_report& report);

/// Runs so many steps of the trainer. All answers of an engine get a token in the same time; answers begin and weights
/// change between tokens. An answer goes to the engine with the fewest; groups are learned of in the order in which
/// they are complete, unless `in_order`.
/// Errors: `config_error` for sizes and times that are not possible, and a window that never lets a step be complete.
HEDDLE_INLINE rl_flow_report simulate(const rl_flow& flow, const rl_times& times, int steps, int skip = 0);

}  // namespace heddle::inline v0::sim

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/sim/impl/rl_flow.hpp>
#endif
