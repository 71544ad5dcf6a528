// heddle/tensor/redistribute.hpp: brings a sharded tensor from one layout to another over a world's communicators.
#pragma once

#include <heddle/layout/redistribution.hpp>
#include <heddle/tensor/sharded.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// The local part while it moves: the caller's memory, read-only, until a step makes memory of its own.
template <class T>
struct moving_part {
  std::span<const T> source{};
  buffer<T> own{};
  bool owned = false;

  void replace(buffer<T> next) {
    own = std::move(next);
    source = {own.data(), own.size()};
    owned = true;
  }
};

// A dimension cut among the ranks of a group: block `s` of a packed buffer is the part of rank s, blocks one after another.
template <std::size_t Rank>
struct packed_blocks {
  std::array<std::int64_t, Rank> extents{};  // of the uncut tensor
  std::size_t dim = 0;
  balanced_split split{};

  packed_blocks(const std::array<std::int64_t, Rank>& e, int d, int parts)
      : extents(e), dim(static_cast<std::size_t>(d)), split{e[dim], parts} {}

  bool even() const { return split.extent % split.parts == 0; }
  // A cut of the outermost dimension (that has more than one element) leaves the blocks where they are.
  bool in_place() const {
    for (std::size_t d = 0; d < dim; ++d)
      if (extents[d] != 1) return false;
    return true;
  }
  std::int64_t size() const {
    std::int64_t n = 1;
    for (const std::int64_t e : extents) n *= e;
    return n;
  }
  std::array<std::int64_t, Rank> block(std::int64_t part) const {
    auto e = extents;
    e[dim] = split.size(part);
    return e;
  }
  std::array<std::int64_t, Rank> begin(std::int64_t part) const {
    std::array<std::int64_t, Rank> o{};
    o[dim] = split.offset(part);
    return o;
  }
  std::vector<std::int64_t> counts() const {
    std::vector<std::int64_t> n(static_cast<std::size_t>(split.parts), 1);
    for (std::size_t s = 0; s < n.size(); ++s)
      for (const std::int64_t e : block(static_cast<std::int64_t>(s))) n[s] *= e;
    return n;
  }
  template <class T>
  void pack(const T* whole, T* packed) const {
    for (std::int64_t s = 0; s < split.parts; ++s) {
      const auto e = block(s);
      copy_box<T, Rank>(whole, {extents, begin(s)}, packed, {e, origin<Rank>}, e);
      packed += product(e);
    }
  }
  template <class T>
  void unpack(const T* packed, T* whole) const {
    for (std::int64_t s = 0; s < split.parts; ++s) {
      const auto e = block(s);
      copy_box<T, Rank>(packed, {e, origin<Rank>}, whole, {extents, begin(s)}, e);
      packed += product(e);
    }
  }
  static std::int64_t product(const std::array<std::int64_t, Rank>& e) {
    std::int64_t n = 1;
    for (const std::int64_t x : e) n *= x;
    return n;
  }
};

template <class T>
std::span<const std::type_identity_t<T>> read_only(const buffer<T>& b) {
  return {b.data(), b.size()};
}
template <class T>
std::span<T> writable(buffer<T>& b) {
  return {b.data(), b.size()};
}

// What the blocks of `cut` look like in memory one after another: the tensor itself where it lies so already.
template <class T, std::size_t Rank>
std::span<const T> packed_for_sending(const packed_blocks<Rank>& cut, std::span<const T> whole, buffer<T>& room) {
  if (cut.in_place()) return whole;
  room = buffer<T>(cut.size());
  cut.pack(whole.data(), room.data());
  return read_only(room);
}
// Receives blocks of `cut`, by calling `receive` with the memory for them, and puts them in their places.
template <class T, std::size_t Rank, class Receive>
buffer<T> received(const packed_blocks<Rank>& cut, Receive&& receive) {
  buffer<T> whole(cut.size());
  if (cut.in_place()) {
    receive(writable(whole));
    return whole;
  }
  buffer<T> packed(cut.size());
  receive(writable(packed));
  cut.unpack(packed.data(), whole.data());
  return whole;
}

// The steps, one function per kind. They know sizes and dimensions, not layouts: however many plans a program has, they
// are compiled once per element type, rank and communicator.
template <std::size_t Rank>
struct step_sizes {
  std::array<std::int64_t, Rank> before{}, after{};
  int parts = 1, mine = 0;  // ranks along the axis, and this one's place among them
  int from_dim = -1, to_dim = -1;

  std::int64_t size_after() const { return packed_blocks<Rank>::product(after); }
};

template <class T, std::size_t Rank>
void slice_part(moving_part<T>& part, const step_sizes<Rank>& s) {
  buffer<T> next(s.size_after());
  copy_box<T, Rank>(part.source.data(), {s.before, packed_blocks<Rank>(s.before, s.to_dim, s.parts).begin(s.mine)}, next.data(),
                    {s.after, origin<Rank>}, s.after);
  part.replace(std::move(next));
}

template <class T, std::size_t Rank, class Group>
void all_gather_part(moving_part<T>& part, const step_sizes<Rank>& s, Group& group) {
  const packed_blocks<Rank> cut(s.after, s.from_dim, s.parts);
  part.replace(received<T>(cut, [&](std::span<T> room) {
    if (cut.even())
      group.all_gather(part.source, room);
    else
      group.all_gather_v(part.source, room, std::span<const std::int64_t>(cut.counts()));
  }));
}

template <class T, std::size_t Rank, class Group>
void all_to_all_part(moving_part<T>& part, const step_sizes<Rank>& s, Group& group) {
  const packed_blocks<Rank> out(s.before, s.to_dim, s.parts);
  const packed_blocks<Rank> in(s.after, s.from_dim, s.parts);
  buffer<T> room_to_send;
  const std::span<const T> sent = packed_for_sending(out, part.source, room_to_send);
  part.replace(received<T>(in, [&](std::span<T> room) {
    if (out.even() && in.even())
      group.all_to_all(sent, room);
    else
      group.all_to_all_v(sent, std::span<const std::int64_t>(out.counts()), room, std::span<const std::int64_t>(in.counts()));
  }));
}

template <class Op, class T, std::size_t Rank, class Group>
void reduce_scatter_part(moving_part<T>& part, const step_sizes<Rank>& s, Group& group) {
  const packed_blocks<Rank> cut(s.before, s.to_dim, s.parts);
  buffer<T> room_to_send;
  const std::span<const T> sent = packed_for_sending(cut, part.source, room_to_send);
  buffer<T> next(s.size_after());
  if (cut.even())
    group.reduce_scatter(sent, writable(next), Op{});
  else
    group.reduce_scatter_v(sent, writable(next), std::span<const std::int64_t>(cut.counts()), Op{});
  part.replace(std::move(next));
}

template <class Op, class T, class Group>
void all_reduce_part(moving_part<T>& part, Group& group) {
  if (part.owned) {
    group.all_reduce(writable(part.own), Op{});
    return;
  }
  buffer<T> next(static_cast<std::int64_t>(part.source.size()));
  group.all_reduce(part.source, writable(next), Op{});
  part.replace(std::move(next));
}

template <class Op, class T>
void keep_part_on_owner(moving_part<T>& part, int mine) {
  if (mine == 0) return;
  if (!part.owned) part.replace(buffer<T>(static_cast<std::int64_t>(part.source.size())));
  std::fill(part.own.begin(), part.own.end(), Op::template identity<T>());
}

template <class Op, class T, std::size_t Rank>
void pad_part(moving_part<T>& part, const step_sizes<Rank>& s) {
  buffer<T> next(s.size_after());
  std::fill(next.begin(), next.end(), Op::template identity<T>());
  copy_box<T, Rank>(part.source.data(), {s.before, origin<Rank>}, next.data(),
                    {s.after, packed_blocks<Rank>(s.after, s.from_dim, s.parts).begin(s.mine)}, s.before);
  part.replace(std::move(next));
}

// One step of a plan on this rank; `group` is the communicator along the step's axis. A group of one has nothing to do.
template <class Plan, std::size_t Step, std::size_t Rank, class T, class Group>
void run_step(const Plan& plan, moving_part<T>& part, const dynamic_shape<Rank>& whole, int rank, Group& group) {
  constexpr redistribution_step step = Plan::steps[Step];
  constexpr auto axis = static_cast<std::size_t>(step.axis);
  const auto mesh = plan.from().mesh().extents();
  if (mesh[axis] == 1) return;
  const step_sizes<Rank> sizes{plan.local_shape_before(Step, whole, rank).extents(),
                               plan.local_shape_before(Step + 1, whole, rank).extents(),
                               mesh[axis],
                               mesh_coordinate(mesh, axis, rank),
                               step.from_dim,
                               step.to_dim};
  if constexpr (step.op >= 0) {
    using op = typename list_at<static_cast<std::size_t>(step.op), typename Plan::ops>::type;
    if constexpr (step.kind == step_kind::all_reduce) all_reduce_part<op>(part, group);
    if constexpr (step.kind == step_kind::reduce_scatter) reduce_scatter_part<op>(part, sizes, group);
    if constexpr (step.kind == step_kind::keep_on_owner) keep_part_on_owner<op>(part, sizes.mine);
    if constexpr (step.kind == step_kind::pad_with_identity) pad_part<op>(part, sizes);
  } else {
    if constexpr (step.kind == step_kind::slice) slice_part(part, sizes);
    if constexpr (step.kind == step_kind::all_gather) all_gather_part(part, sizes, group);
    if constexpr (step.kind == step_kind::all_to_all) all_to_all_part(part, sizes, group);
  }
}

template <class Mesh>
[[noreturn]] void throw_wrong_part(const Mesh& mine, int rank, const Mesh& other, int other_rank) {
  throw layout_error("heddle: redistribute: rank " + std::to_string(rank) + "'s part of a tensor on " + to_string(mine) +
                     " came to rank " + std::to_string(other_rank) + " of a world on " + to_string(other));
}

template <class To, class T, std::size_t Rank, class From, class World>
sharded<T, Rank, To> moved(moving_part<T> part, const sharded<T, Rank, From>& x, World& world) {
  using mesh_type = typename From::mesh_type;
  const To to{x.layout().mesh()};
  const auto plan = plan_redistribution(x.layout(), to);
  if (!(world.mesh() == x.layout().mesh()) || world.rank() != x.rank())
    throw_wrong_part(x.layout().mesh(), x.rank(), world.mesh(), world.rank());
  using plan_type = std::remove_const_t<decltype(plan)>;
  [&]<std::size_t... Steps>(std::index_sequence<Steps...>) {
    (run_step<plan_type, Steps, Rank>(
         plan, part, x.shape(), x.rank(),
         world.template along<typename list_at<static_cast<std::size_t>(plan_type::steps[Steps].axis),
                                               typename mesh_type::tags>::type>()),
     ...);
  }(std::make_index_sequence<plan_type::steps.size()>{});
  if (!part.owned) {
    buffer<T> copy(static_cast<std::int64_t>(part.source.size()));
    std::copy(part.source.begin(), part.source.end(), copy.begin());
    part.replace(std::move(copy));
  }
  return sharded<T, Rank, To>(to, x.shape(), x.rank(), std::move(part.own));
}

template <class Mesh, class World>
constexpr bool on_mesh_of() {
  constexpr bool same = std::is_same_v<std::remove_cvref_t<decltype(std::declval<World&>().mesh())>, Mesh>;
  static_assert(same,
                "heddle: redistribute: the tensor's layout is on another mesh than the world; make the layout on the world's mesh, "
                "or pass the sub-world of the layout's axes");
  return same;
}

}  // namespace detail

/// The same tensor in layout `To`: executes `redistribution_plan<From, To>`, step by step. All ranks of the world must call
/// it with their parts of one tensor. The source is left as it is; its memory is read without a copy.
/// Errors: `layout_error` if the part belongs to another rank or mesh; what the communicator throws; compile errors as
/// `redistribution`.
template <layout_like To, class T, std::size_t Rank, layout_like From, class World>
sharded<T, Rank, To> redistribute(const sharded<T, Rank, From>& x, World& world) {
  if constexpr (detail::on_mesh_of<typename From::mesh_type, World>())
    return detail::moved<To>(detail::moving_part<T>{x.elements(), {}, false}, x, world);
  else
    throw layout_error("heddle: redistribute: another mesh");  // already refused
}

/// As above, and takes the source's memory: an all_reduce then happens in place, and a plan without steps moves nothing.
template <layout_like To, class T, std::size_t Rank, layout_like From, class World>
sharded<T, Rank, To> redistribute(sharded<T, Rank, From>&& x, World& world) {
  if constexpr (detail::on_mesh_of<typename From::mesh_type, World>()) {
    detail::moving_part<T> part;
    part.replace(std::move(x).release());
    return detail::moved<To>(std::move(part), x, world);
  } else {
    throw layout_error("heddle: redistribute: another mesh");  // already refused
  }
}

}  // namespace heddle::inline v0
