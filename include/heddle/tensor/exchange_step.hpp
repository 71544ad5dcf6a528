// heddle/tensor/exchange_step.hpp: the steps of a redistribution on one rank: what is packed, sent, received and put in place.
#pragma once

#include <heddle/layout/box.hpp>
#include <heddle/layout/part.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/runs.hpp>
#include <heddle/tensor/sharded.hpp>

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
  buffer<T> release() && {
    if (!owned) {
      buffer<T> copy(static_cast<std::int64_t>(source.size()));
      std::copy(source.begin(), source.end(), copy.begin());
      return copy;
    }
    return std::move(own);
  }
};

template <class T>
std::span<T> writable(buffer<T>& b) {
  return {b.data(), b.size()};
}

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
  std::int64_t n = 1;
  for (const std::int64_t e : extents) n *= e;
  return n;
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

// What goes to each rank of the group, one block after another: the tensor itself where the blocks lie in it so already,
// otherwise packed straight from it.
template <class T, std::size_t Rank, class Group>
std::span<const T> packed_for_sending(const Group& group, std::span<const T> memory,
                                      const std::array<std::int64_t, Rank>& extents, rank_counts& counts,
                                      buffer<T>& room) {
  bool in_place = true;
  std::int64_t total = 0;
  for (int peer = 0; peer < group.parts(); ++peer) {
    const auto o = group.to(peer);
    counts[peer] = o.size();
    in_place = in_place && lies_packed<&stretch::from>(o, extents, total);
    total += counts[peer];
  }
  if (in_place) return memory.first(static_cast<std::size_t>(total));
  room = buffer<T>(total);
  T* at = room.data();
  for (int peer = 0; peer < group.parts(); ++peer) {
    pack_overlap(group.to(peer), memory.data(), extents, at);
    at += counts[peer];
  }
  return writable(room);
}

// Receives a block from each rank, by calling `receive` with the memory for them, and puts them in their places.
template <class T, class Group, std::size_t Rank, class Receive>
buffer<T> received(const Group& group, const std::array<std::int64_t, Rank>& extents, Receive&& receive) {
  rank_counts counts(group.parts());
  buffer<T> whole(elements_of(extents));
  bool in_place = true;
  std::int64_t total = 0;
  for (int peer = 0; peer < group.parts(); ++peer) {
    const auto o = group.from(peer);
    counts[peer] = o.size();
    in_place = in_place && lies_packed<&stretch::to>(o, extents, total);
    total += counts[peer];
  }
  if (in_place) {
    receive(writable(whole).first(static_cast<std::size_t>(total)), counts);
    return whole;
  }
  buffer<T> packed(total);
  receive(writable(packed), counts);
  const T* at = packed.data();
  for (int peer = 0; peer < group.parts(); ++peer) {
    unpack_overlap(group.from(peer), at, whole.data(), extents);
    at += counts[peer];
  }
  return whole;
}

// The part without its padding.
template <class T, std::size_t Rank, std::size_t Axes>
std::span<const T> without_padding(std::span<const T> memory, const tensor_part<Rank, Axes>& part, buffer<T>& room) {
  const auto all = overlap_of(part, part);
  if (lies_packed<&stretch::from>(all, part.stored(), 0)) return memory.first(static_cast<std::size_t>(part.size()));
  room = buffer<T>(part.size());
  pack_overlap(all, memory.data(), part.stored(), room.data());
  return writable(room);
}

// --- the steps, one function per kind ---

// What needs no other rank: the elements that this one keeps, in their new places.
template <class T, std::size_t Rank, std::size_t Axes>
void slice_step(moving_part<T>& part, const step_place<Rank, Axes>& at) {
  const auto before = at.before(at.rank), after = at.after(at.rank);
  buffer<T> next(elements_of(after.stored()));
  copy_overlap(overlap_of(before, after), part.source.data(), before.stored(), next.data(), after.stored());
  part.replace(std::move(next));
}

template <class Op, class T, std::size_t Rank, std::size_t Axes>
void pad_step(moving_part<T>& part, const step_place<Rank, Axes>& at) {
  const auto before = at.before(at.rank), after = at.after(at.rank);
  buffer<T> next(elements_of(after.stored()));
  std::fill(next.begin(), next.end(), Op::template identity<T>());
  copy_overlap(overlap_of(before, after), part.source.data(), before.stored(), next.data(), after.stored());
  part.replace(std::move(next));
}

template <class Op, class T>
void keep_on_owner_step(moving_part<T>& part, int mine) {
  if (mine == 0) return;
  if (!part.owned) part.replace(buffer<T>(static_cast<std::int64_t>(part.source.size())));
  std::fill(part.own.begin(), part.own.end(), Op::template identity<T>());
}

template <class T, std::size_t Rank, std::size_t Axes, class Comm>
void all_gather_step(moving_part<T>& part, const step_group<Rank, Axes>& group, Comm& comm) {
  buffer<T> room;
  const std::span<const T> sent = without_padding(part.source, group.at.before(group.at.rank), room);
  part.replace(
      received<T>(group, group.at.after(group.at.rank).stored(), [&](std::span<T> out, const rank_counts& counts) {
        if (group.even())
          comm.all_gather(sent, out);
        else
          comm.all_gather_v(sent, out, counts.span());
      }));
}

template <class T, class Group, class Comm>
void all_to_all_step(moving_part<T>& part, const Group& group, Comm& comm) {
  buffer<T> room;
  rank_counts out(group.parts());
  const std::span<const T> sent =
      packed_for_sending(group, part.source, group.at.before(group.at.rank).stored(), out, room);
  part.replace(
      received<T>(group, group.at.after(group.at.rank).stored(), [&](std::span<T> target, const rank_counts& in) {
        if (group.even())
          comm.all_to_all(sent, target);
        else
          comm.all_to_all_v(sent, out.span(), target, in.span());
      }));
}

template <class Op, class T, std::size_t Rank, std::size_t Axes, class Comm>
void reduce_scatter_step(moving_part<T>& part, const step_group<Rank, Axes>& group, Comm& comm) {
  buffer<T> room;
  rank_counts counts(group.parts());
  const auto after = group.at.after(group.at.rank);
  const std::span<const T> sent =
      packed_for_sending(group, part.source, group.at.before(group.at.rank).stored(), counts, room);
  const auto reduce = [&](std::span<T> out) {
    if (group.even())
      comm.reduce_scatter(sent, out, Op{});
    else
      comm.reduce_scatter_v(sent, out, counts.span(), Op{});
  };
  const auto own = group.from(group.mine());
  buffer<T> next(elements_of(after.stored()));
  if (lies_packed<&stretch::to>(own, after.stored(), 0)) {
    reduce(writable(next).first(static_cast<std::size_t>(after.size())));
  } else {
    buffer<T> packed(after.size());
    reduce(writable(packed));
    unpack_overlap(own, packed.data(), next.data(), after.stored());
  }
  part.replace(std::move(next));
}

template <class Op, class T, std::size_t Rank, std::size_t Axes, class Comm>
void all_reduce_step(moving_part<T>& part, const step_place<Rank, Axes>& at, Comm& comm) {
  const auto held = at.before(at.rank);
  const auto all = overlap_of(held, held);
  const auto valid = static_cast<std::size_t>(held.size());
  if (lies_packed<&stretch::from>(all, held.stored(), 0)) {
    if (part.owned) {
      comm.all_reduce(writable(part.own).first(valid), Op{});
      return;
    }
    buffer<T> next(elements_of(held.stored()));
    comm.all_reduce(part.source.first(valid), writable(next).first(valid), Op{});
    part.replace(std::move(next));
    return;
  }
  buffer<T> packed(held.size());
  pack_overlap(all, part.source.data(), held.stored(), packed.data());
  comm.all_reduce(writable(packed), Op{});
  if (!part.owned) part.replace(buffer<T>(elements_of(held.stored())));
  unpack_overlap(all, packed.data(), part.own.data(), held.stored());
}

}  // namespace detail
}  // namespace heddle::inline v0
