// heddle/nccl/window_memory.hpp: memory in NCCL's symmetric windows (not run on a GPU).
#pragma once

#include <heddle/nccl/channel.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// Whether the NCCL of this program has symmetric windows (2.27 and later). Without, the same memory is not registered.
inline constexpr bool nccl_has_windows = NCCL_VERSION_CODE >= 22700;

namespace detail {

/// Memory of NCCL's (`ncclMemAlloc`), registered with a communicator where that can be, and with further ones. Made and ended by all ranks
/// together, which register equally much in one order; it ends before the communicators, when the stream has done what it was given.
class nccl_window_memory {
 public:
  nccl_window_memory(std::shared_ptr<nccl_channel> channel, cudaStream_t stream, std::size_t bytes)
      : stream_(stream), bytes_(bytes) {
    static_cast<void>(channel->connected());
    if (channel->grouped()) channel->refuse("a window cannot be made while a group of calls is open");
    channel->flush();
    const nccl_channel::on_device here(*channel);
    if (const ncclResult_t taken = ncclMemAlloc(&memory_, bytes); taken != ncclSuccess) {
      std::size_t free = 0, all = 0;
      static_cast<void>(cudaGetLastError());
      static_cast<void>(cudaMemGetInfo(&free, &all));
      memory_ = nullptr;
      channel->require_nccl(("ncclMemAlloc of a window of " + std::to_string(bytes) + " bytes, of which " +
                             std::to_string(free) + " are free")
                                .c_str(),
                            taken);
    }
    try {
      register_with(std::move(channel));
    } catch (...) {
      static_cast<void>(ncclMemFree(memory_));
      throw;
    }
  }
  nccl_window_memory(const nccl_window_memory&) = delete;
  nccl_window_memory& operator=(const nccl_window_memory&) = delete;
  ~nccl_window_memory() {
    // An exception on its way is told before a stream that may wait for other ranks is done: the channels abort their communicators then.
    const bool unwinding = std::uncaught_exceptions() > exceptions_;
    bool in_use = false;
    for (auto at = registered_.rbegin(); at != registered_.rend(); ++at) in_use = !end(**at, unwinding) || in_use;
    if (!in_use) {
      static_cast<void>(ncclMemFree(memory_));
      return;
    }
    try {
      registered_.front()->channel->site().left.push_back(memory_);
    } catch (...) {  // it ends with the process
    }
  }

  /// With one more communicator, by all its ranks together; once with each.
  void register_with(std::shared_ptr<nccl_channel> channel) {
    if (std::any_of(registered_.begin(), registered_.end(), [&](const auto& r) { return r->channel == channel; }))
      return;
    auto made = std::make_shared<registration>();
    made->channel = std::move(channel);
    registered_.reserve(registered_.size() + 1);
#if NCCL_VERSION_CODE >= 22700
    nccl_channel& with = *made->channel;
    const ncclComm_t comm = with.connected();
    with.flush();
    try {
      with.require_nccl("ncclCommWindowRegister",
                        ncclCommWindowRegister(comm, memory_, bytes_, &made->window, NCCL_WIN_COLL_SYMMETRIC));
    } catch (...) {
      const std::shared_ptr<nccl_channel> failed = std::move(made->channel);  // which must not keep itself
      failed->site().written_late.push_back(made);
      throw;
    }
    if (made->window != nullptr) with.add_window({static_cast<const std::byte*>(memory_), bytes_, made->window});
#endif
    registered_.push_back(std::move(made));
  }

  void* memory() const noexcept { return memory_; }
  std::size_t bytes() const noexcept { return bytes_; }
  /// With the first communicator.
  bool registered() const noexcept {
#if NCCL_VERSION_CODE >= 22700
    return registered_.front()->window != nullptr;
#else
    return false;
#endif
  }

 private:
  struct registration {
    std::shared_ptr<nccl_channel> channel;
#if NCCL_VERSION_CODE >= 22700
    ncclWindow_t window = nullptr;
#endif
  };
  // False where nobody waits for a stream that is not done, or for a communicator that is aborted: the site frees the memory behind both.
  bool end(registration& r, bool unwinding) noexcept {
    r.channel->remove_window(memory_);
    if (!r.channel->usable()) return false;
    try {
      if (unwinding && !r.channel->done(stream_)) return false;
      r.channel->wait(stream_);
#if NCCL_VERSION_CODE >= 22700
      if (r.window != nullptr)
        r.channel->require_nccl("ncclCommWindowDeregister", ncclCommWindowDeregister(r.channel->connected(), r.window));
#endif
      return true;
    } catch (...) {  // all communicators of the rank have been aborted, and the next call says so
      return false;
    }
  }
  cudaStream_t stream_;
  std::size_t bytes_;
  int exceptions_ = std::uncaught_exceptions();
  void* memory_ = nullptr;
  std::vector<std::shared_ptr<registration>> registered_;
};

}  // namespace detail
}  // namespace heddle::inline v0
