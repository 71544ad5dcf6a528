// heddle/tensor/buffer.hpp: memory of a space that is owned, aligned and zeroed.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/core/text.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#if defined(__unix__)
#include <sys/resource.h>
#include <unistd.h>
#endif

namespace heddle::inline v0 {

/// Bytes that this process can have at most: the machine's memory, or the limit on its address space (`ulimit -v`) where
/// that is less. The largest number where the system does not say.
inline std::int64_t memory_limit() noexcept {
  constexpr std::int64_t unknown = (std::numeric_limits<std::int64_t>::max)();
  std::int64_t least = unknown;
#if defined(__unix__)
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0 && pages < unknown / page) least = pages * page;
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY &&
      space.rlim_cur < static_cast<rlim_t>(least))
    least = static_cast<std::int64_t>(space.rlim_cur);
#endif
  return least;
}

namespace detail {
// Set by `expected_memory`: what was predicted of this thread's memory.
inline std::atomic<std::string (*)()> memory_expected_by_thread{nullptr};

inline std::string text_of_expected_memory() {
  std::string (*const expected)() = memory_expected_by_thread.load();
  return expected != nullptr ? expected() : std::string();
}

// `bytes_free`: of the memory that was asked, where it says.
[[noreturn]] inline void refuse_memory(std::string_view what, std::size_t elements, std::size_t size,
                                       const std::size_t* bytes_free) {
  throw memory_error(
      text_of({"heddle: no memory for ", what, ": ", elements, " elements of ", size, " bytes are ", elements * size,
               " bytes; ",
               bytes_free != nullptr ? std::to_string(*bytes_free) + " are free there"
                                     : "this process can have " + std::to_string(memory_limit()) + " in all",
               text_of_expected_memory()}));
}
struct lending;
struct adopting;
struct borrowing;
}  // namespace detail

/// Owns `size` values of a trivially copyable type in memory of a space (the host's, if none is named), aligned to 64 bytes (a
/// cache line, and the widest vector register), or more where the type asks for more, and zeroed, in the order of the queue
/// that it was made with. Moves, does not copy: a copy of a tensor is spelled out where it is made.
/// `what` names it in errors. The host's elements need no queue; where the host may not touch them there is `address()` only.
/// Errors: `layout_error` for a negative size or one whose bytes overflow; `memory_error` when memory is exhausted, with the bytes
/// wanted and free, and what was predicted (`expected_memory`).
template <class T, memory_space Space = host_memory>
  requires std::is_trivially_copyable_v<T>
class buffer {
 public:
  using element_type = T;
  using space = Space;
  static constexpr std::size_t alignment = alignof(T) > 64 ? alignof(T) : 64;

  buffer() = default;
  explicit buffer(std::int64_t size, std::string_view what = "a tensor")
    requires std::same_as<Space, host_memory>
      : size_(checked(size, what)) {
    fill(host_memory::queue{}, what);
  }
  buffer(typename Space::queue& queue, std::int64_t size, std::string_view what = "a tensor")
      : size_(checked(size, what)) {
    fill(queue, what);
  }
  buffer(buffer&& other) noexcept : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}
  buffer& operator=(buffer&& other) noexcept {
    memory_ = std::move(other.memory_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  /// Where the elements are, in the space: for queues and for what is launched on them.
  T* address() noexcept { return at(); }
  const T* address() const noexcept { return at(); }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  /// All elements in a row.
  vector_view<T, Space> view() noexcept { return {at(), row()}; }
  vector_view<const T, Space> view() const noexcept { return {at(), row()}; }

  T* data() noexcept
    requires host_accessible_space<Space>
  {
    return at();
  }
  const T* data() const noexcept
    requires host_accessible_space<Space>
  {
    return at();
  }
  /// Errors: `layout_error` if there is no such element, where HEDDLE_CHECK_BOUNDS is on.
  T& operator[](std::size_t i) noexcept(!HEDDLE_CHECK_BOUNDS)
    requires host_accessible_space<Space>
  {
    return at()[in_range(i)];
  }
  const T& operator[](std::size_t i) const noexcept(!HEDDLE_CHECK_BOUNDS)
    requires host_accessible_space<Space>
  {
    return at()[in_range(i)];
  }
  T* begin() noexcept
    requires host_accessible_space<Space>
  {
    return at();
  }
  T* end() noexcept
    requires host_accessible_space<Space>
  {
    return at() + size_;
  }
  const T* begin() const noexcept
    requires host_accessible_space<Space>
  {
    return at();
  }
  const T* end() const noexcept
    requires host_accessible_space<Space>
  {
    return at() + size_;
  }

 private:
  friend struct detail::lending;
  friend struct detail::adopting;
  friend struct detail::borrowing;

  T* at() const noexcept { return static_cast<T*>(memory_.address()); }
  dynamic_shape<1> row() const noexcept { return detail::row_shape(static_cast<std::int64_t>(size_)); }
  template <class Queue>
  void fill(Queue&& queue, std::string_view what) {
    if (size_ == 0) return;
    memory_ = queue.template allocate<alignment>(size_ * sizeof(T));
    if (memory_.address() == nullptr) {
      if constexpr (requires { queue.free_bytes(); }) {
        const std::size_t left = queue.free_bytes();
        detail::refuse_memory(what, size_, sizeof(T), &left);
      } else {
        detail::refuse_memory(what, size_, sizeof(T), nullptr);
      }
    }
    queue.zero(*this);
  }
  std::size_t in_range(std::size_t i) const noexcept(!HEDDLE_CHECK_BOUNDS) {
#if HEDDLE_CHECK_BOUNDS
    if (i >= size_)
      throw layout_error("heddle: index " + std::to_string(i) + " is outside a buffer of " + std::to_string(size_) +
                         " elements");
#endif
    return i;
  }
  static std::size_t checked(std::int64_t size, std::string_view what) {
    if (size < 0 || static_cast<std::uint64_t>(size) > (std::numeric_limits<std::int64_t>::max)() / sizeof(T))
      throw layout_error("heddle: a buffer cannot hold " + std::to_string(size) + " elements of " +
                         std::to_string(sizeof(T)) + " bytes for " + std::string(what));
    return static_cast<std::size_t>(size);
  }

  typename Space::template allocation<alignment> memory_;
  std::size_t size_ = 0;
};

namespace detail {
// A space in whose memory a buffer may be what somebody else owns.
template <class Space>
concept lends_buffers = requires(void* at) { Space::template allocation<64>::borrowed(at); };
// A buffer over elements of somebody else, who gives them back behind its end.
struct borrowing {
  template <class T, lends_buffers Space>
  static buffer<T, Space> of(T* first, std::int64_t elements) noexcept {
    buffer<T, Space> lent;
    lent.memory_ = Space::template allocation<buffer<T, Space>::alignment>::borrowed(first);
    lent.size_ = static_cast<std::size_t>(elements);
    return lent;
  }
};
}  // namespace detail

}  // namespace heddle::inline v0
