// heddle/core/launch_each.hpp: queues that launch kernels.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <cstdint>

namespace heddle::inline v0 {

/// The last of `count` ascending numbers, `step` words apart, that is not above `i`; the first is 0.
HEDDLE_HD constexpr std::int64_t last_not_above(const std::int64_t* first, std::int64_t count, std::int64_t step,
                                                std::int64_t i) {
  std::int64_t low = 0;
  while (count > 1) {
    const std::int64_t half = count / 2;
    if (first[(low + half) * step] <= i) {
      low += half;
      count -= half;
    } else {
      count = half;
    }
  }
  return low;
}

namespace detail {

struct empty_body {
  HEDDLE_HD void operator()(std::int64_t) const {}
};

// Bytes that the arguments of a kernel may take: what every device has, or what the queue's have.
template <class Queue>
inline constexpr std::size_t largest_kernel_argument = [] {
  if constexpr (requires { Queue::largest_kernel_argument; })
    return Queue::largest_kernel_argument;
  else
    return std::size_t{4096};
}();

template <class T>
struct fill_each {
  T* to;
  T value;
  HEDDLE_HD void operator()(std::int64_t i) const { to[i] = value; }
};

}  // namespace detail

/// A queue that launches kernels: `launch_each(queue, n, body)`, found beside the queue's type, is `body(i)` for each i in [0, n), in
/// any order and at the same time, in the order of the queue. The body is copied; its call operator is a function of host and device
/// both, and `const`. Queues of a CUDA device launch in files that nvcc compiles.
template <class Q>
concept launches_kernels = requires(Q& q, std::int64_t n, const detail::empty_body& body) { launch_each(q, n, body); };

}  // namespace heddle::inline v0
