// heddle/testing/checked_backend.hpp: a backend whose memory the host may not touch.
#pragma once

#include <heddle/compute/context_bodies.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/testing/checked_memory.hpp>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
namespace testing {
namespace detail {

// The memory of an argument; none of numbers and flat structs.
template <class X>
constexpr vector_view<const std::byte, checked_memory> memory_of(const X&) noexcept {
  return {};
}
template <class T, class Shape>
constexpr view<T, Shape, checked_memory> memory_of(const view<T, Shape, checked_memory>& x) noexcept {
  return x;
}
template <class T>
constexpr vector_view<T, checked_memory> memory_of(const compute::head_rows<T, checked_memory>& x) noexcept {
  const bool none = x.rows == 0 || x.width() == 0;
  if (x.heads > 1 && x.lies_by_head()) return {x.data, dynamic_shape<1>(none ? 0 : x.rows * x.heads * x.stride)};
  return {x.data, dynamic_shape<1>(none ? 0 : (x.rows - 1) * x.stride + x.width())};
}
constexpr auto memory_of(const compute::key_pages_in<checked_memory>& x) noexcept {
  return x.pages;
}
template <class T>
constexpr vector_view<T, checked_memory> memory_of(const compute::head_numbers<T, checked_memory>& x) noexcept {
  const bool none = x.rows == 0 || x.heads == 0;
  return {x.data, dynamic_shape<1>(none ? 0 : (x.rows - 1) * x.row_stride + (x.heads - 1) * x.head_stride + 1)};
}
// Those of all that it refers to.
template <class X>
constexpr auto memories_of(const X& x) noexcept {
  if constexpr (requires { x.tensors(); })
    return std::apply([](const auto&... tensors) { return std::tuple(memory_of(tensors)...); }, x.tensors());
  else
    return std::tuple(memory_of(x));
}

}  // namespace detail

/// A backend for tests that behaves like a device's: tensors lie in `checked_memory`, and a call of a kernel queues it and
/// returns. It then runs on the queue's thread with the kernels of `Kernels`, a backend of the host, so results are equal to
/// its own bit for bit; only the memory that the call named is open to it. A program that reads or writes a tensor on the host,
/// forgets to wait, or gives a kernel memory of another queue ends or throws as `checked_memory` says. It has the facets that
/// `Kernels` has.
/// Errors: what a kernel throws comes out of the next `queue().wait()`.
template <class Kernels>
class checked_backend {
 public:
  using kind = compute::backend_kind;
  using space = checked_memory;

  /// Made as `Kernels` is.
  template <class... Args>
    requires std::is_constructible_v<Kernels, Args...>
  explicit checked_backend(Args&&... args) : kernels_(std::forward<Args>(args)...) {}

  checked_memory::queue& queue() noexcept { return queue_; }
  int threads() const noexcept { return kernels_.threads(); }
  const char* gemm_name() const noexcept { return kernels_.gemm_name(); }
  const char* half_product_name() const noexcept { return kernels_.half_product_name(); }
  /// Kernels that were called.
  std::int64_t calls() const noexcept { return calls_; }

  /// An operation, as `compute::run` calls it.
  template <class Op, class T, class... Args>
    requires compute::offered<Op, Kernels, T>
  void run(const Args&... args) {
    ++calls_;
    const auto work =
        [this, args...](const auto&...) {  // keeps the arguments until its turn; what they refer to is open then
          compute::run<Op>(kernels_, compute::detail::argument_in<space_of<Kernels>>(args)...);
        };
    std::apply([&](const auto&... memory) { queue_.run(work, memory...); },
               std::tuple_cat(detail::memories_of(args)...));
  }

 private:
  Kernels kernels_;
  std::int64_t calls_ = 0;
  checked_memory::queue queue_{};  // ends first: what is queued uses the kernels
};

}  // namespace testing
}  // namespace heddle::inline v0
