// heddle/model/pipeline/boundary_memory.hpp: memory of boundary tensors, and messages.
#pragma once

#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::model {

/// Buffers of equal size in the memory of the stages. Messages go through buffers on the host, one for each, as transports of
/// the host need them: what is sent is copied there, and waited for; what came is copied in the order of the queue. Units:
/// elements.
template <class T, memory_space Space>
class boundary_memory {
 public:
  using queue = typename Space::queue;

  boundary_memory() = default;
  boundary_memory(boundary_memory&&) = delete;
  /// While an exception unwinds the stack the queue may still read what came.
  ~boundary_memory() {
    try {
      finish();
    } catch (...) {  // an error is on its way already: `finish` comes behind every run
    }
  }
  /// The queue reads nothing of the host's any more. Errors: as its `wait`.
  void finish() {
    if (std::find(leaves_.begin(), leaves_.end(), true) != leaves_.end()) wait();
  }

  /// `q` may be null where there are no buffers.
  void allocate(queue* q, std::size_t count, std::int64_t elements) {
    queue_ = q;
    for (std::size_t i = 0; i < count; ++i) {
      here_.emplace_back(*q, elements, "a tensor between stages");
      on_host_.emplace_back(elements);
    }
    leaves_.resize(count, false);
  }

  row_view<T, Space> row(int i, std::int64_t elements) noexcept {
    return row_at<Space>(here_[static_cast<std::size_t>(i)].address(), elements);
  }
  /// The elements of buffer i for a message, after all that was queued before.
  std::span<const T> to_send(int i, std::int64_t elements) {
    queue_->copy(row(i, elements), host_row(i, elements));
    wait();
    return host_row(i, elements);
  }
  /// Where a message for buffer i may be put.
  std::span<T> to_receive(int i, std::int64_t elements) {
    if (leaves_[static_cast<std::size_t>(i)]) wait();
    return host_row(i, elements);
  }
  /// The message for buffer i is there.
  void received(int i, std::int64_t elements) {
    queue_->copy(host_row(i, elements), row(i, elements));
    leaves_[static_cast<std::size_t>(i)] = true;
  }
  /// Until all that was queued is done.
  void wait() {
    leaves_.assign(leaves_.size(), false);
    queue_->wait();
  }
  /// Of the stages' memory; that on the host is as large.
  std::int64_t bytes() const noexcept {
    std::int64_t n = 0;
    for (const auto& b : here_) n += static_cast<std::int64_t>(b.size() * sizeof(T));
    return n;
  }

 private:
  std::span<T> host_row(int i, std::int64_t elements) noexcept {
    return {on_host_[static_cast<std::size_t>(i)].data(), static_cast<std::size_t>(elements)};
  }

  queue* queue_ = nullptr;
  std::vector<buffer<T, Space>> here_{};
  std::vector<buffer<T>> on_host_{};
  std::vector<bool> leaves_{};  // whether what came may still be read from the host's buffer
};

/// On the host the buffers themselves are sent and received into.
template <class T>
class boundary_memory<T, host_memory> {
 public:
  void allocate(host_memory::queue*, std::size_t count, std::int64_t elements) {
    here_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) here_.emplace_back(elements, "a tensor between stages");
  }
  std::span<T> row(int i, std::int64_t elements) noexcept {
    return {here_[static_cast<std::size_t>(i)].data(), static_cast<std::size_t>(elements)};
  }
  std::span<const T> to_send(int i, std::int64_t elements) noexcept { return row(i, elements); }
  std::span<T> to_receive(int i, std::int64_t elements) noexcept { return row(i, elements); }
  static void received(int, std::int64_t) noexcept {}
  static void finish() noexcept {}
  static void wait() noexcept {}
  std::int64_t bytes() const noexcept {
    std::int64_t n = 0;
    for (const auto& b : here_) n += static_cast<std::int64_t>(b.size() * sizeof(T));
    return n;
  }

 private:
  std::vector<buffer<T>> here_{};
};

}  // namespace heddle::inline v0::model
