// heddle/comm/rethrow.hpp: the error of a rank, as its launch throws it, and that of a rank that could not be started.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <exception>
#include <string>

namespace heddle::inline v0 {

namespace detail {

// What std::thread says is the system's word for a limit, without what the limit was of.
inline comm_error thread_not_started(int rank, int ranks, const std::exception& why) {
  return comm_error("heddle: cannot start the thread of rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                    ": " + why.what() + "; use fewer ranks, or raise the limits on threads and memory of this process");
}

[[noreturn]] HEDDLE_INLINE void rethrow_of_rank(int rank, const std::exception_ptr& problem);

}  // namespace detail

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/rethrow.hpp>
#endif
