// heddle/collective/rounds_reverse.hpp: the reversed rounds of a collective: those of its adjoint.
#pragma once

#include <heddle/collective/rounds.hpp>

#include <cstddef>

namespace heddle::inline v0 {

namespace detail {
// The adjoint of a collective, as a linear map of all ranks' data; barrier where rounds cannot be turned round.
constexpr comm_operation adjoint_of(comm_operation what) noexcept {
  using enum comm_operation;
  constexpr comm_operation pairs[][2] = {
      {all_gather, reduce_scatter}, {broadcast, reduce}, {gather, scatter}, {all_to_all, all_to_all}};
  for (const auto& pair : pairs) {
    if (what == pair[0]) return pair[1];
    if (what == pair[1]) return pair[0];
  }
  return barrier;
}
}  // namespace detail

/// The rounds of the adjoint collective: the last round first, every message the other way round. What was stored is
/// folded, what was folded is stored: all_gather becomes reduce_scatter, broadcast reduce, gather scatter, and each the
/// other way; an all_to_all stays one, block s * ranks + d becoming d * ranks + s. Messages, bytes and links used stay
/// the same. What comes from a lower rank is folded from the left.
///
/// Requires rounds in which no rank gets an item (a contribution) twice: then the messages of an item are a tree, which
/// gathers as well as it spreads. Errors: `comm_error` for collectives whose rounds are no trees (all_reduce, scans).
constexpr round_table reversed_rounds(round_view view) {
  const comm_operation what = detail::adjoint_of(view.what());
  if (what == comm_operation::barrier)
    throw comm_error(
        "heddle: only the rounds of all_gather, reduce_scatter, broadcast, reduce, gather, scatter and "
        "all_to_all can be reversed");
  const bool folds = what == comm_operation::reduce_scatter || what == comm_operation::reduce;
  round_builder rounds(what, view.ranks(), view.root(), view.blocks(), view.parts());
  const auto transfers = view.transfers();
  const int last = view.rounds() - 1;
  for (std::size_t i = transfers.size(); i-- > 0;) {
    const round_transfer& t = transfers[i];
    rounds.send(last - t.round, t.to, t.from,
                !folds          ? arrival::store
                : t.to < t.from ? arrival::fold_before
                                : arrival::fold_after);
    for (const int item : view.items_of(t)) {
      const int block = item / view.parts(), part = item % view.parts(), p = view.ranks();
      rounds.item(what == comm_operation::all_to_all ? (block % p * p + block / p) * view.parts() + part : item);
    }
  }
  return rounds.take();
}

namespace detail {

/// The rounds of an all_reduce: those of a reduce_scatter, then those of an all_gather, on the same items.
constexpr round_table all_reduce_of(const round_table& scatter, const round_table& gather) {
  round_table whole = scatter;
  whole.what = comm_operation::all_reduce;
  const int rounds = scatter.view().rounds(), items = static_cast<int>(scatter.items.size());
  for (round_transfer t : gather.transfers) {
    t.round += rounds;
    t.first += items;
    whole.transfers.push_back(t);
  }
  whole.items.insert(whole.items.end(), gather.items.begin(), gather.items.end());
  return whole;
}

/// All three collectives of an algorithm that is given by its all_gather.
template <comm_operation What>
constexpr round_table from_all_gather(const round_table& gather) {
  if constexpr (What == comm_operation::all_gather)
    return gather;
  else if constexpr (What == comm_operation::reduce_scatter)
    return reversed_rounds(gather);
  else
    return all_reduce_of(reversed_rounds(gather), gather);
}

}  // namespace detail
}  // namespace heddle::inline v0
