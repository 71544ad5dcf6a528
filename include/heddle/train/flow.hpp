// heddle/train/flow.hpp: parts of a model on ranks of their own, as actors.
#pragma once

#include <heddle/compute/value_and_gradient.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/layout/sbp.hpp>
#include <heddle/schedule/actor/actor_graph.hpp>
#include <heddle/sim/actor_graph.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/tensor/transfer.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

/// OneFlow's programs: a part is a function of tensors on a placement, what it gets says how it is split by signatures, and values are
/// boxed between parts. Source: Yuan et al. 2021, arXiv:2110.15032, sections 3 and 5.
namespace heddle::inline v0::flow {

/// Ranks `First`, `First` + 1, ... of a world, on a mesh of their own.
template <mesh_like Mesh, int First>
struct placement {
  static_assert(Mesh::is_static && First >= 0,
                "heddle: flow::placement<Mesh, First>: the mesh is static, First counts from 0");
  using mesh = Mesh;
  static constexpr int first = First, size = Mesh::size();
};

/// A weight or an input of a part's function, with one of `sbp::S<dim>`, `sbp::B`, `sbp::P` for each axis of the placement's mesh.
template <bool Trained, std::size_t Rank, class... Entries>
struct leaf {
  dynamic_shape<Rank> shape;
};
/// The value of the part before, as this one gets it.
template <std::size_t Rank, class... Entries>
struct from_before {
  dynamic_shape<Rank> shape;
};
/// A trained tensor of this whole shape.
template <class... Entries, std::int64_t... E>
constexpr leaf<true, sizeof...(E), Entries...> weight(const shape<E...>& s) {
  return {make_shape(s.extents())};
}
/// A tensor of this whole shape that is fed in each round.
template <class... Entries, std::int64_t... E>
constexpr leaf<false, sizeof...(E), Entries...> input(const shape<E...>& s) {
  return {make_shape(s.extents())};
}
/// What the part before returns, a tensor of this whole shape.
template <class... Entries, std::int64_t... E>
constexpr from_before<sizeof...(E), Entries...> before(const shape<E...>& s) {
  return {make_shape(s.extents())};
}

/// A function of tensors on a placement; made by `on`.
template <class Placement, class F, class... Operands>
struct part {
  using where = Placement;
  using function = F;
  F f;
  std::tuple<Operands...> operands;
};
/// `f(operands...)`, an expression, on the ranks of a placement.
template <class Placement, class F, class... Operands>
part<Placement, F, Operands...> on(F f, Operands... operands) {
  return {std::move(f), {operands...}};
}

namespace detail {

// The type of an operand on the mesh of its part; `Before`: the expression of the part before, or void.
template <class T, class Mesh, class Before, class Operand>
struct operand_on;
template <class T, class Mesh, class Before, bool Trained, std::size_t Rank, class... Entries>
struct operand_on<T, Mesh, Before, leaf<Trained, Rank, Entries...>> {
  using type = sharded<T, Rank, sbp::signature<Mesh, Entries...>>;
  static constexpr bool trained = Trained, boxed = false;
};
template <class T, class Mesh, class Before, std::size_t Rank, class... Entries>
struct operand_on<T, Mesh, Before, from_before<Rank, Entries...>> {
  using type = sharded<T, Rank, sbp::signature<Mesh, Entries...>>;
  static constexpr bool trained = false, boxed = true;
};

// A part with its types: `root` is the expression that its function makes.
template <class T, class Before, class Part>
struct typed_part;
template <class T, class Before, class Placement, class F, class... Operands>
struct typed_part<T, Before, part<Placement, F, Operands...>> {
  using where = Placement;
  using mesh = typename Placement::mesh;
  static constexpr std::size_t operands = sizeof...(Operands);
  template <std::size_t K>
  using operand = operand_on<T, mesh, Before, type_at<K, Operands...>>;
  using root = compute::detail::expression_made<F, typename operand_on<T, mesh, Before, Operands>::type...>;
  using value = sharded<T, root::dimensions, typename root::layout_type>;
  // What its backward begins with.
  using value_gradient = sharded<T, root::dimensions, dual<typename root::layout_type>>;
  static constexpr std::size_t boxed_at = [] {
    std::size_t at = 0, k = 0;
    (..., (operand_on<T, mesh, Before, Operands>::boxed ? void(at = k++) : void(++k)));
    return at;
  }();
};
template <class T, std::size_t I, class... Parts>
struct typed_at {
  using type = typed_part<T, typename typed_at<T, I - 1, Parts...>::type::root, type_at<I, Parts...>>;
};
template <class T, class... Parts>
struct typed_at<T, 0, Parts...> {
  using type = typed_part<T, void, type_at<0, Parts...>>;
};

template <class... Parts>
constexpr bool are_apart() {
  const std::array<int, sizeof...(Parts)> first{Parts::where::first...}, size{Parts::where::size...};
  for (std::size_t i = 0; i < first.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (first[i] < first[k] + size[k] && first[k] < first[i] + size[i]) return false;
  return true;
}

template <class Operand>
inline constexpr int is_from_before = 0;
template <std::size_t Rank, class... Entries>
inline constexpr int is_from_before<from_before<Rank, Entries...>> = 1;
template <class Part>
inline constexpr int from_before_of = 0;
template <class Placement, class F, class... Operands>
inline constexpr int from_before_of<part<Placement, F, Operands...>> = (0 + ... + is_from_before<Operands>);
template <class First, class... Others>
struct chained {
  static constexpr bool begins = from_before_of<First> == 0;
  static constexpr bool goes_on = ((from_before_of<Others> == 1) && ...);
  static constexpr bool apart = are_apart<First, Others...>();
};
// Stops at the first mistake.
template <class... Parts>
consteval bool chain_checked() {
  if constexpr (!chained<Parts...>::apart)
    static_assert(chained<Parts...>::apart,
                  "heddle: flow::chain: placements of two parts overlap; give each part ranks of its own");
  else if constexpr (!chained<Parts...>::begins)
    static_assert(chained<Parts...>::begins, "heddle: flow: the first part has no part before it; give it flow::input");
  else
    static_assert(chained<Parts...>::goes_on,
                  "heddle: flow::chain: each part but the first takes the value of the one before, once; give it "
                  "flow::before<...>(shape)");
  return chained<Parts...>::apart && chained<Parts...>::begins && chained<Parts...>::goes_on;
}
struct refused_chain {};

// What `transfer` exchanges blocks over, where those who have nothing to do with a transfer do not call it: messages, of which sends
// end later.
template <class Comm>
class messages_between {
 public:
  struct sent {
    std::vector<std::byte> bytes;
    typename Comm::request request;
  };
  struct log {
    std::deque<sent> under_way;
    std::int64_t bytes = 0;
  };
  messages_between(Comm& comm, log& sends, int tag) : comm_(comm), sends_(sends), tag_(tag) {}
  messages_between& all() noexcept { return *this; }
  int rank() const noexcept { return comm_.rank(); }
  int size() const noexcept { return comm_.size(); }

  template <class In, class Out>
  void all_to_all_v(const In& in, std::span<const std::int64_t> to, Out&& out, std::span<const std::int64_t> from) {
    const int tag = tag_++, me = rank();  // the second exchange of a transfer has another
    while (!sends_.under_way.empty() && sends_.under_way.front().request.test()) sends_.under_way.pop_front();
    const auto x = std::span(in);
    const auto y = std::span(out);
    std::size_t at = 0, own = 0;
    for (int r = 0; r < size(); ++r) {
      const auto n = static_cast<std::size_t>(to[static_cast<std::size_t>(r)]);
      if (r == me) own = at;
      if (n > 0 && r != me) {
        const auto block = std::as_bytes(x.subspan(at, n));
        sends_.bytes += static_cast<std::int64_t>(block.size());
        sends_.under_way.push_back({std::vector<std::byte>(block.begin(), block.end()), {}});
        sent& s = sends_.under_way.back();
        s.request = comm_.isend(std::span<const std::byte>(s.bytes), r, tag);
      }
      at += n;
    }
    at = 0;
    for (int r = 0; r < size(); ++r) {
      const auto n = static_cast<std::size_t>(from[static_cast<std::size_t>(r)]);
      if (n > 0 && r == me)
        std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(own), n, y.begin() + static_cast<std::ptrdiff_t>(at));
      else if (n > 0)
        comm_.recv(std::as_writable_bytes(y.subspan(at, n)), r, tag);
      at += n;
    }
  }

 private:
  Comm& comm_;
  log& sends_;
  int tag_;
};

}  // namespace detail

/// Parts of a model in a chain. Each round (microbatch) a part acts forward when it has the value of the part before, and backward when
/// it has the gradient of its own; values and gradients are boxed from placement to placement by messages, with the bytes of
/// `transfer_plan`. `slots` bounds the rounds that a part may be ahead of its backwards: 0 takes `schedule::formula::saved_slots`.
/// All ranks of a placement act in one order, that of a simulation in which all actors take as long.
///
///     auto model = flow::chain<double>(world, backend, rounds, slots,
///         flow::on<left>(bottom, flow::weight<S<1>>(hd::shape{256, 512}), flow::input<B>(hd::shape{64, 256})),
///         flow::on<right>(top, flow::weight<B>(hd::shape{512, 8}), flow::before<S<0>>(hd::shape{64, 512})));
///     model.initialize(fill);                 // fill(part, operand, values of the whole weight)
///     double loss = model.step(feed);         // feed(part, operand, round, values of the whole input)
///     model.update([&](auto w, auto g) { ... });
///
/// All ranks of the world make it and call it together; ranks in no placement do nothing.
/// Errors: `config_error` for a placement beyond the world, rounds below 1, negative slots, `step` before `initialize`, and `update` before
/// `step`; `layout_error` for a value of another shape than the next part says; at compile time for placements that overlap and a last
/// part that is no number.
template <class T, class World, class Backend, class... Parts>
class chain_of {
  static constexpr std::size_t count = sizeof...(Parts);
  template <std::size_t I>
  using typed = typename detail::typed_at<T, I, Parts...>::type;
  static_assert(
      typed<count - 1>::root::dimensions == 0,
      "heddle: flow::chain: the last part returns the loss, a single number; use hd::mean or hd::sum at its end");
  using comm_type = std::remove_reference_t<decltype(std::declval<World&>().all())>;
  using messages = detail::messages_between<comm_type>;
  template <std::size_t I>
  using world_of = typename decltype(std::declval<World&>().on(std::declval<typename typed<I>::mesh>(),
                                                               std::span<const int>{}))::value_type;
  template <std::size_t I, std::size_t K>
  using tensor = typename typed<I>::template operand<K>::type;

 public:
  chain_of(World& world, Backend& backend, int rounds, int slots, Parts... parts)
      : world_(world), backend_(backend), rounds_(rounds), parts_(std::move(parts)...) {
    if (rounds < 1)
      throw config_error("heddle: flow::chain: rounds: expected at least 1, got " + std::to_string(rounds));
    if (slots < 0)
      throw config_error("heddle: flow::chain: slots: expected at least 1, or 0 for the formula, got " +
                         std::to_string(slots));
    each_part([&]<std::size_t I>(index<I>) {
      using where = typename typed<I>::where;
      if (where::first + where::size > world.size())
        throw config_error(text_of({"heddle: flow::chain: part ", I, " is on ranks up to ",
                                    where::first + where::size - 1, ", and the world has ", world.size(), " ranks"}));
      std::vector<int> ranks(where::size);
      std::iota(ranks.begin(), ranks.end(), where::first);
      own<I>().world = world.on(typename typed<I>::mesh{}, ranks);
    });
    plan(slots);
  }

  /// `fill(part, operand, values)` writes a whole weight, the same on all ranks of the part.
  template <class Fill>
  void initialize(Fill&& fill) {
    each_own([&]<std::size_t I>(index<I>) {
      each_operand<I>([&]<std::size_t K>(index<K>) {
        if constexpr (typed<I>::template operand<K>::trained)
          std::get<K>(own<I>().weights).emplace(whole<I, K>([&](std::span<T> x) {
            fill(static_cast<int>(I), static_cast<int>(K), x);
          }));
      });
    });
  }

  /// Forward and backward of all rounds. Returns the mean of the losses on the ranks of the last part, 0 elsewhere; gradients are those
  /// of that mean. `feed(part, operand, round, values)` writes a whole input.
  template <class Feed>
  double step(Feed&& feed) {
    loss_ = 0;
    each_own([&]<std::size_t I>(index<I>) {
      own<I>().gradients = {};
      for (const acting& a : lists_[I])
        if (a.backward)
          this->template pull<I>(a.round);
        else
          this->template push<I>(a.round, feed);
      each_operand<I>([&]<std::size_t K>(index<K>) {
        if constexpr (typed<I>::template operand<K>::trained) this->template settle<I, K>();
      });
    });
    for (auto& s : sends_.under_way) s.request.wait();
    sends_.under_way.clear();
    return loss_ / rounds_;
  }

  /// `work(weight, gradient)`, spans of as many elements, for each weight that this rank has a part of, in order.
  template <class Work>
  void update(Work&& work) {
    each_weight([&](int, int, auto& weight, auto& gradient) {
      work(weight.elements(), std::span<const T>(gradient.elements()));
    });
  }
  /// `f(part, operand, weight, gradient)` for those tensors.
  template <class F>
  void each_weight(F&& f) {
    each_own([&]<std::size_t I>(index<I>) {
      each_operand<I>([&]<std::size_t K>(index<K>) {
        if constexpr (typed<I>::template operand<K>::trained)
          f(static_cast<int>(I), static_cast<int>(K), there(std::get<K>(own<I>().weights), "initialize"),
            there(std::get<K>(own<I>().settled), "step"));
      });
    });
  }

  /// Bytes that this rank sent to other placements, and while it boxed what came from them.
  std::int64_t bytes_sent() const noexcept { return sends_.bytes; }
  /// What `transfer_plan` says that this rank sends in a step.
  std::int64_t predicted_bytes() const {
    std::int64_t bytes = 0;
    each_part([&]<std::size_t I>(index<I>) {
      if constexpr (I > 0) {
        bytes += forward_plan<I>().bytes_sent(value_shape<I - 1>(), sizeof(T), world_.rank());
        bytes += backward_plan<I>().bytes_sent(value_shape<I - 1>(), sizeof(T), world_.rank());
      }
    });
    return bytes * rounds_;
  }
  /// In a simulation where each actor takes 1.
  double makespan() const noexcept { return makespan_; }
  friend std::string to_string(const chain_of& c) {
    std::string text = text_of(
        {c.lists_.size(), " parts, ", c.rounds_, " rounds, makespan ", static_cast<std::int64_t>(c.makespan_), "\n"});
    c.each_part([&]<std::size_t I>(index<I>) {
      using where = typename typed<I>::where;
      text += text_of({"part ", I, " on ranks ", where::first, " to ", where::first + where::size - 1, ", ",
                       c.slots_[I], " slots"});
      if constexpr (I > 0)
        text +=
            text_of({"; boxed from part ", I - 1, ": ",
                     c.template forward_plan<I>().bytes_sent_in_total(c.template value_shape<I - 1>(), sizeof(T)),
                     " bytes a round, gradients ",
                     c.template backward_plan<I>().bytes_sent_in_total(c.template value_shape<I - 1>(), sizeof(T))});
      text += "\n";
    });
    return text;
  }

 private:
  template <std::size_t I>
  using index = std::integral_constant<std::size_t, I>;
  struct acting {
    int round;
    bool backward;
  };
  template <class X>
  static X& there(std::optional<X>& x, const char* made_by) {
    if (!x) throw config_error(std::string("heddle: flow::chain: expected a call of ") + made_by + " before this one");
    return *x;
  }

  // What a rank of the part has.
  template <std::size_t I, class = std::make_index_sequence<typed<I>::operands>>
  struct state_at;
  template <std::size_t I, std::size_t... K>
  struct state_at<I, std::index_sequence<K...>> {
    template <std::size_t J>
    using argument = std::conditional_t<typed<I>::template operand<J>::trained, const tensor<I, J>&, tensor<I, J>>;
    using pull_type =
        compute::pullback<gradient_contributions, typename typed<I>::root, Backend, world_of<I>, argument<K>...>;
    using gradient_tuple = decltype(std::declval<pull_type&>()(std::declval<typename typed<I>::value_gradient>()));
    template <std::size_t J>
    using gradient = std::tuple_element_t<J, gradient_tuple>;
    template <class G>
    using settled_of =
        decltype(compute::detail::finished<reduced_gradients>(std::declval<G>(), std::declval<world_of<I>&>()));
    template <std::size_t J>
    static auto settled_at() {
      if constexpr (typed<I>::template operand<J>::trained)
        return std::type_identity<settled_of<gradient<J>>>{};
      else
        return std::type_identity<int>{};
    }
    std::optional<world_of<I>> world;
    std::tuple<std::optional<tensor<I, K>>...> weights;
    std::tuple<std::optional<gradient<K>>...> gradients;
    std::tuple<std::optional<typename decltype(settled_at<K>())::type>...> settled;
    std::vector<std::optional<pull_type>> pulls;
  };
  template <class>
  struct all_states;
  template <std::size_t... I>
  struct all_states<std::index_sequence<I...>> {
    std::tuple<state_at<I>...> of;
  };
  template <std::size_t I>
  auto& own() {
    return std::get<I>(states_.of);
  }

  template <class F>
  static void each_part(F&& f) {
    [&]<std::size_t... I>(std::index_sequence<I...>) { (f(index<I>{}), ...); }(std::make_index_sequence<count>{});
  }
  // Of the part that this rank is on.
  template <class F>
  void each_own(F&& f) {
    each_part([&]<std::size_t I>(index<I> i) {
      if (own<I>().world) f(i);
    });
  }
  template <std::size_t I, class F>
  static void each_operand(F&& f) {
    [&]<std::size_t... K>(std::index_sequence<K...>) {
      (f(index<K>{}), ...);
    }(std::make_index_sequence<typed<I>::operands>{});
  }

  template <std::size_t I, std::size_t K>
  auto shape_of() const {
    return std::get<K>(std::get<I>(parts_).operands).shape;
  }
  template <std::size_t I, std::size_t K, class Fill>
  tensor<I, K> whole(Fill&& fill) {
    const auto s = shape_of<I, K>();
    std::vector<T> values(static_cast<std::size_t>(s.size()));
    fill(std::span<T>(values));
    auto& w = *own<I>().world;
    return shard_of(view<const T, std::remove_const_t<decltype(s)>>(values.data(), s),
                    typename tensor<I, K>::layout_type{w.mesh()}, w.rank());
  }

  // The whole shape of a part's value, as the next one says.
  template <std::size_t I>
  auto value_shape() const {
    return shape_of<I + 1, typed<I + 1>::boxed_at>();
  }

  template <std::size_t I>
  static rank_range ranks_of() {
    return {typed<I>::where::first, typed<I>::where::size};
  }
  template <std::size_t I>
  static auto forward_plan() {
    using to = typename tensor<I, typed<I>::boxed_at>::layout_type;
    return plan_transfer(typename typed<I - 1>::root::layout_type{typename typed<I - 1>::mesh{}}, ranks_of<I - 1>(),
                         to{typename typed<I>::mesh{}}, ranks_of<I>());
  }
  template <std::size_t I>
  static auto backward_plan() {
    using from = dual<typename tensor<I, typed<I>::boxed_at>::layout_type>;
    using to = dual<typename typed<I - 1>::root::layout_type>;
    return plan_transfer(from{typename typed<I>::mesh{}}, ranks_of<I>(), to{typename typed<I - 1>::mesh{}},
                         ranks_of<I - 1>());
  }
  template <class Plan, class Shape, class X>
  auto box(const Plan& plan, const Shape& s, const X* x, int tag) {
    messages m(world_.all(), sends_, tag);
    return transfer(plan, s, x, m);
  }
  static constexpr int forward_tag(std::size_t i) { return 20'000 + 4 * static_cast<int>(i); }
  static constexpr int backward_tag(std::size_t i) { return forward_tag(i) + 2; }

  template <std::size_t I, std::size_t K, class Feed>
  typename state_at<I>::template argument<K> argument_of(int round, Feed& feed) {
    using what = typename typed<I>::template operand<K>;
    if constexpr (what::trained) {
      return std::as_const(there(std::get<K>(own<I>().weights), "initialize"));
    } else if constexpr (what::boxed) {
      const typename typed<I - 1>::value* none = nullptr;
      return std::move(*box(forward_plan<I>(), value_shape<I - 1>(), none, forward_tag(I)));
    } else {
      return whole<I, K>([&](std::span<T> x) { feed(static_cast<int>(I), static_cast<int>(K), round, x); });
    }
  }
  template <std::size_t I, class Feed>
  void push(int round, Feed& feed) {
    auto& s = own<I>();
    [&]<std::size_t... K>(std::index_sequence<K...>) {
      auto [value, pull] =
          vjp(backend_, *s.world, std::get<I>(parts_).f,
              static_cast<typename state_at<I>::template argument<K>&&>(argument_of<I, K>(round, feed))...);
      s.pulls[static_cast<std::size_t>(round) % s.pulls.size()].emplace(std::move(pull));
      if constexpr (I + 1 < count) {
        const auto& sent = value;
        static_cast<void>(box(forward_plan<I + 1>(), value_shape<I>(), &sent, forward_tag(I + 1)));
      } else {
        loss_ +=
            static_cast<double>(compute::detail::finished<reduced_gradients>(std::move(value), *s.world).elements()[0]);
      }
    }(std::make_index_sequence<typed<I>::operands>{});
  }
  template <std::size_t I>
  void pull(int round) {
    auto& s = own<I>();
    auto& kept = s.pulls[static_cast<std::size_t>(round) % s.pulls.size()];
    auto gradients = [&] {
      if constexpr (I + 1 < count) {
        using next = typename state_at<I + 1>::template gradient<typed<I + 1>::boxed_at>;
        const next* none = nullptr;
        return (*kept)(std::move(*box(backward_plan<I + 1>(), value_shape<I>(), none, backward_tag(I + 1))));
      } else {
        return (*kept)(compute::one_of<typename state_at<I>::pull_type>(*s.world));
      }
    }();
    kept.reset();
    each_operand<I>([&]<std::size_t K>(index<K>) {
      auto& g = std::get<K>(gradients);
      if constexpr (typed<I>::template operand<K>::trained) {
        auto& sum = std::get<K>(s.gradients);
        if (!sum) {
          sum.emplace(std::move(g));
        } else {
          const auto from = g.elements();
          const auto to = sum->elements();
          for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
        }
      } else if constexpr (typed<I>::template operand<K>::boxed) {
        this->template send_back<I>(g);
      }
    });
  }
  template <std::size_t I, class G>
  void send_back(const G& gradient) {
    static_cast<void>(box(backward_plan<I>(), value_shape<I - 1>(), &gradient, backward_tag(I)));
  }
  template <std::size_t I, std::size_t K>
  void settle() {
    auto& s = own<I>();
    auto& sum = *std::get<K>(s.gradients);
    for (T& x : sum.elements()) x /= static_cast<T>(rounds_);
    std::get<K>(s.settled).emplace(compute::detail::finished<reduced_gradients>(std::move(sum), *s.world));
  }

  // The actors: queue p has the forwards and backwards of part p; what a forward keeps for its backward takes a slot.
  void plan(int slots) {
    schedule::task_graph graph;
    std::vector<int> values, saved, gradients;
    const auto of = [](const char* what, std::size_t p) { return what + std::to_string(p); };
    for (std::size_t p = 0; p < count; ++p) {
      const int wanted =
          slots > 0 ? slots : schedule::formula::saved_slots(static_cast<int>(count), static_cast<int>(p));
      slots_[p] = (std::min)(wanted, rounds_);  // more would hold nothing
      values.push_back(p + 1 < count ? graph.add_register(of("value", p), slots_[p]) : -1);
      saved.push_back(graph.add_register(of("saved", p), slots_[p]));
      gradients.push_back(p > 0 ? graph.add_register(of("gradient", p), slots_[p]) : -1);
    }
    for (std::size_t p = 0; p < count; ++p) {
      const std::string queue = of("part", p);
      std::vector<int> in, out{saved[p]};
      if (p > 0) in.push_back(values[p - 1]);
      if (p + 1 < count) out.push_back(values[p]);
      std::vector<int> back{saved[p]}, left;
      if (p + 1 < count) back.push_back(gradients[p + 1]);
      if (p > 0) left.push_back(gradients[p]);
      graph.add_actor(of("backward", p), queue, back, left);  // first, so that it goes first
      graph.add_actor(of("forward", p), queue, in, out);
    }
    const sim::actor_timeline line = sim::simulate(graph.view(), rounds_);
    makespan_ = line.makespan;
    for (std::size_t p = 0; p < count; ++p) {
      std::vector<std::pair<double, acting>> order;
      for (int a = 0; a < 2; ++a)
        for (int i = 0; i < rounds_; ++i)
          order.push_back({line.start_of(2 * static_cast<int>(p) + a, i), acting{i, a == 0}});
      std::sort(order.begin(), order.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
      for (const auto& [when, what] : order) lists_[p].push_back(what);
    }
    each_part([&]<std::size_t I>(index<I>) { own<I>().pulls.resize(static_cast<std::size_t>(slots_[I])); });
  }

  World& world_;
  Backend& backend_;
  int rounds_;
  std::tuple<Parts...> parts_;
  all_states<std::make_index_sequence<count>> states_{};
  std::array<std::vector<acting>, count> lists_{};
  std::array<int, count> slots_{};
  double makespan_ = 0, loss_ = 0;
  typename messages::log sends_{};
};

/// The chain of these parts, with tensors of T.
template <class T = float, class World, class Backend, class... Parts>
  requires(sizeof...(Parts) > 0)
auto chain(World& world, Backend& backend, int rounds, int slots, Parts... parts) {
  if constexpr (detail::chain_checked<Parts...>())
    return chain_of<T, World, Backend, Parts...>(world, backend, rounds, slots, std::move(parts)...);
  else
    return detail::refused_chain{};
}

}  // namespace heddle::inline v0::flow
