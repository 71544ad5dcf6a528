// heddle/comm/awaited.hpp: a request that clang proves its function waits for once.
#pragma once

#include <heddle/core/typestate.hpp>

#include <utility>

namespace heddle::inline v0 {

/// A started message or collective that the function that started it waits for. With `HEDDLE_CHECK_REQUESTS` clang
/// refuses functions that never wait, wait on one branch only, or twice:
///
///     hd::awaited sent(comm.isend(row, 1));
///     ...                                        // other work
///     sent.wait();
///
/// It stays where it is, and is waited for by the function itself, not in a lambda. Requests that are members, come in
/// rows, are returned or are started anew in a loop stay as they are: clang 19 has errors for such programs that are
/// none. Elsewhere it is the request: one that is not waited for waits where it ends. Errors: those of `Request::wait`.
template <class Request>
class HEDDLE_CONSUMABLE [[nodiscard("heddle: what was started must be waited for")]] awaited final {
 public:
  HEDDLE_RETURNS_STATE(unconsumed) explicit awaited(Request&& started) : started_(std::move(started)) {}
  awaited(awaited&&) = delete;
  HEDDLE_CALLABLE_WHEN("consumed") ~awaited() = default;

  HEDDLE_CALLABLE_WHEN("unconsumed", "unknown") HEDDLE_SETS_STATE(consumed) void wait() { started_.wait(); }
  /// Whether it is done; it is waited for all the same.
  HEDDLE_CALLABLE_WHEN("unconsumed", "unknown") bool test() { return started_.test(); }

 private:
  Request started_;
};

}  // namespace heddle::inline v0
