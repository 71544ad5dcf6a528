// heddle/schedule/check/report.hpp: findings about an action table, as data and as a sentence.
#pragma once

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
inline std::string to_string(const report& r) {
  if (r.ok()) return "the schedule is valid";
  std::string text = "heddle: ";
  if (r.rank >= 0) text += "rank " + std::to_string(r.rank);
  if (r.position >= 0) text += ", position " + std::to_string(r.position) + " (" + to_text(r.where) + ")";
  if (r.rank >= 0) text += ": ";
  switch (r.what) {
    case problem::none:
      break;
    case problem::microbatch_count:
      text += "the schedule cannot run this number of microbatches on this number of ranks; change one of them";
      break;
    case problem::malformed:
      text += r.where.stage >= 0 ? "stage " + std::to_string(r.where.stage) + " lives on a rank that does not exist"
                                 : std::string(
                                       "the table has no ranks, no stages or no microbatches, or its parts "
                                       "are not of the sizes that these say");
      break;
    case problem::broken_path:
      text += "the way of microbatch " + std::to_string(r.where.microbatch) + " is broken";
      if (r.where.stage >= 0) text += " at stage " + std::to_string(r.where.stage);
      text += "; `next` must lead from one beginning over all its stages, and `previous` back";
      break;
    case problem::too_large:
      text += "the table has too many stages and microbatches";
      break;
    case problem::unknown_stage:
      text += "there is no stage " + std::to_string(r.where.stage);
      break;
    case problem::unknown_microbatch:
      text += "there is no microbatch " + std::to_string(r.where.microbatch) + " for this action";
      break;
    case problem::not_its_microbatch:
      text += "microbatch " + std::to_string(r.where.microbatch) + " does not come to stage " +
              std::to_string(r.where.stage);
      break;
    case problem::backward_in_inference:
      text += "the table is forward-only; only F, SEND_F, RECV_F, UNSHARD and RESHARD belong in it";
      break;
    case problem::wrong_rank:
      text += "stage " + std::to_string(r.where.stage) + " lives on rank " + std::to_string(r.other_rank);
      break;
    case problem::wrong_peer:
      if (r.other_rank < 0)
        text += "only sends and receives have a peer, this action names rank " + std::to_string(r.where.peer);
      else
        text += "the transfer names rank " + std::to_string(r.where.peer) + ", but the other stage lives on rank " +
                std::to_string(r.other_rank);
      break;
    case problem::needless_transfer:
      text += "there is no stage on another rank to transfer with; remove it";
      break;
    case problem::repeated:
      text += to_text(r.needs) + " was listed before; ";
      text += r.needs.kind == action_kind::unshard ? "put RESHARD of the stage between the two"
                                                   : "a part of a step runs once";
      break;
    case problem::not_a_pair:
      text += "it overlaps the next action, but a pair is two computations, side by side";
      break;
    case problem::dependent_pair:
      text += "it overlaps " + to_text(r.needs) + ", whose result it needs; put one behind the other";
      break;
    case problem::pair_of_one_gradient:
      text += "it overlaps " + to_text(r.needs) + ", and both add to one weight gradient; put one behind the other";
      break;
    case problem::too_late:
      text += "it must stand before " + to_text(r.needs) + ", which comes earlier in the list";
      break;
    case problem::out_of_order:
      text += "it needs " + to_text(r.needs) + " earlier in the list of this rank";
      break;
    case problem::missing:
      text += to_text(r.needs);
      text += r.needs.kind == action_kind::reshard ? " does not occur behind the last UNSHARD" : " never occurs";
      break;
    case problem::transfer_order:
      text += "rank " + std::to_string(r.other_rank) + " sends " + to_text(r.needs) +
              " at this place; both sides must list their messages in one order";
      break;
    case problem::deadlock:
      text += "deadlock: it waits for " + to_text(r.needs) + " of rank " + std::to_string(r.other_rank) + ", which ";
      text += r.other_position >= 0
                  ? "stands at position " + std::to_string(r.other_position) + " (" + to_text(r.other) + ")"
                  : std::string("has finished its list");
      break;
    case problem::storage_misfit:
      text += r.rank < 0 ? "the storage is not of this table; assign it with schedule::assign_storage"
                         : "its slot or buffers are not those it needs: one is missing, too many, or does not exist";
      break;
    case problem::slot_overwritten:
      text += "it saves its activations in slot " + std::to_string(r.other_position) + " of stage " +
              std::to_string(r.where.stage) + ", where those of " + to_text(r.needs) + " are still needed";
      break;
    case problem::buffer_overwritten:
      text += "it writes buffer " + std::to_string(r.other_position) + ", where the tensor of " + to_text(r.needs) +
              " is still needed";
      break;
    case problem::slot_content:
    case problem::buffer_content:
      text += r.what == problem::slot_content ? "slot " : "buffer ";
      text += std::to_string(r.other_position) + " does not hold what it reads, but ";
      text += r.needs.stage >= 0 ? "what " + to_text(r.needs) + " left" : std::string("nothing");
      break;
  }
  return text;
}

}  // namespace heddle::inline v0::schedule
