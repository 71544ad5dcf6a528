// heddle/nccl/aborts.hpp: aborts communicators of NCCL's beside their thread (not run on a GPU).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include <nccl.h>

namespace heddle::inline v0::detail {

/// Aborts communicators, each on a thread of its own. `ncclCommAbort` tells the communicator's kernels to end, and then waits: until the graphs are destroyed that its calls were
/// captured into, and until the streams that it used have come to its last call, behind kernels of other communicators. So neither the thread whose stack has those graphs may wait for
/// it, nor one communicator for another.
/// Source: NCCL 2.28, commDestroySync in init.cc; NVIDIA/nccl issue 1013.
class nccl_aborts {
 public:
  void begin(ncclComm_t comm) noexcept {
    {
      const std::lock_guard lock(state_->mutex);
      ++state_->running;
    }
    try {
      std::thread([state = state_, comm] { end(*state, comm); }).detach();
    } catch (const std::exception&) {  // no thread to be had
      end(*state_, comm);
    }
  }
  /// Whether all have ended; waits for it, at most so long.
  bool ended(std::chrono::milliseconds at_most) const {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, at_most, [this] { return state_->running == 0; });
  }

 private:
  struct state {
    std::mutex mutex;
    std::condition_variable changed;
    std::int64_t running = 0;
  };
  static void end(state& of, ncclComm_t comm) noexcept {
    static_cast<void>(ncclCommAbort(comm));
    const std::lock_guard lock(of.mutex);
    --of.running;
    of.changed.notify_all();
  }
  std::shared_ptr<state> state_ = std::make_shared<state>();
};

}  // namespace heddle::inline v0::detail
