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

// Inside of a handler: an error as the first of these types that it is, with the handled one nested.
template <class... Errors>
[[noreturn]] void throw_nested_as(const std::exception& e, const std::string& text, type_list<Errors...>) {
  ((dynamic_cast<const Errors*>(&e) != nullptr ? std::throw_with_nested(Errors(text)) : void()), ...);
  std::throw_with_nested(error(text));
}

HEDDLE_INLINE void rethrow_of_rank(int rank, const std::exception_ptr& problem) {
  const std::string prefix = "rank " + std::to_string(rank) + ": ";
  try {
    std::rethrow_exception(problem);
  } catch (const std::exception& e) {
    throw_nested_as(e, prefix + e.what(), error_types{});
  } catch (...) {
    std::throw_with_nested(error(prefix + "an exception that is not a std::exception"));
  }
}

}  // namespace detail
}  // namespace heddle::inline v0
