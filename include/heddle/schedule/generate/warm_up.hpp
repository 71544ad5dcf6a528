// heddle/schedule/generate/warm_up.hpp: lists' prefixes without weight gradients.
#pragma once

#include <heddle/schedule/constexpr_scratch.hpp>
#include <heddle/schedule/table.hpp>

#include <cstddef>
#include <vector>

namespace heddle::inline v0::schedule {

/// The beginning of a rank's list: forwards and what they need, but no backward.
struct warm_up {
  int entries = 0;  ///< of the list
  /// Positions behind it, in the order of the list, of receives whose message the sender sends in its own warm-up.
  std::vector<int> sent_early{};
};

/// The longest beginning of a rank's list without a backward, a message of one or an overlapped pair, such that all ranks
/// can run theirs if nobody runs more: no receive waits for a message of another rank that comes later. It can be done
/// again, with other weights, if each rank takes in the messages of `sent_early` before.
/// Units: entries of the lowered list. Source: the warm-up of Qi et al. 2023, arXiv:2401.10241, section 4.
constexpr warm_up warm_up_of(const table_view& t, int rank) {
  const int m = t.microbatches();
  const detail::scratch<bool> sent(t.stages() * m);
  const detail::scratch<int> reached(t.ranks());
  const auto goes_on = [&](const action& a) {
    if (a.overlaps_next) return false;
    if (a.kind == action_kind::recv_forward) return sent[counterpart(a, t).stage * m + a.microbatch];
    return a.kind == action_kind::forward || a.kind == action_kind::send_forward || a.kind == action_kind::unshard ||
           a.kind == action_kind::reshard || a.kind == action_kind::offload;
  };
  for (bool any = true; any;) {
    any = false;
    for (int r = 0; r < t.ranks(); ++r) {
      int k = t.offset(r) + reached[r];
      for (; k < t.offset(r + 1) && goes_on(t[k]); ++k) {
        if (t[k].kind == action_kind::send_forward) sent[t[k].stage * m + t[k].microbatch] = true;
        any = true;
      }
      reached[r] = k - t.offset(r);
    }
  }
  warm_up found;
  found.entries = reached[rank];
  for (int k = t.offset(rank) + reached[rank]; k < t.offset(rank + 1); ++k)
    if (t[k].kind == action_kind::recv_forward && sent[counterpart(t[k], t).stage * m + t[k].microbatch])
      found.sent_early.push_back(k - t.offset(rank));
  return found;
}

}  // namespace heddle::inline v0::schedule
