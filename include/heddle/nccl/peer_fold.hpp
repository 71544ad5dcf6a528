// heddle/nccl/peer_fold.hpp: the kernel body of an all-reduce of peers (not run on a GPU).
//
// One source for both targets: `here` is a thread of a block of the kernel, on a GPU (nccl/device_comm.hpp) or of a test on the
// host. It has `rank()`, `ranks()`, `block()`, `blocks()`, `thread()`, `threads()`, `at<T>(place, rank)`, where a place of a window is on
// a rank, and `sync()`, which returns when the same block of all ranks has called it, and shows what was written before.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace heddle::inline v0::detail {

/// Elements of T that a thread loads and stores at once: 16 bytes, or one element where these do not divide 16.
template <class T>
inline constexpr int peer_width = 16 % sizeof(T) == 0 ? static_cast<int>(16 / sizeof(T)) : 1;

/// Packs [begin, end) of those that all blocks of all ranks share: a balanced cut.
struct peer_share {
  std::int64_t begin, end;
};
/// The share of a block. `packs` times `ranks * blocks` must be below 2^63.
HEDDLE_HD constexpr peer_share share_of_block(std::int64_t packs, int rank, int ranks, int block, int blocks) {
  const std::int64_t parts = static_cast<std::int64_t>(ranks) * blocks;
  const std::int64_t part = static_cast<std::int64_t>(rank) * blocks + block;
  return {packs * part / parts, packs * (part + 1) / parts};
}

/// N elements in registers; 16 bytes of them are aligned in memory, and a GPU reads and writes them by one instruction.
template <class T, int N>
struct peer_pack {
#if defined(__CUDA_ARCH__)
  static constexpr bool by_word = sizeof(T) * N == 16 && N > 1;
  using word = uint4;
#else
  static constexpr bool by_word = false;
  using word = T;
#endif
  T values[N];

  HEDDLE_HD void load(const T* from) {
    if constexpr (by_word) {
      const word w = *reinterpret_cast<const word*>(from);
      memcpy(values, &w, sizeof(w));
    } else {
      for (int e = 0; e < N; ++e) values[e] = from[e];
    }
  }
  HEDDLE_HD void store(T* to) const {
    if constexpr (by_word) {
      word w;
      memcpy(&w, values, sizeof(w));
      *reinterpret_cast<word*>(to) = w;
    } else {
      for (int e = 0; e < N; ++e) to[e] = values[e];
    }
  }
};

/// Every rank's `to` becomes the fold of all ranks' `from`, in the order of the ranks: ((x0 op x1) op x2) ..., as between threads. Each
/// rank folds a share of the elements and writes it to all. An element is read on all ranks before it is written on any, so that `to` may be `from`;
/// otherwise the two do not overlap. Each block waits twice for the same block of the other ranks: until their inputs are there, and until
/// all have written. So a block needs a barrier of its own, and all ranks launch as many blocks.
template <class T, class Op, class Place>
struct peer_fold {
  static_assert(std::is_trivially_copyable_v<T>);
  Op op;
  std::int64_t elements;
  Place from, to;

  template <class Here>
  HEDDLE_HD void operator()(Here& here) const {
    constexpr int width = peer_width<T>;
    here.sync();
    const peer_share mine =
        share_of_block((elements + width - 1) / width, here.rank(), here.ranks(), here.block(), here.blocks());
    // Places lie equally on all ranks.
    const std::uintptr_t addresses = reinterpret_cast<std::uintptr_t>(here.template at<const T>(from, here.rank())) |
                                     reinterpret_cast<std::uintptr_t>(here.template at<T>(to, here.rank()));
    const bool aligned = addresses % (sizeof(T) * width) == 0;
    for (std::int64_t k = mine.begin + here.thread(); k < mine.end; k += here.threads()) {
      const std::int64_t first = k * width;
      if (aligned && first + width <= elements) {
        fold<width>(here, first);
      } else {
        const std::int64_t end = first + width < elements ? first + width : elements;
        for (std::int64_t i = first; i < end; ++i) fold<1>(here, i);
      }
    }
    here.sync();
  }

 private:
  // Of `at_once` ranks all loads are under way before the first is used.
  static constexpr int at_once = 4;
  template <int N, class Here>
  HEDDLE_HD void fold(Here& here, std::int64_t first) const {
    const int ranks = here.ranks();
    peer_pack<T, N> folded, x[at_once];
    folded.load(here.template at<const T>(from, 0) + first);
    for (int r = 1; r < ranks; r += at_once) {
      for (int k = 0; k < at_once; ++k)
        if (r + k < ranks) x[k].load(here.template at<const T>(from, r + k) + first);
      for (int k = 0; k < at_once; ++k)
        if (r + k < ranks)
          for (int e = 0; e < N; ++e) folded.values[e] = static_cast<T>(op(folded.values[e], x[k].values[e]));
    }
    for (int k = 0; k < ranks; ++k) {  // from this rank on, so that ranks do not all write to one
      const int r = here.rank() + k;
      folded.store(here.template at<T>(to, r < ranks ? r : r - ranks) + first);
    }
  }
};

}  // namespace heddle::inline v0::detail
