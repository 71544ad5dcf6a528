// heddle/tensor/redistribute.hpp: brings a sharded tensor from one layout to another.
#pragma once

#include <heddle/layout/redistribution.hpp>
#include <heddle/tensor/exchange_step.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/tensor/watched_queue.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
namespace detail {

// One step of a plan on this rank, over the axes of `axes` (a bit per axis); `comm` is the communicator along them.
template <step_kind Kind, class Op, class T, class Space, std::size_t Rank, std::size_t Axes, class Comm>
void run_step(typename Space::queue& q, moving_part<T, Space>& part, const step_place<Rank, Axes>& at, unsigned axes,
              Comm& comm) {
  [[maybe_unused]] const step_group<Rank, Axes> group{at, axes, Kind == step_kind::exchange};
  if constexpr (Kind == step_kind::slice) slice_step(q, part, at);
  if constexpr (Kind == step_kind::all_gather) all_gather_step(q, part, group, comm);
  if constexpr (Kind == step_kind::all_to_all || Kind == step_kind::exchange) all_to_all_step(q, part, group, comm);
  if constexpr (Kind == step_kind::all_reduce) all_reduce_step<Op>(q, part, at, comm);
  if constexpr (Kind == step_kind::reduce_scatter) reduce_scatter_step<Op>(q, part, group, comm);
  if constexpr (Kind == step_kind::keep_on_owner) keep_on_owner_step<Op>(q, part, group.mine());
  if constexpr (Kind == step_kind::pad_with_identity) pad_step<Op>(q, part, at);
}

constexpr bool step_reduces(step_kind kind) {
  return kind == step_kind::all_reduce || kind == step_kind::reduce_scatter || kind == step_kind::keep_on_owner ||
         kind == step_kind::pad_with_identity;
}
template <bool Reduces, int At, class Ops>
struct step_operator {
  using type = void;
};
template <int At, class Ops>
struct step_operator<true, At, Ops> {
  using type = typename list_at<static_cast<std::size_t>(At), Ops>::type;
};
// A group of one has nothing to do; an exchange may still bring the elements into another order.
template <std::size_t Axes>
constexpr bool step_is_idle(const redistribution_step& step, const mesh_numbers<Axes>& mesh) {
  for (std::size_t a = 0; a < Axes; ++a)
    if ((step.axes >> a & 1u) != 0 && mesh.extents[a] != 1) return false;
  return step.kind != step_kind::exchange;
}

// The communicator along the axes of `Mask`, known when the program is compiled.
template <unsigned Mask, class World, class... Picked>
auto& communicator_along(World& world, type_list<>, type_list<Picked...>) {
  if constexpr (sizeof...(Picked) == 0)
    return world.all();
  else
    return world.template along<Picked...>();
}
template <unsigned Mask, class World, class Tag, class... Rest, class... Picked>
auto& communicator_along(World& world, type_list<Tag, Rest...>, type_list<Picked...>) {
  if constexpr ((Mask & 1u) != 0)
    return communicator_along<(Mask >> 1)>(world, type_list<Rest...>{}, type_list<Picked..., Tag>{});
  else
    return communicator_along<(Mask >> 1)>(world, type_list<Rest...>{}, type_list<Picked...>{});
}

// A step that is known when the program is compiled: `Plan` has `steps` and `ops`.
template <class Plan, std::size_t Step, class T, class Space, std::size_t Rank, class World>
void run_static_step(typename Space::queue& q, const Plan& plan, moving_part<T, Space>& part,
                     const std::array<std::int64_t, Rank>& whole, World& world) {
  using mesh_type = typename Plan::from_layout::mesh_type;
  constexpr redistribution_step step = Plan::steps[Step];
  const auto mesh = numbers_of(plan.from().mesh().extents());
  if (step_is_idle(step, mesh)) return;
  static constexpr auto before = cuts_of(Plan::tables[Step]), after = cuts_of(Plan::tables[Step + 1]);
  const step_place<Rank, mesh_type::rank> at{mesh, whole, before, after, world.rank()};
  using op = typename step_operator<step_reduces(step.kind), step.op, typename Plan::ops>::type;
  run_step<step.kind, op>(q, part, at, step.axes,
                          communicator_along<step.axes>(world, typename mesh_type::tags{}, type_list<>{}));
}

// --- plans that are values: the same steps, the axes and the operator found in the mesh's and the plan's lists ---

template <class World, class... Picked>
auto& communicator_along(World& world, unsigned, type_list<>, type_list<Picked...>) {
  if constexpr (sizeof...(Picked) == 0)
    return world.all();
  else
    return world.template along<Picked...>();
}
template <class World, class Tag, class... Rest, class... Picked>
auto& communicator_along(World& world, unsigned mask, type_list<Tag, Rest...>, type_list<Picked...>) {
  if ((mask & 1u) != 0) return communicator_along(world, mask >> 1, type_list<Rest...>{}, type_list<Picked..., Tag>{});
  return communicator_along(world, mask >> 1, type_list<Rest...>{}, type_list<Picked...>{});
}

template <step_kind Kind, class... Ops, class T, class Space, std::size_t Rank, std::size_t Axes, class Comm>
void run_step_with(typename Space::queue& q, type_list<Ops...>, const redistribution_step& step,
                   moving_part<T, Space>& part, const step_place<Rank, Axes>& at, Comm& comm) {
  int i = 0;
  ((i++ == step.op ? run_step<Kind, Ops>(q, part, at, step.axes, comm) : void()), ...);
}

template <class Ops, class T, class Space, std::size_t Rank, std::size_t Axes, class Comm>
void run_dynamic_step(typename Space::queue& q, const redistribution_step& step, moving_part<T, Space>& part,
                      const step_place<Rank, Axes>& at, Comm& comm) {
  switch (step.kind) {
    case step_kind::none:
      return;
    case step_kind::slice:
      return run_step<step_kind::slice, void>(q, part, at, step.axes, comm);
    case step_kind::all_gather:
      return run_step<step_kind::all_gather, void>(q, part, at, step.axes, comm);
    case step_kind::all_to_all:
      return run_step<step_kind::all_to_all, void>(q, part, at, step.axes, comm);
    case step_kind::exchange:
      return run_step<step_kind::exchange, void>(q, part, at, step.axes, comm);
    case step_kind::all_reduce:
      return run_step_with<step_kind::all_reduce>(q, Ops{}, step, part, at, comm);
    case step_kind::reduce_scatter:
      return run_step_with<step_kind::reduce_scatter>(q, Ops{}, step, part, at, comm);
    case step_kind::keep_on_owner:
      return run_step_with<step_kind::keep_on_owner>(q, Ops{}, step, part, at, comm);
    case step_kind::pad_with_identity:
      return run_step_with<step_kind::pad_with_identity>(q, Ops{}, step, part, at, comm);
  }
}

/// Executes steps that are values: `list.steps[i]` leads from `list.tables[i]` to `list.tables[i + 1]`; `step.op` counts
/// `Ops`. Every rank of the world calls it with its part of a tensor of these extents.
template <class Ops, class T, class Space, std::size_t Rank, class List, class World>
buffer<T, Space> redistribute_by_plan(typename Space::queue& q, moving_part<T, Space> part, const List& list,
                                      const std::array<std::int64_t, Rank>& whole, World& world) {
  using mesh_type = std::remove_cvref_t<decltype(world.mesh())>;
  const auto mesh = numbers_of(world.mesh().extents());
  for (std::size_t i = 0; i < list.steps.size(); ++i) {
    const redistribution_step& step = list.steps[i];
    if (step_is_idle(step, mesh)) continue;
    const step_place<Rank, mesh_type::rank> at{mesh, whole, cuts_of(list.tables[i]), cuts_of(list.tables[i + 1]),
                                               world.rank()};
    run_dynamic_step<Ops>(q, step, part, at,
                          communicator_along(world, step.axes, typename mesh_type::tags{}, type_list<>{}));
  }
  return std::move(part).release(q);
}
template <class Ops, class T, std::size_t Rank, class List, class World>
buffer<T> redistribute_by_plan(moving_part<T> part, const List& list, const std::array<std::int64_t, Rank>& whole,
                               World& world) {
  host_memory::queue at_once;
  return redistribute_by_plan<Ops>(at_once, std::move(part), list, whole, world);
}
template <class Ops, class T, std::size_t Rank, class List, class World>
buffer<T> redistribute_by_plan(std::span<const T> part, const List& list, const std::array<std::int64_t, Rank>& whole,
                               World& world) {
  return redistribute_by_plan<Ops>(moving_part<T>{row_of(part), {}, false}, list, whole, world);
}

template <class Mesh>
[[noreturn]] void throw_wrong_part(const Mesh& mine, int rank, const Mesh& other, int other_rank) {
  throw layout_error("heddle: redistribute: rank " + std::to_string(rank) + "'s part of a tensor on " +
                     to_string(mine) + " came to rank " + std::to_string(other_rank) + " of a world on " +
                     to_string(other));
}

// What all calls ask of a part before they take it.
template <class T, std::size_t Rank, class L, class Space, class World>
void require_part(const sharded<T, Rank, L, Space>& x, const World& world) {
  if (!(world.mesh() == x.layout().mesh()) || world.rank() != x.rank())
    throw_wrong_part(x.layout().mesh(), x.rank(), world.mesh(), world.rank());
  require_held(x);
}
// `take()` gives the part's memory, once nothing can be wrong with it any more.
template <class To, class Objective, class T, std::size_t Rank, class From, class Space, class World, class Take>
sharded<T, Rank, To, Space> moved(typename Space::queue& q, const Take& take, const sharded<T, Rank, From, Space>& x,
                                  World& world) {
  const To to{x.layout().mesh()};
  const auto plan = plan_redistribution(x.layout(), to, objective_on<Objective, Rank>{});
  require_part(x, world);
  watch_from_now_on(world, q);
  moving_part<T, Space> part = take();
  using plan_type = std::remove_const_t<decltype(plan)>;
  const auto whole = x.shape().extents();
  if constexpr (plan_type::has_static_steps) {
    [&]<std::size_t... Steps>(std::index_sequence<Steps...>) {
      (run_static_step<plan_type, Steps>(q, plan, part, whole, world), ...);
    }(std::make_index_sequence<plan_type::steps.size()>{});
    return sharded<T, Rank, To, Space>(to, x.shape(), x.rank(), std::move(part).release(q));
  } else {
    return sharded<T, Rank, To, Space>(
        to, x.shape(), x.rank(), redistribute_by_plan<typename plan_type::ops>(q, std::move(part), plan, whole, world));
  }
}

// Whether the layouts and the world fit each other; what does not is refused, once.
template <class From, class To, class World>
constexpr bool on_mesh_of() {
  using found = found_steps<From, To, objective::bytes>;
  constexpr bool same =
      std::is_same_v<std::remove_cvref_t<decltype(std::declval<World&>().mesh())>, typename From::mesh_type>;
  static_assert(same,
                "heddle: redistribute: the tensor's layout is on another mesh than the world; make the layout on the "
                "world's mesh, "
                "or pass the sub-world of the layout's axes");
  if constexpr (same) found::check();
  return same && found::possible;
}

}  // namespace detail

/// The same tensor in layout `To`: executes `redistribution_plan<From, To, Objective>`, step by step. All ranks of the world
/// must call it with their parts of one tensor. The source is left as it is; its memory is read without a copy. Blocks are
/// packed straight from it, and not at all where they lie in memory as they are sent or received.
/// On the host the tensor is there when the call returns. In another space everything, the communication too, happens in the
/// order of `queue`, which makes the memory of the result; until `queue.wait()` the communicators of the world belong to the
/// queue, and what the communicators throw comes out of that call. Over NCCL the calling thread's waits for the queue look out for ranks that have
/// failed from then on, as long as the world lives.
/// Errors: `layout_error` if the part belongs to another rank or mesh, or was released or moved from; what the communicator
/// throws; compile errors as `redistribution`.
template <layout_like To, plan_objective Objective = objective::bytes, class T, std::size_t Rank, layout_like From,
          memory_space Space, class World>
sharded<T, Rank, To, Space> redistribute(const sharded<T, Rank, From, Space>& x, World& world,
                                         typename Space::queue& queue) {
  if constexpr (detail::on_mesh_of<From, To, World>())
    return detail::moved<To, Objective>(
        queue, [&] { return detail::moving_part<T, Space>{x.memory(), {}, false}; }, x, world);
  else
    throw layout_error("heddle: redistribute: another mesh");  // already refused
}

/// As above, and takes the source's memory: an all_reduce then happens in place, and a plan without steps moves nothing.
template <layout_like To, plan_objective Objective = objective::bytes, class T, std::size_t Rank, layout_like From,
          memory_space Space, class World>
sharded<T, Rank, To, Space> redistribute(sharded<T, Rank, From, Space>&& x, World& world,
                                         typename Space::queue& queue) {
  if constexpr (detail::on_mesh_of<From, To, World>()) {
    return detail::moved<To, Objective>(
        queue,
        [&] {
          if constexpr (!std::is_same_v<Space, host_memory>)
            if (x.is_lent()) return detail::moving_part<T, Space>{x.memory(), {}, false};
          detail::moving_part<T, Space> part;
          part.replace(std::move(x).release());
          return part;
        },
        x, world);
  } else {
    throw layout_error("heddle: redistribute: another mesh");  // already refused
  }
}

/// In the host's memory, which needs no queue.
template <layout_like To, plan_objective Objective = objective::bytes, class T, std::size_t Rank, layout_like From,
          class World>
sharded<T, Rank, To> redistribute(const sharded<T, Rank, From>& x, World& world) {
  host_memory::queue at_once;
  return redistribute<To, Objective>(x, world, at_once);
}
template <layout_like To, plan_objective Objective = objective::bytes, class T, std::size_t Rank, layout_like From,
          class World>
sharded<T, Rank, To> redistribute(sharded<T, Rank, From>&& x, World& world) {
  host_memory::queue at_once;
  return redistribute<To, Objective>(std::move(x), world, at_once);
}

}  // namespace heddle::inline v0
