// heddle/testing/checked_backend.hpp: a backend whose memory the host may not touch, with the kernels of another one.
#pragma once

#include <heddle/compute/context_bodies.hpp>
#include <heddle/compute/kernel_list.hpp>
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
/// `Kernels` has. Kernels that return a number wait for it.
/// Errors: what a kernel throws comes out of the next wait: of `queue().wait()` or of a kernel that returns a number.
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
    launch([](Kernels& k,
              const Args&... kept) { compute::run<Op>(k, compute::detail::argument_in<space_of<Kernels>>(kept)...); },
           args...);
  }

  // A kernel is named once, by what its callers name besides its arguments: nothing, values, or a type.
#define HEDDLE_KERNEL(HEAD, NAME, CALL)                                                                              \
  HEAD                                                                                                               \
    requires requires(Kernels& k, const Args&... args) { CALL(compute::detail::argument_in<host_memory>(args)...); } \
  auto NAME(const Args&... args) {                                                                                   \
    return launch(                                                                                                   \
        [](Kernels& k, const Args&... kept) { return CALL(compute::detail::argument_in<host_memory>(kept)...); },    \
        args...);                                                                                                    \
  }
#define HEDDLE_PLAIN(NAME) HEDDLE_KERNEL(template <class... Args>, NAME, k.NAME)
#define HEDDLE_OF_VALUES(NAME) \
  HEDDLE_KERNEL(template <auto... Values HEDDLE_COMMA class... Args>, NAME, k.template NAME<Values...>)
#define HEDDLE_OF_TYPE(NAME) HEDDLE_KERNEL(template <class Of HEDDLE_COMMA class... Args>, NAME, k.template NAME<Of>)
#define HEDDLE_COMMA ,
  HEDDLE_EACH_KERNEL(HEDDLE_PLAIN, HEDDLE_OF_VALUES, HEDDLE_OF_TYPE)
#undef HEDDLE_COMMA
#undef HEDDLE_OF_TYPE
#undef HEDDLE_OF_VALUES
#undef HEDDLE_PLAIN
#undef HEDDLE_KERNEL

 private:
  // The arguments are kept until the call's turn; what they refer to is open then.
  template <class Call, class... Args>
  auto launch(Call call, const Args&... args) {
    using result = decltype(call(kernels_, args...));
    ++calls_;
    const auto queued = [&](auto work) {
      std::apply([&](const auto&... memory) { queue_.run([work](const auto&...) { work(); }, memory...); },
                 std::tuple_cat(detail::memories_of(args)...));
    };
    if constexpr (std::is_void_v<result>) {
      queued([this, call, args...] { call(kernels_, args...); });
    } else {
      result got{};
      queued([this, call, args..., &got] { got = call(kernels_, args...); });
      queue_.wait();
      return got;
    }
  }

  Kernels kernels_;
  std::int64_t calls_ = 0;
  checked_memory::queue queue_{};  // ends first: what is queued uses the kernels
};

}  // namespace testing
}  // namespace heddle::inline v0
