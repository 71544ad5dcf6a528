// heddle/schedule/check/report.hpp: findings about an action table, as data and as a sentence.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/schedule/text/print.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::schedule {

/// What can be wrong with an action table.
enum class problem : std::uint8_t {
  none,
  microbatch_count,    ///< the schedule does not fit this number of microbatches and ranks
  malformed,           ///< no ranks, stages or microbatches, other sizes, or a stage on no rank
  broken_path,         ///< a microbatch's way over the stages has no one beginning, a circle, or is not the same back
  too_large,           ///< more stages times microbatches than a table may have
  unknown_stage,       ///< an action of a stage that does not exist
  unknown_microbatch,  ///< an action of a microbatch that does not exist
  not_its_microbatch,  ///< an action of a microbatch that belongs to another chain, or does not come to the stage
  backward_in_inference,  ///< an action of training in a forward-only table
  wrong_rank,             ///< an action of a stage that lives on another rank
  wrong_peer,             ///< a transfer with a rank that does not hold the other stage, or a peer without a transfer
  needless_transfer,      ///< a transfer where there is no other stage, or one on the same rank
  repeated,               ///< an action occurs twice, both as B and as I or W, or UNSHARD of what is there
  not_a_pair,             ///< an action that overlaps the next, where the two are not two computations
  dependent_pair,         ///< a part of a pair reads what the other computes
  pair_of_one_gradient,   ///< both parts of a pair add to the weight gradient of one stage
  out_of_order,           ///< an action stands before one of its rank's list that it needs
  too_late,               ///< an action stands behind one that it should prepare
  missing,                ///< an action never occurs
  transfer_order,         ///< two ranks list the messages between them in different orders
  deadlock,               ///< ranks wait for each other
  storage_misfit,         ///< a slot or buffer that is missing, needless, or not there; or storage of another table
  slot_overwritten,       ///< activations are saved where others still are
  slot_content,           ///< a slot does not hold the activations that are read
  buffer_overwritten,     ///< a boundary buffer is written while its tensor is still needed or under way
  buffer_content          ///< a boundary buffer does not hold the tensor that is read or sent
};

/// The first problem found in a table; `ok()` if there is none. `rank`, `position` (in the rank's list, from 0) and
/// `where` say where it is; `needs` is the action that is missing, late, expected or waited for; in a deadlock
/// `other_rank` is the rank waited for, which stands at `other_position` with `other` (-1: it has finished its list).
struct report {
  problem what = problem::none;
  int rank = -1;
  int position = -1;
  action where{};
  action needs{};
  int other_rank = -1;
  int other_position = -1;
  action other{};

  constexpr bool ok() const noexcept { return what == problem::none; }
};

/// One line that names rank, position, action and microbatch, and what to change.
HEDDLE_INLINE std::string to_string(const report& r);

}  // namespace heddle::inline v0::schedule

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/schedule/impl/check/report.hpp>
#endif
