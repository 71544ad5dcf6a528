// heddle/collective/impl/rounds_check.hpp: bodies of heddle/collective/rounds_check.hpp.
#pragma once

#include <heddle/collective/rounds_check.hpp>
#include <heddle/collective/rounds.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {

HEDDLE_INLINE std::string to_string(const round_fault& f) {
  if (f.ok()) return "the rounds do what the collective promises";
  std::string text = "heddle: ";
  text += to_string(f.operation);
  text += " on " + std::to_string(f.ranks) + " ranks";
  if (f.round >= 0)
    text +=
        ", round " + std::to_string(f.round) + ", rank " + std::to_string(f.from) + " to rank " + std::to_string(f.to);
  if (f.item >= 0) text += ", item " + std::to_string(f.item);
  text += ": ";
  // In the order of `round_problem`; % is the rank, # the rank whose contribution it is.
  constexpr std::string_view sentences[] = {
      "",
      "this call is not made of rounds",
      "ranks, root, blocks and parts of the table do not fit the collective",
      "messages must be sorted by round, from round 0 on",
      "messages go from one existing rank to another",
      "a message carries at least one item, and only items that the table has",
      "the message carries the item twice",
      "the sender does not have the item when the round begins",
      "the message is folded, but the collective or the algorithm's own order says that nothing is",
      "rank % ends without the item",
      "rank % ends without the contribution of rank #",
      "rank % ends with the contribution of rank #, which has no part in its result",
      "the contribution of rank # is folded in a second time, and rank % ends with the result",
      "folded out of rank order, and rank % ends with the result; the algorithm's order is fold_order::any",
      "folded in rank order but not as the aligned binary tree, and rank % ends with the result; the algorithm's order "
      "is "
      "fold_order::rank",
      "rank % ends with a result that is folded otherwise than rank 0's; their bits may differ"};
  static_assert(std::size(sentences) == static_cast<std::size_t>(round_problem::differs) + 1);
  for (const char c : sentences[static_cast<std::size_t>(f.what)]) {
    if (c == '%')
      text += std::to_string(f.rank);
    else if (c == '#')
      text += std::to_string(f.contribution);
    else
      text += c;
  }
  return text;
}

}  // namespace heddle::inline v0
