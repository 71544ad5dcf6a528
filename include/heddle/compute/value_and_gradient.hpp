// heddle/compute/value_and_gradient.hpp: values and gradients of tensor expressions.
#pragma once

#include <heddle/compute/expression.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/tensor/gradient.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

/// Says to `value_and_gradient` that it adds up the ranks' contributions: gradients (and the value) are then partial over no
/// axis.
struct reduced_gradients {};
/// The default: gradients are returned as backward leaves them, in the dual of their operand's layout.
struct gradient_contributions {};

namespace compute::detail {

// `X` is a tensor, or a reference to one.
template <class X>
struct constant_operand {
  X x;
};
template <class A>
struct operand_of {
  using type = A;
  static constexpr bool differentiated = std::floating_point<typename A::value_type>;
  static const A& get(const A& a) { return a; }
};
template <class X>
struct operand_of<constant_operand<X>> {
  using type = std::remove_cvref_t<X>;
  static constexpr bool differentiated = false;
  static const type& get(const constant_operand<X>& a) { return a.x; }
};

// What the function is called with for operand number `K`.
template <std::size_t K, class A>
using placeholder_of = expression_operand<K, typename operand_of<A>::type::value_type, operand_of<A>::type::dimensions,
                                          typename operand_of<A>::type::layout_type, operand_of<A>::differentiated>;

// One value of the expression: an operand, or an operator with the places of its operands.
template <class Node, std::size_t... Args>
struct expression_step {
  using node = Node;
  static constexpr std::size_t count = sizeof...(Args);
  static constexpr std::array<std::size_t, sizeof...(Args) + 1> args{Args..., 0};
};

// Appends a node and what it needs, each once; `at` is its place.
template <std::size_t At, class Steps>
struct visited {
  static constexpr std::size_t at = At;
  using steps = Steps;
};
template <class Places, class Steps, class... Args>
struct visit_all {
  using places = Places;
  using steps = Steps;
};
template <class Node, class Steps>
struct visit;
template <std::size_t... At, class Steps, class Arg, class... Args>
struct visit_all<std::index_sequence<At...>, Steps, Arg, Args...>
    : visit_all<std::index_sequence<At..., visit<Arg, Steps>::type::at>, typename visit<Arg, Steps>::type::steps,
                Args...> {};
template <class Node, class Places, class Steps>
struct appended;
template <class Node, std::size_t... At, class... S>
struct appended<Node, std::index_sequence<At...>, type_list<S...>> {
  using type = visited<sizeof...(S), type_list<S..., expression_step<Node, At...>>>;
};
template <class Node, class Steps>
struct visit_new;
template <class Op, class Setting, class... Args, class Steps>
struct visit_new<expression_of<Op, Setting, Args...>, Steps> {
  using before = visit_all<std::index_sequence<>, Steps, Args...>;
  using type =
      typename appended<expression_of<Op, Setting, Args...>, typename before::places, typename before::steps>::type;
};
template <std::size_t At, class T, std::size_t Rank, class L, bool D, class Steps>
struct visit_new<expression_operand<At, T, Rank, L, D>, Steps>
    : appended<expression_operand<At, T, Rank, L, D>, std::index_sequence<>, Steps> {};
template <class Node, class... S>
struct visit<Node, type_list<S...>> {
  static constexpr std::size_t known = Node::has_settings ? sizeof...(S) : index_of<Node, typename S::node...>;
  using type =
      typename std::conditional_t <
      known<sizeof...(S), std::type_identity<visited<known, type_list<S...>>>, visit_new<Node, type_list<S...>>>::type;
};

template <class Node>
struct node_facts {
  static constexpr bool is_operand = true;
  static constexpr bool has_backward = false;
  static constexpr unsigned reads = 0;
  static constexpr bool reads_result = false;
  struct state {};
};
template <class Op, class Setting, class... Args>
struct node_facts<expression_of<Op, Setting, Args...>> {
  static constexpr bool is_operand = false;
  // Not of operators that were refused.
  static constexpr bool has_backward =
      expression_of<Op, Setting, Args...>::needs_gradient && expression_of<Op, Setting, Args...>::application::legal;
  using operation = Op;
  using kernel = operator_kernel<Op>;
  static constexpr unsigned reads = kernel::reads;
  static constexpr bool reads_result = kernel::reads_result;
  using state =
      typename kernel::template state<typename expression_of<Op, Setting, Args...>::application::element_type>;
};

template <class Node>
using value_of_node = sharded<typename Node::value_type, Node::dimensions, typename Node::layout_type>;
// Of values that have no gradient, ids for example, nothing.
template <class Node, bool Wanted = Node::needs_gradient>
struct gradient_of_node {
  using type = no_gradient;
};
template <class Node>
struct gradient_of_node<Node, true> {
  using type = sharded<typename Node::value_type, Node::dimensions, dual<typename Node::layout_type>>;
};

// A value's place while the expression is computed.
template <class Step>
struct expression_slot {
  using node = typename Step::node;
  std::optional<value_of_node<node>> value{};
  std::optional<typename gradient_of_node<node>::type> gradient{};
  [[no_unique_address]] typename node_facts<node>::state state{};
  const node* description = nullptr;
};

// When values can go, and which stay for backward.
template <class... S>
struct lifetimes {
  static constexpr std::size_t count = sizeof...(S);
  static constexpr std::array<bool, count> needs{S::node::needs_gradient...};
  struct facts {
    std::array<std::size_t, count> last_use{};
    std::array<bool, count> kept{};
  };
  static constexpr facts value = [] {
    facts f;
    std::size_t step = 0;
    const auto note = [&](std::size_t operands, const std::size_t* args, unsigned reads, bool reads_result) {
      for (std::size_t k = 0; k < operands; ++k) {
        f.last_use[args[k]] = step;
        if (needs[step] && (reads >> k & 1u) != 0) f.kept[args[k]] = true;
      }
      if (needs[step] && reads_result) f.kept[step] = true;
      ++step;
    };
    (note(S::count, S::args.data(), node_facts<typename S::node>::reads, node_facts<typename S::node>::reads_result),
     ...);
    f.kept[count - 1] = true;
    return f;
  }();
};

template <class Steps, class Backend, class World, class... X>
class expression_run;
template <class... S, class Backend, class World, class... X>
class expression_run<type_list<S...>, Backend, World, X...> {
  using steps = type_list<S...>;
  static constexpr std::size_t count = sizeof...(S);
  template <std::size_t Place>
  using step_at = type_at<Place, S...>;
  template <std::size_t Place>
  using node_at = typename step_at<Place>::node;
  using lives = lifetimes<S...>;

 public:
  expression_run(Backend& backend, World& world, const X&... x) : backend_(backend), world_(world), operands_(x...) {}

  // Where settings are.
  template <std::size_t Place>
  void describe(const node_at<Place>& node) {
    std::get<Place>(slots_).description = &node;
    if constexpr (!node_facts<node_at<Place>>::is_operand && node_at<Place>::has_settings)
      [&]<std::size_t... K>(std::index_sequence<K...>) {
        (describe<step_at<Place>::args[K]>(std::get<K>(node.arguments)), ...);
      }(std::make_index_sequence<step_at<Place>::count>{});
  }
  void forward() {
    [&]<std::size_t... Place>(std::index_sequence<Place...>) {
      (forward_of<Place>(), ...);
    }(std::make_index_sequence<count>{});
  }
  void backward() {
    [&]<std::size_t... Place>(std::index_sequence<Place...>) {
      (backward_of<count - 1 - Place>(), ...);
    }(std::make_index_sequence<count>{});
  }
  template <std::size_t Place>
  auto& slot() {
    return std::get<Place>(slots_);
  }
  // The gradient of an operand: zeros if nothing uses it.
  template <std::size_t K>
  auto take_gradient() {
    using x = type_at<K, X...>;
    constexpr std::size_t at = place_of<K>();
    using node = expression_operand<K, typename x::value_type, x::dimensions, typename x::layout_type, true>;
    using gradient = typename gradient_of_node<node>::type;
    if constexpr (at < count) {
      if (std::get<at>(slots_).gradient) return gradient(std::move(*std::get<at>(slots_).gradient));
    }
    return zeros<gradient>(std::get<K>(operands_));
  }

 private:
  template <std::size_t K, class Node>
  struct is_operand_number {
    static constexpr bool value = false;
  };
  template <std::size_t K, class T, std::size_t Rank, class L, bool D>
  struct is_operand_number<K, expression_operand<K, T, Rank, L, D>> {
    static constexpr bool value = true;
  };
  template <std::size_t K>
  static constexpr std::size_t place_of() {
    constexpr std::array<bool, count> here{is_operand_number<K, typename S::node>::value...};
    std::size_t i = 0;
    while (i < count && !here[i]) ++i;
    return i;
  }
  template <class G, class V>
  static G zeros(const V& value) {
    return G(typename G::layout_type{value.layout().mesh()}, value.shape(), value.rank());
  }

  template <std::size_t At, class T, std::size_t Rank, class L, bool D>
  const auto& read(const expression_slot<expression_step<expression_operand<At, T, Rank, L, D>>>&) {
    return std::get<At>(operands_);
  }
  template <class Step>
  const auto& read(const expression_slot<Step>& s) {
    return *s.value;
  }
  template <std::size_t Place>
  const auto& value() {
    return read(std::get<Place>(slots_));
  }

  template <std::size_t Place>
  void forward_of() {
    using node = node_at<Place>;
    using facts = node_facts<node>;
    if constexpr (!facts::is_operand) {
      auto& s = std::get<Place>(slots_);
      const node plain{};
      const node& description = s.description != nullptr ? *s.description : plain;
      [&]<std::size_t... K>(std::index_sequence<K...>) {
        s.value.emplace(run_operator<typename facts::operation>(backend_, world_, description.setting, s.state,
                                                                value<step_at<Place>::args[K]>()...));
        (release<step_at<Place>::args[K], Place>(), ...);
      }(std::make_index_sequence<step_at<Place>::count>{});
    }
  }
  template <std::size_t Place, std::size_t Now>
  void release() {
    if constexpr (!node_facts<node_at<Place>>::is_operand && lives::value.last_use[Place] == Now &&
                  !lives::value.kept[Place])
      static_cast<void>(std::move(*std::get<Place>(slots_).value).release());
  }

  template <std::size_t Place>
  void backward_of() {
    using node = node_at<Place>;
    using facts = node_facts<node>;
    if constexpr (facts::has_backward) {
      auto& s = std::get<Place>(slots_);
      const node plain{};
      const node& description = s.description != nullptr ? *s.description : plain;
      [&]<std::size_t... K>(std::index_sequence<K...>) {
        std::tuple<typename gradient_of_node<node_at<step_at<Place>::args[K]>>::type...> gradients{
            fresh<step_at<Place>::args[K]>()...};
        using kernel = typename facts::kernel;
        const auto setting = setting_of<kernel>(description.setting);
        operator_call<Backend, World, std::remove_const_t<decltype(setting)>> call{backend_, world_, setting};
        kernel::backward(call, s.state, *s.gradient, *s.value, gradients, value<step_at<Place>::args[K]>()...);
        s.gradient.reset();
        s.state = {};
        if constexpr (Place + 1 < count) static_cast<void>(std::move(*s.value).release());
        (add<step_at<Place>::args[K]>(std::get<K>(gradients)), ...);
      }(std::make_index_sequence<step_at<Place>::count>{});
    }
  }
  template <std::size_t Place>
  auto fresh() {
    if constexpr (node_at<Place>::needs_gradient)
      return zeros<typename gradient_of_node<node_at<Place>>::type>(value<Place>());
    else
      return no_gradient{};
  }
  // Contributions of several uses are added up, whatever their layout: it is one.
  template <std::size_t Place, class G>
  void add(G& gradient) {
    if constexpr (!std::is_same_v<G, no_gradient>) {
      auto& held = std::get<Place>(slots_).gradient;
      if (!held) {
        held.emplace(std::move(gradient));
      } else {
        using T = typename G::value_type;
        const std::span<T> sum = held->elements();
        run<ops::add>(backend_, std::span<const T>(sum), gradient.elements(), sum);
      }
    }
  }

  Backend& backend_;
  World& world_;
  std::tuple<const X&...> operands_;
  std::tuple<expression_slot<S>...> slots_{};
};

template <bool Ok, class... Names>
inline constexpr bool expression_has_gradient = Ok;
template <class... Args>
constexpr bool takes_tensors() {
  constexpr bool tensors = (tensor_of_any_space<typename operand_of<Args>::type> && ...);
  constexpr bool reachable = !(out_of_reach<typename operand_of<Args>::type> || ...);
  static_assert(expression_has_gradient<tensors, Args...>,
                "heddle: vjp, value_and_gradient: what follows the function are its operands, sharded tensors or "
                "constant(tensor); "
                "write a number into the function");
  static_assert(expression_has_gradient<reachable, Args...>,
                "heddle: vjp, value_and_gradient: an operand is in another memory space than the host's, and "
                "expressions run on the "
                "host; bring it there first, copy_to<host_memory>(queue, x)");
  return tensors && reachable;
}
template <class Root, bool Number>
constexpr bool can_differentiate() {
  constexpr bool computed = expression<Root> && !node_facts<Root>::is_operand;
  static_assert(expression_has_gradient<computed, Root>,
                "heddle: vjp, value_and_gradient: the function must return an expression, made of its arguments by "
                "apply, einsum, "
                "sum and their like");
  if constexpr (computed) {
    constexpr bool number = !Number || Root::dimensions == 0;
    constexpr bool sound = !Root::layout_type::has_varying;
    static_assert(expression_has_gradient<number, typename Root::layout_type>,
                  "heddle: value_and_gradient: the value must be one number; take the sum or the mean of all elements");
    static_assert(
        expression_has_gradient<sound, typename Root::layout_type>,
        "heddle: vjp, value_and_gradient: each rank along an axis has a value of its own, so there is no one gradient; "
        "redistribute what varies, or assume<layout> what it means, before it enters the expression");
    return number && sound;
  } else {
    return false;
  }
}

template <class Policy, class L>
using gradient_layout = std::conditional_t<std::is_same_v<Policy, reduced_gradients>, heddle::v0::settled<L>, L>;
template <class Policy, class G, class World>
auto finished(G&& g, World& world) {
  return heddle::v0::redistribute<gradient_layout<Policy, typename std::remove_cvref_t<G>::layout_type>>(std::move(g),
                                                                                                         world);
}

}  // namespace compute::detail

/// Marks an operand that needs no gradient: inputs, targets, frozen weights. What only it would ask for is not computed.
/// A named tensor is referred to and must outlive the result; a temporary is kept in it.
template <class X>
  requires compute::detail::tensor_of_any_space<std::remove_cvref_t<X>>
auto constant(X&& x) {
  using tensor = std::remove_cvref_t<X>;
  using held = std::conditional_t<std::is_lvalue_reference_v<X>, const tensor&, tensor>;
  return compute::detail::constant_operand<held>{std::forward<X>(x)};
}

namespace compute::detail {
// What the function returns for placeholders.
template <class F, class Places, class... Args>
struct expression_of_function;
template <class F, std::size_t... K, class... Args>
struct expression_of_function<F, std::index_sequence<K...>, Args...> {
  using type = std::remove_cvref_t<decltype(std::declval<const F&>()(placeholder_of<K, Args>{}...))>;
};
template <class F, class... Args>
using expression_made =
    typename expression_of_function<F, std::index_sequence_for<Args...>, std::remove_cvref_t<Args>...>::type;
}  // namespace compute::detail

namespace compute {

/// The way back through an expression that was computed; made by `vjp`. It keeps what backward reads, and temporaries that
/// were operands; it refers to operands that have a name, to the backend and to the world.
template <class Policy, class Root, class Backend, class World, class... Args>
class pullback {
  using path = typename detail::visit<Root, type_list<>>::type;
  template <class A>
  using operand = detail::operand_of<std::remove_cvref_t<A>>;

 public:
  using value_type = typename Root::value_type;
  /// Of the gradient by the value, which `operator()` takes.
  using layout_type = dual<typename Root::layout_type>;

  pullback(Backend& backend, World& world, const Root& root, Args&&... args)
      : all_(std::make_unique<state>(backend, world, root, std::forward<Args>(args)...)) {}

  /// The gradient by each operand of the sum over all elements of `dy` times the value, as a tuple; see `value_and_gradient`
  /// for their layouts. Once: what backward reads is released on the way. All ranks of the world must call it.
  /// Errors: `config_error` for a second call, `layout_error` for a `dy` that has not the value's shape; at compile time a
  /// `dy` of another layout than `layout_type`.
  template <std::size_t Rank, layout_like L>
  auto operator()(sharded<value_type, Rank, L>&& dy) {
    constexpr bool fits = Rank == Root::dimensions && std::is_same_v<L, layout_type>;
    static_assert(detail::expression_has_gradient<fits, L, layout_type>,
                  "heddle: vjp: pull takes the gradient by the value in the dual of the value's layout; bring it there "
                  "first, redistribute<dual<layout of the value>>(dy, world)");
    if constexpr (fits) {
      if (all_ == nullptr)
        throw config_error("heddle: vjp: pull was called before, and what it reads is released; call vjp again");
      if (!(dy.shape() == all_->value_shape))
        detail::throw_operand_shape("vjp", 1, to_string(all_->value_shape), to_string(dy.shape()));
      const auto now = std::move(all_);
      auto& run = now->run;
      if constexpr (Root::needs_gradient) {
        run.template slot<path::at>().gradient.emplace(std::move(dy));
        run.backward();
      }
      return [&]<std::size_t... K>(std::index_sequence<K...>) {
        const auto gradient_at = [&]<std::size_t At, bool Wanted>(std::integral_constant<std::size_t, At>,
                                                                  std::bool_constant<Wanted>) {
          if constexpr (Wanted)
            return detail::finished<Policy>(run.template take_gradient<At>(), now->world);
          else
            return no_gradient{};
        };
        // Braces keep the order, which is the order of the communication.
        using result = std::tuple<decltype(gradient_at(std::integral_constant<std::size_t, K>{},
                                                       std::bool_constant<operand<Args>::differentiated>{}))...>;
        return result{gradient_at(std::integral_constant<std::size_t, K>{},
                                  std::bool_constant<operand<Args>::differentiated>{})...};
      }(std::index_sequence_for<Args...>{});
    } else {
      return std::tuple{(static_cast<void>(sizeof(Args)), no_gradient{})...};
    }
  }

  /// The value; once, before the first pull. A copy if backward reads it.
  auto take_value() {
    auto& value = *all_->run.template slot<path::at>().value;
    if constexpr (Root::needs_gradient && detail::node_facts<Root>::reads_result) {
      host_memory::queue now;
      return copy_of(now, value);
    } else {
      return std::remove_cvref_t<decltype(value)>(std::move(value));
    }
  }

 private:
  using run_type = detail::expression_run<typename path::steps, Backend, World, typename operand<Args>::type...>;
  // At one address: the run refers to the others.
  struct state {
    state(Backend& backend, World& w, const Root& r, Args&&... args)
        : world(w),
          operands(std::forward<Args>(args)...),
          root(r),
          run(std::apply([&](const auto&... a) { return run_type(backend, w, operand<decltype(a)>::get(a)...); },
                         operands)) {
      run.template describe<path::at>(root);
      run.forward();
      value_shape = run.template slot<path::at>().value->shape();
    }
    World& world;
    std::tuple<Args...> operands;
    Root root;
    run_type run;
    std::remove_cvref_t<decltype(std::declval<detail::value_of_node<Root>&>().shape())> value_shape{};
  };
  std::unique_ptr<state> all_;
};

/// The seed of the gradient of a value that is one number: a one, whatever ranks hold a part of it or a copy.
template <class Pullback, class World>
auto one_of(World& world) {
  const typename Pullback::value_type one(1);
  return shard_of(view<const typename Pullback::value_type, shape<>>(&one, shape<>{}),
                  typename Pullback::layout_type{world.mesh()}, world.rank());
}

/// What `vjp` returns: `auto [value, pull] = vjp(...)`.
template <class Value, class Pull>
struct value_and_pull {
  Value value;
  Pull pull;
};

}  // namespace compute

/// The value of an expression over sharded tensors, of any shape, and the way back: `pull(dy)` returns, for each operand, the
/// vector-Jacobian product, the gradient of the sum over all elements of `dy` times the value.
///
/// ```
/// auto [y, pull] = hd::vjp(backend, world, [](auto w, auto x) { return hd::einsum<"bi,io->bo">(x, w); }, w, x);
/// auto [dw, dx] = pull(std::move(dy));          // dy has layout dual<layout of y>; dw has dual<layout of w>
/// ```
///
/// Forward has run when it returns. What is between, another rank's part of the model for example, is the caller's. Layouts,
/// operands and the policy are those of `value_and_gradient`, which is this with a `dy` of one.
/// Operands that have a name are referred to and must outlive `pull`, unchanged; temporaries are kept in it.
/// All ranks of the world must call it, and `pull`.
/// Errors: as `value_and_gradient`, but the value may have any number of dimensions.
template <class Policy = gradient_contributions, class Backend, class World, class F, class... Args>
  requires(sizeof...(Args) > 0)
auto vjp(Backend& backend, World& world, const F& f, Args&&... args) {
  if constexpr (!compute::detail::takes_tensors<std::remove_cvref_t<Args>...>()) {
    return compute::value_and_pull<compute::no_gradient, compute::no_gradient>{};
  } else {
    using root = compute::detail::expression_made<F, Args...>;
    if constexpr (!compute::detail::can_differentiate<root, false>()) {
      return compute::value_and_pull<compute::no_gradient, compute::no_gradient>{};
    } else {
      // Lvalues stay references.
      using pull = compute::pullback<
          Policy, root, Backend, World,
          std::conditional_t<std::is_lvalue_reference_v<Args>, const std::remove_reference_t<Args>&, Args>...>;
      pull back(
          backend, world,
          [&]<std::size_t... K>(std::index_sequence<K...>) {
            return f(compute::detail::placeholder_of<K, std::remove_cvref_t<Args>>{}...);
          }(std::index_sequence_for<Args...>{}),
          std::forward<Args>(args)...);
      auto value = back.take_value();
      return compute::value_and_pull<decltype(value), pull>{std::move(value), std::move(back)};
    }
  }
}

/// The value of an expression over sharded tensors and its gradients, `{value, gradient of x0, gradient of x1, ...}`, as a
/// tuple. The function is called once, with placeholders; its operators are checked when the program is compiled, and
/// there is no tape. Forward keeps what backward reads and no more; a value that is used twice gets the sum of both uses.
///
/// ```
/// auto [loss, dw, dv] = hd::value_and_gradient<hd::reduced_gradients>(backend, world, [](auto w, auto v, auto x) {
///   return hd::mean(hd::einsum<"bo,oc->bc">(hd::apply<op::gelu>(hd::einsum<"bi,io->bo">(x, w)), v)); }, w, v, x);
/// ```
///
/// The gradient of x has layout `dual<layout of x>`, a sum over the axes along which x is a copy. With
/// `reduced_gradients` these sums are made (`settled<dual<...>>`), and that of the value. Of integers and of
/// `hd::constant(x)` there is no gradient, but `compute::no_gradient`.
/// What the layouts do not allow does not compile: settle it in the expression, `hd::redistribute<layout>(y)`; its
/// backward is the redistribution between the duals. Values that are copies along an axis are differentiated once: backward
/// starts on one of them. Make them `identical` where no sum over the axis is wanted.
/// All ranks of the world must call it.
/// Errors: as `apply` and `redistribute`; at compile time also a value that is no single number, or varies over an axis, a
/// function that returns no expression, and operands that are no tensors.
template <class Policy = gradient_contributions, class Backend, class World, class F, class... Args>
  requires(sizeof...(Args) > 0)
auto value_and_gradient(Backend& backend, World& world, const F& f, const Args&... args) {
  if constexpr (!compute::detail::takes_tensors<Args...>()) {
    return std::tuple{compute::no_gradient{}, (static_cast<void>(args), compute::no_gradient{})...};
  } else {
    using root = compute::detail::expression_made<F, Args...>;
    if constexpr (compute::detail::can_differentiate<root, true>()) {
      auto [value, pull] = vjp<Policy>(backend, world, f, args...);
      auto gradients = pull(compute::one_of<std::remove_cvref_t<decltype(pull)>>(world));
      return std::tuple_cat(std::tuple(compute::detail::finished<Policy>(std::move(value), world)),
                            std::move(gradients));
    } else {
      return std::tuple{compute::no_gradient{}, (static_cast<void>(args), compute::no_gradient{})...};
    }
  }
}

}  // namespace heddle::inline v0
