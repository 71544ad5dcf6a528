// heddle/tensor/transfer.hpp: brings a tensor from some ranks of a world to others, each side with a mesh of its own.
#pragma once

#include <heddle/layout/transfer.hpp>
#include <heddle/tensor/exchange_step.hpp>
#include <heddle/tensor/sharded.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

[[noreturn]] inline void throw_transfer(int rank, const char* what) {
  std::string text = "heddle: transfer: rank ";
  text += std::to_string(rank);
  text += what;
  throw layout_error(text);
}

// Puts what came in its place; where the source was partial, combined with what is there.
template <class From, class T, std::size_t Rank>
void take_in(const memory_overlap<Rank>& o, const T* packed, T* target, const std::array<std::int64_t, Rank>& to) {
  for_each_run(with_packed<&stretch::to>(o), o.extents(), to, [&](std::int64_t s, std::int64_t t, std::int64_t n) {
    if constexpr (From::has_partial) {
      const typename partial_op<From>::type op{};
      for (std::int64_t i = 0; i < n; ++i) target[t + i] = op(target[t + i], packed[s + i]);
    } else {
      std::copy_n(packed + s, n, target + t);
    }
  });
}

// The blocks of one exchange between all ranks of a communicator, one per rank.
template <class T>
struct transfer_blocks {
  explicit transfer_blocks(int ranks)
      : size(ranks), out(ranks), in(ranks), begin(static_cast<std::size_t>(ranks) + 1, 0) {}

  // `pack(r, memory)` writes the block for rank r.
  template <class Comm, class Pack>
  void exchange(Comm& comm, const Pack& pack) {
    std::int64_t sent = 0;
    for (int r = 0; r < size; ++r) {
      sent += out[r];
      begin[static_cast<std::size_t>(r) + 1] = begin[static_cast<std::size_t>(r)] + in[r];
    }
    buffer<T> outgoing(sent);
    incoming = buffer<T>(begin.back());
    T* at = outgoing.data();
    for (int r = 0; r < size; ++r) {
      if (out[r] == 0) continue;
      pack(r, at);
      at += out[r];
    }
    comm.all_to_all_v(std::span<const T>(outgoing.data(), outgoing.size()), out.span(), writable(incoming), in.span());
  }
  const T* block(int rank) const { return incoming.data() + begin[static_cast<std::size_t>(rank)]; }

  int size;
  rank_counts out, in;
  std::vector<std::int64_t> begin;
  buffer<T> incoming{};
};

}  // namespace detail

/// The tensor under the plan's target layout, on the ranks of its target; nothing on others. The plan numbers ranks as
/// `world.all()` does, and every rank of that world calls this: those of the source with their part, others with a null
/// pointer. One exchange, or two where the plan gathers, with the bytes that the plan says; contributions are combined in the order of the source's ranks.
/// Shapes: `whole` is the tensor's, the same on every rank.
/// Errors: `layout_error` if a rank of the source comes without its part, with another's or with one that was released, or if
/// the plan names a rank that the world does not have; what the communicator throws.
template <class T, std::size_t Rank, layout_like From, layout_like To, class World>
std::optional<sharded<T, Rank, To>> transfer(const transfer_plan<From, To>& plan, const dynamic_shape<Rank>& whole,
                                             const sharded<T, Rank, From>* x, World& world) {
  auto& comm = world.all();
  const int size = comm.size(), me = comm.rank();
  for (const auto* ranks : {&plan.from_ranks(), &plan.to_ranks()})
    for (const int r : *ranks)
      if (r >= size) detail::throw_transfer(r, " is named by the plan, but the world has no such rank");
  const int source = plan.source_of(me), target = plan.target_of(me);
  if ((source >= 0) != (x != nullptr))
    detail::throw_transfer(
        me, source >= 0 ? " is of the source, and came without a part" : " is not of the source, and came with a part");
  if (x != nullptr && (x->rank() != source || !(x->layout() == plan.from()) || !(x->shape() == whole)))
    detail::throw_transfer(me, " came with a part that is not the one the plan expects of it");
  if (x != nullptr) detail::check_held(*x);

  const auto held = source >= 0 ? plan.from().part(whole, source) : detail::tensor_part<Rank, From::mesh_type::rank>{};
  const auto landing =
      target >= 0 ? plan.landing_part(whole, target) : detail::tensor_part<Rank, To::mesh_type::rank>{};
  detail::transfer_blocks<T> blocks(size);
  for (int r = 0; r < size; ++r) {
    const int to = plan.target_of(r), from = plan.source_of(r);
    blocks.out[r] = source >= 0 && to >= 0 ? plan.elements(whole, source, to) : 0;
    blocks.in[r] = target >= 0 && from >= 0 ? plan.elements(whole, from, target) : 0;
  }
  blocks.exchange(comm, [&](int r, T* at) {
    detail::pack_overlap(detail::overlap_of(held, plan.landing_part(whole, plan.target_of(r))), x->elements().data(),
                         held.stored(), at);
  });

  const bool gathers = plan.gathers(Rank);
  buffer<T> landed(target >= 0 ? detail::elements_of(landing.stored()) : 0);
  if constexpr (From::has_partial)
    std::fill(landed.begin(), landed.end(), detail::partial_op<From>::type::template identity<T>());
  if (target >= 0)
    for (int s = 0; s < plan.from().mesh().size(); ++s) {
      const int r = plan.from_ranks()[static_cast<std::size_t>(s)];
      if (blocks.in[r] != 0)
        detail::take_in<From>(detail::overlap_of(plan.from().part(whole, s), landing), blocks.block(r), landed.data(),
                              landing.stored());
    }
  if (gathers) {
    detail::transfer_blocks<T> parts(size);
    for (int r = 0; r < size; ++r) {
      const int other = plan.target_of(r);
      if (target < 0 || other < 0) continue;
      parts.out[r] = plan.gathered_elements(whole, target, other);
      parts.in[r] = plan.gathered_elements(whole, other, target);
    }
    parts.exchange(comm, [&](int, T* at) {
      detail::pack_overlap(detail::overlap_of(landing, landing), landed.data(), landing.stored(), at);
    });
    if (target >= 0) {
      const auto wanted = plan.to().part(whole, target);
      landed = buffer<T>(detail::elements_of(wanted.stored()));
      for (int r = 0; r < size; ++r)
        if (parts.in[r] != 0)
          detail::unpack_overlap(detail::overlap_of(plan.landing_part(whole, plan.target_of(r)), wanted),
                                 parts.block(r), landed.data(), wanted.stored());
    }
  }
  if (target < 0) return std::nullopt;
  if constexpr (To::has_partial)
    if (!plan.receives(target))
      std::fill(landed.begin(), landed.end(), detail::partial_op<To>::type::template identity<T>());
  return sharded<T, Rank, To>(plan.to(), whole, target, std::move(landed));
}

}  // namespace heddle::inline v0
