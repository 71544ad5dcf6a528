// heddle/collective/round_groups.hpp: rounds of a collective in several groups at the same time.
#pragma once

#include <heddle/collective/rounds.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace heddle::inline v0 {

/// The rounds of all groups at once, among `ranks` ranks: rank i of the rounds is rank `groups[g][i]`. For loads, costs and
/// plans: blocks of different groups have the same numbers.
/// Errors: `comm_error` for rounds of all_to_all without sizes of their own, whose blocks are counted by ranks; if a group has another number of ranks than the rounds, or a rank is not there or in two groups.
inline round_table round_groups(round_view rounds, const std::vector<std::vector<int>>& groups, int ranks) {
  const bool to_each = rounds.what() == comm_operation::all_to_all || rounds.what() == comm_operation::all_to_all_v;
  if (to_each && rounds.sizes().empty() && !rounds.transfers().empty())
    throw comm_error(
        "heddle: round_groups: rounds of all_to_all need the sizes of their blocks; set round_table::sizes");
  std::vector<char> seen(static_cast<std::size_t>(ranks > 0 ? ranks : 0), 0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (static_cast<int>(groups[g].size()) != rounds.ranks())
      throw comm_error(text_of({"heddle: round_groups: group ", g, " has ", groups[g].size(),
                                " ranks; the rounds are for ", rounds.ranks()}));
    for (const int r : groups[g]) {
      if (r < 0 || r >= ranks || seen[static_cast<std::size_t>(r)] != 0)
        throw comm_error(text_of({"heddle: round_groups: rank ", r, " of group ", g,
                                  " is in another group too or not among ", ranks, " ranks"}));
      seen[static_cast<std::size_t>(r)] = 1;
    }
  }
  round_table out;
  out.what = rounds.what();
  out.ranks = ranks;
  out.blocks = rounds.blocks();
  out.parts = rounds.parts();
  out.sizes.assign(rounds.sizes().begin(), rounds.sizes().end());
  for (int k = 0; k < rounds.rounds(); ++k)
    for (const std::vector<int>& group : groups)
      for (const round_transfer& t : rounds.round(k)) {
        round_transfer moved = t;
        moved.from = group[static_cast<std::size_t>(t.from)];
        moved.to = group[static_cast<std::size_t>(t.to)];
        moved.first = static_cast<int>(out.items.size());
        for (const int item : rounds.items_of(t)) out.items.push_back(item);
        out.transfers.push_back(moved);
      }
  return out;
}

}  // namespace heddle::inline v0
