// heddle/compute/operator_kernel.hpp: binds operators of layout rules to their kernels.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/core/type_name.hpp>
#include <heddle/layout/operations.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/sharded.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace heddle::inline v0::compute {

/// In the place of a setting that is not given: the operator's own default. Empty, as settings known at compile time are.
struct default_setting {};

/// How one rank computes an operator, and its vector-Jacobian product, from the parts it holds. The primary template
/// stands for operators without kernels. A specialisation for an operator of one's own derives from
/// `elementwise_operator` or has the members of `detail::kernel_base` and
///   `rank<R...>`, `fits<R...>`                         dimensions of the result; whether operands may have so many
///   `shape<Op>(x...)`                                  the global shape of the result
///   `runs_on<B, T>`                                    whether a backend has the kernels
///   `forward(call, state, y, x...)`                    fills this rank's part of y
///   `backward(call, state, dy, y, gradients, x...)`    fills those gradients (zeros before) that are not `no_gradient`
template <class Op>
struct operator_kernel;

/// In the place of a gradient that nobody asked for.
struct no_gradient {};

namespace detail {

// A tensor that a rank holds a part of, whatever further parameters its type has.
template <class X>
concept tensor_of_any_space = requires(const X& x) {
  typename X::value_type;
  requires layout_like<typename X::layout_type>;
  X::dimensions;
  x.local_shape();
  x.shape();
  x.rank();
};
// One in the host's memory, whose elements kernels of the host take as spans.
template <class X>
concept sharded_value =
    tensor_of_any_space<X> && std::same_as<space_of<X>, host_memory> && requires(const X& x) { x.elements(); };
template <class X>
concept out_of_reach = tensor_of_any_space<X> && !sharded_value<X>;

template <class Backend, class World, class Setting>
struct operator_call {
  using setting_type = Setting;
  Backend& backend;
  World& world;
  Setting setting;
};

struct kernel_base {
  static constexpr bool exists = true;
  // The operands, as bits, and whether the result, that backward reads.
  static constexpr unsigned reads = 0;
  static constexpr bool reads_result = false;
  // What forward keeps for backward besides.
  template <class T>
  struct state {};
  // A setting: what one may give as the last argument.
  using setting_type = default_setting;
  static constexpr bool needs_setting = false;
  // Whether `make<Y>` returns the result, in the place of `shape` and `forward`.
  static constexpr bool makes_result = false;
  template <class T, class... Ts>
  static constexpr bool takes = std::floating_point<T> && (std::is_same_v<T, Ts> && ...);
  // Of the result's elements; results of integers are not differentiated.
  template <class T, class... Ts>
  using result_type = T;
  static constexpr bool differentiable = true;
};

}  // namespace detail

template <class Op>
struct operator_kernel : detail::kernel_base {
  static constexpr bool exists = false;
};

namespace detail {

template <std::size_t At, class Gradients>
inline constexpr bool is_wanted = !std::is_same_v<std::tuple_element_t<At, Gradients>, no_gradient>;

[[noreturn]] inline void throw_operand_shape(std::string_view op, std::size_t at, const std::string& expected,
                                             const std::string& got) {
  throw layout_error(
      text_of({"heddle: apply<", op, ">: operand ", at, " should be of shape ", expected, ", got ", got}));
}
template <class Op, std::int64_t... E, class X>
void expect_shape(std::size_t at, const shape<E...>& expected, const X& x) {
  if (!(x.shape() == expected))
    throw_operand_shape(short_type_name<Op>(), at, to_string(expected), to_string(x.shape()));
}
// Kernels of rows, heads and reductions read all memory that there is.
template <class Op, class X>
void expect_unpadded(const X& x) {
  if (x.local_shape() == x.valid_shape()) return;
  throw layout_error(text_of(
      {"heddle: apply<", short_type_name<Op>(), ">: the memory of an operand is padded: ", to_string(x.local_shape()),
       " for ", to_string(x.valid_shape()), " elements; redistribute it to a split policy that does not pad"}));
}

// The part as a matrix whose rows are its last dimension.
template <class X>
std::int64_t columns_of(const X& x) {
  return x.local_shape().extent(X::dimensions - 1);
}
template <class X>
std::int64_t rows_count(const X& x) {
  std::int64_t n = 1;
  for (std::size_t d = 0; d + 1 < X::dimensions; ++d) n *= x.local_shape().extent(d);
  return n;
}
template <class X>
auto as_rows(X& x) {
  using element = std::remove_pointer_t<decltype(x.elements().data())>;
  return matrix_view<element>(x.elements().data(), {rows_count(x), columns_of(x)});
}

// What is multiplied into a gradient's rows, one number each.
template <class T>
void scale_rows(matrix_view<T> m, std::span<const T> factors) {
  for (std::int64_t r = 0; r < m.extent(0); ++r)
    for (std::int64_t c = 0; c < m.extent(1); ++c) m(r, c) *= factors[static_cast<std::size_t>(r)];
}

// The axes of the mesh, as bits, that split a dimension.
template <class Layout, int Dim>
constexpr unsigned axes_splitting() {
  unsigned mask = 0;
  for (std::size_t a = 0; a < Layout::mesh_type::rank; ++a)
    if (Layout::table.use[a].role == axis_role::sharded && Layout::table.use[a].dim == Dim) mask |= 1u << a;
  return mask;
}
// Where the part begins along a dimension; of parts that are no intervals a compile error where an axis splits it.
template <int Dim, class X>
std::int64_t offset_along(const X& x) {
  if constexpr (axes_splitting<typename X::layout_type, Dim>() != 0)
    return x.local_offset()[static_cast<std::size_t>(Dim)];
  else
    return 0;
}

}  // namespace detail

/// The base of the kernels of functions of elements at the same place: operands of one shape, which is the result's.
struct elementwise_operator : detail::kernel_base {
  template <std::size_t R, std::size_t...>
  static constexpr std::size_t rank = R;
  template <std::size_t R, std::size_t... Rs>
  static constexpr bool fits = ((Rs == R) && ...);
  template <class Op, class X, class... Xs>
  static auto shape(const X& x, const Xs&... rest) {
    [[maybe_unused]] std::size_t at = 0;  // of one operand, which g++ 16 warns of
    (detail::expect_shape<Op>(++at, x.shape(), rest), ...);
    return x.shape();
  }
  template <class B, class T>
  static constexpr bool runs_on = offered<elementwise_facet, B, T>;
};

}  // namespace heddle::inline v0::compute
