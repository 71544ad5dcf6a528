// heddle/comm/nccl/windows.hpp: memory that all ranks of an NCCL communicator register with it, for collectives that are called again and again.
#pragma once

#include <heddle/comm/nccl/channel.hpp>
#include <heddle/comm/nccl/communicator.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// Whether the NCCL of this program has symmetric windows (2.27 and later). Without, the same memory is not registered.
inline constexpr bool nccl_has_windows = NCCL_VERSION_CODE >= 22700;

namespace detail {

// Memory of NCCL's (`ncclMemAlloc`), registered with a communicator where that can be. Made and ended by all ranks together.
class nccl_block {
 public:
  nccl_block(std::shared_ptr<nccl_channel> channel, cudaStream_t stream, std::size_t bytes)
      : channel_(std::move(channel)), stream_(stream), bytes_(bytes) {
    const ncclComm_t comm = channel_->connected();
    if (channel_->grouped()) channel_->refuse("a window cannot be made while a group of calls is open");
    channel_->flush();
    if (const ncclResult_t taken = ncclMemAlloc(&memory_, bytes); taken != ncclSuccess) {
      std::size_t free = 0, all = 0;
      static_cast<void>(cudaGetLastError());
      static_cast<void>(cudaMemGetInfo(&free, &all));
      memory_ = nullptr;
      channel_->require_nccl(("ncclMemAlloc of a window of " + std::to_string(bytes) + " bytes, of which " +
                              std::to_string(free) + " are free")
                                 .c_str(),
                             taken);
    }
#if NCCL_VERSION_CODE >= 22700
    try {
      channel_->require_nccl("ncclCommWindowRegister",
                             ncclCommWindowRegister(comm, memory_, bytes, &window_, NCCL_WIN_COLL_SYMMETRIC));
      if (window_ != nullptr) channel_->add_window({static_cast<const std::byte*>(memory_), bytes, window_});
    } catch (...) {
      static_cast<void>(ncclMemFree(memory_));
      throw;
    }
#else
    static_cast<void>(comm);
#endif
  }
  nccl_block(const nccl_block&) = delete;
  nccl_block& operator=(const nccl_block&) = delete;
  ~nccl_block() {
    channel_->remove_window(memory_);
    if (channel_->usable()) try {
        channel_->wait(stream_);
#if NCCL_VERSION_CODE >= 22700
        if (window_ != nullptr)
          channel_->require_nccl("ncclCommWindowDeregister", ncclCommWindowDeregister(channel_->connected(), window_));
#endif
      } catch (...) {  // all communicators of the rank have been aborted, and the next call says so
      }
    static_cast<void>(ncclMemFree(memory_));
  }

  void* memory() const noexcept { return memory_; }
  std::size_t bytes() const noexcept { return bytes_; }
  bool registered() const noexcept {
#if NCCL_VERSION_CODE >= 22700
    return window_ != nullptr;
#else
    return false;
#endif
  }

 private:
  std::shared_ptr<nccl_channel> channel_;
  cudaStream_t stream_;
  std::size_t bytes_;
  void* memory_ = nullptr;
#if NCCL_VERSION_CODE >= 22700
  ncclWindow_t window_ = nullptr;
#endif
};

}  // namespace detail

/// Elements on the GPU of each rank of a communicator, in a window of `nccl_windows`; given back at its end. Collectives of the communicator on all of them or on the same part of them
/// on each rank may then read and write the other ranks' memory directly. Moves, does not copy.
template <class T>
  requires std::is_trivially_copyable_v<T>
class nccl_window {
 public:
  using pool = std::vector<std::unique_ptr<detail::nccl_block>>;

  nccl_window(std::unique_ptr<detail::nccl_block> block, std::int64_t size, std::shared_ptr<pool> from)
      : block_(std::move(block)), size_(size), from_(std::move(from)) {
    from_->reserve(from_->size() + 1);
  }
  nccl_window(nccl_window&&) noexcept = default;
  nccl_window& operator=(nccl_window&& other) noexcept {
    if (this == &other) return *this;
    give_back();
    block_ = std::move(other.block_);
    size_ = other.size_;
    from_ = std::move(other.from_);
    return *this;
  }
  ~nccl_window() { give_back(); }

  std::span<T> elements() const noexcept {
    return {static_cast<T*>(block_->memory()), static_cast<std::size_t>(size_)};
  }
  /// Whether NCCL has registered it; false with an NCCL that has no windows, or where it has none on these GPUs: then it is memory like any other.
  bool registered() const noexcept { return block_->registered(); }

 private:
  void give_back() noexcept {
    if (block_ == nullptr) return;
    try {
      from_->push_back(std::move(block_));
    } catch (...) {  // it ends here, on this rank alone: there is no memory for a pointer
    }
  }
  std::unique_ptr<detail::nccl_block> block_;
  std::int64_t size_;
  std::shared_ptr<pool> from_;
};

/// Memory for collectives that a communicator's ranks call again and again: taken from NCCL and registered as symmetric windows once, kept when it comes back, and used again for as many
/// bytes (rounded up to 4096). All ranks take windows of the same sizes in the same order; taking one may wait for all of them. Contents are
/// whatever lay there. The pool and its windows end before the communicator, on all ranks; work on other streams than the communicator's must be done by then.
/// `hd::nccl_windows windows(world.all()); auto x = windows.take<float>(n); world.all().all_reduce(x.elements(), hd::plus{});`
/// Errors: `comm_error` with NCCL's own text, and with the bytes wanted and free where there is no memory; all communicators of the rank are aborted then. `config_error` for a negative size.
class nccl_windows {
 public:
  explicit nccl_windows(const nccl_communicator& comm) : channel_(comm.channel()), stream_(comm.stream()) {}

  template <class T>
  [[nodiscard("heddle: a window is given back at its end")]] nccl_window<T> take(std::int64_t size) {
    if (size < 0) throw config_error("heddle: a window of " + std::to_string(size) + " elements");
    constexpr std::size_t page = 4096;
    const std::size_t wanted = (static_cast<std::size_t>(size) * sizeof(T) + page - 1) / page * page;
    const std::size_t bytes = wanted > 0 ? wanted : page;
    const auto same = std::find_if(kept_->rbegin(), kept_->rend(), [&](const auto& b) { return b->bytes() == bytes; });
    if (same != kept_->rend()) {
      auto block = std::move(*same);
      kept_->erase(std::next(same).base());
      return {std::move(block), size, kept_};
    }
    return {std::make_unique<detail::nccl_block>(channel_, stream_, bytes), size, kept_};
  }
  /// Gives back the windows that nobody has: by all ranks together.
  void release_kept() noexcept { kept_->clear(); }

 private:
  std::shared_ptr<detail::nccl_channel> channel_;
  cudaStream_t stream_;
  std::shared_ptr<nccl_window<std::byte>::pool> kept_ = std::make_shared<nccl_window<std::byte>::pool>();
};

}  // namespace heddle::inline v0
