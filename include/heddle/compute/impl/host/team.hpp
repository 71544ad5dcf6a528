// heddle/compute/impl/host/team.hpp: bodies of heddle/compute/host/team.hpp.
#pragma once

#include <heddle/compute/host/team.hpp>
#include <heddle/core/error.hpp>

#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>

namespace heddle::inline v0::compute {

HEDDLE_INLINE team::team(int threads) : team(threads, {}) {}

HEDDLE_INLINE team::team(int threads, const lent_threads& lent) : lent_(lent), errors_(checked(threads)) {
  if (lent_.run != nullptr) return;
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int w = 1; w < threads; ++w) workers_.emplace_back([this, w] { serve(w); });
  } catch (...) {
    stop();
    throw;
  }
}

HEDDLE_INLINE void team::share(int parts) {
  parts_ = parts;
  if (lent_.run != nullptr) {
    lent_.run(lent_.of, parts, [](void* self, int w) { static_cast<team*>(self)->attempt(w); }, this);
    return report();
  }
  pending_.store(size() - 1, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  attempt(0);
  await(pending_, [](int left) { return left == 0; });
  report();
}

HEDDLE_INLINE void team::report() {
  std::exception_ptr first;
  for (std::exception_ptr& e : errors_) {
    if (e && !first) first = e;
    e = nullptr;
  }
  if (first) std::rethrow_exception(first);
}

HEDDLE_INLINE void team::serve(int w) {
  int seen = 0;
  for (;;) {
    seen = await(round_, [seen](int now) { return now != seen; });
    if (stopping_.load(std::memory_order_relaxed)) return;
    attempt(w);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

}  // namespace heddle::inline v0::compute
