// heddle/comm/threads/group_state.hpp: untyped shared state of a group of threads.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/comm/threads/shared_state.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

// What one rank brings to a collective: its call and its buffers. Written by its rank before it arrives, read by
// whoever works on the call, which ends before the rank leaves.
struct alignas(64) member_slot {
  // Two cache lines of what others read in every call.
  call_info call;
  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t started = 0;  // collectives it has started
  std::int64_t in_count = 0;
  // What they read in some.
  std::int64_t out_count = 0;
  const std::int64_t* in_counts = nullptr;
  const std::int64_t* out_counts = nullptr;
  const void* device = nullptr;          // of a call in a device's memory: where the rank's queue stands
  std::atomic<std::int64_t> number{0};   // collectives this rank has entered and not withdrawn from
  std::atomic<std::int64_t> entered{0};  // the last one it entered, even if it gave up waiting
  comm_counters counters;                // touched by the rank alone
  std::int64_t tickets = 0;              // likewise
  int flight_group = -1;                 // its number in the rank's flight file
};

// The part of a collective that can be done by any rank: `chunks` independent pieces.
struct collective_work {
  std::int64_t chunks = 0;
  const void* context = nullptr;
  std::int64_t (*run)(const void* context, std::int64_t chunk) = nullptr;  // returns bytes written
  std::string (*check)(const void* context) = nullptr;                     // what is wrong, or nothing
};

struct message;
// What takes the elements from one memory of a device to another, in the order of the queues of both sides.
using device_move = void (*)(const message& sent, const message& received);

// A started send or receive. Owned by its request; the other side touches it only between taking it out of the mailbox
// and setting `state`.
struct message {
  enum : std::uint32_t { posted, done, mismatch, failed };
  call_info call;
  int owner = 0;  // rank in the group
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
  const void* device = nullptr;  // in a device's memory: where the rank's queue stands
  device_move move = nullptr;    // likewise
  call_info other;               // of the other side, set on a mismatch
  std::exception_ptr failure;    // what the other side met, where that is a failure
  std::atomic<std::uint32_t> state{posted};

  int receiver() const noexcept { return call.what == comm_operation::send ? call.root : owner; }
};

// A collective that ranks start, each when it likes: made by the first of them, worked on by those that wait for it once
// all are there.
struct started_collective {
  enum : std::uint32_t { gathering, open, done, failed, broken };
  struct member {
    call_info call;
    const void* in = nullptr;
    void* out = nullptr;
    std::int64_t after = 0;          // collectives that were not started, which this rank had entered before
    std::int64_t flight_number = 0;  // its number in the rank's flight file
    std::atomic<bool> here{false};
  };
  started_collective(int ranks, std::int64_t k) : members(static_cast<std::size_t>(ranks)), number(k) {}

  member& operator[](int r) noexcept { return members[static_cast<std::size_t>(r)]; }

  std::vector<member> members;
  std::int64_t number;
  int arrived = 0;      // under the group's lock
  std::string failure;  // written before `state` says failed or broken
  std::atomic<std::uint32_t> state{gathering};
  std::atomic<std::int64_t> next{0};      // chunks that have been taken
  std::atomic<std::int64_t> finished{0};  // chunks that are done
};

class group_state {
 public:
  group_state(world_state& world, std::string label, std::vector<int> members);
  ~group_state();
  group_state(const group_state&) = delete;
  group_state& operator=(const group_state&) = delete;

  int size() const noexcept { return static_cast<int>(members_.size()); }
  world_state& world() noexcept { return world_; }
  const std::string& label() const noexcept { return label_; }
  const std::vector<int>& members() const noexcept { return members_; }
  int world_rank(int r) const noexcept { return members_[static_cast<std::size_t>(r)]; }
  member_slot& slot(int r) noexcept { return slots_[static_cast<std::size_t>(r)]; }
  void alarm() noexcept { bell_.notify(); }

  // A collective. Every rank publishes its slot and arrives; the last to arrive compares the calls and starts the work,
  // alone if it is small, else with the ranks that wake up first, chunk by chunk. Nothing waits for a sleeper: the call
  // is complete when all chunks are, and then everyone may leave. So there is one round of wake-ups per call, and a
  // rank can withdraw (failure, timeout) until the last has arrived and not after: buffers stay valid while they are
  // used.
  void collective(int me, const collective_work& work);

  // Starts a collective: the k-th that a rank starts belongs to the k-th that the others start. `chunks`: of its work.
  std::shared_ptr<started_collective> start(int me, const call_info& call, const void* in, void* out,
                                            std::int64_t bytes, std::int64_t chunks);
  // Takes a rank's call back, and with it everyone's. False once all have started it.
  bool break_started(int me, started_collective& call);
  // An operator has thrown on this rank; the others are told when all chunks are done.
  void fail_started(int me, started_collective& call, const std::exception_ptr& problem);
  void complete_started(started_collective& call);
  wait_word& bell() noexcept { return bell_; }
  // "start_all_reduce of 8 float with plus, call 3 on communicator (dp)"
  std::string where(const call_info& call, std::int64_t number) const;

  // Starts a message; `peer` is its other side. The second of the two sides to come copies, straight from the sender's
  // buffer into the receiver's; the first, when it is late to wait, finds it done.
  void post(int me, int peer, message& m);

  // Errors: `comm_error` on a mismatch, a timeout or a peer that is gone; `aborted_error`. The message is not in a
  // mailbox afterwards, whatever happens.
  void wait(message& m);

  // Takes a message back. False if the other side is at work on it.
  bool cancel(message& m);

  void cancel_or_finish(message& m);

  void throw_if_aborted(const message& m);

 private:
  static constexpr std::uint64_t arrived_mask =
      0xffff;  // arrivals_: number of the collective << 16 | ranks that are there

  // Work on less than this is done by one rank: waking another takes about as long.
  static constexpr std::int64_t share_bytes = 1 << 17;

  struct mailbox;
  class collective_waiter;
  class message_waiter;

  std::string on_communicator() const;
  rank_record::blocked blocked(const call_info& call, std::int64_t number) const;

  void enter(int me, const call_info& call);

  static void count(comm_counters& counters, comm_operation what, std::int64_t bytes);

  [[noreturn]] void throw_mismatch(const message& m) const;

  // Whether all ranks make the same call.
  bool agree() noexcept;
  // The first rank whose call differs from that of the group's first rank.
  std::string disagreement(std::int64_t number);
  std::string disagreement(started_collective& started);
  std::string out_of_order(int r, const std::string& call, std::int64_t theirs, std::int64_t zero,
                           const char* kind) const;

  void lead(int me, std::int64_t number, const collective_work& work, std::exception_ptr& problem);

  // Of all buffers of the current call, roughly: what decides whether the work is worth sharing.
  std::int64_t bytes() const;
  void help(int me, std::int64_t number, const collective_work& work, std::exception_ptr& problem);
  // A chunk that nobody has, or -1. The first half of the ranks takes them from the front, the others from the back, so that
  // a rank finds in its core's cache what it worked on in the call before, and buffers need not change cores.
  std::int64_t take_chunk(int me, std::int64_t chunks);
  void run_chunk(int me, std::int64_t chunk, const collective_work& work, std::exception_ptr& problem);

  // An operator has thrown on this rank, which rethrows it; all others are told.
  void fail(int me, std::exception_ptr& problem);

  void complete(std::int64_t number);
  void follow(int me, std::int64_t number, const collective_work& work, std::exception_ptr& problem);

  world_state& world_;
  std::string label_;
  std::vector<int> members_;
  std::vector<member_slot> slots_;
  std::vector<mailbox> boxes_;
  // Whether the last collective has failed: written before it completes, read before the next is led. It shares a cache line with what
  // all ranks read in every call, so it is written only when it changes.
  bool failed_ = false;
  std::string failure_text_;  // likewise
  std::mutex failure_mutex_;
  std::mutex started_mutex_;
  std::vector<std::shared_ptr<started_collective>> started_;  // those that some ranks have not started yet
  alignas(64) std::atomic<std::uint64_t> arrivals_{std::uint64_t{1} << 16};
  alignas(64) std::atomic<std::int64_t> completed_{0};
  std::atomic<std::int64_t> open_{0};
  alignas(64) std::atomic<std::uint64_t> next_{0};  // chunks taken from the front, and from the back << 32
  std::atomic<std::int64_t> done_{0};
  alignas(64) wait_word bell_;
};

}  // namespace heddle::inline v0::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/threads/group_state.hpp>
#endif
