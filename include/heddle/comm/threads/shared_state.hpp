// heddle/comm/threads/shared_state.hpp: state of a world of threads: failure, waits, groups.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/comm/call_info.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/options.hpp>
#include <heddle/comm/threads/turns.hpp>
#include <heddle/comm/threads/wait_word.hpp>
#include <heddle/core/durations.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace heddle::inline v0::detail {

class flight_recorder;
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
      work_under_way;           // what all worlds of the rank share of a higher room's; touched by the rank alone
  rank_turns* turns = nullptr;  // those that it takes part in, if any: it has the turn; touched by the rank alone
  flight_recorder* flight = nullptr;     // its own, of a launch that keeps flight files; touched by the rank alone
  std::atomic<std::int64_t> spin_ns{0};  // how long this rank polls at present, at most launch_options::spin
  std::mutex mutex;                      // guards the rest
  std::vector<blocked> waits;
  std::string given_up;                            // the last wait that ended in an error, until the next wait
  std::vector<int> message_waits;                  // ranks asleep in a message with this one, once per wait
  std::vector<std::weak_ptr<group_state>> groups;  // those this rank is a member of
  std::exception_ptr late_error;                   // what a destructor could not throw; the next call does

  rank_record() = default;
  rank_record(const rank_record&) = delete;
  rank_record& operator=(const rank_record&) = delete;
  HEDDLE_INLINE ~rank_record();
};

// "in barrier, call 3 on communicator (dp), for 0.250 s"
HEDDLE_INLINE std::string describe(const rank_record::blocked& wait, comm_clock::time_point now);

class world_state {
 public:
  world_state(int size, const launch_options& options);
  ~world_state();
  world_state(const world_state&) = delete;
  world_state& operator=(const world_state&) = delete;

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
  void begin_message_wait(int peer, int sleeper);
  void end_message_wait(int peer, int sleeper) noexcept;

  // Requires aborted(); the failure does not change after that.
  [[noreturn]] void throw_aborted(int r, const std::string& where) const;
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

// The state of a world of so many ranks.
HEDDLE_INLINE std::shared_ptr<world_state> make_world_state(int size, const launch_options& options);

// Something that a rank waits for.
class waiter {
 public:
  // Whether it has happened.
  virtual bool ready() const = 0;
  // Takes part in the work, if there is some to share.
  virtual void help() const {}
  // Undoes the call unless another rank is already at work on it; then it is about to complete.
  virtual bool withdraw() const = 0;
  // The world rank of someone who must still come but whose body has returned, or -1.
  virtual int gone() const = 0;
  // " for rank 1, rank 2": who has not come, as text.
  virtual std::string absent() const { return {}; }
  // The world rank of the other side of message i of those that it waits for; -1 behind the last.
  virtual int peer(std::size_t) const { return -1; }

 protected:
  ~waiter() = default;
};

// Waits until `w` is ready: polls for a short while, then sleeps on `bell` until it holds. While asleep it looks out for
// trouble: the world has failed, someone is gone, time is out. Then it withdraws and throws. Whatever it throws, the call
// has been withdrawn. A rank that has the turn (`rank_turns`) gives it away while it waits, and has it again when this returns or throws;
// it also throws then if the world has failed meanwhile, with the call complete.
HEDDLE_INLINE void poll_and_sleep(world_state& world, int my_rank, wait_word& bell, rank_record::blocked call,
                                  const waiter& w);
template <class Waiter>
void wait_until(world_state& world, int my_rank, wait_word& bell, const rank_record::blocked& call, const Waiter& w) {
  if (!w.ready()) poll_and_sleep(world, my_rank, bell, call, w);
}

}  // namespace heddle::inline v0::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/threads/shared_state.hpp>
#endif
