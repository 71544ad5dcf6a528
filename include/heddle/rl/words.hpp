// heddle/rl/words.hpp: samples and states of rollouts as numbers, to send and save.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/rl/rollout.hpp>
#include <heddle/rl/sample.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::rl {

/// Appends samples as numbers; floating-point ones keep their bits.
void append_words(std::vector<std::int64_t>& to, std::span<const sample> samples);
/// Reads the samples that `append_words` appended, and leaves `from` behind them. Errors: `config_error` for words that
/// are none.
std::vector<sample> take_samples(std::span<const std::int64_t>& from);

/// A rollout's state as numbers.
std::vector<std::int64_t> to_words(const rollout_state& state);
/// The state of which these are the numbers. Errors: `config_error` for words that are none.
rollout_state rollout_state_of(std::span<const std::int64_t> words);

}  // namespace heddle::inline v0::rl

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rl/impl/words.hpp>
#endif
