// heddle/comm/impl/threads/shared_state.hpp: bodies of heddle/comm/threads/shared_state.hpp.
#pragma once

#include <heddle/comm/threads/shared_state.hpp>
#include <heddle/comm/call_info.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/options.hpp>
#include <heddle/comm/threads/wait_word.hpp>
#include <heddle/core/cores.hpp>
#include <heddle/core/durations.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

HEDDLE_INLINE std::string describe(const rank_record::blocked& wait, comm_clock::time_point now) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3f", std::chrono::duration<double>(now - wait.since).count());
  return "in " + describe(wait.call, *wait.members) + (wait.number > 0 ? ", call " + std::to_string(wait.number) : "") +
         " on communicator (" + *wait.group + "), for " + seconds + " s";
}

HEDDLE_INLINE world_state::world_state(int size, const launch_options& options)
    : options_(options), ranks_(static_cast<std::size_t>(size)), cores_(available_cores()) {
  options_.timeout = countable(options.timeout);
  const std::chrono::microseconds longest = std::chrono::hours(1);
  spin_ = options.spin.count() >= 0 ? (std::min)(options.spin, longest) : std::chrono::microseconds(50);
  for (rank_record& r : ranks_) r.spin_ns.store(spin_.count(), std::memory_order_relaxed);
}

HEDDLE_INLINE void world_state::abort(int failed_rank, std::exception_ptr problem) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (aborted_.load(std::memory_order_relaxed)) return;
    failed_rank_ = failed_rank;
    failure_text_ = what_of(problem);
    failure_ = std::move(problem);
    aborted_.store(true, std::memory_order_release);
  }
  alarm();
}

HEDDLE_INLINE void world_state::store_late_error(int r, std::exception_ptr problem) noexcept {
  rank_record& record = rank(r);
  const std::lock_guard lock(record.mutex);
  if (record.late_error == nullptr) record.late_error = std::move(problem);
  record.has_late_error.store(true, std::memory_order_relaxed);
}

HEDDLE_INLINE void world_state::throw_late_error(int r) {
  rank_record& record = rank(r);
  if (!record.has_late_error.load(std::memory_order_relaxed)) return;
  std::exception_ptr problem;
  {
    const std::lock_guard lock(record.mutex);
    problem = std::exchange(record.late_error, nullptr);
    record.has_late_error.store(false, std::memory_order_relaxed);
  }
  if (problem != nullptr) std::rethrow_exception(problem);
}

HEDDLE_INLINE std::string world_state::who_waits_where() {
  std::string text = circle();
  const auto now = comm_clock::now();
  for (int r = 0; r < size(); ++r) {
    rank_record& record = rank(r);
    const std::lock_guard lock(record.mutex);
    text += "\n  rank " + std::to_string(r) + ": ";
    if (finished(r)) {
      text += "its body has returned";
    } else if (!record.waits.empty()) {
      for (std::size_t i = 0; i < record.waits.size(); ++i)
        text += (i != 0 ? "; " : "") + describe(record.waits[i], now);
    } else {
      text += record.given_up.empty() ? "is not waiting for anyone" : record.given_up;
    }
  }
  return text;
}

HEDDLE_INLINE std::string world_state::circle() {
  struct place {
    bool waits = false;
    bool message = false;
    int other = -1;  // of a message
    std::int64_t number = 0;
    std::string group, where;
    std::vector<int> members;
  };
  std::vector<place> places(ranks_.size());
  for (std::size_t r = 0; r < places.size(); ++r) {
    rank_record& record = ranks_[r];
    const std::lock_guard lock(record.mutex);
    if (record.waits.empty()) continue;
    const rank_record::blocked& wait = record.waits.back();
    place& p = places[r];
    p.waits = true;
    p.message = is_message(wait.call.what);
    p.members = *wait.members;
    if (p.message) p.other = p.members[static_cast<std::size_t>(wait.call.root)];
    p.number = wait.number;
    p.group = *wait.group;
    p.where = describe(wait.call, p.members);
    if (p.number > 0) p.where += ", call " + std::to_string(p.number);
    p.where += " on communicator (" + p.group + ")";
  }
  const auto waits_for = [&](std::size_t a, std::size_t b) {
    const place &x = places[a], &y = places[b];
    if (a == b || !x.waits || !y.waits) return false;
    if (x.message) return x.other == static_cast<int>(b);
    if (std::find(x.members.begin(), x.members.end(), static_cast<int>(b)) == x.members.end()) return false;
    return y.message || y.group != x.group || y.members != x.members;
  };
  // Depth first from each rank: the first path that comes back to where it is.
  std::vector<std::size_t> path, next;
  std::vector<char> seen(places.size(), 0);
  for (std::size_t first = 0; first < places.size(); ++first) {
    if (seen[first] != 0 || !places[first].waits) continue;
    path.assign(1, first);
    next.assign(1, 0);
    seen[first] = 1;
    while (!path.empty()) {
      const std::size_t b = next.back()++;
      if (b == places.size()) {
        path.pop_back();
        next.pop_back();
      } else if (waits_for(path.back(), b)) {
        const auto at = std::find(path.begin(), path.end(), b);
        if (at != path.end()) {
          std::string text = "\n  these wait for each other:";
          for (auto i = at; i != path.end(); ++i) {
            text += i == at ? " rank " : "; rank ";
            text += std::to_string(*i) + " in " + places[*i].where + " for rank ";
            text += std::to_string(i + 1 == path.end() ? *at : *(i + 1));
          }
          return text;
        }
        if (seen[b] == 0) {
          seen[b] = 1;
          path.push_back(b);
          next.push_back(0);
        }
      }
    }
  }
  return {};
}

}  // namespace heddle::inline v0::detail
