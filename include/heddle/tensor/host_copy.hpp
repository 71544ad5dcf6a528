// heddle/tensor/host_copy.hpp: elements of any memory space for the host, copied if needed.
#pragma once

#include <heddle/core/ownership.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle::inline v0 {

/// `count` elements of a row in memory of `Space`, from the element `begin` on.
template <class Space, class Row>
constexpr auto part_of_row(const Row& row, std::int64_t begin, std::int64_t count) noexcept {
  return row_at<Space>(first_element(row) + begin, count);
}
/// Bytes that the elements of a row take.
template <class Row>
constexpr std::size_t bytes_of_row(const Row& row) noexcept {
  return element_count(row) * sizeof(*first_element(row));
}

namespace detail {

// The queue of a space, for those who keep memory of it; nothing on the host.
template <memory_space Space>
class kept_queue {
 public:
  explicit kept_queue(typename Space::queue& queue) noexcept : queue_(&queue) {}
  typename Space::queue& operator*() const noexcept { return *queue_; }
  typename Space::queue* operator->() const noexcept { return queue_; }

 private:
  typename Space::queue* queue_;
};
template <>
class kept_queue<host_memory> {
 public:
  kept_queue() = default;
  template <class Queue>
  explicit kept_queue(Queue&) noexcept {}
  host_memory::queue& operator*() const noexcept { return *operator->(); }
  host_memory::queue* operator->() const noexcept {
    static host_memory::queue nothing_to_keep;
    return &nothing_to_keep;
  }
};

}  // namespace detail

/// A row's elements for host code that reads them, after all that was queued before: the elements themselves in the host's
/// memory, which then must live as long, elsewhere a copy.
template <class T, memory_space Space>
class read_on_host {
 public:
  /// Waits for the queue.
  read_on_host(typename Space::queue& queue, row_view<const T, Space> row) : copy_(element_count(row)) {
    queue.copy(row, copy_);
    queue.wait();
  }
  std::span<const T> elements() const noexcept { return copy_; }

 private:
  std::vector<T> copy_;
};
template <class T>
class read_on_host<T, host_memory> {
 public:
  read_on_host(host_memory::queue&, std::span<const T> row) noexcept : row_(row) {}
  std::span<const T> elements() const noexcept { return row_; }

 private:
  std::span<const T> row_;
};

/// Room on the host for all elements of a row that host code writes: the row itself in the host's memory; elsewhere what is
/// there when `finish` is called is copied to the row, and waited for.
template <class T, memory_space Space>
class written_on_host {
 public:
  written_on_host(typename Space::queue& queue, row_view<T, Space> row)
      : queue_(queue), row_(row), room_(element_count(row)) {
    queue_.copy(row_, room_);  // what nobody writes stays as it is
    queue_.wait();
  }
  std::span<T> elements() noexcept { return room_; }
  void finish() {
    queue_.copy(room_, row_);
    queue_.wait();
  }

 private:
  typename Space::queue& queue_;
  row_view<T, Space> row_;
  std::vector<T> room_;
};
template <class T>
class written_on_host<T, host_memory> {
 public:
  written_on_host(host_memory::queue&, std::span<T> row) noexcept : row_(row) {}
  std::span<T> elements() noexcept { return row_; }
  static void finish() noexcept {}

 private:
  std::span<T> row_;
};

/// The way of a row into messages and out of them, for transports that take memory of the host: the row itself there, elsewhere
/// through a buffer on the host, one for what is sent and one for what is received, which grow to the largest message. A
/// message must be over before the next one in its direction.
template <class T, memory_space Space>
class host_messages : uncopyable {
 public:
  using queue = typename Space::queue;

  /// While an exception unwinds the stack the queue may still read what came.
  ~host_messages() {
    try {
      if (reads_ != nullptr) wait(*reads_);
    } catch (...) {  // an error is on its way already
    }
  }

  /// The elements to send, after all that was queued before. Waits for the queue.
  std::span<const T> to_send(queue& q, row_view<const T, Space> row) {
    const std::span<T> there = room(out_, element_count(row));
    q.copy(row, there);
    wait(q);
    return there;
  }
  /// Where a message of this row's size may be put.
  std::span<T> to_receive(queue& q, row_view<T, Space> row) {
    if (reads_ != nullptr) wait(q);
    return room(in_, element_count(row));
  }
  /// The message is there: copies it to the row in the order of the queue, which must outlive this object.
  void received(queue& q, row_view<T, Space> row) {
    q.copy(std::span<const T>(in_).first(element_count(row)), row);
    reads_ = &q;
  }

 private:
  static std::span<T> room(std::vector<T>& memory, std::size_t n) {
    if (memory.size() < n) memory.resize(n);
    return std::span<T>(memory).first(n);
  }
  void wait(queue& q) {
    reads_ = nullptr;
    q.wait();
  }

  std::vector<T> out_{}, in_{};
  queue* reads_ = nullptr;  // the queue that may still read what came
};
template <class T>
class host_messages<T, host_memory> {
 public:
  using queue = host_memory::queue;
  static std::span<const T> to_send(queue&, std::span<const T> row) noexcept { return row; }
  static std::span<T> to_receive(queue&, std::span<T> row) noexcept { return row; }
  static void received(queue&, std::span<T>) noexcept {}
};

}  // namespace heddle::inline v0
