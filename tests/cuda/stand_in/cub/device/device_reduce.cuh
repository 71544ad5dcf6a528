// A stand-in for CUB's sum and maximum: jobs of a stream of the stand-in for CUDA, which use their temporary memory and read what they reduce when their turn comes.
#pragma once

#include "../../../double.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>

namespace cub {

struct DeviceReduce {
  template <class T>
  static cudaError_t Sum(void* room, std::size_t& bytes, const T* in, T* out, std::int64_t n, cudaStream_t stream) {
    return reduce(room, bytes, in, out, n, stream, T{}, [](T a, T b) { return a + b; });
  }
  template <class T>
  static cudaError_t Max(void* room, std::size_t& bytes, const T* in, T* out, std::int64_t n, cudaStream_t stream) {
    return reduce(room, bytes, in, out, n, stream, std::numeric_limits<T>::lowest(),
                  [](T a, T b) { return a < b ? b : a; });
  }

 private:
  template <class T, class Op>
  static cudaError_t reduce(void* room, std::size_t& bytes, const T* in, T* out, std::int64_t n, cudaStream_t stream,
                            T first, Op op) {
    constexpr std::int64_t parts = 3;
    if (room == nullptr) {
      bytes = parts * sizeof(T);
      return cudaSuccess;
    }
    if (bytes < parts * sizeof(T)) return cudaErrorInvalidValue;
    cuda_double::enqueue(stream, [=, of_parts = static_cast<T*>(room)] {
      for (std::int64_t p = 0; p < parts; ++p) of_parts[p] = first;
      for (std::int64_t i = 0; i < n; ++i) of_parts[i % parts] = op(of_parts[i % parts], in[i]);
      T result = first;
      for (std::int64_t p = 0; p < parts; ++p) result = op(result, of_parts[p]);
      *out = result;
    });
    return cudaSuccess;
  }
};

}  // namespace cub
