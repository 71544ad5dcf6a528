// heddle/comm/threads/work.hpp: ranges of collectives between threads, done by any rank.
#pragma once

#include <heddle/comm/blocks.hpp>
#include <heddle/comm/threads/fold.hpp>
#include <heddle/comm/threads/group_state.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::detail {

// The buffers that the ranks of a group have brought to the current call.
struct member_places {
  group_state* group;
  int size() const { return group->size(); }
  template <class T>
  const T* in(int r) const {
    return static_cast<const T*>(group->slot(r).in);
  }
  template <class T>
  T* out(int r) const {
    return static_cast<T*>(group->slot(r).out);
  }
};

// Each does the elements [first, last) of one call and returns the bytes it wrote. `at` is where the ranks' buffers are:
// at.size(), at.template in<T>(rank), at.template out<T>(rank).

template <class T, class Places>
std::int64_t copy_to_all(const Places& at, const T* from, std::int64_t first, std::int64_t count) {
  std::int64_t bytes = 0;
  for (int r = 0; r < at.size(); ++r) bytes += copy_elements(at.template out<T>(r) + first, from, count);
  return bytes;
}

template <class T, class Places>
std::int64_t broadcast_range(const Places& at, int root, std::int64_t first, std::int64_t last) {
  return copy_to_all<T>(at, at.template in<T>(root) + first, first, last - first);
}

template <class T, class Places, class Op>
std::int64_t all_reduce_range(const Places& at, const Op& op, std::int64_t first, std::int64_t last) {
  if constexpr (std::is_arithmetic_v<T>)
    if (at.size() == 2)
      return fold_pair(at.template in<T>(0) + first, at.template in<T>(1) + first, at.template out<T>(0) + first,
                       at.template out<T>(1) + first, last - first, op);
  std::int64_t bytes = 0;
  fold<T>(
      at.size(), [&](int r) { return at.template in<T>(r); }, first, last, op,
      [&](std::int64_t where, const T* values, std::int64_t n) { bytes += copy_to_all<T>(at, values, where, n); });
  return bytes;
}

template <class T, class Places, class Blocks, class Op>
std::int64_t reduce_scatter_range(const Places& at, const Blocks& blocks, const Op& op, std::int64_t first,
                                  std::int64_t last) {
  std::int64_t bytes = 0, begin = 0;
  for (int r = 0; r < at.size(); begin += blocks.count(r), ++r)
    fold<T>(
        at.size(), [&](int s) { return at.template in<T>(s); }, (std::max)(first, begin),
        (std::min)(last, begin + blocks.count(r)), op,
        [&](std::int64_t where, const T* values, std::int64_t n) {
          bytes += copy_elements(at.template out<T>(r) + (where - begin), values, n);
        });
  return bytes;
}

template <class T, class Places, class Blocks>
std::int64_t all_gather_range(const Places& at, const Blocks& blocks, std::int64_t first, std::int64_t last) {
  std::int64_t bytes = 0, begin = 0;
  for (int r = 0; r < at.size(); begin += blocks.count(r), ++r) {
    const std::int64_t from = (std::max)(first, begin), to = (std::min)(last, begin + blocks.count(r));
    if (from < to) bytes += copy_to_all<T>(at, at.template in<T>(r) + (from - begin), from, to - from);
  }
  return bytes;
}

// How large collectives are cut for several ranks: into chunks of whole cache lines.
template <class T>
struct chunks_of {
  static constexpr std::int64_t chunk_bytes = 1 << 18;
  chunks_of(std::int64_t elements, int ranks) : count(elements) {
    constexpr auto width = static_cast<std::int64_t>(sizeof(T));
    constexpr std::int64_t line = (std::max)(std::int64_t{1}, 64 / width);
    each = (std::max)(line, chunk_bytes / ranks / width / line * line);
  }
  std::int64_t number() const { return (count + each - 1) / each; }
  std::int64_t first(std::int64_t chunk) const { return chunk * each; }
  std::int64_t last(std::int64_t chunk) const { return (std::min)(count, (chunk + 1) * each); }

  std::int64_t count;
  std::int64_t each;
};

}  // namespace heddle::inline v0::detail
