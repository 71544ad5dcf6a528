// heddle/infer/engine_counts.hpp: settings of an engine, and what it counts.
#pragma once

#include <heddle/infer/cache.hpp>

#include <array>
#include <cstdint>
#include <vector>

namespace heddle::inline v0::infer {

/// Settings of an engine. `max_running`: requests whose rows are in the cache at once. `max_waiting`: further ones that `submit` accepts; 0: any number.
/// `end_tokens` end each answer (EOS), unless the request ignores them. `seed`: for requests that have none.
struct engine_options {
  std::int64_t max_running = 64;
  std::int64_t max_waiting = 0;
  std::vector<std::int32_t> end_tokens{};
  std::uint64_t seed = 0;
};

/// What an engine holds, and what it did since it began. Units: requests, tokens, rows, steps.
struct engine_counts {
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  cache_counts cache{};
  std::int64_t submitted = 0;
  std::int64_t ended = 0;
  std::int64_t preemptions = 0;  ///< times that a request gave its blocks back and was computed again
  std::int64_t steps = 0;
  std::int64_t rows = 0;             ///< of all steps
  std::int64_t slot_moves = 0;       ///< of sequences to other slots of a window (`temporal_fusion`)
  std::int64_t prompt_tokens = 0;    ///< of requests that began
  std::int64_t answer_tokens = 0;    ///< of all requests
  std::int64_t proposed_tokens = 0;  ///< by speculation
  std::int64_t accepted_tokens = 0;  ///< of these, those that became part of an answer
  std::array<std::int64_t, 16>
      accepted_at{};  ///< of these, the first, second, ... after the last token; later ones count as the last
};

}  // namespace heddle::inline v0::infer
