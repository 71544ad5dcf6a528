// heddle/tensor/gradient.hpp: reductions of gradients that the layouts ask for, and no others.
#pragma once

#include <heddle/layout/gradient.hpp>
#include <heddle/tensor/global_runs.hpp>
#include <heddle/tensor/redistribute.hpp>
#include <heddle/tensor/sharded.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
namespace detail {

template <bool Ok, class... Names>
struct gradient_is_reduced_once {
  static constexpr bool value = Ok;
};

// One mistake, one sentence: the axis is in the type that the compiler prints.
template <class Layout, class Axis>
constexpr bool is_summed_over() {
  using names = over_axis<Axis>;
  constexpr bool known = Layout::mesh_type::template has<Axis>;
  constexpr bool split = known && Layout::template is_sharded_on<Axis>;
  constexpr bool copies = known && (Layout::template is_replicated_on<Axis> || Layout::template is_identical_on<Axis>);
  constexpr bool varies = known && Layout::template is_varying_on<Axis>;
  static_assert(gradient_is_reduced_once<known, names, Layout>::value,
                "heddle: reduce<axes...>: the tensor's mesh has no axis with this tag; name one of the mesh's axes");
  static_assert(gradient_is_reduced_once<!split, names, Layout>::value,
                "heddle: reduce<axes...>: the axis splits this tensor, so its ranks hold different elements and adding "
                "them up would mix "
                "them; reduce over the axes along which it is partial");
  static_assert(gradient_is_reduced_once<!copies, names, Layout>::value,
                "heddle: reduce<axes...>: the ranks along this axis already hold the whole value, so a reduction would "
                "count it once per "
                "copy; reduce over the axes along which it is partial");
  static_assert(gradient_is_reduced_once<!varies, names, Layout>::value,
                "heddle: reduce<axes...>: the values along this axis vary, so their combination has no meaning; reduce "
                "over the axes "
                "along which the tensor is partial");
  return known && !split && !copies && !varies;
}

// Where a gradient differs from the dual of its parameter: the first such axis, and how.
enum class gradient_problem : unsigned char { none, not_reduced, reduced_before, other };
template <class Gradient, class Parameter>
struct gradient_check {
  struct result {
    gradient_problem problem = gradient_problem::none;
    std::size_t axis = 0;
  };
  static constexpr result found = [] {
    using expected = dual<Parameter>;
    if (!std::is_same_v<typename Gradient::mesh_type, typename Parameter::mesh_type>)
      return result{gradient_problem::other, 0};
    if (std::is_same_v<Gradient, expected>) return result{};
    for (std::size_t a = 0; a < Gradient::mesh_type::rank && a < Parameter::mesh_type::rank; ++a) {
      const axis_role has = Gradient::table.use[a].role, wants = expected::table.use[a].role;
      if (has == wants && has != axis_role::sharded) continue;
      if (has == axis_role::partial) return result{gradient_problem::not_reduced, a};
      if (wants == axis_role::partial && has != axis_role::sharded) return result{gradient_problem::reduced_before, a};
      if (has != wants) return result{gradient_problem::other, a};
    }
    return result{gradient_problem::other, 0};
  }();
  using names =
      axis_of_layout<found.problem != gradient_problem::none && (Gradient::mesh_type::rank > 0), found.axis, Gradient>;
  template <gradient_problem P>
  using without = gradient_is_reduced_once<found.problem != P, names, Gradient, Parameter>;

  static constexpr bool ok() {
    static_assert(without<gradient_problem::not_reduced>::value,
                  "heddle: settle_gradient<parameter>: the gradient is a sum over an axis along which the parameter is "
                  "not replicated, "
                  "so a reduction was forgotten; reduce<axis> it first, or lay the parameter out as it is used");
    static_assert(without<gradient_problem::reduced_before>::value,
                  "heddle: settle_gradient<parameter>: the gradient is already whole along an axis over which the "
                  "parameter's gradient is "
                  "summed, so it would be reduced twice; use it as it is, or pass the gradient before its reduction");
    static_assert(without<gradient_problem::other>::value,
                  "heddle: settle_gradient<parameter>: the gradient's layout is not the dual of the parameter's; "
                  "redistribute it to "
                  "dual<parameter>, or lay the parameter out as it is used");
    return found.problem == gradient_problem::none;
  }
};

template <class Layout>
struct squares_layout {
  using mesh_type = typename Layout::mesh_type;
  using ops = type_list<plus>;
  using splits = type_list<split::balanced>;
  static constexpr auto table = [] {
    auto t = Layout::table;
    for (axis_use& u : t.use) {
      if (u.role == axis_role::sharded || u.role == axis_role::partial) {
        u = sum_of_ranks();
      }
    }
    return t;
  }();
  static constexpr auto groups = canonical_groups(table);
  using type = layout_from<squares_layout>;
};

template <class Layout>
constexpr bool can_square() {
  static_assert(gradient_is_reduced_once<!Layout::has_partial, Layout>::value,
                "heddle: a norm squares its elements, and the square of a sum is not the sum of the squares; reduce "
                "the partial axes "
                "of the tensor first (settle_gradient, reduce<axes...>)");
  static_assert(gradient_is_reduced_once<!Layout::has_varying, Layout>::value,
                "heddle: a norm counts every element of a tensor once, but values that vary along an axis do not make "
                "one tensor");
  static_assert(gradient_is_reduced_once<!Layout::has_halo, Layout>::value,
                "heddle: a norm counts every element of a tensor once, but those of a halo are copies of what other "
                "ranks own; redistribute the tensor to without_halo<layout> (no bytes) first");
  return !Layout::has_partial && !Layout::has_varying && !Layout::has_halo;
}

// Of what this rank holds, without padding.
template <class T, class Layout, class Whole>
double local_sum_of_squares(const T* at, const Layout& layout, const Whole& whole, int rank) {
  double sum = 0;
  for_each_global_run(whole.extents(), layout.part(whole, rank),
                      [&](std::int64_t, std::int64_t local, std::int64_t count) {
                        for (std::int64_t i = 0; i < count; ++i)
                          sum += static_cast<double>(at[local + i]) * static_cast<double>(at[local + i]);
                      });
  return sum;
}
template <class T, std::size_t Rank, class Layout>
double local_sum_of_squares(const sharded<T, Rank, Layout>& x) {
  return local_sum_of_squares(x.elements().data(), x.layout(), x.shape(), x.rank());
}
// In the order of a queue, into a number of its space.
template <class T, std::size_t Rank, class Layout, class Space>
void put_sum_of_squares(typename Space::queue& q, const sharded<T, Rank, Layout, Space>& x,
                        vector_view<double, Space> sum) {
  q.run(
      [layout = x.layout(), whole = x.shape(), rank = x.rank()](const auto& memory, const auto& to) {
        to(0) = local_sum_of_squares(memory.address(), layout, whole, rank);
      },
      x.memory(), sum);
}
// Over another mesh the copies would be counted that this one does not know of.
template <class Layout, class World>
constexpr bool can_count() {
  constexpr bool here =
      std::is_same_v<std::remove_cvref_t<decltype(std::declval<World&>().mesh())>, typename Layout::mesh_type>;
  static_assert(
      gradient_is_reduced_once<here, Layout>::value,
      "heddle: squared_norm: the tensor's layout is on another mesh than the world, whose ranks would count a "
      "copy each; pass the sub-world of the layout's axes, or lay the tensor out on the world's mesh");
  if constexpr (here)
    return can_square<Layout>();
  else
    return false;
}
template <class T, std::size_t Rank, class Layout, class World>
double counted_sum_of_squares(const sharded<T, Rank, Layout>& x, const World& world) {
  if constexpr (can_count<Layout, World>()) {
    require_part(x, world);
    return x.layout().is_primary(x.rank()) ? local_sum_of_squares(x) : 0;
  } else {
    return 0;
  }
}

template <class T, std::size_t Rank, class Layout, class Space, class World>
void put_counted_sum_of_squares(typename Space::queue& q, const sharded<T, Rank, Layout, Space>& x,
                                vector_view<double, Space> sum, const World& world) {
  if constexpr (can_count<Layout, World>()) {
    require_part(x, world);
    if (x.layout().is_primary(x.rank())) put_sum_of_squares(q, x, sum);
  }
}

// A parameter's gradient is the sum of all its uses: what it is brought to must not leave a sum to be made.
template <class To>
constexpr bool settles() {
  constexpr std::size_t at = first_axis_of<To>(axis_role::partial);
  constexpr bool ok = at == To::mesh_type::rank;
  static_assert(
      gradient_is_reduced_once<ok, axis_of_layout<!ok, at, To>, To>::value,
      "heddle: settle_gradient<parameter, to>: `to` leaves the gradient partial over an axis, so it would still "
      "be a sum that nobody makes; name a layout that splits or replicates over that axis");
  return ok;
}

}  // namespace detail

/// Combines contributions over these axes, along which the tensor must be partial; afterwards it is replicated there. In
/// place, one all_reduce per axis. All ranks of the world call it; in another space than the host's it happens in the order of `queue`.
/// Errors (at compile time, naming the axis): an axis that splits the tensor (experts' gradients over the expert axis), one
/// along which it is whole already (a second reduction), one along which it varies; an axis named twice. Otherwise as
/// `redistribute`.
template <class... Axes, class T, std::size_t Rank, layout_like L, memory_space Space, class World>
auto reduce(sharded<T, Rank, L, Space>&& x, World& world, typename Space::queue& queue) {
  constexpr bool distinct = all_distinct<Axes...>;
  static_assert(distinct, "heddle: reduce<axes...> names one axis twice; a second reduction would count copies");
  if constexpr (!distinct)
    return std::move(x);
  else if constexpr ((detail::is_summed_over<L, Axes>() && ...))
    return redistribute<reduced<L, Axes...>>(std::move(x), world, queue);
  else
    return std::move(x);
}
/// In the host's memory, which needs no queue.
template <class... Axes, class T, std::size_t Rank, layout_like L, class World>
auto reduce(sharded<T, Rank, L>&& x, World& world) {
  host_memory::queue at_once;
  return reduce<Axes...>(std::move(x), world, at_once);
}

/// Brings the gradient of a parameter of layout `Parameter` to the layout the optimizer wants, by default the parameter's own:
/// where the parameter is replicated, its uses are added up (all_reduce, or reduce_scatter when `To` is split there);
/// elsewhere nothing happens. Takes only a gradient of layout `dual<Parameter>`, so that a reduction cannot be forgotten, done
/// twice, or done over another axis.
/// `settle_gradient<weight>(std::move(gradient), world)`
/// Errors (at compile time, naming the axis): a gradient that is still a sum, already whole, or laid out otherwise; a `To`
/// that is partial.
template <layout_like Parameter, layout_like To = Parameter, class T, std::size_t Rank, layout_like Gradient,
          memory_space Space, class World>
auto settle_gradient(sharded<T, Rank, Gradient, Space>&& gradient, World& world, typename Space::queue& queue) {
  if constexpr (!detail::gradient_check<Gradient, Parameter>::ok())
    return std::move(gradient);
  else if constexpr (detail::settles<To>())
    return redistribute<To>(std::move(gradient), world, queue);
  else
    return std::move(gradient);
}
template <layout_like Parameter, layout_like To = Parameter, class T, std::size_t Rank, layout_like Gradient,
          class World>
auto settle_gradient(sharded<T, Rank, Gradient>&& gradient, World& world) {
  host_memory::queue at_once;
  return settle_gradient<Parameter, To>(std::move(gradient), world, at_once);
}

/// The 1 that backward starts from, for a loss that this rank holds its part of.
/// Errors: at compile time as `seed_gradient`.
template <class T, layout_like L>
auto gradient_seed(const sharded<T, 0, L>& loss) {
  sharded<T, 0, seed_gradient<L>> one(seed_gradient<L>{loss.layout().mesh()}, dynamic_shape<0>{}, loss.rank());
  one.elements()[0] = T(1);
  return one;
}

/// In the space of the loss; `queue` makes it.
template <class T, layout_like L, memory_space Space>
auto gradient_seed(typename Space::queue& queue, const sharded<T, 0, L, Space>& loss) {
  sharded<T, 0, seed_gradient<L>, Space> one(queue, seed_gradient<L>{loss.layout().mesh()}, dynamic_shape<0>{},
                                             loss.rank());
  detail::fill<T, Space>(queue, one.memory(), T(1));
  return one;
}

/// The sum of the squares of a tensor's elements: partial over the axes that split it, whole along the others. What must be
/// reduced follows from the type, so that copies are counted once.
/// `reduce<tp>(sum_of_squares(weight), world)` compiles if tp splits the weight, not if tp replicates it.
/// Errors (at compile time): a partial or varying tensor.
template <class T, std::size_t Rank, layout_like L>
auto sum_of_squares(const sharded<T, Rank, L>& x) {
  using result = typename detail::squares_layout<L>::type;
  sharded<double, 0, result> sum(result{x.layout().mesh()}, dynamic_shape<0>{}, x.rank());
  detail::require_held(x);
  if constexpr (detail::can_square<L>()) sum.elements()[0] = detail::local_sum_of_squares(x);
  return sum;
}

/// In any space whose queue runs host code, in its order.
template <class T, std::size_t Rank, layout_like L, memory_space Space>
  requires runs_host_code<typename Space::queue>
auto sum_of_squares(typename Space::queue& queue, const sharded<T, Rank, L, Space>& x) {
  using result = typename detail::squares_layout<L>::type;
  sharded<double, 0, result, Space> sum(queue, result{x.layout().mesh()}, dynamic_shape<0>{}, x.rank());
  detail::require_held(x);
  if constexpr (detail::can_square<L>()) detail::put_sum_of_squares(queue, x, sum.memory());
  return sum;
}

/// The squared Euclidean norm of several tensors together, each element of each counted once however many ranks hold a copy.
/// One all_reduce of one number over the world, on its control plane; the same bits on every rank of it.
/// Errors (at compile time): a partial or varying tensor, one on another mesh than the world's; `layout_error` if a part
/// belongs to another rank or mesh, or was released or moved from.
template <class World, class... T, std::size_t... Rank, class... L>
double squared_norm(World& world, const sharded<T, Rank, L>&... tensors) {
  double sum = (0.0 + ... + detail::counted_sum_of_squares(tensors, world));
  world.control().all_reduce(std::span<double>(&sum, 1), plus{});
  return sum;
}

/// Of tensors in a space whose queue runs host code; waits for the queue once.
template <class Queue, class World, class... T, std::size_t... Rank, class... L, class Space>
  requires std::same_as<Queue, typename Space::queue> && runs_host_code<Queue>
double squared_norm(Queue& queue, World& world, const sharded<T, Rank, L, Space>&... tensors) {
  buffer<double, Space> sums(queue, sizeof...(tensors), "the squares of the tensors");
  std::int64_t at = 0;
  (detail::put_counted_sum_of_squares(queue, tensors, detail::within(sums.view(), at++, 1), world), ...);
  std::array<double, sizeof...(tensors)> parts{};
  queue.copy(sums, parts);
  queue.wait();
  double sum = 0;
  for (const double x : parts) sum += x;
  world.control().all_reduce(std::span<double>(&sum, 1), plus{});
  return sum;
}

}  // namespace heddle::inline v0
