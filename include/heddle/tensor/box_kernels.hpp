// heddle/tensor/box_kernels.hpp: the kernels of a redistribution: copies, packs and combines boxes of a memory, in the order of a queue.
#pragma once

#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/runs.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
namespace detail {

template <bool Ok, class Queue>
struct queue_has_kernels {
  static constexpr bool value = Ok;
};
// Host code in the order of the queue.
template <class Queue>
constexpr bool can_run() {
  static_assert(
      queue_has_kernels<runs_host_code<Queue>, Queue>::value,
      "heddle: this queue runs no host code, so it must have the kernels of a redistribution itself: copy_box, "
      "combine_box and fill (see heddle/tensor/box_kernels.hpp)");
  return runs_host_code<Queue>;
}
template <class Queue>
inline constexpr bool runs_at_once = std::is_same_v<Queue, host_memory::queue>;

// A queue that cannot run host code offers these three as members, with the same arguments behind the queue.

/// Copies what two memories have in common from one to the other.
template <class T, class Space, std::size_t Rank>
void copy_box(typename Space::queue& q, const memory_overlap<Rank>& o, vector_view<const T, Space> source,
              const std::array<std::int64_t, Rank>& from, vector_view<T, Space> target,
              const std::array<std::int64_t, Rank>& to) {
  using queue = typename Space::queue;
  if constexpr (runs_at_once<queue>)
    copy_overlap(o, source.address(), from, target.address(), to);
  else if constexpr (requires { q.copy_box(o, source, from, target, to); })
    q.copy_box(o, source, from, target, to);
  else if constexpr (can_run<queue>())
    q.run([o, from, to](const auto& s, const auto& t) { copy_overlap(o, s.address(), from, t.address(), to); }, source,
          target);
}
/// The same for packed elements, which it combines with what is there: `op(there, packed)`.
template <class Op, class T, class Space, std::size_t Rank>
void combine_box(typename Space::queue& q, const memory_overlap<Rank>& o, vector_view<const T, Space> packed,
                 vector_view<T, Space> target, const std::array<std::int64_t, Rank>& to) {
  using queue = typename Space::queue;
  const auto work = [](const memory_overlap<Rank>& box, const T* p, T* t, const std::array<std::int64_t, Rank>& into) {
    for_each_run(with_packed<&stretch::to>(box), box.extents(), into,
                 [&](std::int64_t s, std::int64_t at, std::int64_t n) {
                   const Op op{};
                   for (std::int64_t i = 0; i < n; ++i) t[at + i] = op(t[at + i], p[s + i]);
                 });
  };
  if constexpr (runs_at_once<queue>)
    work(o, packed.address(), target.address(), to);
  else if constexpr (requires { q.template combine_box<Op>(o, packed, target, to); })
    q.template combine_box<Op>(o, packed, target, to);
  else if constexpr (can_run<queue>())
    q.run([work, o, to](const auto& p, const auto& t) { work(o, p.address(), t.address(), to); }, packed, target);
}
/// Sets all elements to one value.
template <class T, class Space>
void fill(typename Space::queue& q, vector_view<T, Space> target, const T& value) {
  using queue = typename Space::queue;
  if constexpr (runs_at_once<queue>)
    std::fill_n(target.address(), target.size(), value);
  else if constexpr (requires { q.fill(target, value); })
    q.fill(target, value);
  else if constexpr (can_run<queue>())
    q.run([value](const auto& t) { std::fill_n(t.address(), t.size(), value); }, target);
}

/// Packs what two memories have in common without gaps.
template <class T, class Space, std::size_t Rank>
void pack_box(typename Space::queue& q, const memory_overlap<Rank>& o, vector_view<const T, Space> source,
              const std::array<std::int64_t, Rank>& from, vector_view<T, Space> packed) {
  copy_box<T, Space>(q, with_packed<&stretch::from>(o), source, from, packed, o.extents());
}
/// Puts packed elements in their places.
template <class T, class Space, std::size_t Rank>
void unpack_box(typename Space::queue& q, const memory_overlap<Rank>& o, vector_view<const T, Space> packed,
                vector_view<T, Space> target, const std::array<std::int64_t, Rank>& to) {
  copy_box<T, Space>(q, with_packed<&stretch::to>(o), packed, o.extents(), target, to);
}
/// The elements of a memory in one of its own, new.
template <class T, class Space>
buffer<T, Space> copy_of(typename Space::queue& q, vector_view<const T, Space> x) {
  buffer<T, Space> copy(q, x.size());
  q.copy(x, copy);
  return copy;
}

}  // namespace detail
}  // namespace heddle::inline v0
