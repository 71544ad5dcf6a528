// heddle/compute/group/vectors.hpp: loads and stores of 16 bytes for elementwise kernels.
//
// Arrays are cut into packs of as many elements as 16 bytes of the widest element type have. A thread reads the packs of all
// arrays before it writes one, so that an output may be the same memory as an input. Which thread takes which element, and in
// which order it adds, depends on the number of elements and threads alone: where memory does not begin at a multiple of a pack's
// bytes, the same thread reads the same elements one by one, and results have the same bits.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__CUDA_ARCH__)
#define HEDDLE_NOT_UNROLLED _Pragma("unroll 1")
#else
#define HEDDLE_NOT_UNROLLED
#endif

namespace heddle::inline v0::compute::detail::in_groups {

/// Bytes of the widest load and store of a thread.
inline constexpr std::size_t pack_bytes = 16;

/// An array that is overwritten, whatever it held. In the functions below `const T*` is an array that is read, `T*` one that is
/// read and written.
template <class T>
struct overwritten {
  T* at;
};
template <class T>
overwritten(T*) -> overwritten<T>;

#if defined(__CUDA_ARCH__)
/// What a thread loads and stores by one instruction.
template <std::size_t Bytes>
using word_of = std::conditional_t<
    Bytes == 16, uint4,
    std::conditional_t<
        Bytes == 8, uint2,
        std::conditional_t<Bytes == 4, unsigned, std::conditional_t<Bytes == 2, unsigned short, unsigned char>>>>;
#endif

/// N elements in registers.
template <class T, int N>
struct pack {
  static constexpr std::size_t bytes = sizeof(T) * N;
  static_assert(std::is_trivially_copyable_v<T> && bytes <= pack_bytes && (bytes & (bytes - 1)) == 0,
                "heddle: the bytes of a pack are a power of two, 16 at most");
  T values[N];

  /// From memory that begins at a multiple of `bytes`.
  HEDDLE_HD void load(const T* at) {
#if defined(__CUDA_ARCH__)
    const auto word = *reinterpret_cast<const word_of<bytes>*>(at);
    memcpy(values, &word, bytes);
#else
    std::memcpy(values, at, bytes);
#endif
  }
  HEDDLE_HD void store(T* at) const {
#if defined(__CUDA_ARCH__)
    word_of<bytes> word;
    memcpy(&word, values, bytes);
    *reinterpret_cast<word_of<bytes>*>(at) = word;
#else
    std::memcpy(at, values, bytes);
#endif
  }
};

template <class Array>
struct array_traits;
template <class T>
struct array_traits<const T*> {
  using element = T;
  static constexpr bool reads = true, writes = false;
  HEDDLE_HD static const T* begin(const T* array) { return array; }
};
template <class T>
struct array_traits<T*> {
  using element = T;
  static constexpr bool reads = true, writes = true;
  HEDDLE_HD static T* begin(T* array) { return array; }
};
template <class T>
struct array_traits<overwritten<T>> {
  using element = T;
  static constexpr bool reads = false, writes = true;
  HEDDLE_HD static T* begin(overwritten<T> array) { return array.at; }
};

/// The N elements of an array from `first` on: read when it is made, written by `put()`.
template <class Array, int N, bool Aligned>
struct staged_pack {
  using traits = array_traits<Array>;
  using element = typename traits::element;
  pack<element, N> x;

  HEDDLE_HD staged_pack(Array array, std::int64_t first, bool is_there) : x{}, at_(traits::begin(array) + first) {
    if constexpr (traits::reads && Aligned)
      if (is_there) x.load(at_);
  }
  HEDDLE_HD staged_pack(Array array, std::int64_t first) : at_(traits::begin(array) + first) {
    if constexpr (traits::reads && Aligned)
      x.load(at_);
    else if constexpr (traits::reads)
      for (int e = 0; e < N; ++e) x.values[e] = at_[e];
  }
  HEDDLE_HD void put() const {
    if constexpr (traits::writes && Aligned)
      x.store(at_);
    else if constexpr (traits::writes)
      for (int e = 0; e < N; ++e) at_[e] = x.values[e];
  }

 private:
  std::conditional_t<traits::writes, element, const element>* at_;
};

/// Elements of a pack of these arrays: those of 16 bytes of the widest of their types.
template <class... Arrays>
HEDDLE_HD constexpr int pack_width() {
  std::size_t widest = 1;
  ((widest = sizeof(typename array_traits<Arrays>::element) > widest ? sizeof(typename array_traits<Arrays>::element)
                                                                     : widest),
   ...);
  return static_cast<int>(pack_bytes / widest);
}
/// Packs of n elements, the last of which may have fewer.
constexpr std::int64_t packs_of(std::int64_t n, int width) noexcept {
  return (n + width - 1) / width;
}

/// A pack of array number `Index`, if it is there.
template <int Index, class Array, int N>
struct numbered_pack : staged_pack<Array, N, true> {
  using staged_pack<Array, N, true>::staged_pack;
};
template <int N, class Indices, class... Arrays>
struct packs_of_arrays;
/// The packs of all arrays from one element on, read when they are made, if they are there.
template <int N, int... Index, class... Arrays>
struct packs_of_arrays<N, std::integer_sequence<int, Index...>, Arrays...> : numbered_pack<Index, Arrays, N>... {
  HEDDLE_HD packs_of_arrays(std::int64_t first, bool is_there, Arrays... arrays)
      : numbered_pack<Index, Arrays, N>(arrays, first, is_there)... {}
  template <class F>
  HEDDLE_HD void visit(std::int64_t first, const F& f) {
    for (int e = 0; e < N; ++e) f(first + e, numbered_pack<Index, Arrays, N>::x.values[e]...);
    (numbered_pack<Index, Arrays, N>::put(), ...);
  }
};

/// Whether each array begins at a multiple of its pack's bytes, so that all of its packs do.
template <int N, class... Arrays>
HEDDLE_HD bool all_aligned(Arrays... arrays) {
  std::uintptr_t off = 0;
  ((off |= reinterpret_cast<std::uintptr_t>(array_traits<Arrays>::begin(arrays)) %
           (sizeof(typename array_traits<Arrays>::element) * N)),
   ...);
  return off == 0;
}

template <int N, class F, class... Staged>
HEDDLE_HD void visit_staged(std::int64_t first, const F& f, Staged... packs) {
  for (int e = 0; e < N; ++e) f(first + e, packs.x.values[e]...);
  (packs.put(), ...);
}
/// f(i, element of each array...) for the N elements from `first` on, all read before any is written.
template <int N, bool Aligned, class F, class... Arrays>
HEDDLE_HD void visit_pack(std::int64_t first, const F& f, Arrays... arrays) {
  visit_staged<N>(first, f, staged_pack<Arrays, N, Aligned>(arrays, first)...);
}

/// f(i, element of each array...) for the elements of pack k of n elements, by one thread.
template <class F, class... Arrays>
HEDDLE_HD void for_pack(std::int64_t k, std::int64_t n, const F& f, Arrays... arrays) {
  constexpr int width = pack_width<Arrays...>();
  const std::int64_t first = k * width;
  if (first + width > n)
    for (std::int64_t i = first; i < n; ++i) visit_pack<1, false>(i, f, arrays...);
  else if (all_aligned<width>(arrays...))
    visit_pack<width, true>(first, f, arrays...);
  else
    visit_pack<width, false>(first, f, arrays...);
}

/// Packs of `Ahead` rounds of a group's threads, `step` apart: all of them are read before f is called, so that as many loads are under way.
template <int N, class F, class... Arrays, int... Ahead>
HEDDLE_HD void visit_rounds(std::integer_sequence<int, Ahead...>, std::int64_t k, std::int64_t packs, std::int64_t step,
                            const F& f, Arrays... arrays) {
  using all = packs_of_arrays<N, std::make_integer_sequence<int, static_cast<int>(sizeof...(Arrays))>, Arrays...>;
  all rounds[]{all((k + Ahead * step) * N, k + Ahead * step < packs, arrays...)...};
  ((k + Ahead * step < packs ? rounds[Ahead].visit((k + Ahead * step) * N, f) : void()), ...);
}
/// f(j, element of each array...) for j in [0, n), shared by the threads of the group: neighbours take neighbouring packs.
template <class G, class F, class... Arrays>
HEDDLE_HD void for_packs(G& g, std::int64_t n, const F& f, Arrays... arrays) {
  constexpr int width = pack_width<Arrays...>(), reads = (0 + ... + static_cast<int>(array_traits<Arrays>::reads)),
                ahead = reads <= 1 ? 4 : 2;
  const std::int64_t packs = n / width;
  // Not unrolled: how often they run would be found by a division of 64 bits.
  if (all_aligned<width>(arrays...)) {
    HEDDLE_NOT_UNROLLED
    for (std::int64_t k = g.rank(); k < packs; k += ahead * g.size())
      visit_rounds<width>(std::make_integer_sequence<int, ahead>{}, k, packs, g.size(), f, arrays...);
  } else {
    HEDDLE_NOT_UNROLLED
    for (std::int64_t k = g.rank(); k < packs; k += g.size()) visit_pack<width, false>(k * width, f, arrays...);
  }
  HEDDLE_NOT_UNROLLED
  for (std::int64_t j = packs * width + g.rank(); j < n; j += g.size()) visit_pack<1, false>(j, f, arrays...);
}
/// The sum of f(element of each array...) over [0, n), by all threads of the group.
template <class T, class G, class F, class... In>
HEDDLE_HD T sum_packs(G& g, std::int64_t n, const F& f, const In*... arrays) {
  T sum = 0;
  for_packs(g, n, [&](std::int64_t, const In&... x) { sum += f(x...); }, arrays...);
  return g.sum(sum);
}

/// Launches body(group, i) for each row i of a matrix whose columns the body goes through by packs of `Widest`, the widest of the types of its arrays. A
/// group has as many threads as packs ask for: a row of 768 elements of bf16 is 96 packs, for one warp, which needs no barrier; and so many more rows are under
/// way at a time.
template <class Widest, class L, class Body>
void each_row_of_packs(const L& on, std::int64_t rows, std::int64_t columns, const Body& body) {
  on.each_row(rows, packs_of(columns, pack_width<Widest*>()), body);
}

}  // namespace heddle::inline v0::compute::detail::in_groups

#undef HEDDLE_NOT_UNROLLED
