// heddle/comm/impl/rethrow.hpp: bodies of heddle/comm/rethrow.hpp.
#pragma once

#include <heddle/comm/rethrow.hpp>
#include <heddle/core/error.hpp>

#include <exception>
#include <string>

namespace heddle::inline v0 {
namespace detail {

HEDDLE_INLINE comm_error thread_not_started(int rank, int ranks, const std::exception& why) {
  return comm_error("heddle: cannot start the thread of rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                    ": " + why.what() + "; use fewer ranks, or raise the limits on threads and memory of this process");
}

HEDDLE_INLINE void rethrow_of_rank(int rank, const std::exception_ptr& problem) {
  const std::string prefix = "rank " + std::to_string(rank) + ": ";
  try {
    std::rethrow_exception(problem);
  } catch (const aborted_error& e) {
    std::throw_with_nested(aborted_error(prefix + e.what()));
  } catch (const comm_error& e) {
    std::throw_with_nested(comm_error(prefix + e.what()));
  } catch (const mesh_error& e) {
    std::throw_with_nested(mesh_error(prefix + e.what()));
  } catch (const layout_error& e) {
    std::throw_with_nested(layout_error(prefix + e.what()));
  } catch (const schedule_error& e) {
    std::throw_with_nested(schedule_error(prefix + e.what()));
  } catch (const config_error& e) {
    std::throw_with_nested(config_error(prefix + e.what()));
  } catch (const numeric_error& e) {
    std::throw_with_nested(numeric_error(prefix + e.what()));
  } catch (const memory_error& e) {
    std::throw_with_nested(memory_error(prefix + e.what()));
  } catch (const io_error& e) {
    std::throw_with_nested(io_error(prefix + e.what()));
  } catch (const std::exception& e) {
    std::throw_with_nested(error(prefix + e.what()));
  } catch (...) {
    std::throw_with_nested(error(prefix + "an exception that is not a std::exception"));
  }
}

}  // namespace detail
}  // namespace heddle::inline v0
