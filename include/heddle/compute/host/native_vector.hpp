// heddle/compute/host/native_vector.hpp: registers full of numbers, for loops by hand.
#pragma once

#include <heddle/core/config.hpp>

namespace heddle::inline v0::compute::detail {

/// A vector of the compiler's own kind, of `Bytes` bytes. An array of them as local variables stays in registers, where
/// arrays of numbers do not always.
template <class T, int Bytes>
struct native_vector;
#define HEDDLE_NATIVE_VECTOR(T, Bytes)                  \
  template <>                                           \
  struct native_vector<T, Bytes> {                      \
    typedef T type __attribute__((vector_size(Bytes))); \
  }
HEDDLE_NATIVE_VECTOR(float, 16);
HEDDLE_NATIVE_VECTOR(float, 32);
HEDDLE_NATIVE_VECTOR(float, 64);
HEDDLE_NATIVE_VECTOR(double, 16);
HEDDLE_NATIVE_VECTOR(double, 32);
HEDDLE_NATIVE_VECTOR(double, 64);
#undef HEDDLE_NATIVE_VECTOR

}  // namespace heddle::inline v0::compute::detail
