// heddle/comm/threads/shared_state.hpp: state shared by the threads of a world: failure, waiting ranks, groups.
#pragma once

#include <heddle/core/config.hpp>
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

class group_state;

using comm_clock = std::chrono::steady_clock;

struct alignas(64) rank_record {
  // A wait that has gone to sleep. `members` and `group` belong to a group that the waiting rank keeps alive.
  struct blocked {
    call_info call;
    std::int64_t number = 0;  // of the collective on its communicator; 0 for messages
    const std::vector<int>* members = nullptr;
    const std::string* group = nullptr;
    comm_clock::time_point since;
  };

  wait_word bell;  // rung when one of this rank's messages has been taken care of
  std::atomic<bool> finished{false};
  std::atomic<bool> has_late_error{false};
  std::weak_ptr<void>
      work_under_way;  // what all worlds of the rank share of a higher room's; touched by the rank alone
  std::atomic<std::int64_t> spin_ns{0};  // how long this rank polls at present, at most launch_options::spin
  std::mutex mutex;                      // guards the rest
  std::vector<blocked> waits;
  std::string given_up;                            // the last wait that ended in an error, until the next wait
  std::vector<int> message_waits;                  // ranks asleep in a message with this one, once per wait
  std::vector<std::weak_ptr<group_state>> groups;  // those this rank is a member of
  std::exception_ptr late_error;                   // what a destructor could not throw; the next call does
};

// "in barrier, call 3 on communicator (dp), for 0.250 s"
HEDDLE_INLINE std::string describe(const rank_record::blocked& wait, comm_clock::time_point now);

class world_state {
 public:
  world_state(int size, const launch_options& options);

  int size() const noexcept { return static_cast<int>(ranks_.size()); }
  int cores() const noexcept { return cores_; }
  bool crowded() const noexcept { return size() > cores_; }  // more ranks than cores
  const launch_options& options() const noexcept { return options_; }
  std::chrono::nanoseconds spin() const noexcept { return spin_; }
  rank_record& rank(int r) noexcept { return ranks_[static_cast<std::size_t>(r)]; }

  bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }
  bool any_finished() const noexcept { return any_finished_.load(std::memory_order_acquire); }
  bool finished(int r) noexcept { return rank(r).finished.load(std::memory_order_acquire); }

  // The first failure ends the world; later ones follow from it.
  void abort(int failed_rank, std::exception_ptr problem);

  // Only those are woken that may wait for this rank: ranks that end one after the other while many wait for somebody
  // else (the last report, say) would otherwise wake each of them each time.
  void finish(int r);
  // Around the sleep of a rank in a message with `peer`: begins before it looks whether the peer has finished, so that
  // either `finish` sees the sleeper or the sleeper sees that.
  void begin_message_wait(int peer, int sleeper) {
    rank_record& record = rank(peer);
    const std::lock_guard lock(record.mutex);
    record.message_waits.push_back(sleeper);
  }
  void end_message_wait(int peer, int sleeper) noexcept {
    rank_record& record = rank(peer);
    const std::lock_guard lock(record.mutex);
    const auto found = std::find(record.message_waits.begin(), record.message_waits.end(), sleeper);
    *found = record.message_waits.back();
    record.message_waits.pop_back();
  }

  // Requires aborted(); the failure does not change after that.
  [[noreturn]] void throw_aborted(int r, const std::string& where) const {
    throw aborted_error("heddle: rank " + std::to_string(failed_rank_) + " failed while rank " + std::to_string(r) +
                        " was in " + where + ": " + failure_text_);
  }
  int failed_rank() const noexcept { return failed_rank_; }
  const std::exception_ptr& failure() const noexcept { return failure_; }

  // Errors of destructors: stored here, thrown by the rank's next call.
  void store_late_error(int r, std::exception_ptr problem) noexcept;
  void throw_late_error(int r);

  // One line per rank: what it waits for and since when. Before them, the ranks that wait for each other in a circle.
  std::string who_waits_where();

  // The group of these world ranks, in this order, made by whoever asks first. `label` names the axes. Groups with
  // the same label and members are one group: their collectives share one order.
  std::shared_ptr<group_state> group(const std::string& label, const std::vector<int>& members, bool keep);

 private:
  void alarm();

  // "\n  these wait for each other: rank 0 in barrier, call 1 on communicator (dp) for rank 1; rank 1 in ...", or nothing.
  // A rank in a collective waits for the members that wait elsewhere, one in a message for its other side.
  std::string circle();

  launch_options options_;
  std::vector<rank_record> ranks_;
  int cores_;
  std::chrono::nanoseconds spin_{};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> any_finished_{false};
  std::mutex failure_mutex_;
  int failed_rank_ = -1;
  std::string failure_text_;
  std::exception_ptr failure_;
  std::mutex groups_mutex_;
  struct named_group {
    std::string label;
    std::vector<int> members;
    std::weak_ptr<group_state> state;
  };
  std::vector<named_group> groups_;  // those that have ended among them
  std::size_t groups_after_purge_ = 0;
  std::vector<std::shared_ptr<group_state>> kept_;  // groups along axes live as long as the world
};

// Makes a sleeping rank visible to reports, and to the end of those whose messages it waits for.
template <class Waiter>
class blocked_scope {
 public:
  blocked_scope(world_state& world, int my_rank, const rank_record::blocked& wait, const Waiter& w)
      : world_(world), my_rank_(my_rank), waiter_(w), record_(world.rank(my_rank)), since_(wait.since) {
    waiter_.for_each_peer([&](int peer) { world_.begin_message_wait(peer, my_rank_); });
    const std::lock_guard lock(record_.mutex);
    record_.waits.push_back(wait);
    record_.given_up.clear();
  }
  // Keeps the wait visible after its end, for the reports of ranks whose time runs out a moment later.
  void give_up() {
    const std::lock_guard lock(record_.mutex);
    for (const auto& wait : record_.waits)
      if (wait.since == since_) record_.given_up = describe(wait, comm_clock::now()) + ", given up";
  }
  ~blocked_scope() {
    waiter_.for_each_peer([&](int peer) { world_.end_message_wait(peer, my_rank_); });
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
  world_state& world_;
  int my_rank_;
  const Waiter& waiter_;
  rank_record& record_;
  comm_clock::time_point since_;
};

// Waits for something that `w` describes: polls for a short while, then sleeps on `bell` until it holds.
//   w.ready()     whether it has happened
//   w.help()      takes part in the work, if there is some to share
//   w.withdraw()  undoes the call unless another rank is already at work on it; then it is about to complete
//   w.gone()      the world rank of someone who must still come but whose body has returned, or -1
//   w.absent()    " for rank 1, rank 2": who has not come, as text
//   w.for_each_peer(f)  f(world rank) for the other side of each message that it waits for
// While asleep it looks out for trouble: the world has failed, someone is gone, time is out. Then it withdraws and
// throws.
template <class Waiter>
void wait_until(world_state& world, int my_rank, wait_word& bell, rank_record::blocked call, Waiter w) {
  if (w.ready()) return;
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
  blocked_scope scope(world, my_rank, call, w);
  const auto where = [&] {
    return describe(call.call, *call.members) + (call.number > 0 ? ", call " + std::to_string(call.number) : "") +
           " on communicator (" + *call.group + ")";
  };
  const std::chrono::milliseconds timeout = world.options().timeout;
  for (;;) {
    const std::uint32_t seen = bell.load();
    if (w.ready()) return;
    w.help();
    if (w.ready()) return;
    if (world.aborted() && w.withdraw()) world.throw_aborted(my_rank, where());
    if (world.any_finished()) {
      const int missing = w.gone();
      if (missing >= 0) {
        const std::string report = world.who_waits_where();  // made while this rank still counts as waiting
        if (w.withdraw()) {
          scope.give_up();
          throw comm_error("heddle: rank " + std::to_string(my_rank) + " waits in " + where() + " for rank " +
                           std::to_string(missing) + ", whose body has returned" + report);
        }
      }
    }
    std::chrono::nanoseconds rest = std::chrono::hours(1);
    if (timeout.count() > 0)
      rest = std::chrono::duration_cast<std::chrono::nanoseconds>(start + timeout - comm_clock::now());
    if (rest.count() <= 0) {
      const std::string report = w.absent() + world.who_waits_where();
      if (w.withdraw()) {
        scope.give_up();
        throw comm_error("heddle: rank " + std::to_string(my_rank) + " has waited " + std::to_string(timeout.count()) +
                         " ms in " + where() + report);
      }
      rest = std::chrono::milliseconds(10);  // another rank is at work on this call
    }
    bell.wait(seen, rest);
  }
}

}  // namespace heddle::inline v0::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/threads/shared_state.hpp>
#endif
