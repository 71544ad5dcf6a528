// heddle/tensor/exchange_step.hpp: a redistribution's steps: pack, send, receive, unpack.
#pragma once

#include <heddle/layout/box.hpp>
#include <heddle/layout/part.hpp>
#include <heddle/tensor/box_kernels.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/runs.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/tensor/space_collectives.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// The local part while it moves: the caller's memory, read-only, until a step makes memory of its own.
template <class T, class Space = host_memory>
struct moving_part {
  vector_view<const T, Space> source{};
  buffer<T, Space> own{};
  bool owned = false;

  void replace(buffer<T, Space> next) {
    own = std::move(next);
    source = own.view();
    owned = true;
  }
  buffer<T, Space> release(typename Space::queue& q) && {
    if (!owned) return copy_of<T, Space>(q, source);
    return std::move(own);
  }
};

// One number per rank of a group; groups of usual size need no allocation.
class rank_counts {
 public:
  explicit rank_counts(int ranks) : size_(static_cast<std::size_t>(ranks)), many_(size_ > few ? size_ : 0) {}
  std::int64_t& operator[](int rank) noexcept { return data()[rank]; }
  std::span<const std::int64_t> span() const noexcept { return {many_.empty() ? few_.data() : many_.data(), size_}; }

 private:
  static constexpr std::size_t few = 32;
  std::int64_t* data() noexcept { return many_.empty() ? few_.data() : many_.data(); }
  std::array<std::int64_t, few> few_{};
  std::size_t size_;
  std::vector<std::int64_t> many_;
};

template <std::size_t Rank>
std::int64_t elements_of(const std::array<std::int64_t, Rank>& extents) {
  return counted(product_of_counts(extents), extents, "has more elements");
}

// One step as numbers: who takes part in it, and which parts they hold before and after. It knows sizes and cuts, not layouts: however
// many plans a program has, the steps are compiled once per element type, numbers of dimensions and axes, and communicator.
template <std::size_t Rank, std::size_t Axes>
struct step_place {
  mesh_numbers<Axes> mesh{};
  std::array<std::int64_t, Rank> whole{};
  cut_list<Axes> cuts_before{}, cuts_after{};
  int rank = 0;

  tensor_part<Rank, Axes> before(int r) const { return part_of(cuts_before, mesh, whole, r); }
  tensor_part<Rank, Axes> after(int r) const { return part_of(cuts_after, mesh, whole, r); }
};

// The ranks that take part in a step with this one: those that differ from it along some axes only, the first axis major.
// `axes` has a bit per axis of the mesh.
template <std::size_t Rank, std::size_t Axes>
struct step_group {
  const step_place<Rank, Axes>& at;
  unsigned axes = 0;
  // An exchange: who holds an element may be several ranks, and one of them sends it.
  bool choose = false;

  bool has(std::size_t a) const { return (axes >> a & 1u) != 0; }
  int parts() const {
    int n = 1;
    for (std::size_t a = 0; a < Axes; ++a) n *= has(a) ? at.mesh.extents[a] : 1;
    return n;
  }
  int mine() const {
    int index = 0;
    for (std::size_t a = 0; a < Axes; ++a)
      if (has(a)) index = index * at.mesh.extents[a] + at.mesh.coordinate(a, at.rank);
    return index;
  }
  int rank_of(int peer) const {
    int rank = at.rank;
    for (std::size_t a = Axes; a-- > 0;) {
      if (!has(a)) continue;
      rank += (peer % at.mesh.extents[a] - at.mesh.coordinate(a, at.rank)) * at.mesh.strides[a];
      peer /= at.mesh.extents[a];
    }
    return rank;
  }
  // In an exchange a rank sends to those that agree with it on every axis that does not split what it holds, so that each
  // element has one sender: the receiver itself, where it holds the element already.
  bool talks_to(int rank) const {
    if (!choose) return true;
    for (std::size_t a = 0; a < Axes; ++a) {
      bool split = false;
      for (const cut& c : at.cuts_before) split = split || c.axis == a;
      if (!split && at.mesh.coordinate(a, rank) != at.mesh.coordinate(a, at.rank)) return false;
    }
    return true;
  }
  memory_overlap<Rank> to(int peer) const {
    const int rank = rank_of(peer);
    return talks_to(rank) ? overlap_of(at.before(at.rank), at.after(rank)) : nothing();
  }
  memory_overlap<Rank> from(int peer) const {
    const int rank = rank_of(peer);
    return talks_to(rank) ? overlap_of(at.before(rank), at.after(at.rank)) : nothing();
  }
  // Whether all blocks are of one size, on all ranks: then the calls without counts do.
  bool even() const {
    if (choose) return false;
    const auto first_before = at.before(rank_of(0)).extents(), first_after = at.after(rank_of(0)).extents();
    for (int peer = 1; peer < parts(); ++peer)
      if (at.before(rank_of(peer)).extents() != first_before || at.after(rank_of(peer)).extents() != first_after)
        return false;
    return true;
  }

 private:
  static memory_overlap<Rank> nothing() {
    memory_overlap<Rank> none;
    none.empty = true;
    return none;
  }
};

// The elements of each rank's block, of all together, and whether the blocks lie in the tensor one after another.
struct block_total {
  std::int64_t elements = 0;
  bool in_place = true;
};
template <auto Side, std::size_t Rank, class Block>
block_total counted_blocks_of(rank_counts& counts, const std::array<std::int64_t, Rank>& extents, int parts,
                              const Block& block) {
  block_total total;
  for (int peer = 0; peer < parts; ++peer) {
    const auto o = block(peer);
    counts[peer] = o.size();
    total.in_place = total.in_place && lies_packed<Side>(o, extents, total.elements);
    total.elements += counts[peer];
  }
  return total;
}

// What goes to each rank of the group, one block after another: the tensor itself where the blocks lie in it so already,
// otherwise packed straight from it.
template <class T, class Space, std::size_t Rank, class Group>
vector_view<const T, Space> packed_for_sending(typename Space::queue& q, const Group& group,
                                               vector_view<const T, Space> memory,
                                               const std::array<std::int64_t, Rank>& extents, rank_counts& counts,
                                               buffer<T, Space>& room) {
  const auto [total, in_place] =
      counted_blocks_of<&stretch::from>(counts, extents, group.parts(), [&](int peer) { return group.to(peer); });
  if (in_place) return within(memory, 0, total);
  room = buffer<T, Space>(q, total, "what a redistribution sends or receives");
  box_copies<T, Space, Rank> boxes(q, memory, room.view());
  std::int64_t at = 0;
  for (int peer = 0; peer < group.parts(); ++peer) {
    boxes.pack(group.to(peer), extents, at);
    at += counts[peer];
  }
  boxes.launch();
  return room.view();
}

// Receives a block from each rank, by calling `receive` with the memory for them, and puts them in their places.
template <class T, class Space, class Group, std::size_t Rank, class Receive>
buffer<T, Space> received(typename Space::queue& q, const Group& group, const std::array<std::int64_t, Rank>& extents,
                          Receive&& receive) {
  rank_counts counts(group.parts());
  buffer<T, Space> whole(q, elements_of(extents), "what a redistribution sends or receives");
  const auto [total, in_place] =
      counted_blocks_of<&stretch::to>(counts, extents, group.parts(), [&](int peer) { return group.from(peer); });
  if (in_place) {
    receive(within(whole.view(), 0, total), counts);
    return whole;
  }
  buffer<T, Space> packed(q, total, "what a redistribution sends or receives");
  receive(packed.view(), counts);
  box_copies<T, Space, Rank> boxes(q, packed.view(), whole.view());
  std::int64_t at = 0;
  for (int peer = 0; peer < group.parts(); ++peer) {
    boxes.unpack(group.from(peer), at, extents);
    at += counts[peer];
  }
  boxes.launch();
  return whole;
}

// The part without its padding.
template <class T, class Space, std::size_t Rank, std::size_t Axes>
vector_view<const T, Space> without_padding(typename Space::queue& q, vector_view<const T, Space> memory,
                                            const tensor_part<Rank, Axes>& part, buffer<T, Space>& room) {
  const auto all = overlap_of(part, part);
  if (lies_packed<&stretch::from>(all, part.stored(), 0)) return within(memory, 0, part.size());
  room = buffer<T, Space>(q, part.size(), "what a redistribution sends or receives");
  pack_box<T, Space>(q, all, memory, part.stored(), room.view());
  return room.view();
}

// --- the steps, one function per kind ---

// What needs no other rank: the elements that this one keeps, in their new places.
template <class T, class Space, std::size_t Rank, std::size_t Axes>
void slice_step(typename Space::queue& q, moving_part<T, Space>& part, const step_place<Rank, Axes>& at) {
  const auto before = at.before(at.rank), after = at.after(at.rank);
  buffer<T, Space> next(q, elements_of(after.stored()), "the result of a redistribution");
  copy_box<T, Space>(q, overlap_of(before, after), part.source, before.stored(), next.view(), after.stored());
  part.replace(std::move(next));
}

template <class Op, class T, class Space, std::size_t Rank, std::size_t Axes>
void pad_step(typename Space::queue& q, moving_part<T, Space>& part, const step_place<Rank, Axes>& at) {
  const auto before = at.before(at.rank), after = at.after(at.rank);
  buffer<T, Space> next(q, elements_of(after.stored()), "the result of a redistribution");
  copy_box_and_fill<T, Space>(q, overlap_of(before, after), part.source, before.stored(), next.view(), after.stored(),
                              Op::template identity<T>());
  part.replace(std::move(next));
}

template <class Op, class T, class Space>
void keep_on_owner_step(typename Space::queue& q, moving_part<T, Space>& part, int mine) {
  if (mine == 0) return;
  if (!part.owned) part.replace(buffer<T, Space>(q, part.source.size(), "the result of a redistribution"));
  fill<T, Space>(q, part.own.view(), Op::template identity<T>());
}

template <class T, class Space, std::size_t Rank, std::size_t Axes, class Comm>
void all_gather_step(typename Space::queue& q, moving_part<T, Space>& part, const step_group<Rank, Axes>& group,
                     Comm& comm) {
  buffer<T, Space> room;
  const auto sent = without_padding<T, Space>(q, part.source, group.at.before(group.at.rank), room);
  part.replace(received<T, Space>(q, group, group.at.after(group.at.rank).stored(),
                                  [&](vector_view<T, Space> out, const rank_counts& counts) {
                                    if (group.even())
                                      heddle::v0::all_gather(q, comm, sent, out);
                                    else
                                      heddle::v0::all_gather_v(q, comm, sent, out, counts.span());
                                  }));
}

template <class T, class Space, class Group, class Comm>
void all_to_all_step(typename Space::queue& q, moving_part<T, Space>& part, const Group& group, Comm& comm) {
  buffer<T, Space> room;
  rank_counts out(group.parts());
  const auto sent =
      packed_for_sending<T, Space>(q, group, part.source, group.at.before(group.at.rank).stored(), out, room);
  part.replace(received<T, Space>(q, group, group.at.after(group.at.rank).stored(),
                                  [&](vector_view<T, Space> target, const rank_counts& in) {
                                    if (group.even())
                                      heddle::v0::all_to_all(q, comm, sent, target);
                                    else
                                      heddle::v0::all_to_all_v(q, comm, sent, out.span(), target, in.span());
                                  }));
}

template <class Op, class T, class Space, std::size_t Rank, std::size_t Axes, class Comm>
void reduce_scatter_step(typename Space::queue& q, moving_part<T, Space>& part, const step_group<Rank, Axes>& group,
                         Comm& comm) {
  buffer<T, Space> room;
  rank_counts counts(group.parts());
  const auto after = group.at.after(group.at.rank);
  const auto sent =
      packed_for_sending<T, Space>(q, group, part.source, group.at.before(group.at.rank).stored(), counts, room);
  const auto reduce = [&](vector_view<T, Space> out) {
    if (group.even())
      heddle::v0::reduce_scatter(q, comm, sent, out, Op{});
    else
      heddle::v0::reduce_scatter_v(q, comm, sent, out, counts.span(), Op{});
  };
  const auto own = group.from(group.mine());
  buffer<T, Space> next(q, elements_of(after.stored()), "the result of a redistribution");
  if (lies_packed<&stretch::to>(own, after.stored(), 0)) {
    reduce(within(next.view(), 0, after.size()));
  } else {
    buffer<T, Space> packed(q, after.size(), "what a redistribution sends or receives");
    reduce(packed.view());
    unpack_box<T, Space>(q, own, packed.view(), next.view(), after.stored());
  }
  part.replace(std::move(next));
}

template <class Op, class T, class Space, std::size_t Rank, std::size_t Axes, class Comm>
void all_reduce_step(typename Space::queue& q, moving_part<T, Space>& part, const step_place<Rank, Axes>& at,
                     Comm& comm) {
  const auto held = at.before(at.rank);
  const auto all = overlap_of(held, held);
  const std::int64_t valid = held.size();
  if (lies_packed<&stretch::from>(all, held.stored(), 0)) {
    if (part.owned) {
      heddle::v0::all_reduce(q, comm, within(part.own.view(), 0, valid), Op{});
      return;
    }
    buffer<T, Space> next(q, elements_of(held.stored()), "the result of a redistribution");
    heddle::v0::all_reduce(q, comm, within(part.source, 0, valid), within(next.view(), 0, valid), Op{});
    part.replace(std::move(next));
    return;
  }
  buffer<T, Space> packed(q, held.size(), "what a redistribution adds up");
  pack_box<T, Space>(q, all, part.source, held.stored(), packed.view());
  heddle::v0::all_reduce(q, comm, packed.view(), Op{});
  if (!part.owned) part.replace(buffer<T, Space>(q, elements_of(held.stored()), "the result of a redistribution"));
  unpack_box<T, Space>(q, all, packed.view(), part.own.view(), held.stored());
}

}  // namespace detail
}  // namespace heddle::inline v0
