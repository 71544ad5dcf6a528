// heddle/core/ownership.hpp: what classes that end something in their destructor say about copies and moves.
#pragma once

#include <new>
#include <utility>

namespace heddle::inline v0::detail {

// Base of classes that are neither copied nor moved.
class uncopyable {
 public:
  uncopyable(const uncopyable&) = delete;
  uncopyable& operator=(const uncopyable&) = delete;

 protected:
  uncopyable() = default;
  ~uncopyable() = default;
};

// Move assignment by destructor and move constructor: the old value ends, then the other takes its place. For classes that nothing
// derives from, since a base cannot be replaced.
template <class T>
T& replace(T& old, T&& other) noexcept {
  static_assert(noexcept(T(std::move(other))));
  if (&old != &other) {
    old.~T();
    ::new (static_cast<void*>(&old)) T(std::move(other));
  }
  return old;
}

}  // namespace heddle::inline v0::detail
