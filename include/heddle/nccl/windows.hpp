// heddle/nccl/windows.hpp: registered memory for repeated collectives (not run on a GPU).
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/nccl/channel.hpp>
#include <heddle/nccl/communicator.hpp>
#include <heddle/nccl/window_memory.hpp>

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

/// Elements on the GPU of each rank of a communicator, in a window of `nccl_windows`; given back at its end. Collectives of the communicator on all of them or on the same part of them
/// on each rank may then read and write the other ranks' memory directly. Moves, does not copy.
template <class T>
  requires std::is_trivially_copyable_v<T>
class nccl_window {
 public:
  using pool = std::vector<std::unique_ptr<detail::nccl_window_memory>>;

  nccl_window(std::unique_ptr<detail::nccl_window_memory> block, std::int64_t size, std::shared_ptr<pool> from)
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
  std::unique_ptr<detail::nccl_window_memory> block_;
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
    return {std::make_unique<detail::nccl_window_memory>(channel_, stream_, bytes), size, kept_};
  }
  /// Gives back the windows that nobody has: by all ranks together.
  void release_kept() noexcept { kept_->clear(); }

 private:
  std::shared_ptr<detail::nccl_channel> channel_;
  cudaStream_t stream_;
  std::shared_ptr<nccl_window<std::byte>::pool> kept_ = std::make_shared<nccl_window<std::byte>::pool>();
};

}  // namespace heddle::inline v0
