// heddle/rl/settings.hpp: settings of a run, its task, and the report of a step.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/rl/aggregate.hpp>
#include <heddle/rl/flow.hpp>
#include <heddle/rl/reward.hpp>
#include <heddle/rl/statistics.hpp>
#include <heddle/train/report.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::rl {

/// What is to be learned. Both are called on the ranks that lead generators, each for its own groups; where ranks are
/// threads, by several at the same time.
struct task {
  /// The prompt of group 0, 1, ...: the same whoever asks. Token ids, at least one.
  std::function<std::vector<std::int32_t>(std::int64_t group)> prompt{};
  /// The rewards of the answers of a group, such as `judge_each` of a function, a `timed` or a `subprocess`. One that is
  /// missing counts for nothing, and its reason is in the report; that all of a batch are missing is an error.
  std::function<std::vector<judgement>(std::span<const question>)> reward{};
};

/// From what the advantage of an answer follows: `group_normalised` and `leave_one_out` compare it with its group,
/// `reward` is the reward itself.
enum class advantage_of { group_normalised, leave_one_out, reward };
/// Settings of a run. Units: groups of `answers` to one prompt; tokens.
struct settings {
  std::int64_t prompts = 32;      ///< groups of a step
  std::int64_t answers = 8;       ///< of a group
  std::int64_t steps = 100;       ///< batches that are used, also those that need no step
  std::int64_t most_tokens = 16;  ///< of an answer
  double temperature = 1;         ///< of what is drawn, and of the policy that learns
  std::vector<std::int32_t> end_tokens{};
  std::uint64_t seed = 0;  ///< of what is drawn
  advantage_of advantage = advantage_of::group_normalised;
  aggregation_of aggregation = aggregation_of::token_mean;
  std::int64_t sequences = 256;       ///< of a generator, written at once; a pipeline's `slots` are others
  std::int64_t cache_tokens = 0;     ///< of a generator; 0: for all its sequences at their longest
  std::int64_t block_rows = 16;      ///< tokens of a block of the cache
  std::int64_t rows = 256;           ///< of a step of a generator
  std::int64_t bucket_bytes = 1 << 20;  ///< of weights that travel at once, on a rank
  bool one_copy = false;  ///< colocated: memory for the weights in use only (`colocated_weights`), for a route back

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    const auto require = [](bool holds, const char* name, const std::string& got, const char* accepted) {
      if (!holds)
        throw config_error("heddle: rl::settings." + std::string(name) + " must be " + accepted + ", got " + got);
    };
    require(prompts >= 1, "prompts", std::to_string(prompts), "at least 1");
    require(answers >= (advantage == advantage_of::reward ? 1 : 2), "answers", std::to_string(answers),
            advantage == advantage_of::reward ? "at least 1" : "at least 2, as advantages compare answers of a group");
    require(steps >= 0, "steps", std::to_string(steps), "at least 0");
    require(most_tokens >= 1, "most_tokens", std::to_string(most_tokens), "at least 1");
    require(temperature > 0, "temperature", number_text(temperature), "positive");
    require(sequences >= 1, "sequences", std::to_string(sequences), "at least 1");
    require(block_rows >= 1, "block_rows", std::to_string(block_rows), "at least 1");
    require(rows >= 1, "rows", std::to_string(rows), "at least 1");
    require(cache_tokens >= 0, "cache_tokens", std::to_string(cache_tokens), "at least 0");
    require(bucket_bytes >= 1, "bucket_bytes", std::to_string(bucket_bytes), "at least 1");
  }
};

/// A setting that must be the same where a run goes on.
struct fixed_setting {
  std::string name{}, value{};
  friend bool operator==(const fixed_setting&, const fixed_setting&) = default;
};

/// What the engine of a generator has room for. Units: sequences that are written at once, blocks of the cache of
/// `block_rows` tokens, rows of a step.
struct generator_room {
  std::int64_t sequences = 0, blocks = 0, block_rows = 0, rows = 0;
};
/// The room that settings mean for a model of that context.
inline generator_room room_of(const settings& s, const flow& how, std::int64_t context) {
  const std::int64_t sequences = how.slots > 0 ? how.slots : s.sequences;
  const std::int64_t longest = (context + s.block_rows - 1) / s.block_rows;
  return {sequences, s.cache_tokens > 0 ? s.cache_tokens / s.block_rows : sequences * longest, s.block_rows,
          (std::max)(s.rows, sequences)};
}

/// One batch that was used, on ranks that train. The same on all of them, but for times.
struct run_report {
  std::int64_t batch = 0;         ///< counted from 0
  std::int64_t version = 0;       ///< optimizer steps done before it
  train::step_report training{};  ///< of the step; `training.steps` 0: no step, as nothing had a gradient
  train::step_report critic{};    ///< of the critic's step, where there is a critic
  double reward = 0;              ///< mean of the answers that have one
  std::int64_t missing = 0;       ///< answers without
  std::string why_missing{};      ///< the first reason
  std::int64_t given_up = 0;      ///< groups since the batch before
  std::int64_t tokens = 0;        ///< of answers
  double mean_lag = 0;            ///< of tokens, in versions
  std::int64_t greatest_lag = 0;
  std::int64_t inherited = 0;     ///< tokens of versions before the one that ended their answer
  rl::statistics statistics{};    ///< of the step
  double seconds = 0;             ///< since the batch before, on this rank
  double waiting = 0;             ///< of them, for answers and weights
};

/// What a run was, the same on all ranks that train.
struct run_result {
  std::int64_t batches = 0, version = 0, groups = 0, given_up = 0, skipped = 0, tokens = 0, missing = 0;
  std::vector<std::int64_t> lags{};  ///< tokens that were used, by their lag
};

}  // namespace heddle::inline v0::rl
