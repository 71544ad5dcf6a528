// heddle/context/impl/check.hpp: bodies of heddle/context/check.hpp.
#pragma once

#include <heddle/context/check.hpp>

#include <string>

namespace heddle::inline v0 {
namespace detail {

inline std::string piece_text(int number, const context_piece& p) {
  std::string text = "piece " + std::to_string(number);
  if (p.count > 0) {
    text += " (document " + std::to_string(p.document) + ", positions " + std::to_string(p.first) + " to " +
            std::to_string(p.first + (p.count - 1) * p.stride);
    if (p.stride > 1 && p.count > 1) text += " by " + std::to_string(p.stride);
    text += ", of rank " + std::to_string(p.home) + ")";
  }
  return text;
}

}  // namespace detail

HEDDLE_INLINE std::string to_string(const context_fault& f) {
  if (f.ok()) return "the table is right";
  std::string text(to_string(f.pass));
  text += f.round >= 0 ? ", round " + std::to_string(f.round) + ": " : ": ";
  const std::string kind(to_string(f.kind)), piece = detail::piece_text(f.piece, f.at),
                                             keys = detail::piece_text(f.keys, f.at_keys);
  const std::string message = "rank " + std::to_string(f.from) + " sends to rank " + std::to_string(f.to) + " ";
  const std::string item = kind + " of " + piece;
  const std::string rank = "rank " + std::to_string(f.rank), pair = rank + " attends " + piece + " to " + keys;
  const bool task = f.rank >= 0;
  switch (f.what) {
    case context_problem::none:
      break;
    case context_problem::malformed:
      return text + "blocks, parts or ranks of the rounds are not those of the pieces";
    case context_problem::bad_rank:
      return text + (task || f.from < 0 ? "a task of rank " + std::to_string(f.rank) + ", which does not exist"
                                        : message + "a message: such a pair of ranks does not exist");
    case context_problem::bad_item:
      return text +
             (task ? pair + ": such a pair does not exist" : message + "nothing, or an item that does not exist");
    case context_problem::unsorted:
      return text + (task ? pair : message + "a message") + " in a round that is over";
    case context_problem::repeated:
      return text + message + item + " twice in one message";
    case context_problem::mixed:
      return text + message + item + " in a message that begins with another kind";
    case context_problem::wrong_arrival:
      return text + message + item +
             (is_partial_result(f.kind) ? ", to be stored: it has to be folded" : ", to be folded: it has to be stored");
    case context_problem::not_held:
      return text + message + item + ", which it does not have";
    case context_problem::nothing_to_give:
      return text + message + item + ", which it has not made, or has given away";
    case context_problem::operand_missing:
      return text + pair + " without having the " + kind;
    case context_problem::pair_missing:
      return text + "nobody attends " + piece + " to " + keys;
    case context_problem::pair_twice:
      return text + pair + ", which has been done";
    case context_problem::pair_unseen:
      return text + pair + ", none of which it sees";
    case context_problem::lost:
      return text + item + " ends on " + rank + " and not at home";
    case context_problem::wrong_pass:
      return text + message + item + ": there are no gradients of keys forward";
  }
  return text;
}

}  // namespace heddle::inline v0
