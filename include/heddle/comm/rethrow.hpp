// heddle/comm/rethrow.hpp: errors of a rank, as the launch throws them.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>

#include <exception>

namespace heddle::inline v0 {

namespace detail {

// The types of errors that keep their type on the way to other ranks: the derived before the base.
using error_types = type_list<aborted_error, comm_error, mesh_error, layout_error, schedule_error, config_error,
                              numeric_error, memory_error, io_error>;

// What std::thread says is the system's word for a limit, without what the limit was of.
HEDDLE_INLINE comm_error thread_not_started(int rank, int ranks, const std::exception& why);

[[noreturn]] HEDDLE_INLINE void rethrow_of_rank(int rank, const std::exception_ptr& problem);

}  // namespace detail

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/rethrow.hpp>
#endif
