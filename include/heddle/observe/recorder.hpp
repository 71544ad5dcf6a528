// heddle/observe/recorder.hpp: an observer that keeps the events of every rank, without locks.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::observe {

/// The observer that is off: hooks compile to nothing.
using null = null_observer;

/// What a recorder keeps.
struct recorder_options {
  std::int64_t events_per_rank = 1 << 18;              ///< further events of a rank are dropped, and counted
  int first_step = (std::numeric_limits<int>::min)();  ///< events of earlier steps are passed over
  int last_step = (std::numeric_limits<int>::max)();   ///< events of later steps are passed over
};

/// Orders events for reading: by begin, an enclosing event before what it encloses, then by rank.
inline bool earlier(const event& a, const event& b) noexcept {
  if (a.begin_ns != b.begin_ns) return a.begin_ns < b.begin_ns;
  if (a.end_ns != b.end_ns) return a.end_ns > b.end_ns;
  return a.rank < b.rank;
}

/// Keeps events per rank, in the order they ended, until the capacity is reached; drops the rest and counts them.
/// `record` may be called by all ranks at once, by one thread per rank: each writes to its own storage and takes no
/// lock. Everything else is for after the ranks have finished (joined, or past a barrier).
/// Units: nanoseconds of the steady clock, as in `event`. Errors: `config_error` for a rank count or capacity that is
/// not positive.
class recorder {
 public:
  using kind = observer_kind;
  static constexpr bool enabled = true;

  explicit recorder(int ranks, recorder_options options = {}) : options_(options) {
    if (ranks <= 0)
      throw config_error("heddle: observe::recorder needs at least one rank, got " + std::to_string(ranks));
    if (options.events_per_rank <= 0)
      throw config_error("heddle: observe::recorder needs room for at least one event per rank, got " +
                         std::to_string(options.events_per_rank));
    lanes_.resize(static_cast<std::size_t>(ranks));
  }

  /// Keeps one event of rank `e.rank`. An event of a rank that does not exist counts as dropped. Never throws.
  void record(const event& e) noexcept {
    if (e.rank < 0 || e.rank >= ranks()) {
      strays_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (e.step < options_.first_step || e.step > options_.last_step) return;
    std::unique_ptr<lane>& mine = lanes_[static_cast<std::size_t>(e.rank)];
    if (mine != nullptr && static_cast<std::int64_t>(mine->events.size()) >= options_.events_per_rank) {
      ++mine->dropped;
      return;
    }
    try {
      if (mine == nullptr) mine = std::make_unique<lane>();
      mine->events.push_back(e);
    } catch (const std::bad_alloc&) {
      strays_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  int ranks() const noexcept { return static_cast<int>(lanes_.size()); }

  /// What one rank recorded, in the order it ended. Errors: `config_error` for a rank that does not exist.
  std::span<const event> events(int rank) const {
    if (rank < 0 || rank >= ranks())
      throw config_error("heddle: observe::recorder has ranks 0 to " + std::to_string(ranks() - 1) + ", not " +
                         std::to_string(rank));
    const auto& one = lanes_[static_cast<std::size_t>(rank)];
    return one == nullptr ? std::span<const event>() : std::span<const event>(one->events);
  }

  /// What all ranks recorded, merged by time (see `earlier`).
  std::vector<event> events() const {
    std::vector<event> all;
    std::size_t n = 0;
    for_each_lane([&](const lane& l) { n += l.events.size(); });
    all.reserve(n);
    for_each_lane([&](const lane& l) { all.insert(all.end(), l.events.begin(), l.events.end()); });
    std::sort(all.begin(), all.end(), earlier);
    return all;
  }

  /// Events that were not kept: over capacity, or of a rank that does not exist.
  std::int64_t dropped() const noexcept {
    std::int64_t n = strays_.load(std::memory_order_relaxed);
    for_each_lane([&](const lane& l) { n += l.dropped; });
    return n;
  }

  /// A name for events, which lives as long as the recorder: for names that are not known at compile time. Not for ranks
  /// that record at once.
  const char* keep_name(std::string name) { return names_.insert(std::move(name)).first->c_str(); }
  /// Counts events that were dropped elsewhere.
  void count_dropped(std::int64_t events) noexcept { strays_.fetch_add(events, std::memory_order_relaxed); }

  /// Forgets everything recorded, and the count of what was dropped.
  void clear() noexcept {
    for_each_lane([](lane& l) {
      l.events.clear();
      l.dropped = 0;
    });
    strays_.store(0, std::memory_order_relaxed);
  }

 private:
  // Two cache lines, because processors fetch them in pairs.
  struct alignas(128) lane {
    std::vector<event> events;
    std::int64_t dropped = 0;
  };

  template <class F>
  void for_each_lane(const F& f) const {
    for (const auto& l : lanes_)
      if (l != nullptr) f(*l);
  }

  recorder_options options_;
  std::vector<std::unique_ptr<lane>> lanes_;  // made by a rank's first event: ranks may have a recorder each
  std::set<std::string> names_;
  std::atomic<std::int64_t> strays_{0};
};

static_assert(observer<recorder>);

}  // namespace heddle::inline v0::observe
