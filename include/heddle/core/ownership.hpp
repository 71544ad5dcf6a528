// heddle/core/ownership.hpp: a base that forbids copies and moves, and move assignment by the move constructor.
#pragma once

#include <new>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

/// Base of classes that are neither copied nor moved.
class uncopyable {
 public:
  uncopyable(const uncopyable&) = delete;
  uncopyable& operator=(const uncopyable&) = delete;

 protected:
  uncopyable() = default;
  ~uncopyable() = default;
};

/// Move assignment by destructor and move constructor: the old value ends, then the other takes its place. For classes
/// that nothing derives from, since a base cannot be replaced.
template <class T>
T& move_assign(T& old, T&& other) noexcept {
  static_assert(std::is_final_v<T>,
                "heddle: a class that is assigned by replacement is final, as a base is not replaced");
  static_assert(
      noexcept(T(std::move(other))),
      "heddle: a class that is assigned by replacement is moved without exceptions: its old value is gone by then");
  T* const at = &old;
  if (at != &other) {
    at->~T();
    ::new (static_cast<void*>(at)) T(std::move(other));
  }
  return *at;
}

}  // namespace heddle::inline v0
