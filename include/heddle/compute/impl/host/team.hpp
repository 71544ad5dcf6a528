// heddle/compute/impl/host/team.hpp: bodies of heddle/compute/host/team.hpp.
#pragma once

#include <heddle/compute/host/team.hpp>
#include <heddle/core/error.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace heddle::inline v0::compute {

HEDDLE_INLINE team::team(int threads) : team(threads, {}) {}

HEDDLE_INLINE team::team(int threads, const lent_threads& lent) : size_(checked(threads)), lent_(lent) {
  if (lent_.run != nullptr) return;
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int w = 1; w < threads; ++w) workers_.emplace_back([this] { serve(); });
  } catch (...) {
    stop();
    throw;
  }
}

HEDDLE_INLINE void team::share(int parts) {
  if (parts > most_parts)
    throw config_error("heddle: a team has at most " + std::to_string(most_parts) + " parts to run, got " +
                       std::to_string(parts));
  if (lent_.run != nullptr) {
    error_ = nullptr;  // of a round that `run` itself ended by an error
    lent_.run(lent_.of, parts, [](void* self, int part) { static_cast<team*>(self)->attempt(part); }, this);
  } else {
    share_with_workers(parts);
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

HEDDLE_INLINE void team::share_with_workers(int parts) {
  pending_.store(parts, std::memory_order_relaxed);
  claims_.store(static_cast<std::uint32_t>(parts) << 16, std::memory_order_release);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  work();
  await(pending_, [](int left) { return left == 0; });
}

HEDDLE_INLINE void team::work() noexcept {
  std::uint32_t now = claims_.load(std::memory_order_relaxed);
  while ((now & 0xffff) < now >> 16) {
    if (!claims_.compare_exchange_weak(now, now + 1, std::memory_order_acquire, std::memory_order_relaxed)) continue;
    attempt(static_cast<int>(now & 0xffff));
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
    now = claims_.load(std::memory_order_relaxed);
  }
}

HEDDLE_INLINE void team::attempt(int part) noexcept {
  try {
    call_(context_, part);
  } catch (...) {
    const std::lock_guard lock(error_mutex_);
    if (error_ && error_part_ < part) return;
    error_ = std::current_exception();
    error_part_ = part;
  }
}

HEDDLE_INLINE void team::serve() {
  int seen = 0;
  for (;;) {
    seen = await(round_, [seen](int now) { return now != seen; });
    if (stopping_.load(std::memory_order_relaxed)) return;
    work();
  }
}

}  // namespace heddle::inline v0::compute
