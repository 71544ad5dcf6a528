// heddle/layout/merge_monoids.hpp: monoids of split-KV attention and of split arg-max.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/monoid.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

namespace heddle::inline v0 {

/// A softmax-weighted sum that has seen some of its terms: the largest score, and of all terms seen the sum of
/// `exp(score - largest)` and of `exp(score - largest) * value`. The result is `value / sum`.
template <class T>
struct softmax_state {
  T largest = -std::numeric_limits<T>::infinity();
  T sum = 0;
  T value = 0;

  friend constexpr bool operator==(const softmax_state&, const softmax_state&) = default;
};

/// Joins two softmax states. Identity: no terms seen.
/// Source: online softmax, Milakov and Gimelshein 2018, arXiv:1805.02867; ring attention, arXiv:2310.01889.
struct merge_softmax : detail::commutes_from_default {
  template <class T>
  softmax_state<T> operator()(const softmax_state<T>& a, const softmax_state<T>& b) const {
    if (a.sum == 0) return b;
    if (b.sum == 0) return a;
    const T largest = a.largest < b.largest ? b.largest : a.largest;
    const T of_a = std::exp(a.largest - largest), of_b = std::exp(b.largest - largest);
    return {largest, of_a * a.sum + of_b * b.sum, of_a * a.value + of_b * b.value};
  }
};

/// An element and its place in the whole tensor.
template <class T>
struct indexed_value {
  T value =
      std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
  std::int64_t index = (std::numeric_limits<std::int64_t>::max)();

  friend constexpr bool operator==(const indexed_value&, const indexed_value&) = default;
};

/// The larger of two elements, of equal ones the first in the whole tensor. A NaN is larger than any number and equal to
/// another NaN. Identity: the lowest value, after all others.
struct take_larger : detail::commutes_from_default {
  template <class T>
  constexpr indexed_value<T> operator()(const indexed_value<T>& a, const indexed_value<T>& b) const {
    const bool a_is_number = a.value == a.value, b_is_number = b.value == b.value;
    if (a_is_number != b_is_number) return a_is_number ? b : a;
    if (a.value < b.value) return b;
    if (b.value < a.value) return a;
    return a.index < b.index ? a : b;
  }
};

}  // namespace heddle::inline v0
