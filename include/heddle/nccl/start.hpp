// heddle/nccl/start.hpp: rank and rendezvous from the environment (not run on a GPU).
#pragma once

#include <heddle/comm/launcher.hpp>
#include <heddle/rendezvous/rendezvous.hpp>
#include <heddle/rendezvous/file.hpp>
#include <heddle/rendezvous/memory.hpp>
#include <heddle/rendezvous/tcp.hpp>
#include <heddle/core/text.hpp>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

namespace heddle::inline v0::detail {

/// `launcher_place()`; rank -1 where this process runs all ranks: no launcher, HEDDLE_ALONE=1, MPI is initialised,
/// or one process.
/// Errors: as `launcher_place`; `config_error` where several processes do not know where they meet.
inline process_place place_from_environment() {
  process_place place = launcher_place();
  const bool ours = place.launcher == "HEDDLE_RANK";
  if (!ours && (place.size <= 1 || runs_alone())) return {};
  if (place.size <= 1 || !place.meeting.empty()) return place;
  if (ours)
    throw config_error(
        "heddle: HEDDLE_RANKS is set, but not where the ranks meet: set HEDDLE_RENDEZVOUS to tcp://host:port (an "
        "address of rank 0) or file:///folder (seen by all)");
  if (processes_are_joined != nullptr && processes_are_joined()) return {};
  throw config_error(
      text_of({"heddle: ", started_as(place),
               ", but not where the ranks meet: set HEDDLE_RENDEZVOUS to "
               "tcp://host:port (an address of rank 0) or file:///folder (seen by all), or HEDDLE_ALONE=1 "
               "to run a job in each"}));
}

/// The number of this process among those of its node, as the launcher gives it; -1 if none does.
inline int local_rank_from_environment() {
  return launcher_seen().local_rank;
}

inline std::shared_ptr<rendezvous> make_rendezvous(const process_place& place, std::chrono::milliseconds timeout) {
  const std::string& at = place.meeting;
  if (place.size == 1 && at.empty())
    return std::make_shared<memory_rendezvous>(std::make_shared<memory_meeting>(), 0, 1, timeout);
  if (at.rfind("tcp://", 0) == 0) {
    const bool torch = place.launcher == "torchrun" && std::getenv("HEDDLE_RENDEZVOUS") == nullptr;
    constexpr const char* why =
        "; MASTER_ADDR and MASTER_PORT say so: HEDDLE_RENDEZVOUS=tcp://host:port names another place";
    try {
      return std::make_shared<tcp_rendezvous>(at.substr(6), place.rank, place.size, timeout, "nccl");
    } catch (const config_error& e) {
      if (!torch) throw;
      throw config_error(text_of({e.what(), why}));
    } catch (const aborted_error&) {
      throw;
    } catch (const comm_error& e) {
      if (!torch) throw;
      throw comm_error(text_of({e.what(), why}));
    }
  }
  if (at.rfind("file://", 0) == 0)
    return std::make_shared<file_rendezvous>(at.substr(7), place.rank, place.size, timeout);
  throw config_error(
      text_of({"heddle: HEDDLE_RENDEZVOUS should be tcp://host:port or file:///folder, it is \"", at, '"'}));
}

}  // namespace heddle::inline v0::detail
