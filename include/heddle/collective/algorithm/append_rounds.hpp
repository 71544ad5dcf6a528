// heddle/collective/algorithm/append_rounds.hpp: joins the rounds of two collectives to a third.
#pragma once

#include <heddle/collective/rounds.hpp>

namespace heddle::inline v0 {
namespace detail {

/// Writes all messages of `more` from round `first_round` on. Both cut the data into the same items. Returns the rounds
/// it takes.
constexpr int append_rounds(round_builder& rounds, const round_view& more, int first_round) {
  for (const auto& t : more.transfers()) {
    rounds.send(first_round + t.round, t.from, t.to, t.how);
    for (const int i : more.items_of(t)) rounds.item(i);
  }
  return more.rounds();
}

}  // namespace detail
}  // namespace heddle::inline v0
