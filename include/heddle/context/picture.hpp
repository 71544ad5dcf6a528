// heddle/context/picture.hpp: context tables as text and as pictures.
#pragma once

#include <heddle/context/table.hpp>
#include <heddle/core/config.hpp>

#include <string>
#include <string_view>

namespace heddle::inline v0 {

/// The pieces, and for each round who attends which queries to which keys, by the numbers of pieces, and what travels.
/// With several parts of the heads
/// ".1" names the part.
///
///     forward on 2 ranks: 2 pieces, 2 rounds, 1 message
///     piece 0: positions 0 to 3 of document 0, on rank 0
///     piece 1: positions 4 to 7 of document 0, on rank 1
///     round 0
///       rank 0 attends 0 to 0
///       rank 1 attends 1 to 1
///       0 -> 1  keys 0
///     round 1
///       rank 1 attends 1 to 0
HEDDLE_INLINE std::string to_string(const context_table& table);

/// A picture in SVG: a row for each rank, a column for each round. A bar is as wide as what the rank attends there is
/// large; below it what it sends and what it receives, as wide as there are rows, in a colour for each kind.
HEDDLE_INLINE std::string context_svg(const context_table& table, std::string_view title);

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/context/impl/picture.hpp>
#endif
