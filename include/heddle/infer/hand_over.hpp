// heddle/infer/hand_over.hpp: hands a request and its cache rows to another engine.
#pragma once

#include <heddle/infer/request.hpp>

#include <cstdint>
#include <vector>

namespace heddle::inline v0::infer {

/// What `engine::hand_over` gives and `engine::adopt` takes: the request, its text so far, and where its rows are in the engine that it leaves.
struct handed_sequence {
  request_id id = 0;  ///< in the engine that it leaves
  request asked{};
  std::uint64_t seed = 0;
  std::vector<std::int32_t> tokens{};  ///< prompt and answer
  std::int64_t computed = 0;           ///< of them, those whose rows are in the cache
  std::int64_t cached_prompt_tokens = 0;
  std::vector<std::int32_t> blocks{};  ///< of the cache that it leaves
  std::int64_t state = -1;             ///< of those that layers keep
};

/// Where a request that was adopted is to get its rows.
struct adopted_sequence {
  request_id id = 0;  ///< in the engine that adopted it
  std::vector<std::int32_t> blocks{};
  std::int64_t state = -1;
};

}  // namespace heddle::inline v0::infer
