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

}  // namespace detail

/// The tensor under the plan's target layout, on the ranks of its target; nothing on others. The plan numbers ranks as
/// `world.all()` does, and every rank of that world calls this: those of the source with their part, others with a null
/// pointer. One exchange, with the bytes that the plan says; contributions are combined in the order of the source's ranks.
/// Shapes: `whole` is the tensor's, the same on every rank.
/// Errors: `layout_error` if a rank of the source comes without its part or with another's; what the communicator throws.
template <class T, std::size_t Rank, layout_like From, layout_like To, class World>
std::optional<sharded<T, Rank, To>> transfer(const transfer_plan<From, To>& plan, const dynamic_shape<Rank>& whole,
                                             const sharded<T, Rank, From>* x, World& world) {
  auto& comm = world.all();
  const int size = comm.size(), me = comm.rank();
  const int source = plan.source_of(me), target = plan.target_of(me);
  if ((source >= 0) != (x != nullptr))
    detail::throw_transfer(
        me, source >= 0 ? " is of the source, and came without a part" : " is not of the source, and came with a part");
  if (x != nullptr && (x->rank() != source || !(x->layout() == plan.from()) || !(x->shape() == whole)))
    detail::throw_transfer(me, " came with a part that is not the one the plan expects of it");

  detail::rank_counts out(size), in(size);
  std::vector<std::int64_t> begin(static_cast<std::size_t>(size) + 1, 0);
  std::int64_t sent = 0;
  for (int r = 0; r < size; ++r) {
    const int to = plan.target_of(r), from = plan.source_of(r);
    out[r] = source >= 0 && to >= 0 ? plan.elements(whole, source, to) : 0;
    in[r] = target >= 0 && from >= 0 ? plan.elements(whole, from, target) : 0;
    sent += out[r];
    begin[static_cast<std::size_t>(r) + 1] = begin[static_cast<std::size_t>(r)] + in[r];
  }
  buffer<T> outgoing(sent), incoming(begin.back());
  T* at = outgoing.data();
  for (int r = 0; r < size; ++r) {
    if (out[r] == 0) continue;
    const auto held = plan.from().part(whole, source);
    detail::pack_overlap(detail::overlap_of(held, plan.to().part(whole, plan.target_of(r))), x->elements().data(),
                         held.stored(), at);
    at += out[r];
  }
  comm.all_to_all_v(std::span<const T>(outgoing.data(), outgoing.size()), out.span(), detail::writable(incoming),
                    in.span());
  if (target < 0) return std::nullopt;

  sharded<T, Rank, To> y(plan.to(), whole, target);
  if constexpr (From::has_partial)
    std::fill(y.elements().begin(), y.elements().end(), detail::partial_op<From>::type::template identity<T>());
  if constexpr (To::has_partial)
    if (!plan.receives(target))
      std::fill(y.elements().begin(), y.elements().end(), detail::partial_op<To>::type::template identity<T>());
  const auto wanted = plan.to().part(whole, target);
  for (int s = 0; s < plan.from().mesh().size(); ++s) {
    const int r = plan.from_ranks()[static_cast<std::size_t>(s)];
    if (in[r] == 0) continue;
    detail::take_in<From>(detail::overlap_of(plan.from().part(whole, s), wanted),
                          incoming.data() + begin[static_cast<std::size_t>(r)], y.elements().data(), wanted.stored());
  }
  return y;
}

}  // namespace heddle::inline v0
