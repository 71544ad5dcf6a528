// A stand-in for NCCL: the functions heddle calls, over the stand-in for CUDA (cuda/double.hpp). A group's calls make progress
// together, and what would hang on GPUs hangs here.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace nccl_double {

/// How often each function was called since `reset`, by all threads together.
std::map<std::string, int> calls();
/// How many communicators were asked to use which network (`netName`, "" for none), since `reset`, by all ranks.
std::map<std::string, int> networks();
/// What was given to NCCL since `reset`, by all threads: each collective and message with its elements.
struct transfer {
  std::string function;
  ncclDataType_t type;
  std::size_t count;
  bool in_windows;  // what is read and written, of this communicator's
};
std::vector<transfer> transfers();
/// Communicators that have been made and neither destroyed nor aborted.
int open_communicators();
/// Device memory and streams that have not been given back.
int open_resources();

void reset();
void devices(int count);
void version(int code);
/// The device that was the thread's when this memory was taken by `ncclMemAlloc`; -1 for other memory.
int device_of(const void* memory);
/// Whether windows are registered; else the calls succeed with none.
void windows(bool has);
/// Whether communicators have symmetric memory; else device communicators are refused, as NCCL 2.28 does.
void symmetric_memory(bool has);
/// How many ranks are in one LSA team, neighbours; 0: all of a communicator.
void lsa_ranks(int ranks);
/// Where a place of a window of a communicator lies on a rank of it; 64 KiB of no rank's where a rank has failed.
void* peer_memory(void* window, std::size_t offset, int rank);
/// Of the device communicator that this key is `resourceWindow` of: a rank's block waits for that block of the other ranks.
void meet_peers(void* key, int rank, int block);
/// Of each device communicator made since `reset`: how often each rank has come to each of its barriers, `[barrier][rank]`, and how many
/// blocks came that have no barrier.
struct barrier_use {
  std::vector<std::vector<int>> arrivals;
  int without = 0;
};
std::vector<barrier_use> barrier_uses();
/// The next call of this function by this thread returns `result`.
void fail_next(const std::string& function, ncclResult_t result);
/// Communicators of this thread's device report this from now on.
void break_device(int device, ncclResult_t result);

}  // namespace nccl_double
