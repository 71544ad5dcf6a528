// heddle/core/ownership.hpp: a base that forbids copies and moves, move assignment by destructor and move constructor, and typestates.
#pragma once

#include <new>
#include <type_traits>
#include <utility>

// Typestates of what must be used up exactly once: clang follows local variables of such classes and says, with `-Wconsumed`, where one ends
// that was not waited for, is waited for twice, or is used when it has been given away (`HEDDLE_CHECK_REQUESTS` of the build makes these
// errors). Nothing of the program changes. Behind references nothing is known, which is allowed wherever the second state is "unknown".
// Not for what is stored, returned or started anew in loops, as requests are (`awaited` is for those of one function). clang 19 has errors that are
// none: it takes what a member is initialised with by a call for a temporary that ends there, does not see that a named local is returned or waited for
// in a lambda, and wants one state before and behind each loop.
#if defined(__clang__)
/// An attribute of clang.
#define HEDDLE_STATE(...) __attribute__((__VA_ARGS__))
#else
#define HEDDLE_STATE(...)
#endif
/// Of a class whose objects must be used up: they begin unconsumed.
#define HEDDLE_CONSUMABLE HEDDLE_STATE(consumable(unconsumed))
/// Of a class whose objects may be given away: behind references, and returned by functions, they are in an unknown state.
#define HEDDLE_CAN_BE_GIVEN_AWAY HEDDLE_STATE(consumable(unknown))
/// Of a member that is called in these states only.
#define HEDDLE_CALLABLE_WHEN(...) HEDDLE_STATE(callable_when(__VA_ARGS__))
/// Of a member behind which the object is in this state.
#define HEDDLE_SETS_STATE(state) HEDDLE_STATE(set_typestate(state))
/// Of a constructor or function whose result is in this state.
#define HEDDLE_RETURNS_STATE(state) HEDDLE_STATE(return_typestate(state))

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

}  // namespace heddle::inline v0::detail
