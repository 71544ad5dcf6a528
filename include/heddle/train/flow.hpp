// heddle/train/flow.hpp: trains parts of a model on ranks of their own, values boxed between them.
#pragma once

#include <heddle/compute/value_and_gradient.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/schedule/actor/actor_graph.hpp>
#include <heddle/schedule/actor/actor_ranks.hpp>
#include <heddle/sim/actor_graph.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/tensor/transfer.hpp>
#include <heddle/train/flow_parts.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::flow {
namespace detail {

struct parts_axis {};
// The first rank of each placement, for actors that act when they are ready.
template <class World, int Parts, bool Ready>
struct actor_world {};
template <class World, int Parts>
struct actor_world<World, Parts, true> {
  using mesh = heddle::v0::mesh<axis<parts_axis, Parts>>;
  using world_type = typename decltype(std::declval<World&>().on(mesh{}, std::span<const int>{}))::value_type;
  std::optional<world_type> world;
};

}  // namespace detail

/// Parts of a model, made by `chain` and `graph`. Each round (microbatch) a part acts forward when it has the values
/// that it takes, and backward when it has the gradients of its own. Values and gradients are boxed from placement to
/// placement by messages, with the bytes of `transfer_plan`. `slots` bounds the rounds that a part may be ahead of its
/// backwards: 0 takes `schedule::formula::saved_slots`. `Order` says which actor of a part is next, `order::planned` or
/// `order::ready`; values and gradients are the same.
///
///     auto model = flow::chain<double>(world, backend, rounds, slots,
///         flow::on<left>(bottom, flow::weight<S<1>>(hd::shape{256, 512}), flow::input<B>(hd::shape{64, 256})),
///         flow::on<right>(top, flow::weight<B>(hd::shape{512, 8}), flow::before<S<0>>(hd::shape{64, 512})));
///     model.initialize(fill);                 // fill(part, operand, values of the whole weight)
///     double loss = model.step(feed);         // feed(part, operand, round, values of the whole input)
///     model.update([&](auto w, auto g) { ... });
///
/// All ranks of the world make it and call it together; ranks in no placement do nothing.
/// Errors: `config_error` for a placement beyond the world, rounds below 1, negative slots, `step` before `initialize`,
/// and `update` before `step`; `layout_error` for a value of another shape than the parts that take it say, or of which
/// they say two; at compile time for placements that overlap, a value that no part takes and a last part that is no
/// number.
template <class T, class Order, class World, class Backend, class... Parts>
class model_of {
  static constexpr std::size_t count = sizeof...(Parts);
  static constexpr bool is_ready = std::is_same_v<Order, order::ready>;
  using links = detail::links<Parts...>;
  template <std::size_t I>
  using typed = detail::typed_part<T, type_at<I, Parts...>>;
  static_assert(typed<count - 1>::root::dimensions == 0,
                "heddle: flow: the last part returns the loss, a single number; use hd::mean or hd::sum at its end");
  using comm_type = std::remove_reference_t<decltype(std::declval<World&>().all())>;
  using messages = detail::messages_between<comm_type>;
  template <std::size_t I>
  using world_of = typename decltype(std::declval<World&>().on(std::declval<typename typed<I>::mesh>(),
                                                               std::span<const int>{}))::value_type;
  template <std::size_t I, std::size_t K>
  using tensor = typename typed<I>::template operand<K>::type;

 public:
  model_of(World& world, Backend& backend, int rounds, int slots, Parts... parts)
      : world_(world), backend_(backend), rounds_(rounds), parts_(std::move(parts)...) {
    if (rounds < 1) throw config_error("heddle: flow: rounds: expected at least 1, got " + std::to_string(rounds));
    if (slots < 0)
      throw config_error("heddle: flow: slots: expected at least 1, or 0 for the formula, got " +
                         std::to_string(slots));
    each_part([&]<std::size_t I>(index<I>) {
      using where = typename typed<I>::where;
      if (where::first + where::size > world.size())
        throw config_error(
            text_of({"heddle: flow: part ", I, " is on ranks up to ", where::first + where::size - 1,
                                     ", and the world has ", world.size(), " ranks"}));
      std::vector<int> ranks(where::size);
      std::iota(ranks.begin(), ranks.end(), where::first);
      own<I>().world = world.on(typename typed<I>::mesh{}, ranks);
    });
    each_edge([&]<std::size_t E>(index<E>) {
      if (!(shape_of<to<E>, operand<E>>() == value_shape<from<E>>()))
        throw layout_error(text_of({"heddle: flow: part ", to<E>, " takes the value of part ", from<E>,
                                                    " as ", to_string(shape_of<to<E>, operand<E>>()),
                                                    ", another part as ", to_string(value_shape<from<E>>())}));
    });
    if constexpr (is_ready)
      actors_.world = world.on(typename decltype(actors_)::mesh{}, std::array<int, count>{Parts::where::first...});
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

  /// Forward and backward of all rounds. Returns the mean of the losses on the ranks of the last part, 0 elsewhere;
  /// gradients are those of that mean. `feed(part, operand, round, values)` writes a whole input.
  template <class Feed>
  double step(Feed&& feed) {
    loss_ = 0;
    sends_.bytes = 0;
    each_own([&]<std::size_t I>(index<I>) {
      own<I>().gradients = {};
      if constexpr (!is_ready)
        for (const acting& a : lists_[I]) act<I>(a.round, a.backward, feed, by_messages{*this});
    });
    if constexpr (is_ready) {
      if (actors_.world)
        schedule::run_actors(
            actors_.world->all(), graph_.view(), rounds_, register_bytes_, [](int, int, std::span<std::byte>) {},
            [&](const schedule::rank_actor_call& call) {
              each_own([&]<std::size_t I>(index<I>) {
                act<I>(call.round, call.actor % 2 == 0, feed, by_actors{*this, call});
              });
            });
    }
    each_own([&]<std::size_t I>(index<I>) {
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

  /// Bytes of values and gradients that this rank sent to other ranks in the last step, also while it boxed what came
  /// to its placement. What `order::ready` sends beside them, a head for each message and credits, does not count.
  std::int64_t bytes_sent() const noexcept { return sends_.bytes; }
  /// What `transfer_plan` says that this rank sends in a step.
  std::int64_t predicted_bytes() const {
    std::int64_t bytes = 0;
    each_edge([&]<std::size_t E>(index<E>) {
      bytes += forward_plan<E>().bytes_sent(value_shape<from<E>>(), sizeof(T), world_.rank());
      bytes += backward_plan<E>().bytes_sent(value_shape<from<E>>(), sizeof(T), world_.rank());
    });
    return bytes * rounds_;
  }
  /// In a simulation where each actor takes 1.
  double makespan() const noexcept { return makespan_; }
  friend std::string to_string(const model_of& c) {
    std::string text = text_of(
        {count, " parts, ", c.rounds_, " rounds, makespan ", static_cast<std::int64_t>(c.makespan_), "\n"});
    each_part([&]<std::size_t I>(index<I>) {
      using where = typename typed<I>::where;
      text += text_of({"part ", I, " on ranks ", where::first, " to ", where::first + where::size - 1,
                                       ", ", c.slots_[I], c.slots_[I] == 1 ? " slot" : " slots"});
      each_edge([&]<std::size_t E>(index<E>) {
        if constexpr (to<E> == I)
          text += text_of(
              {"; boxed from part ", from<E>, ": ",
               c.template forward_plan<E>().bytes_sent_in_total(c.template value_shape<from<E>>(), sizeof(T)),
               " bytes a round, gradients ",
               c.template backward_plan<E>().bytes_sent_in_total(c.template value_shape<from<E>>(), sizeof(T))});
      });
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
    if (!x) throw config_error(std::string("heddle: flow: expected a call of ") + made_by + " before this one");
    return *x;
  }

  // Edges between parts.
  template <std::size_t E>
  static constexpr std::size_t from = static_cast<std::size_t>(links::edges[E].from);
  template <std::size_t E>
  static constexpr std::size_t to = static_cast<std::size_t>(links::edges[E].to);
  template <std::size_t E>
  static constexpr std::size_t operand = static_cast<std::size_t>(links::edges[E].operand);
  template <std::size_t E>
  using value_of = typename typed<from<E>>::value;
  template <std::size_t E>
  using taken_of = tensor<to<E>, operand<E>>;
  template <std::size_t E>
  using taken_gradient = sharded<T, taken_of<E>::dimensions, dual<typename taken_of<E>::layout_type>>;
  // The first edge that holds; also how many edges before E begin or end where E does.
  static constexpr std::size_t find_edge(auto&& holds) {
    std::size_t e = 0;
    while (e < links::count && !holds(links::edges[e])) ++e;
    return e;
  }
  template <std::size_t I, std::size_t K>
  static constexpr std::size_t edge_to =
      find_edge([](const detail::edge& e) { return e.to == static_cast<int>(I) && e.operand == static_cast<int>(K); });
  template <std::size_t E, int detail::edge::* End>
  static constexpr std::size_t place_at = [] {
    std::size_t n = 0;
    for (std::size_t e = 0; e < E; ++e) n += links::edges[e].*End == links::edges[E].*End ? 1 : 0;
    return n;
  }();

  // What a rank of the part has.
  template <std::size_t I, class = std::make_index_sequence<typed<I>::operands>>
  struct state_at;
  template <std::size_t I, std::size_t... K>
  struct state_at<I, std::index_sequence<K...>> {
    template <std::size_t J>
    using argument = typename typed<I>::template operand<J>::argument;
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

  template <std::size_t Count, class F>
  static void each_of(F&& f) {
    [&]<std::size_t... N>(std::index_sequence<N...>) { (f(index<N>{}), ...); }(std::make_index_sequence<Count>{});
  }
  template <class F>
  static void each_part(F&& f) {
    each_of<count>(f);
  }
  template <class F>
  static void each_edge(F&& f) {
    each_of<links::count>(f);
  }
  template <std::size_t I, class F>
  static void each_operand(F&& f) {
    each_of<typed<I>::operands>(f);
  }
  // Edges on which the value of part I leaves.
  template <std::size_t I, class F>
  static void each_reader(F&& f) {
    each_edge([&]<std::size_t E>(index<E> e) {
      if constexpr (from<E> == I) f(e);
    });
  }
  // Of the part that this rank is on.
  template <class F>
  void each_own(F&& f) {
    each_part([&]<std::size_t I>(index<I> i) {
      if (own<I>().world) f(i);
    });
  }

  template <std::size_t I, std::size_t K>
  auto shape_of() const {
    return std::get<K>(std::get<I>(parts_).operands).shape;
  }
  template <std::size_t I, std::size_t K, class Fill>
  tensor<I, K> whole(Fill&& fill) {
    using element = typename tensor<I, K>::value_type;
    const auto s = shape_of<I, K>();
    std::vector<element> values(static_cast<std::size_t>(s.size()));
    fill(std::span<element>(values));
    auto& w = *own<I>().world;
    return shard_of(view<const element, std::remove_const_t<decltype(s)>>(values.data(), s),
                    typename tensor<I, K>::layout_type{w.mesh()}, w.rank());
  }

  // The whole shape of a part's value, as the first that takes it says.
  template <std::size_t I>
  auto value_shape() const {
    constexpr std::size_t e = find_edge([](const detail::edge& x) { return x.from == static_cast<int>(I); });
    return shape_of<to<e>, operand<e>>();
  }

  template <std::size_t I>
  static rank_range ranks_of() {
    return {typed<I>::where::first, typed<I>::where::size};
  }
  template <std::size_t E>
  static auto forward_plan() {
    return plan_transfer(typename value_of<E>::layout_type{typename typed<from<E>>::mesh{}}, ranks_of<from<E>>(),
                         typename taken_of<E>::layout_type{typename typed<to<E>>::mesh{}}, ranks_of<to<E>>());
  }
  template <std::size_t E>
  static auto backward_plan() {
    return plan_transfer(typename taken_gradient<E>::layout_type{typename typed<to<E>>::mesh{}}, ranks_of<to<E>>(),
                         typename typed<from<E>>::value_gradient::layout_type{typename typed<from<E>>::mesh{}},
                         ranks_of<from<E>>());
  }

  // How values and gradients come and go: boxed by messages between placements,
  struct by_messages {
    model_of& m;
    template <std::size_t E>
    static constexpr int tag = 20'000 + 4 * static_cast<int>(E);
    template <class Plan, class Shape, class X>
    auto box(const Plan& plan, const Shape& s, const X* x, int t) const {
      messages between(m.world_.all(), m.sends_, t);
      return transfer(plan, s, x, between);
    }
    template <std::size_t E>
    taken_of<E> take_value(index<E>) const {
      const value_of<E>* none = nullptr;
      return std::move(*box(forward_plan<E>(), m.template value_shape<from<E>>(), none, tag<E>));
    }
    template <std::size_t I>
    void give_value(index<I>, const typename typed<I>::value& value) const {
      each_reader<I>([&]<std::size_t E>(index<E>) {
        static_cast<void>(box(forward_plan<E>(), m.template value_shape<I>(), &value, tag<E>));
      });
    }
    template <std::size_t E>
    typename typed<from<E>>::value_gradient take_gradient(index<E>) const {
      const taken_gradient<E>* none = nullptr;
      return std::move(*box(backward_plan<E>(), m.template value_shape<from<E>>(), none, tag<E> + 2));
    }
    template <std::size_t E>
    void give_gradient(index<E>, const taken_gradient<E>& g) const {
      static_cast<void>(box(backward_plan<E>(), m.template value_shape<from<E>>(), &g, tag<E> + 2));
    }
  };
  // or, between single ranks, in the registers of actors: whole tensors. Register 0 of what a forward writes and a
  // backward reads is what they keep here.
  struct by_actors {
    model_of& m;
    const schedule::rank_actor_call& call;
    template <class X, class Shape>
    static X read(const Shape& s, std::span<const std::byte> bytes) {
      X x(typename X::layout_type{}, s, 0);
      std::memcpy(x.elements().data(), bytes.data(), bytes.size());
      return x;
    }
    template <class X>
    void write(const X& x, std::size_t output, int readers) const {
      const std::span<std::byte> bytes = call.outputs[output];
      const auto values = x.elements();
      if (values.size_bytes() != bytes.size())
        throw layout_error(
            text_of({"heddle: flow: a value has ", values.size(),
                                     " elements, and parts that take it expect ", bytes.size() / sizeof(T)}));
      std::memcpy(bytes.data(), values.data(), bytes.size());
      m.sends_.bytes += readers * static_cast<std::int64_t>(bytes.size());
    }
    template <std::size_t E>
    taken_of<E> take_value(index<E>) const {
      return read<taken_of<E>>(m.template value_shape<from<E>>(), call.inputs[place_at<E, &detail::edge::to>]);
    }
    template <std::size_t I>
    void give_value(index<I>, const typename typed<I>::value& value) const {
      write(value, 1, links::readers(static_cast<int>(I)));
    }
    template <std::size_t E>
    typename typed<from<E>>::value_gradient take_gradient(index<E>) const {
      return read<typename typed<from<E>>::value_gradient>(m.template value_shape<from<E>>(),
                                                           call.inputs[1 + place_at<E, &detail::edge::from>]);
    }
    template <std::size_t E>
    void give_gradient(index<E>, const taken_gradient<E>& g) const {
      write(g, place_at<E, &detail::edge::to>, 1);
    }
  };

  template <std::size_t I, class Feed, class By>
  void act(int round, bool backward, Feed& feed, const By& by) {
    if (backward)
      pull<I>(round, by);
    else
      push<I>(round, feed, by);
  }
  template <std::size_t I, std::size_t K, class Feed, class By>
  typename state_at<I>::template argument<K> argument_of(int round, Feed& feed, const By& by) {
    using what = typename typed<I>::template operand<K>;
    if constexpr (what::trained)
      return std::as_const(there(std::get<K>(own<I>().weights), "initialize"));
    else if constexpr (what::boxed)
      return by.take_value(index<edge_to<I, K>>{});
    else
      return {whole<I, K>([&](auto x) { feed(static_cast<int>(I), static_cast<int>(K), round, x); })};
  }
  template <std::size_t I, class Feed, class By>
  void push(int round, Feed& feed, const By& by) {
    auto& s = own<I>();
    [&]<std::size_t... K>(std::index_sequence<K...>) {
      auto [value, pull] =
          vjp(backend_, *s.world, std::get<I>(parts_).f,
              static_cast<typename state_at<I>::template argument<K>&&>(argument_of<I, K>(round, feed, by))...);
      s.pulls[static_cast<std::size_t>(round) % s.pulls.size()].emplace(std::move(pull));
      if constexpr (I + 1 < count)
        by.give_value(index<I>{}, value);
      else
        loss_ +=
            static_cast<double>(compute::detail::finished<reduced_gradients>(std::move(value), *s.world).elements()[0]);
    }(std::make_index_sequence<typed<I>::operands>{});
  }
  template <class G>
  static void add(std::optional<G>& sum, G&& gradient) {
    if (!sum) {
      sum.emplace(std::move(gradient));
      return;
    }
    const auto x = gradient.elements();
    const auto y = sum->elements();
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += x[i];
  }
  template <std::size_t I, class By>
  void pull(int round, const By& by) {
    auto& s = own<I>();
    auto& kept = s.pulls[static_cast<std::size_t>(round) % s.pulls.size()];
    auto gradients = [&] {
      if constexpr (I + 1 < count) {
        std::optional<typename typed<I>::value_gradient> sum;
        each_reader<I>([&](auto e) { add(sum, by.take_gradient(e)); });
        return (*kept)(std::move(*sum));
      } else {
        return (*kept)(compute::one_of<typename state_at<I>::pull_type>(*s.world));
      }
    }();
    kept.reset();
    each_operand<I>([&]<std::size_t K>(index<K>) {
      auto& g = std::get<K>(gradients);
      if constexpr (typed<I>::template operand<K>::trained)
        add(std::get<K>(s.gradients), std::move(g));
      else if constexpr (typed<I>::template operand<K>::boxed)
        by.give_gradient(index<edge_to<I, K>>{}, g);
    });
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
    std::array<int, count> depth{}, values{}, saved{};
    std::array<int, links::count> gradients{};
    const auto at = [](auto i) { return static_cast<std::size_t>(i); };
    for (const detail::edge& e : links::edges) depth[at(e.to)] = (std::max)(depth[at(e.to)], depth[at(e.from)] + 1);
    const auto name = [](const char* what, std::size_t p) { return what + std::to_string(p); };
    const auto add_register = [&](const std::string& what, std::size_t p, std::size_t bytes) {
      register_bytes_.push_back(bytes);
      return graph_.add_register(what, slots_[p]);
    };
    each_part([&]<std::size_t I>(index<I>) {
      const int wanted = slots > 0 ? slots : schedule::formula::saved_slots(depth[count - 1] + 1, depth[I]);
      slots_[I] = (std::min)(wanted, rounds_);  // more would hold nothing
      own<I>().pulls.resize(at(slots_[I]));
      if constexpr (I + 1 < count)
        values[I] = add_register(name("value", I), I, at(this->template value_shape<I>().size()) * sizeof(T));
      saved[I] = add_register(name("saved", I), I, 0);
    });
    each_edge([&]<std::size_t E>(index<E>) {
      gradients[E] =
          add_register(name("gradient", E), to<E>, at(this->template value_shape<from<E>>().size()) * sizeof(T));
    });
    for (std::size_t p = 0; p < count; ++p) {
      const std::string queue = name("part", p);
      std::vector<int> in, out{saved[p]}, back{saved[p]}, left;
      if (p + 1 < count) out.push_back(values[p]);
      for (std::size_t e = 0; e < links::count; ++e) {
        if (at(links::edges[e].to) == p) {
          in.push_back(values[at(links::edges[e].from)]);
          left.push_back(gradients[e]);
        }
        if (at(links::edges[e].from) == p) back.push_back(gradients[e]);
      }
      graph_.add_actor(name("backward", p), queue, back, left);  // first, so that it goes first
      graph_.add_actor(name("forward", p), queue, in, out);
    }
    const sim::actor_timeline line = sim::simulate(graph_.view(), rounds_);
    makespan_ = line.makespan;
    for (std::size_t p = 0; p < count; ++p) {
      std::vector<std::pair<double, acting>> order;
      for (int a = 0; a < 2; ++a)
        for (int i = 0; i < rounds_; ++i)
          order.push_back({line.start_of(2 * static_cast<int>(p) + a, i), acting{i, a == 0}});
      std::sort(order.begin(), order.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
      for (const auto& [when, what] : order) lists_[p].push_back(what);
    }
  }

  World& world_;
  Backend& backend_;
  int rounds_;
  std::tuple<Parts...> parts_;
  all_states<std::make_index_sequence<count>> states_{};
  [[no_unique_address]] detail::actor_world<World, static_cast<int>(count), is_ready> actors_{};
  schedule::task_graph graph_{};
  std::vector<std::size_t> register_bytes_{};
  std::array<std::vector<acting>, count> lists_{};
  std::array<int, count> slots_{};
  double makespan_ = 0, loss_ = 0;
  typename messages::log sends_{};
};

namespace detail {
template <bool Chain, class T, class Order, class World, class Backend, class... Parts>
auto model_checked(World& world, Backend& backend, int rounds, int slots, Parts... parts) {
  if constexpr (parts_checked<links<Parts...>, Chain, std::is_same_v<Order, order::ready>>())
    return model_of<T, Order, World, Backend, Parts...>(world, backend, rounds, slots, std::move(parts)...);
  else
    return refused_parts{};
}
}  // namespace detail

/// The chain of these parts, with tensors of T: each but the first takes the value of the one `before`.
template <class T = float, class Order = order::planned, class World, class Backend, class... Parts>
  requires(sizeof...(Parts) > 0)
auto chain(World& world, Backend& backend, int rounds, int slots, Parts... parts) {
  return detail::model_checked<true, T, Order>(world, backend, rounds, slots, std::move(parts)...);
}
/// Parts that take values of any parts given before them (`from<0, S<0>>(shape)`), with tensors of T: branches and skip
/// connections.
template <class T = float, class Order = order::planned, class World, class Backend, class... Parts>
  requires(sizeof...(Parts) > 0)
auto graph(World& world, Backend& backend, int rounds, int slots, Parts... parts) {
  return detail::model_checked<false, T, Order>(world, backend, rounds, slots, std::move(parts)...);
}

}  // namespace heddle::inline v0::flow
