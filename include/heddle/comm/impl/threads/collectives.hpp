// heddle/comm/impl/threads/collectives.hpp: the list of collectives between threads to compile.
#pragma once

#include <heddle/comm/threads/communicator.hpp>
#include <heddle/core/monoid.hpp>

#include <cstdint>
#include <span>

// HEDDLE_THREADS_COLLECTIVES(extern, T); declares that what trainers do with elements T is elsewhere,
// HEDDLE_THREADS_COLLECTIVES(, T); compiles it here. Only functions that are not inlined.
#define HEDDLE_THREADS_COLLECTIVES(KIND, T)                                                                  \
  KIND template void detail::collective_calls<threads_communicator>::checked_all_reduce<T, plus>(            \
      std::span<const T>, std::span<T>, const plus&);                                                        \
  KIND template void threads_communicator::reduce_scatter_blocks<T, detail::counted_blocks, plus>(           \
      comm_operation, std::span<const T>, std::span<T>, detail::counted_blocks, const plus&, std::uint64_t); \
  KIND template void threads_communicator::all_gather_blocks<T, detail::counted_blocks>(                     \
      comm_operation, std::span<const T>, std::span<T>, detail::counted_blocks, std::int64_t, std::uint64_t)
// What ranks agree on: verdicts, texts and their lengths.
#define HEDDLE_THREADS_AGREEMENTS(KIND)                                                                           \
  KIND template void detail::collective_calls<threads_communicator>::checked_all_reduce<std::int32_t, minimum>(   \
      std::span<const std::int32_t>, std::span<std::int32_t>, const minimum&);                                    \
  KIND template void threads_communicator::all_gather_blocks<std::int64_t, detail::equal_blocks>(                 \
      comm_operation, std::span<const std::int64_t>, std::span<std::int64_t>, detail::equal_blocks, std::int64_t, \
      std::uint64_t);                                                                                             \
  KIND template void threads_communicator::waiting_broadcast<std::int64_t>(std::span<std::int64_t>, int);         \
  KIND template void threads_communicator::waiting_broadcast<char>(std::span<char>, int)

namespace heddle::inline v0 {

HEDDLE_THREADS_COLLECTIVES(extern, float);
HEDDLE_THREADS_COLLECTIVES(extern, double);
HEDDLE_THREADS_AGREEMENTS(extern);

}  // namespace heddle::inline v0
