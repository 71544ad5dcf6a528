// heddle/comm/nccl/start.hpp: a process's rank and its rendezvous, from the environment of the launcher.
#pragma once

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

/// A process of a job with one rank per process, as its launcher describes it in environment variables.
struct process_place {
  int rank = -1;  // none: this process runs all ranks
  int size = 0;
  int local_rank = -1;
  std::string meeting;  // "tcp://host:port" or "file:///folder"
};

inline int number_from(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return -1;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end == '\0' && value >= 0 && value < 1 << 24) return static_cast<int>(value);
  throw config_error(text_of({"heddle: the environment variable ", name, " should be a number, it is \"", text, '"'}));
}

/// `HEDDLE_RANK`, `HEDDLE_RANKS`, `HEDDLE_LOCAL_RANK`, `HEDDLE_RENDEZVOUS`; the numbers also as Open MPI's, MPICH's and
/// Slurm's launchers give them, where `HEDDLE_RENDEZVOUS` is set.
inline process_place place_from_environment() {
  process_place place;
  if (const char* at = std::getenv("HEDDLE_RENDEZVOUS")) place.meeting = at;
  struct names {
    const char *rank, *size, *local;
  };
  constexpr names launchers[] = {{"HEDDLE_RANK", "HEDDLE_RANKS", "HEDDLE_LOCAL_RANK"},
                                 {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
                                 {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
                                 {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}};
  for (const names& n : launchers) {
    if (place.meeting.empty() && &n != launchers) break;
    place.rank = number_from(n.rank);
    if (place.rank < 0) continue;
    place.size = number_from(n.size);
    place.local_rank = number_from(n.local);
    if (place.size < 0) {
      throw config_error(text_of({"heddle: ", n.rank, " is set, but ", n.size, " is not: how many ranks are there?"}));
    }
    break;
  }
  if (place.size > 1 && place.meeting.empty())
    throw config_error(
        "heddle: HEDDLE_RANKS is set, but not where the ranks meet: set HEDDLE_RENDEZVOUS to tcp://host:port (an "
        "address of rank 0) or file:///folder (seen by all)");
  return place;
}

/// The number of this process among those of its node, as the launcher gives it; -1 if none does.
inline int local_rank_from_environment() {
  for (const char* name : {"HEDDLE_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    if (const int local = number_from(name); local >= 0) return local;
  return -1;
}

inline std::shared_ptr<rendezvous> make_rendezvous(const process_place& place, std::chrono::milliseconds timeout) {
  const std::string& at = place.meeting;
  if (place.size == 1 && at.empty())
    return std::make_shared<memory_rendezvous>(std::make_shared<memory_meeting>(), 0, 1, timeout);
  if (at.rfind("tcp://", 0) == 0)
    return std::make_shared<tcp_rendezvous>(at.substr(6), place.rank, place.size, timeout, "nccl");
  if (at.rfind("file://", 0) == 0)
    return std::make_shared<file_rendezvous>(at.substr(7), place.rank, place.size, timeout);
  throw config_error(
      text_of({"heddle: HEDDLE_RENDEZVOUS should be tcp://host:port or file:///folder, it is \"", at, '"'}));
}

}  // namespace heddle::inline v0::detail
