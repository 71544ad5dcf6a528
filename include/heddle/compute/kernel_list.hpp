// heddle/compute/kernel_list.hpp: the kernels of a backend as one list, for backends that stand before another one.
#pragma once

#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

/// Every kernel that such a backend passes on and that is not described as an operation (compute/op.hpp), each once:
/// `PLAIN(name)`, `OF_VALUES(name)` and `OF_TYPE(name)` say what callers name besides its arguments: nothing, values
/// (`matmul<transpose::no, transpose::yes>`), or a type. A kernel that is added here is there in all of them
/// (`testing::checked_backend`, `model::paper_backend`).
#define HEDDLE_EACH_KERNEL(PLAIN, OF_VALUES, OF_TYPE) \
  OF_VALUES(matmul)                                   \
  OF_VALUES(matmul_add_bias)                          \
  OF_VALUES(matmul_add_bias_gelu)                     \
  OF_VALUES(matmul_gelu_backward)                     \
  OF_VALUES(matmul_add_bias_backward)                 \
  OF_VALUES(grouped_matmul)                           \
  PLAIN(grouped_matmul_backward_weight)

namespace heddle::inline v0::compute::detail {

// What a kernel in memory `To` takes for an argument of the same kernel in another memory. Nothing is read.
template <class To, class X>
constexpr const X& argument_in(const X& x) noexcept {
  return x;
}
template <class To, class T, class Shape, class From>
  requires(!std::is_same_v<From, To>)
constexpr auto argument_in(const view<T, Shape, From>& x) noexcept {
  if constexpr (!std::is_same_v<To, host_memory>)
    return view<T, Shape, To>(x.address(), x.shape());
  else if constexpr (Shape::rank() == 0)
    return x.address();
  else if constexpr (Shape::rank() == 1)
    return std::span<T>(x.address(), static_cast<std::size_t>(x.size()));
  else
    return view<T, Shape>(x.address(), x.shape());
}
template <class To, class T, class From>
  requires(!std::is_same_v<From, To>)
constexpr head_rows<T, To> argument_in(const head_rows<T, From>& x) noexcept {
  return {x.data, x.rows, x.heads, x.head_dim, x.stride};
}
template <class To, class From>
  requires(!std::is_same_v<From, To>)
constexpr key_pages_in<To> argument_in(const key_pages_in<From>& x) noexcept {
  return {argument_in<To>(x.pages), x.page_rows};  // the rest says how, not what
}

}  // namespace heddle::inline v0::compute::detail
