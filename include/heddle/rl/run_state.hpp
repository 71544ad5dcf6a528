// heddle/rl/run_state.hpp: the state of a run beside its trainer, as numbers for saves.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/rl/batch_buffer.hpp>
#include <heddle/rl/flow.hpp>
#include <heddle/rl/rollout.hpp>
#include <heddle/rl/settings.hpp>
#include <heddle/rl/words.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::rl {

/// A generator between two steps: its next group, and what it has begun and not delivered.
struct generator_state {
  std::int64_t next = 0;
  rollout_state answers{};
  friend bool operator==(const generator_state&, const generator_state&) = default;
};

/// All of a run but its trainer's weights, moments and position. Of n generators, g begins the groups g, g + n, ... below
/// its `next`. Each group that has begun is once in it: it was used or given up, is in the buffer, or is with its
/// generator.
struct run_state {
  std::vector<fixed_setting> settings{};
  std::int64_t version = 0;   ///< optimizer steps done
  std::int64_t given_up = 0;  ///< groups since the last batch
  run_result result{};
  batch_buffer_state buffer{};
  std::vector<generator_state> generators{};
};

/// The settings that decide which answers are written and what is learned from them. `objective`: in words.
std::vector<fixed_setting> fixed_settings(const settings& s, const flow& how, const std::string& objective);

/// The state as numbers.
std::vector<std::int64_t> to_words(const run_state& state);
/// The state of which these are the numbers. Errors: `config_error` for words that are none, and for a state in which
/// groups are lost or twice.
run_state run_state_of(std::span<const std::int64_t> words);

/// A generator's state as numbers.
std::vector<std::int64_t> to_words(const generator_state& state);
/// The generator's state of which these are the numbers. Errors: `config_error` for words that are none.
generator_state generator_state_of(std::span<const std::int64_t> words);

/// What generator `own` of `count` goes on with. As many as before: what it had. Else groups are dealt out again by their
/// numbers, and those that were passed over begin first, with prompts from `prompt`; counts begin anew.
generator_state dealt_to(std::span<const generator_state> from, std::int64_t own, std::int64_t count,
                         const std::function<std::vector<std::int32_t>(std::int64_t)>& prompt);

/// Refuses a save of a run with other settings. `save`: its path. Errors: `config_error` naming the first that differs.
void require_same_settings(const std::string& save, std::span<const fixed_setting> saved,
                           std::span<const fixed_setting> own);

/// The state of a run in a complete save, such as `folder`/step-00000100.
/// Errors: `io_error` for one that cannot be read; `config_error` for one of a training without such a state, or with
/// words that are none, naming it.
run_state state_in_save(const std::filesystem::path& save);

namespace detail {
// The words of a save; none: it has none. `state_of_save` gives them a meaning.
std::vector<std::int64_t> words_in_save(const std::filesystem::path& save);
run_state state_of_save(const std::string& save, std::span<const std::int64_t> words);
}  // namespace detail

}  // namespace heddle::inline v0::rl

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rl/impl/run_state.hpp>
#endif
