// heddle/compute/expression.hpp: expressions over sharded tensors, as types with layouts.
#pragma once

#include <heddle/compute/apply.hpp>

#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
namespace compute {
namespace detail {
struct expression_base {};
}  // namespace detail

/// Operand number `At` of an expression.
template <std::size_t At, class T, std::size_t Rank, layout_like Layout, bool Differentiated>
struct expression_operand : detail::expression_base {
  using value_type = T;
  using layout_type = Layout;
  static constexpr std::size_t dimensions = Rank;
  static constexpr bool needs_gradient = Differentiated;
  static constexpr bool has_settings = false;
};

/// An operator applied to expressions. An empty object unless a setting known at run time is in it: its operands are types.
template <class Op, class Setting, class... Args>
struct expression_of : detail::expression_base {
  using application = detail::application<Op, Setting, Args...>;
  using value_type = typename application::value_type;
  using layout_type = typename application::layout_type;
  static constexpr std::size_t dimensions = application::dimensions;
  static constexpr bool needs_gradient = application::differentiable && (Args::needs_gradient || ...);
  static constexpr bool has_settings = !std::is_empty_v<Setting> || (Args::has_settings || ...);
  using operands = std::conditional_t<has_settings, std::tuple<Args...>, type_list<Args...>>;

  expression_of() = default;
  expression_of(const Setting& s, const Args&... args) : setting(s) {
    if constexpr (has_settings) arguments = operands(args...);
  }
  [[no_unique_address]] Setting setting{};
  [[no_unique_address]] operands arguments{};
};

}  // namespace compute

/// What stands for a value inside the expression of `value_and_gradient`: `value_type`, `dimensions`, `layout_type`.
template <class E>
concept expression = std::derived_from<E, compute::detail::expression_base>;

namespace compute::detail {
// Whether the operands of `apply` are expressions. A last argument that is no tensor is a setting.
template <class Op, class First, class... Args>
constexpr bool takes_expressions() {
  constexpr bool all = [] {
    constexpr bool is_operand[]{expression<First>, expression<Args>...};
    constexpr bool is_tensor[]{tensor_of_any_space<First>, tensor_of_any_space<Args>...};
    for (std::size_t i = 0; i <= sizeof...(Args); ++i)
      if (is_tensor[i] || (!is_operand[i] && i < sizeof...(Args))) return false;
    return true;
  }();
  static_assert(
      operator_runs_here<all, named_operator<Op>, First, Args...>,
      "heddle: apply<operator>: in the function of value_and_gradient, operands are its arguments and what is made "
      "of them; pass a tensor that the function captured as one more argument, constant(tensor) if it needs no "
      "gradient");
  return all;
}
}  // namespace compute::detail

/// `apply` in an expression: checked when the program is compiled, executed by `value_and_gradient`. A value that is used
/// twice is computed once, unless a setting known only at run time (a factor, an epsilon) is in it.
/// Errors: at compile time as `apply` on tensors.
template <operation Op, expression First, class... Args>
constexpr auto apply(const First& first, const Args&... args) {
  if constexpr (compute::detail::takes_expressions<Op, First, Args...>()) {
    constexpr bool all_operands = expression<type_at<sizeof...(Args), First, Args...>>;
    return compute::detail::with_setting<all_operands>(
        [](const auto& setting, const auto&... x) {
          return compute::expression_of<Op, std::remove_cvref_t<decltype(setting)>,
                                        std::remove_cvref_t<decltype(x)>...>(setting, x...);
        },
        first, args...);
  } else {
    return first;
  }
}

namespace compute::detail {
template <layout_like To, expression X>
constexpr auto brought_to(const X& x) {
  if constexpr (std::is_same_v<To, typename X::layout_type>)
    return x;
  else
    return expression_of<moved_to<To>, default_setting, X>(default_setting{}, x);
}
template <class Op, class... To, class... X>
constexpr auto apply_to_brought(type_list<To...>, const X&... x) {
  return apply<Op>(brought_to<To>(x)...);
}
}  // namespace compute::detail

/// The same; operands whose layouts do not fit are redistributed first, as `repaired` says, and their gradients go the way
/// back. A function that names no layout so fits any.
template <operation Op, expression... X>
constexpr auto apply(auto_redistribute, const X&... x) {
  return compute::detail::apply_to_brought<Op>(typename repaired<Op, typename X::layout_type...>::operands{}, x...);
}
/// A product by formula whose operands are redistributed where they do not fit.
template <fixed_string Formula, expression... X>
constexpr auto einsum(auto_redistribute fit, const X&... x) {
  return apply<op::einsum<Formula>>(fit, x...);
}

/// A product of tensors by formula: `einsum<"bi,io->bo">(x, w)`.
template <fixed_string Formula, expression... X>
constexpr auto einsum(const X&... x) {
  return apply<op::einsum<Formula>>(x...);
}
/// Adds a bias along the last dimension.
template <expression Y, expression B>
constexpr auto add_bias(const Y& y, const B& b) {
  return apply<op::add_of<compute::detail::bias_formula<Y::dimensions>()>>(y, b);
}
/// The same values in layout `To`; their gradient goes the way back, from `dual<To>`.
template <layout_like To, expression X>
constexpr auto redistribute(const X& x) {
  using moved = compute::detail::moved_to<To>;
  return compute::expression_of<moved, compute::default_setting, X>(compute::default_setting{}, x);
}

namespace compute::detail {
template <bool Mean, class X, std::size_t... D>
constexpr auto over_all(const X& x, std::index_sequence<D...>) {
  if constexpr (sizeof...(D) == 0)
    return x;
  else if constexpr (Mean)
    return apply<op::mean<static_cast<int>(D)...>>(x);
  else
    return apply<op::reduce<plus, static_cast<int>(D)...>>(x);
}
}  // namespace compute::detail

/// The sum, and the mean, of all elements of the whole tensor: one number, partial over the axes that split it.
template <expression X>
constexpr auto sum(const X& x) {
  return compute::detail::over_all<false>(x, std::make_index_sequence<X::dimensions>{});
}
/// The mean of all elements of the whole tensor, partial over the axes that split it.
template <expression X>
constexpr auto mean(const X& x) {
  return compute::detail::over_all<true>(x, std::make_index_sequence<X::dimensions>{});
}

}  // namespace heddle::inline v0
