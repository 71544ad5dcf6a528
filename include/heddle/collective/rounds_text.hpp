// heddle/collective/rounds_text.hpp: the rounds of a collective as text, for people.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/collective/rounds.hpp>

#include <string>

namespace heddle::inline v0 {

namespace detail {

// Items as blocks: "3" is the whole block 3, "3.1" its part 1; what follows each other is a range, "3-5" or "3.0-3.1".
HEDDLE_INLINE std::string items_text(round_view view, std::span<const int> items);

}  // namespace detail

/// A line for the table, one per round and one per message: who sends which blocks to whom, and how they are folded.
/// "3" is block 3, "3.1" its part 1, "3-5" are blocks 3, 4 and 5.
///
///     all_reduce on 2 ranks: 2 blocks, 2 rounds, 4 messages
///     round 0
///       0 -> 1  received op own  1
///       1 -> 0  received op own  0
///     round 1
///       0 -> 1  0
///       1 -> 0  1
HEDDLE_INLINE std::string to_string(round_view view);

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/collective/impl/rounds_text.hpp>
#endif
