// heddle/tensor/buffer.hpp: memory that is owned, aligned and zeroed.
#pragma once

#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

/// Owns `size` values of a trivially copyable type in host memory, aligned to 64 bytes (a cache line, and the widest
/// vector register), or more where the type asks for more, and zero-initialised. Moves, does not copy: a copy of a tensor is spelled out where it is made.
/// Errors: `layout_error` for a negative size or one whose bytes overflow; `std::bad_alloc` when memory is exhausted.
template <class T>
  requires std::is_trivially_copyable_v<T>
class buffer {
 public:
  static constexpr std::size_t alignment = alignof(T) > 64 ? alignof(T) : 64;

  buffer() = default;
  explicit buffer(std::int64_t size) : size_(checked(size)) {
    if (size_ == 0) return;
    void* raw = ::operator new(size_ * sizeof(T), std::align_val_t{alignment});
    data_.reset(static_cast<T*>(raw));
    std::uninitialized_value_construct_n(data_.get(), size_);
  }
  buffer(buffer&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  buffer& operator=(buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  T* data() noexcept { return data_.get(); }
  const T* data() const noexcept { return data_.get(); }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  T& operator[](std::size_t i) noexcept { return data_[i]; }
  const T& operator[](std::size_t i) const noexcept { return data_[i]; }
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + size_; }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + size_; }

 private:
  struct release {
    void operator()(T* p) const noexcept { ::operator delete(p, std::align_val_t{alignment}); }
  };
  static std::size_t checked(std::int64_t size) {
    if (size < 0 || static_cast<std::uint64_t>(size) > (std::numeric_limits<std::int64_t>::max)() / sizeof(T))
      throw layout_error("heddle: a buffer cannot hold " + std::to_string(size) + " elements of " +
                         std::to_string(sizeof(T)) + " bytes");
    return static_cast<std::size_t>(size);
  }

  std::unique_ptr<T[], release> data_;
  std::size_t size_ = 0;
};

}  // namespace heddle::inline v0
