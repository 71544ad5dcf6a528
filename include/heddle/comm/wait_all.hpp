// heddle/comm/wait_all.hpp: waits for many started messages.
#pragma once

#include <heddle/core/config.hpp>

#include <exception>

namespace heddle::inline v0 {

/// Waits for all, in order. Every request is done or taken back afterwards, also if one throws; the first error is thrown.
template <class Range>
  requires requires(Range& range) { range.begin()->wait(); }
void wait_all(Range&& requests) {
  std::exception_ptr problem;
  for (auto& request : requests) {
    try {
      request.wait();
    } catch (...) {
      if (problem == nullptr) problem = std::current_exception();
    }
  }
  if (problem != nullptr) std::rethrow_exception(problem);
}

}  // namespace heddle::inline v0
