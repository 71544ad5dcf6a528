// heddle/schedule/constexpr_scratch.hpp: working memory in constant expressions.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>

namespace heddle::inline v0::schedule::detail {

// Memory that is written before it is read: to set it costs a compiler a step for each value.
struct unset_t {};
inline constexpr unset_t unset{};

// `n` values, value-initialised or `unset`. Not std::vector: clang 19 cannot evaluate vector(n) of libstdc++ 12 at
// compile time, and a plain pointer costs both compilers a fraction of the steps that operator[] does.
template <class T>
class scratch {
 public:
  constexpr explicit scratch(std::size_t n) : items_(new T[n]{}) {}
  constexpr explicit scratch(int n) : scratch(static_cast<std::size_t>(n)) {}
  constexpr scratch(int n, unset_t) : items_(new T[static_cast<std::size_t>(n)]) {}
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  constexpr ~scratch() { delete[] items_; }

  constexpr T& operator[](int i) const noexcept { return items_[i]; }
  constexpr T* data() const noexcept { return items_; }

 private:
  T* items_;
};

}  // namespace heddle::inline v0::schedule::detail
