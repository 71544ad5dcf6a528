// heddle/compute/application.hpp: checks an operator's layouts and runs it on a rank's parts.
#pragma once

#include <heddle/compute/operand_here.hpp>
#include <heddle/compute/operator_kernel.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/layout/propagate.hpp>

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::compute::detail {

// These carry operator and operands into the compiler's message; the assertion's text says what to change.
template <bool Ok, class... Names>
inline constexpr bool operator_runs_here = Ok;
template <class Op>
using named_operator = heddle::v0::detail::through_operator<Op>;
template <class... T>
struct of_types;
template <std::size_t... R>
struct of_dimensions;

template <bool Sound, class Kernel, class Op, class... Ls>
struct result_layout_of {
  static constexpr bool legal = heddle::v0::can_propagate_through<Op, Ls...>;
  using type = heddle::v0::propagate_through<Op, Ls...>;
};
template <class Kernel, class Op, class First, class... Ls>
struct result_layout_of<false, Kernel, Op, First, Ls...> {  // refused already
  static constexpr bool legal = false;
  using type = First;
};
template <class Kernel, class Op, class... Ls>
  requires requires { typename Kernel::template layout<Ls...>; }
struct result_layout_of<true, Kernel, Op, Ls...> {
  static constexpr bool legal = true;
  using type = typename Kernel::template layout<Ls...>;
};

// Whether the operator takes so many operands; `propagate_through` refuses another number.
template <class Op, std::size_t Count>
constexpr bool takes_so_many() {
  if constexpr (requires { Op::least; })
    return Count >= static_cast<std::size_t>(Op::least) && Count <= static_cast<std::size_t>(Op::most);
  else
    return true;
}

// An operator and its operands, which have `value_type`, `dimensions` and `layout_type`: tensors, or expressions.
template <class Op, class Setting, class... X>
struct application {
  using kernel = operator_kernel<Op>;
  static constexpr bool known = kernel::exists;
  static constexpr bool counted = takes_so_many<Op, sizeof...(X)>();
  static constexpr bool typed = [] {
    if constexpr (known && counted)
      return kernel::template takes<typename X::value_type...>;
    else
      return true;
  }();
  static constexpr bool ranked = [] {
    if constexpr (known && counted)
      return kernel::template fits<X::dimensions...>;
    else
      return true;
  }();
  static constexpr bool set = [] {
    if constexpr (!known || !counted)
      return true;
    else if constexpr (std::is_same_v<Setting, default_setting>)
      return !kernel::needs_setting;
    else
      return std::is_convertible_v<Setting, typename kernel::setting_type>;
  }();
  static constexpr bool sound = known && counted && typed && ranked && set;
  static constexpr std::size_t dimensions = [] {
    if constexpr (sound)
      return kernel::template rank<X::dimensions...>;
    else
      return (X::dimensions, ...);
  }();
  using element_type = type_at<0, typename X::value_type...>;  // what the kernels compute in
  using value_type = typename kernel::template result_type<typename X::value_type...>;
  static constexpr bool differentiable = kernel::differentiable;
  using propagation = result_layout_of<sound || !counted, kernel, Op, typename X::layout_type...>;
  static constexpr bool legal = sound && propagation::legal;
  // Of a refused function of elements or rows what it is after an all_reduce, so that one mistake is one error.
  using first = type_at<0, X...>;
  using layout_type = std::conditional_t<!legal && dimensions == first::dimensions,
                                         heddle::v0::settled<typename first::layout_type>, typename propagation::type>;
  using result = sharded<value_type, dimensions, layout_type>;
  template <class T>
  using state = typename kernel::template state<T>;

  // Last, because clang leaves out the members that come after an assertion which fails.
  static_assert(
      operator_runs_here<known, named_operator<Op>>,
      "heddle: apply<operator>: no kernels compute this operator on tensors; op::elementwise and its like stand "
      "for many functions, so name one (op::gelu, op::map<F>), or specialise compute::operator_kernel");
  static_assert(
      operator_runs_here<typed, named_operator<Op>, of_types<typename X::value_type...>>,
      "heddle: apply<operator>: the operands have other element types than the kernels take: one floating-point "
      "type, and std::int32_t for ids and labels, which come second");
  static_assert(
      operator_runs_here<ranked, named_operator<Op>, of_dimensions<X::dimensions...>>,
      "heddle: apply<operator>: the kernels take operands of other numbers of dimensions: what is normalised, "
      "classes and features are the last dimension, weights have this one only, and formulas one letter per "
      "dimension; bring them into this order first (einsum)");
  static_assert(
      operator_runs_here<set, named_operator<Op>, Setting>,
      "heddle: apply<operator>: the last argument is no setting of this operator, or it lacks one: scale takes "
      "its factor, norms their epsilon, attention its mask, rotary its rotary_setting");
};

// Whether operands of `apply` are tensors within the host's reach. A last argument that is no tensor is a setting.
template <class Op, class First, class... Args>
constexpr bool takes_operands() {
  constexpr bool reachable = !(out_of_reach<First> || ... || out_of_reach<Args>);
  constexpr bool tensors = [] {
    constexpr bool is_tensor[]{tensor_of_any_space<First>, tensor_of_any_space<Args>...};
    for (std::size_t i = 0; i == 0 || i < sizeof...(Args); ++i)
      if (!is_tensor[i]) return false;
    return true;
  }();
  static_assert(
      operator_runs_here<reachable, named_operator<Op>, First, Args...>,
      "heddle: apply<operator>: an operand is in another memory space than the host's, and the kernels of apply run on "
      "the host; bring it there first, copy_to<host_memory>(queue, x)");
  static_assert(
      operator_runs_here<tensors, named_operator<Op>, First, Args...>,
      "heddle: apply<operator>: an operand is no tensor; what follows the world are sharded tensors, and at the end "
      "the setting of an operator that has one");
  return reachable && tensors;
}

template <class Kernel, class Setting>
auto setting_of(const Setting& given) {
  using wanted = typename Kernel::setting_type;
  if constexpr (!std::is_same_v<Setting, default_setting>)
    return static_cast<wanted>(given);
  else if constexpr (std::is_same_v<wanted, default_setting>)
    return given;
  else
    return Kernel::default_value;
}

template <class X, class World>
constexpr bool on_mesh_of_world() {
  constexpr bool same =
      std::is_same_v<std::remove_cvref_t<decltype(std::declval<World&>().mesh())>, typename X::layout_type::mesh_type>;
  static_assert(
      operator_runs_here<same, typename X::layout_type>,
      "heddle: a tensor's layout is on another mesh than the world that computes with it; make the layout on the "
      "world's mesh, or pass the sub-world of the layout's axes");
  return same;
}
template <class Op>
std::string name_of_application() {
  return "heddle: apply<" + std::string(short_type_name<Op>()) + ">";
}

template <class Backend, class T, class Op>
constexpr bool backend_runs() {
  constexpr bool on_host = std::is_same_v<space_of<Backend>, host_memory>;
  static_assert(
      operator_runs_here<on_host, named_operator<Op>, Backend>,
      "heddle: apply<operator>: the backend's kernels are for the memory of its own space, and apply runs on tensors "
      "of the host: give it a backend of the host, such as compute::host<>");
  constexpr bool runs = !on_host || operator_kernel<Op>::template runs_on<Backend, T>;
  static_assert(operator_runs_here<runs, named_operator<Op>, Backend>,
                "heddle: apply<operator>: the backend lacks the kernels of this operator; compute/ops/ says which "
                "facet has them");
  return on_host && runs;
}

template <class Op, class Backend, class World, class Setting, class State, class... X>
auto run_operator(Backend& backend, World& world, const Setting& setting, State& state, const X&... x) {
  using facts = application<Op, Setting, X...>;
  using result = typename facts::result;
  using kernel = typename facts::kernel;
  if constexpr (!facts::legal || !(on_mesh_of_world<X, World>() && ...)) {
    return refused_already<result>();
  } else if constexpr (!backend_runs<Backend, typename facts::element_type, Op>()) {
    return refused_already<result>();
  } else {
    (require_operand_here(name_of_application<Op>, x, world), ...);
    operator_call<Backend, World, decltype(setting_of<kernel>(setting))> call{backend, world,
                                                                              setting_of<kernel>(setting)};
    if constexpr (kernel::makes_result) {
      return kernel::template make<result>(call, state, x...);
    } else {
      result y(typename facts::layout_type{world.mesh()}, kernel::template shape<Op>(x...), world.rank());
      kernel::forward(call, state, y, x...);
      return y;
    }
  }
}

// f(setting, x...) of arguments of which the last may be a setting.
template <class Is, class F, class... Args>
struct split_setting;
template <std::size_t... Place, class F, class... Args>
struct split_setting<std::index_sequence<Place...>, F, Args...> {
  static decltype(auto) call(const F& f, const Args&... args) {
    const std::tuple<const Args&...> all{args...};
    return f(std::get<sizeof...(Args) - 1>(all), std::get<Place>(all)...);
  }
};
template <bool IsOperand, class F, class... Args>
decltype(auto) with_setting(const F& f, const Args&... args) {
  if constexpr (IsOperand)
    return f(default_setting{}, args...);
  else
    return split_setting<std::make_index_sequence<sizeof...(Args) - 1>, F, Args...>::call(f, args...);
}

}  // namespace heddle::inline v0::compute::detail
