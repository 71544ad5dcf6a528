// heddle/schedule/impl/check/report.hpp: bodies of heddle/schedule/check/report.hpp.
#pragma once

#include <heddle/schedule/check/report.hpp>
#include <heddle/schedule/text/print.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::schedule {

HEDDLE_INLINE std::string to_string(const report& r) {
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
    case problem::pair_of_one_gradient:
      text += "it overlaps " + to_text(r.needs);
      text += r.what == problem::dependent_pair ? ", whose result it needs" : ", and both add to one weight gradient";
      text += "; put one behind the other";
      break;
    case problem::too_late:
      text += "it must stand before " + to_text(r.needs) + ", which comes earlier in the list";
      break;
    case problem::out_of_order:
      text += "it needs " + to_text(r.needs) + " earlier in the list of this rank";
      break;
    case problem::missing:
      text += to_text(r.needs) +
              (r.needs.kind == action_kind::reshard ? " does not occur behind the last UNSHARD" : " never occurs");
      break;
    case problem::transfer_order:
      text += "rank " + std::to_string(r.other_rank) + " sends " + to_text(r.needs);
      text += " at this place; both sides must list their messages in one order";
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
