// heddle/infer/engine_sequence.hpp: a sequence of an engine, and its rows in a step.
#pragma once

#include <heddle/infer/cache.hpp>
#include <heddle/infer/event.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/sampling.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace heddle::inline v0::infer::detail {

// A request from its beginning to its end.
struct engine_sequence {
  request_id id = 0;
  request asked{};
  std::uint64_t seed = 0;
  std::vector<std::int32_t> tokens{};  // prompt and answer
  std::int64_t computed = 0;           // of them, those whose rows are in the cache
  sequence_blocks blocks{};
  std::int64_t state = -1;  // of those that the runner's layers keep, while it runs
  std::int64_t saved = -1;  // the same when its proposals began, where states are restored
  bool old_state = false;   // whether the state has tokens that were not drawn
  bool replays = false;     // whether tokens of the answer are computed again
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
// Whether blocks that a cache gives to a sequence are of nobody else, and hold all of its rows.
template <class Blocks>
inline constexpr bool adopts_into_own_blocks =
    !requires(Blocks& b) { b.forget(); } && !requires { &Blocks::most_held; };

using sequence_pointer = std::unique_ptr<engine_sequence>;

// A sequence with rows in the step; tokens `first_proposed` and on of the step's proposals are its last ones.
struct scheduled_rows {
  engine_sequence* of = nullptr;
  std::int64_t rows = 0;
  std::size_t first_proposed = 0;
  std::int64_t proposed = 0;
};

}  // namespace heddle::inline v0::infer::detail
