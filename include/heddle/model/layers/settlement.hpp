// heddle/model/layers/settlement.hpp: brings results of layers to the needed layout.
#pragma once

#include <heddle/core/split.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/space_collectives.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::model::layers {

/// What a verb leaves in the tensor that it fills, as a layout: a combinator compares it with what it needs, so that a
/// settlement that was left out does not compile.
template <class Layout>
struct made {
  using layout = Layout;
};

namespace detail {
template <bool Ok, class From, class To>
struct settles {
  static constexpr bool value = Ok;
};

// What brings a result from one layout to another, axis by axis: nothing or an all_reduce, in place; or what makes rows of all
// ranks of rows of each, or the other way round.
enum class settlement : unsigned char { nothing, reduce, gather, scatter, refused };
template <class From, class To, class Tag>
constexpr settlement settlement_along() {
  using mesh_type = typename From::mesh_type;
  constexpr std::size_t a = mesh_type::template position<Tag>;
  constexpr auto from = From::table.use[a];
  constexpr auto to = To::table.use[a];
  constexpr bool same_op = from.role != axis_role::partial || std::is_same_v<typename From::ops, typename To::ops>;
  constexpr bool whole = to.role == axis_role::replicated || to.role == axis_role::identical;
  if (mesh_type::template axis_of<Tag>::fixed_size == 1 || (from == to && same_op)) return settlement::nothing;
  if (from.role == axis_role::identical && whole) return settlement::nothing;
  const auto rows = [](const auto& use) { return use.role == axis_role::sharded && use.dim == 0; };
  if (rows(from) && whole) return settlement::gather;
  if (from.role == axis_role::partial && rows(to)) return settlement::scatter;
  return from.role == axis_role::partial && whole ? settlement::reduce : settlement::refused;
}
// A group that the world made for this call ends with it, so what was queued for it must be done by then.
template <class Group, class Queue>
void keep_until_done(Queue& queue) {
  if constexpr (!std::is_reference_v<Group>) queue.wait();
}
template <class From, class To, class... Tags>
constexpr bool can_settle(type_list<Tags...>) {
  return ((settlement_along<From, To, Tags>() <= settlement::reduce) && ...);
}
// Whether one axis gathers or scatters rows on the way from From to To, while all others at most reduce: `what`, and which.
template <class From, class To>
struct rows_moved {
  using tags = typename From::mesh_type::tags;
  static constexpr auto along = []<class... Tags>(type_list<Tags...>) {
    return std::array<settlement, sizeof...(Tags)>{settlement_along<From, To, Tags>()...};
  }(tags{});
  static constexpr std::size_t at = [] {
    std::size_t a = 0;
    while (a < along.size() && along[a] <= settlement::reduce) ++a;
    return a;
  }();
  static constexpr settlement what = [] {
    settlement found = settlement::nothing;
    for (std::size_t a = 0; a < along.size(); ++a) {
      if (along[a] == settlement::refused || (along[a] > settlement::reduce && a != at)) return settlement::nothing;
      if (a == at) found = along[a];
    }
    return found;
  }();
  static constexpr bool gathers = what == settlement::gather;
};
template <class From, class To>
using axis_of_moved_rows =
    typename heddle::detail::list_at<rows_moved<From, To>::at, typename From::mesh_type::tags>::type;
// The all_reduces among what brings From to To.
template <class From, class To, class World, class Queue, class Row>
void reduce_in([[maybe_unused]] World& world, [[maybe_unused]] Queue& queue, [[maybe_unused]] Row values) {
  [[maybe_unused]] const auto along = [&]<class Tag>(std::type_identity<Tag>) {
    if constexpr (settlement_along<From, To, Tag>() == settlement::reduce) {
      auto&& group = world.template along_if<Tag>();
      if (group.size() > 1 && values.size() > 0) {
        using op = typename From::template op_of<Tag>;
        if constexpr (std::is_same_v<Queue, host_memory::queue>) {
          group.all_reduce(values, op{});
        } else {
          heddle::v0::all_reduce(queue, group, values, op{});
          keep_until_done<decltype(world.template along_if<Tag>())>(queue);
        }
      }
    }
  };
  [&]<class... Tags>(type_list<Tags...>) {
    (along(std::type_identity<Tags>{}), ...);
  }(typename From::mesh_type::tags{});
}
}  // namespace detail

/// Brings values from layout `From` to layout `To`, in place: contributions that are still to be combined along an axis
/// become an all_reduce with their operator, equal layouts cost nothing, nor does using an identical value as copies;
/// everything else does not compile. An axis of one rank sends nothing. What is sent goes in the order of `queue`; `values` is
/// a row in its space.
template <class From, class To, class World, class Queue, class Row>
void settle_in([[maybe_unused]] World& world, [[maybe_unused]] Queue& queue, [[maybe_unused]] Row values) {
  using tags = typename From::mesh_type::tags;
  static_assert(detail::settles<detail::can_settle<From, To>(tags{}), From, To>::value,
                "heddle: redistribute_in_place<From, To> combines contributions, with one all_reduce along each axis; "
                "for another change of layout use redistribute; for other rows redistribute_in_place<From, To>(from, to)");
  if constexpr (detail::can_settle<From, To>(tags{})) detail::reduce_in<From, To>(world, queue, values);
}
/// Whether bringing values from layout `From` to layout `To` sends nothing: along each axis nothing happens, or there is one rank.
template <class From, class To, class World>
bool settles_alone([[maybe_unused]] World& world) {
  [[maybe_unused]] const auto alone = [&]<class Tag>(std::type_identity<Tag>) {
    if constexpr (detail::settlement_along<From, To, Tag>() == detail::settlement::nothing)
      return true;
    else
      return world.template along_if<Tag>().size() == 1;
  };
  return [&]<class... Tags>(type_list<Tags...>) {
    return (alone(std::type_identity<Tags>{}) && ...);
  }(typename From::mesh_type::tags{});
}
/// `settle_in` for elements on the host.
template <class From, class To, class World, class T>
void settle_in(World& world, std::span<T> values) {
  host_memory::queue at_once;
  settle_in<From, To>(world, at_once, values);
}

/// Brings values from layout `From` to layout `To` in other memory, where they have other rows of a batch of `rows`: an axis that
/// splits rows in `From` only becomes an all_gather, one that splits them in `To` only and has contributions in `From` a
/// reduce_scatter. Other contributions are combined as above, in the memory that has more rows. Parts are as even as possible,
/// and may be empty. `from` and `to` are rows in the space of `queue`.
/// Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
template <class From, class To, class World, class Queue, class In, class Out>
  requires(detail::rows_moved<From, To>::what != detail::settlement::nothing)
void settle_in(World& world, Queue& queue, std::int64_t rows, In from, Out to) {
  using axis = detail::axis_of_moved_rows<From, To>;
  constexpr bool gathers = detail::rows_moved<From, To>::gathers;
  const auto elements = static_cast<std::int64_t>(gathers ? to.size() : from.size());
  if (elements == 0) return;
  if constexpr (!gathers) detail::reduce_in<From, To>(world, queue, from);
  auto&& group = world.template along_if<axis>();
  if (group.size() == 1) {
    queue.copy(from, to);
  } else {
    std::vector<std::int64_t> counts;  // elements of each rank, where they differ
    if (rows % group.size() != 0)
      for (int r = 0; r < group.size(); ++r)
        counts.push_back(balanced_split{rows, group.size()}.size(r) * (elements / rows));
    const std::span<const std::int64_t> uneven(counts);
    if constexpr (gathers) {
      if (counts.empty())
        all_gather(queue, group, from, to);
      else
        all_gather_v(queue, group, from, to, uneven);
    } else {
      using op = typename From::template op_of<axis>;
      if (counts.empty())
        reduce_scatter(queue, group, from, to, op{});
      else
        reduce_scatter_v(queue, group, from, to, uneven, op{});
    }
    detail::keep_until_done<decltype(world.template along_if<axis>())>(queue);
  }
  if constexpr (gathers) detail::reduce_in<From, To>(world, queue, to);
}

}  // namespace heddle::inline v0::model::layers
