// heddle/collective/impl/rounds_check.hpp: bodies of heddle/collective/rounds_check.hpp.
#pragma once

#include <heddle/collective/rounds_check.hpp>
#include <heddle/collective/rounds.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
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
  const auto ends = [&] { return "rank " + std::to_string(f.rank) + " ends "; };
  const auto of = [&] { return "the contribution of rank " + std::to_string(f.contribution); };
  switch (f.what) {
    case round_problem::none:
      break;
    case round_problem::no_rounds:
      text += "this call is not made of rounds";
      break;
    case round_problem::malformed:
      text += "ranks, root, blocks and parts of the table do not fit the collective";
      break;
    case round_problem::unsorted:
      text += "messages must be sorted by round, from round 0 on";
      break;
    case round_problem::bad_rank:
      text += "messages go from one existing rank to another";
      break;
    case round_problem::bad_item:
      text += "a message carries at least one item, and only items that the table has";
      break;
    case round_problem::repeated:
      text += "the message carries the item twice";
      break;
    case round_problem::not_held:
      text += "the sender does not have the item when the round begins";
      break;
    case round_problem::folds:
      text += "the message is folded, but the collective or the algorithm's own order says that nothing is";
      break;
    case round_problem::missing:
      text += ends() + "without the item";
      break;
    case round_problem::incomplete:
      text += ends() + "without " + of();
      break;
    case round_problem::unwanted:
      text += ends() + "with " + of() + ", which has no part in its result";
      break;
    case round_problem::twice:
      text += of() + " is folded in a second time, and rank " + std::to_string(f.rank) + " ends with the result";
      break;
    case round_problem::out_of_order:
      text += "folded out of rank order, and rank " + std::to_string(f.rank) +
              " ends with the result; the algorithm's order is fold_order::any";
      break;
    case round_problem::not_dyadic:
      text += "folded in rank order but not as the aligned binary tree, and rank " + std::to_string(f.rank) +
              " ends with the result; the algorithm's order is fold_order::rank";
      break;
    case round_problem::differs:
      text += ends() + "with a result that is folded otherwise than rank 0's; their bits may differ";
      break;
  }
  return text;
}

}  // namespace heddle::inline v0
