// heddle/tensor/transfer.hpp: brings a tensor from some ranks of a world to others.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/layout/transfer.hpp>
#include <heddle/tensor/box_kernels.hpp>
#include <heddle/tensor/exchange_step.hpp>
#include <heddle/tensor/runs.hpp>
#include <heddle/tensor/sharded.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

[[noreturn]] inline void throw_transfer(int rank, const char* what) {
  throw layout_error(text_of({"heddle: transfer: rank ", rank, what}));
}

// Puts what came in its place; where the source was partial, combined with what is there.
template <class From, class T, class Space, std::size_t Rank>
class landing_boxes {
 public:
  landing_boxes(typename Space::queue& q, vector_view<const T, Space> packed, vector_view<T, Space> target)
      : boxes_(q, packed, target) {}
  void take_in(const memory_overlap<Rank>& o, std::int64_t at, const std::array<std::int64_t, Rank>& to) {
    if constexpr (From::has_partial)
      boxes_.fold(o, at, to);
    else
      boxes_.unpack(o, at, to);
  }
  void launch() { boxes_.launch(); }

 private:
  static auto kind() {
    if constexpr (From::has_partial)
      return std::type_identity<box_folds<typename partial_op<From>::type, T, Space, Rank>>{};
    else
      return std::type_identity<box_copies<T, Space, Rank>>{};
  }
  typename decltype(kind())::type boxes_;
};

// The blocks of one exchange between all ranks of a communicator, one per rank.
template <class T, class Space>
struct transfer_blocks {
  explicit transfer_blocks(int ranks)
      : size(ranks), out(ranks), in(ranks), begin(static_cast<std::size_t>(ranks) + 1, 0) {}

  // `box(r)` is what goes to rank r of a memory of these extents.
  template <class Comm, std::size_t Rank, class Box>
  void exchange(typename Space::queue& q, Comm& comm, vector_view<const T, Space> memory,
                const std::array<std::int64_t, Rank>& extents, const Box& box) {
    std::int64_t sent = 0;
    for (int r = 0; r < size; ++r) {
      sent += out[r];
      begin[static_cast<std::size_t>(r) + 1] = begin[static_cast<std::size_t>(r)] + in[r];
    }
    buffer<T, Space> outgoing(q, sent, "what a transfer sends");
    incoming = buffer<T, Space>(q, begin.back(), "what a transfer receives");
    box_copies<T, Space, Rank> boxes(q, memory, outgoing.view());
    std::int64_t at = 0;
    for (int r = 0; r < size; ++r) {
      if (out[r] == 0) continue;
      boxes.pack(box(r), extents, at);
      at += out[r];
    }
    boxes.launch();
    heddle::v0::all_to_all_v(q, comm, outgoing, out.span(), incoming, in.span());
  }
  std::int64_t block(int rank) const { return begin[static_cast<std::size_t>(rank)]; }

  int size;
  rank_counts out, in;
  std::vector<std::int64_t> begin;
  buffer<T, Space> incoming{};
};

}  // namespace detail

/// The tensor under the plan's target layout, on the ranks of its target; nothing on others. The plan numbers ranks as
/// `world.all()` does, and every rank of that world calls this: those of the source with their part, others with a null
/// pointer. One exchange, or two where the plan gathers, with the bytes that the plan says; contributions are combined in the order of the source's ranks.
/// In another space than the host's all of it happens in the order of `queue`, as `redistribute` has it.
/// Shapes: `whole` is the tensor's, the same on every rank.
/// Errors: `layout_error` if a rank of the source comes without its part, with another's or with one that was released, or if
/// the plan names a rank that the world does not have; what the communicator throws.
template <class T, std::size_t Rank, layout_like From, memory_space Space, layout_like To, class World>
std::optional<sharded<T, Rank, To, Space>> transfer(const transfer_plan<From, To>& plan,
                                                    const dynamic_shape<Rank>& whole,
                                                    const sharded<T, Rank, From, Space>* x, World& world,
                                                    typename Space::queue& queue) {
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
  if (x != nullptr) detail::require_held(*x);

  const auto held = source >= 0 ? plan.from().part(whole, source) : detail::tensor_part<Rank, From::mesh_type::rank>{};
  const auto landing =
      target >= 0 ? plan.landing_part(whole, target) : detail::tensor_part<Rank, To::mesh_type::rank>{};
  detail::transfer_blocks<T, Space> blocks(size);
  for (int r = 0; r < size; ++r) {
    const int to = plan.target_of(r), from = plan.source_of(r);
    blocks.out[r] = source >= 0 && to >= 0 ? plan.elements(whole, source, to) : 0;
    blocks.in[r] = target >= 0 && from >= 0 ? plan.elements(whole, from, target) : 0;
  }
  vector_view<const T, Space> memory;
  if (x != nullptr) memory = x->memory();
  blocks.exchange(queue, comm, memory, held.stored(),
                  [&](int r) { return detail::overlap_of(held, plan.landing_part(whole, plan.target_of(r))); });

  const bool gathers = plan.gathers(Rank);
  buffer<T, Space> landed(queue, target >= 0 ? detail::elements_of(landing.stored()) : 0, "the result of a transfer");
  if constexpr (From::has_partial)
    detail::fill<T, Space>(queue, landed.view(), detail::partial_op<From>::type::template identity<T>());
  if (target >= 0) {
    detail::landing_boxes<From, T, Space, Rank> boxes(queue, blocks.incoming.view(), landed.view());
    for (int s = 0; s < plan.from().mesh().size(); ++s) {
      const int r = plan.from_ranks()[static_cast<std::size_t>(s)];
      if (blocks.in[r] != 0)
        boxes.take_in(detail::overlap_of(plan.from().part(whole, s), landing), blocks.block(r), landing.stored());
    }
    boxes.launch();
  }
  if (gathers) {
    detail::transfer_blocks<T, Space> parts(size);
    for (int r = 0; r < size; ++r) {
      const int other = plan.target_of(r);
      if (target < 0 || other < 0) continue;
      parts.out[r] = plan.gathered_elements(whole, target, other);
      parts.in[r] = plan.gathered_elements(whole, other, target);
    }
    const vector_view<const T, Space> gathered = landed.view();
    parts.exchange(queue, comm, gathered, landing.stored(), [&](int) { return detail::overlap_of(landing, landing); });
    if (target >= 0) {
      const auto wanted = plan.to().part(whole, target);
      landed = buffer<T, Space>(queue, detail::elements_of(wanted.stored()), "the result of a transfer");
      detail::box_copies<T, Space, Rank> boxes(queue, parts.incoming.view(), landed.view());
      for (int r = 0; r < size; ++r)
        if (parts.in[r] != 0)
          boxes.unpack(detail::overlap_of(plan.landing_part(whole, plan.target_of(r)), wanted), parts.block(r),
                       wanted.stored());
      boxes.launch();
    }
  }
  if (target < 0) return std::nullopt;
  if constexpr (To::has_partial)
    if (!plan.receives(target))
      detail::fill<T, Space>(queue, landed.view(), detail::partial_op<To>::type::template identity<T>());
  return sharded<T, Rank, To, Space>(plan.to(), whole, target, std::move(landed));
}

/// In the host's memory, which needs no queue.
template <class T, std::size_t Rank, layout_like From, layout_like To, class World>
std::optional<sharded<T, Rank, To>> transfer(const transfer_plan<From, To>& plan, const dynamic_shape<Rank>& whole,
                                             const sharded<T, Rank, From>* x, World& world) {
  host_memory::queue at_once;
  return transfer(plan, whole, x, world, at_once);
}

}  // namespace heddle::inline v0
