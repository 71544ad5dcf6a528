// heddle/core/static_vector.hpp: a vector of bounded size for constant expressions.
#pragma once

#include <heddle/core/config.hpp>

#include <array>
#include <cstddef>
#include <stdexcept>

namespace heddle::inline v0 {

/// Up to `Capacity` values of a default-constructible literal type, stored in place.
/// Errors: `std::length_error` (a compile error in constant expressions) when it is full.
template <class T, std::size_t Capacity>
class static_vector {
 public:
  using value_type = T;

  constexpr static_vector() = default;

  static constexpr std::size_t capacity() noexcept { return Capacity; }
  constexpr std::size_t size() const noexcept { return size_; }
  constexpr bool empty() const noexcept { return size_ == 0; }

  constexpr void push_back(const T& value) {
    if (size_ == Capacity) throw std::length_error("heddle: static_vector is full");
    items_[size_++] = value;
  }
  constexpr void pop_back() noexcept { --size_; }
  constexpr void clear() noexcept { size_ = 0; }

  constexpr T& operator[](std::size_t i) noexcept { return items_[i]; }
  constexpr const T& operator[](std::size_t i) const noexcept { return items_[i]; }
  constexpr T& back() noexcept { return items_[size_ - 1]; }
  constexpr const T& back() const noexcept { return items_[size_ - 1]; }
  constexpr const T* begin() const noexcept { return items_.data(); }
  constexpr const T* end() const noexcept { return items_.data() + size_; }
  constexpr T* begin() noexcept { return items_.data(); }
  constexpr T* end() noexcept { return items_.data() + size_; }

  friend constexpr bool operator==(const static_vector& a, const static_vector& b) {
    if (a.size_ != b.size_) return false;
    for (std::size_t i = 0; i < a.size_; ++i)
      if (!(a.items_[i] == b.items_[i])) return false;
    return true;
  }

 private:
  std::array<T, Capacity> items_{};
  std::size_t size_ = 0;
};

}  // namespace heddle::inline v0
