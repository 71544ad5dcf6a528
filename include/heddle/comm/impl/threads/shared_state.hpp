// heddle/comm/impl/threads/shared_state.hpp: bodies of heddle/comm/threads/shared_state.hpp.
#pragma once

#include <heddle/comm/threads/shared_state.hpp>
#include <heddle/comm/call_info.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/flight_recorder.hpp>
#include <heddle/comm/options.hpp>
#include <heddle/comm/threads/turns.hpp>
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

HEDDLE_INLINE rank_record::~rank_record() {
  delete flight;
}

HEDDLE_INLINE world_state::world_state(int size, const launch_options& options)
    : options_(options), ranks_(static_cast<std::size_t>(size)), cores_(available_cores()) {
  options_.timeout = countable(options.timeout);
  const std::chrono::microseconds longest = std::chrono::hours(1);
  spin_ = options.spin.count() >= 0 ? (std::min)(options.spin, longest) : std::chrono::microseconds(50);
  for (rank_record& r : ranks_) r.spin_ns.store(spin_.count(), std::memory_order_relaxed);
  if (const flight_place place = flight_place_of(options.flight, options.flight_calls); !place.folder.empty()) {
    const std::int64_t now = flight_time();
    for (int r = 0; r < size; ++r) rank(r).flight = new flight_recorder(place, now, r, size);
  }
}

HEDDLE_INLINE world_state::~world_state() = default;

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

HEDDLE_INLINE void world_state::throw_aborted(int r, const std::string& where) const {
  throw aborted_error("heddle: rank " + std::to_string(failed_rank_) + " failed while rank " + std::to_string(r) +
                      " was in " + where + ": " + failure_text_);
}

HEDDLE_INLINE void world_state::begin_message_wait(int peer, int sleeper) {
  rank_record& record = rank(peer);
  const std::lock_guard lock(record.mutex);
  record.message_waits.push_back(sleeper);
}
HEDDLE_INLINE void world_state::end_message_wait(int peer, int sleeper) noexcept {
  rank_record& record = rank(peer);
  const std::lock_guard lock(record.mutex);
  const auto found = std::find(record.message_waits.begin(), record.message_waits.end(), sleeper);
  *found = record.message_waits.back();
  record.message_waits.pop_back();
}

// Makes a sleeping rank visible to reports, and to the end of those whose messages it waits for.
class blocked_scope {
 public:
  blocked_scope(world_state& world, int my_rank, const rank_record::blocked& wait, const waiter& w)
      : world_(world), my_rank_(my_rank), waiter_(w), record_(world.rank(my_rank)), since_(wait.since) {
    try {
      for (; w.peer(begun_) >= 0; ++begun_) world_.begin_message_wait(w.peer(begun_), my_rank_);
      const std::lock_guard lock(record_.mutex);
      record_.waits.push_back(wait);
      record_.given_up.clear();
    } catch (...) {
      end_message_waits();
      throw;
    }
  }
  // Keeps the wait visible after its end, for the reports of ranks whose time runs out a moment later.
  void give_up() {
    const std::lock_guard lock(record_.mutex);
    for (const auto& wait : record_.waits)
      if (wait.since == since_) record_.given_up = describe(wait, comm_clock::now()) + ", given up";
  }
  ~blocked_scope() {
    end_message_waits();
    const std::lock_guard lock(record_.mutex);
    for (std::size_t i = record_.waits.size(); i-- > 0;)
      if (record_.waits[i].since == since_) {
        record_.waits.erase(record_.waits.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      }
  }
  blocked_scope(const blocked_scope&) = delete;
  blocked_scope& operator=(const blocked_scope&) = delete;

 private:
  void end_message_waits() noexcept {
    for (std::size_t i = 0; i < begun_; ++i) world_.end_message_wait(waiter_.peer(i), my_rank_);
  }

  world_state& world_;
  int my_rank_;
  const waiter& waiter_;
  std::size_t begun_ = 0;  // messages whose other side knows that this rank sleeps
  rank_record& record_;
  comm_clock::time_point since_;
};

HEDDLE_INLINE std::string place_of(const rank_record::blocked& call) {
  return describe(call.call, *call.members) + (call.number > 0 ? ", call " + std::to_string(call.number) : "") +
         " on communicator (" + *call.group + ")";
}

// Sets `withdrawn` when it has taken the call back.
HEDDLE_INLINE void sleep_until(world_state& world, int my_rank, wait_word& bell, const rank_record::blocked& call,
                               const waiter& w, bool& withdrawn) {
  const auto start = call.since;
  const auto withdraw = [&] { return withdrawn = w.withdraw(); };
  blocked_scope scope(world, my_rank, call, w);
  const sleep_announced sleeps(bell);
  const std::chrono::milliseconds timeout = world.options().timeout;
  for (;;) {
    const std::uint32_t seen = bell.load();
    if (w.ready()) return;
    w.help();
    if (w.ready()) return;
    if (world.aborted() && withdraw()) world.throw_aborted(my_rank, place_of(call));
    if (world.any_finished()) {
      const int missing = w.gone();
      if (missing >= 0) {
        const std::string report = world.who_waits_where();  // made while this rank still counts as waiting
        if (withdraw()) {
          scope.give_up();
          throw comm_error("heddle: rank " + std::to_string(my_rank) + " waits in " + place_of(call) + " for rank " +
                           std::to_string(missing) + ", whose body has returned" + report);
        }
      }
    }
    std::chrono::nanoseconds rest = std::chrono::hours(1);
    if (timeout.count() > 0)
      rest = std::chrono::duration_cast<std::chrono::nanoseconds>(start + timeout - comm_clock::now());
    if (rest.count() <= 0) {
      const std::string report = w.absent() + world.who_waits_where();
      if (withdraw()) {
        scope.give_up();
        throw comm_error("heddle: rank " + std::to_string(my_rank) + " has waited " + std::to_string(timeout.count()) +
                         " ms in " + place_of(call) + report);
      }
      rest = std::chrono::milliseconds(10);  // another rank is at work on this call
    }
    bell.wait(seen, rest);
  }
}

HEDDLE_INLINE void poll_and_sleep_without_turn(world_state& world, int my_rank, wait_word& bell,
                                               rank_record::blocked call, const waiter& w) {
  // Polling that is rewarded is doubled next time, polling in vain is halved: one that waits for long work would only
  // burn time. Never to less than a wake-up takes, though: a rank that comes late because it was woken finds the others
  // asleep, and so on for ever, each call at the price of a wake-up. Ranks that share a core poll in turns: all of them
  // where there are more ranks than cores, and now and then two that the system put together.
  const auto start = comm_clock::now();
  std::atomic<std::int64_t>& spin_ns = world.rank(my_rank).spin_ns;
  const std::int64_t spin = spin_ns.load(std::memory_order_relaxed);
  const auto spin_end = start + std::chrono::nanoseconds(spin);
  const auto rewarded = [&] {
    spin_ns.store((std::min)(static_cast<std::int64_t>(world.spin().count()), 2 * spin + 250),
                  std::memory_order_relaxed);
  };
  const int polls = world.crowded() ? 2 : 64;
  do {
    for (int i = 0; i < polls; ++i) {
      poll_pause();
      if (w.ready()) return rewarded();
    }
    w.help();
    if (w.ready()) return rewarded();
    std::this_thread::yield();
  } while (comm_clock::now() < spin_end);
  spin_ns.store((std::max)(spin / 2, world.spin().count() / (world.crowded() ? 8 : 2)), std::memory_order_relaxed);

  call.since = start;
  bool withdrawn = false;
  try {
    sleep_until(world, my_rank, bell, call, w, withdrawn);
  } catch (
      ...) {  // memory for the wait or a report of it may have run out: nobody must find the call of one who has left
    if (withdrawn || w.withdraw()) throw;
    while (!w.ready()) {  // another rank is at work on it
      w.help();
      std::this_thread::yield();
    }
  }
}

HEDDLE_INLINE void poll_and_sleep(world_state& world, int my_rank, wait_word& bell, rank_record::blocked call,
                                  const waiter& w) {
  rank_turns* const turns = world.rank(my_rank).turns;
  {
    const turn_given_away meanwhile(turns);
    poll_and_sleep_without_turn(world, my_rank, bell, call, w);
  }
  if (turns != nullptr && world.aborted()) world.throw_aborted(my_rank, place_of(call));
}

}  // namespace heddle::inline v0::detail
