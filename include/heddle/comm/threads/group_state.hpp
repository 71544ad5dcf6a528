// heddle/comm/threads/group_state.hpp: shared state of a group of threads: collectives and messages, without types.
#pragma once

#include <heddle/comm/threads/shared_state.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
  call_info call;
  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t in_count = 0;
  std::int64_t out_count = 0;
  const std::int64_t* in_counts = nullptr;
  const std::int64_t* out_counts = nullptr;
  std::atomic<std::int64_t> number{0};   // collectives this rank has entered and not withdrawn from
  std::atomic<std::int64_t> entered{0};  // the last one it entered, even if it gave up waiting
  std::int64_t started = 0;              // collectives it has started; read by others while it waits in one
  comm_counters counters;                // touched by the rank alone
  std::int64_t tickets = 0;              // likewise
};

// The part of a collective that can be done by any rank: `chunks` independent pieces.
struct collective_work {
  std::int64_t chunks = 0;
  const void* context = nullptr;
  std::int64_t (*run)(const void* context, std::int64_t chunk) = nullptr;  // returns bytes written
  std::string (*check)(const void* context) = nullptr;                     // what is wrong, or nothing
};

// A started send or receive. Owned by its request; the other side touches it only between taking it out of the mailbox
// and setting `state`.
struct message {
  enum : std::uint32_t { posted, done, mismatch };
  call_info call;
  int owner = 0;  // rank in the group
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
  call_info other;  // of the other side, set on a mismatch
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
    std::int64_t after = 0;  // collectives that were not started, which this rank had entered before
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
  group_state(world_state& world, std::string label, std::vector<int> members)
      : world_(world),
        label_(std::move(label)),
        members_(std::move(members)),
        slots_(members_.size()),
        boxes_(members_.size()) {}
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
  void collective(int me, const collective_work& work) {
    member_slot& mine = slot(me);
    enter(me, mine.call);
    count(mine.counters, mine.call.what, static_cast<std::int64_t>(mine.call.element_size) * mine.in_count);
    const std::int64_t number = mine.number.load(std::memory_order_relaxed) + 1;
    mine.number.store(number, std::memory_order_release);
    mine.entered.store(number, std::memory_order_relaxed);
    std::exception_ptr problem;
    const std::uint64_t before = arrivals_.fetch_add(1, std::memory_order_acq_rel);
    if (static_cast<int>(before & arrived_mask) + 1 == size()) lead(me, number, work, problem);
    if (completed_.load(std::memory_order_acquire) != number) follow(me, number, work, problem);
    if (problem != nullptr) std::rethrow_exception(problem);
    if (failed_) throw comm_error(failure_text_);
  }

  // Starts a collective: the k-th that a rank starts belongs to the k-th that the others start. `chunks`: of its work.
  std::shared_ptr<started_collective> start(int me, const call_info& call, const void* in, void* out,
                                            std::int64_t bytes, std::int64_t chunks) {
    enter(me, call);
    member_slot& mine = slot(me);
    count(mine.counters, call.what, bytes);
    const std::int64_t number = ++mine.started;
    std::shared_ptr<started_collective> started;
    const std::lock_guard lock(started_mutex_);
    for (const auto& other : started_)
      if (other->number == number) started = other;
    if (started == nullptr) started = started_.emplace_back(std::make_shared<started_collective>(size(), number));
    started_collective::member& m = (*started)[me];
    m.call = call;
    m.in = in;
    m.out = out;
    m.after = mine.number.load(std::memory_order_relaxed);
    m.here.store(true, std::memory_order_release);
    if (++started->arrived < size()) return started;
    std::erase(started_, started);
    if (started->state.load(std::memory_order_relaxed) == started_collective::broken) return started;
    if (world_.options().check == checking::on) started->failure = disagreement(*started);
    if (started->failure.empty())
      started->state.store(chunks > 0 ? started_collective::open : started_collective::done, std::memory_order_release);
    else
      started->state.store(started_collective::failed, std::memory_order_release);
    bell_.notify();
    return started;
  }
  // Takes a rank's call back, and with it everyone's. False once all have started it.
  bool break_started(int me, started_collective& call) {
    const std::lock_guard lock(started_mutex_);
    const auto state = call.state.load(std::memory_order_relaxed);
    if (state == started_collective::broken) return true;
    if (state != started_collective::gathering) return false;
    call.failure =
        "heddle: rank " + std::to_string(world_rank(me)) + " has given up " + where(call[me].call, call.number);
    call.state.store(started_collective::broken, std::memory_order_release);
    bell_.notify();
    return true;
  }
  // An operator has thrown on this rank; the others are told when all chunks are done.
  void fail_started(int me, started_collective& call, const std::exception_ptr& problem) {
    const std::lock_guard lock(started_mutex_);
    call.failure = "heddle: " + where(call[me].call, call.number) + " failed on rank " +
                   std::to_string(world_rank(me)) + ": " + what_of(problem);
  }
  void complete_started(started_collective& call) {
    {
      const std::lock_guard lock(started_mutex_);
      call.state.store(call.failure.empty() ? started_collective::done : started_collective::failed,
                       std::memory_order_release);
    }
    bell_.notify();
  }
  wait_word& bell() noexcept { return bell_; }
  // "start_all_reduce of 8 float with plus, call 3 on communicator (dp)"
  std::string where(const call_info& call, std::int64_t number) const {
    return describe(call, members_) + ", call " + std::to_string(number) + on_communicator();
  }

  // Starts a message; `peer` is its other side. The second of the two sides to come copies, straight from the sender's
  // buffer into the receiver's; the first, when it is late to wait, finds it done.
  void post(int me, int peer, message& m) {
    enter(me, m.call);
    const bool sends = m.call.what == comm_operation::send;
    count(slot(me).counters, m.call.what, static_cast<std::int64_t>(m.bytes));
    m.owner = me;
    mailbox& box = boxes_[static_cast<std::size_t>(m.receiver())];
    message* other = nullptr;
    {
      const std::lock_guard lock(box.mutex);
      std::vector<message*>& theirs = sends ? box.recvs : box.sends;
      for (std::size_t i = 0; i < theirs.size() && other == nullptr; ++i)
        if (theirs[i]->call.tag == m.call.tag &&
            (sends ? theirs[i]->call.root : theirs[i]->owner) == (sends ? me : peer)) {
          other = theirs[i];
          theirs.erase(theirs.begin() + static_cast<std::ptrdiff_t>(i));
        }
      if (other == nullptr) (sends ? box.sends : box.recvs).push_back(&m);
    }
    if (other == nullptr) return;

    const bool agree =
        other->bytes == m.bytes && (world_.options().check == checking::off ||
                                    (other->call.count == m.call.count && other->call.element == m.call.element));
    m.other = other->call;
    if (agree) {
      if (m.bytes != 0) std::memcpy(sends ? other->to : m.to, sends ? m.from : other->from, m.bytes);
    } else {
      other->other = m.call;
    }
    const std::uint32_t state = agree ? message::done : message::mismatch;
    wait_word& bell = world_.rank(world_rank(other->owner)).bell;
    other->state.store(state, std::memory_order_release);  // `other` may be gone from here on
    bell.notify();
    m.state.store(state, std::memory_order_relaxed);
    if (!agree) throw_mismatch(m);
  }

  // Errors: `comm_error` on a mismatch, a timeout or a peer that is gone; `aborted_error`. The message is not in a
  // mailbox afterwards, whatever happens.
  void wait(message& m) {
    const int my_rank = world_rank(m.owner);
    wait_until(world_, my_rank, world_.rank(my_rank).bell, blocked(m.call, 0), message_waiter{*this, m});
    if (m.state.load(std::memory_order_relaxed) == message::mismatch) throw_mismatch(m);
  }

  // Takes a message back. False if the other side is at work on it.
  bool cancel(message& m) {
    mailbox& box = boxes_[static_cast<std::size_t>(m.receiver())];
    const std::lock_guard lock(box.mutex);
    std::vector<message*>& mine = m.call.what == comm_operation::send ? box.sends : box.recvs;
    const auto found = std::find(mine.begin(), mine.end(), &m);
    if (found == mine.end()) return false;
    mine.erase(found);
    return true;
  }

  void cancel_or_finish(message& m) {
    if (m.state.load(std::memory_order_acquire) != message::posted || cancel(m)) return;
    while (m.state.load(std::memory_order_acquire) == message::posted)
      std::this_thread::yield();  // a copy is under way
  }

  void throw_if_aborted(const message& m) {
    if (world_.aborted()) world_.throw_aborted(world_rank(m.owner), describe(m.call, members_) + on_communicator());
  }

 private:
  static constexpr std::uint64_t arrived_mask =
      0xffff;  // arrivals_: number of the collective << 16 | ranks that are there

  // Work on less than this is done by one rank: waking another takes about as long.
  static constexpr std::int64_t share_bytes = 1 << 17;

  struct alignas(64) mailbox {
    std::mutex mutex;
    std::vector<message*> sends;  // in the order they were posted
    std::vector<message*> recvs;
  };

  std::string on_communicator() const { return " on communicator (" + label_ + ")"; }

  rank_record::blocked blocked(const call_info& call, std::int64_t number) const {
    return {call, number, &members_, &label_, {}};
  }

  void enter(int me, const call_info& call) {
    world_.throw_late_error(world_rank(me));
    if (world_.aborted()) world_.throw_aborted(world_rank(me), describe(call, members_) + on_communicator());
  }

  static void count(comm_counters& counters, comm_operation what, std::int64_t bytes) {
    counters[what].calls += 1;
    counters[what].bytes += bytes;
  }

  [[noreturn]] void throw_mismatch(const message& m) const {
    throw comm_error("heddle: rank " + std::to_string(world_rank(m.owner)) + " and rank " +
                     std::to_string(world_rank(m.call.root)) + " disagree about a message" + on_communicator() +
                     ": rank " + std::to_string(world_rank(m.owner)) + " entered " + describe(m.call, members_) +
                     "; rank " + std::to_string(world_rank(m.call.root)) + " entered " + describe(m.other, members_));
  }

  // The first rank whose call differs from that of the group's first rank.
  std::string disagreement(std::int64_t number) {
    for (int r = 1; r < size(); ++r)
      if (const call_info &a = slot(0).call, &b = slot(r).call; !(a == b))
        return "heddle: ranks disagree about call " + std::to_string(number) + on_communicator() + ": rank " +
               std::to_string(world_rank(r)) + " entered " + describe(b, members_) + "; rank " +
               std::to_string(world_rank(0)) + " entered " + describe(a, members_) +
               (describe(a, members_) == describe(b, members_) ? " with other counts per rank" : "");
    for (int r = 1; r < size(); ++r)
      if (slot(r).started != slot(0).started)
        return out_of_order(r, describe(slot(r).call, members_), slot(r).started, slot(0).started, "started");
    return {};
  }
  std::string disagreement(started_collective& started) {
    for (int r = 1; r < size(); ++r)
      if (const call_info &a = started[0].call, &b = started[r].call; !(a == b))
        return "heddle: ranks disagree about started call " + std::to_string(started.number) + on_communicator() +
               ": rank " + std::to_string(world_rank(r)) + " entered " + describe(b, members_) + "; rank " +
               std::to_string(world_rank(0)) + " entered " + describe(a, members_) +
               (describe(a, members_) == describe(b, members_) ? " with other counts per rank" : "");
    for (int r = 1; r < size(); ++r)
      if (started[r].after != started[0].after)
        return out_of_order(r, describe(started[r].call, members_), started[r].after, started[0].after, "blocking");
    return {};
  }
  std::string out_of_order(int r, const std::string& call, std::int64_t theirs, std::int64_t zero,
                           const char* kind) const {
    return "heddle: ranks disagree about the order of calls" + on_communicator() + ": rank " +
           std::to_string(world_rank(r)) + " entered " + call + " after " + std::to_string(theirs) + " " + kind +
           " calls; rank " + std::to_string(world_rank(0)) + " after " + std::to_string(zero);
  }

  void lead(int me, std::int64_t number, const collective_work& work, std::exception_ptr& problem) {
    failed_ = false;
    try {
      if (world_.options().check == checking::on) {
        failure_text_ = disagreement(number);
        if (failure_text_.empty() && work.check != nullptr) {
          failure_text_ = work.check(work.context);
          if (!failure_text_.empty())
            failure_text_ = "heddle: call " + std::to_string(number) + on_communicator() + ", " +
                            describe(slot(me).call, members_) + ": " + failure_text_;
        }
        failed_ = !failure_text_.empty();
      }
    } catch (...) {
      fail(me, problem);
    }
    const int helpers = (std::min)(size(), world_.cores()) - 1;
    if (failed_ || work.chunks <= 1 || helpers == 0 || bytes() < share_bytes) {
      for (std::int64_t c = 0; c < work.chunks && !failed_; ++c) run_chunk(me, c, work, problem);
      complete(number);
      return;
    }
    next_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    open_.store(number, std::memory_order_release);
    bell_.notify(helpers);
    help(me, number, work, problem);
  }

  // Of all buffers of the current call, roughly: what decides whether the work is worth sharing.
  std::int64_t bytes() {
    std::int64_t sum = 0;
    for (const member_slot& s : slots_)
      sum += (std::max)(s.in_count, s.out_count) * static_cast<std::int64_t>(s.call.element_size);
    return sum;
  }

  void help(int me, std::int64_t number, const collective_work& work, std::exception_ptr& problem) {
    if (open_.load(std::memory_order_acquire) != number) return;
    for (;;) {
      const std::int64_t chunk = take_chunk(me, work.chunks);
      if (chunk < 0) return;
      run_chunk(me, chunk, work, problem);
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == work.chunks) complete(number);
    }
  }

  // A chunk that nobody has, or -1. The first half of the ranks takes them from the front, the others from the back, so that
  // a rank finds in its core's cache what it worked on in the call before, and buffers need not change cores.
  std::int64_t take_chunk(int me, std::int64_t chunks) {
    constexpr std::uint64_t front_mask = 0xffffffff;
    const auto left = [chunks](std::uint64_t taken) {
      return chunks - static_cast<std::int64_t>(taken & front_mask) - static_cast<std::int64_t>(taken >> 32);
    };
    if (left(next_.load(std::memory_order_relaxed)) <= 0) return -1;
    const bool front = me < (size() + 1) / 2;
    const std::uint64_t taken = next_.fetch_add(front ? 1 : front_mask + 1, std::memory_order_relaxed);
    if (left(taken) <= 0) return -1;
    return front ? static_cast<std::int64_t>(taken & front_mask) : chunks - 1 - static_cast<std::int64_t>(taken >> 32);
  }

  void run_chunk(int me, std::int64_t chunk, const collective_work& work, std::exception_ptr& problem) {
    try {
      slot(me).counters.bytes_moved += work.run(work.context, chunk);
    } catch (...) {
      fail(me, problem);
    }
  }

  // An operator has thrown on this rank, which rethrows it; all others are told.
  void fail(int me, std::exception_ptr& problem) {
    problem = std::current_exception();
    const std::lock_guard lock(failure_mutex_);
    failure_text_ = "heddle: " + describe(slot(me).call, members_) + on_communicator() + " failed on rank " +
                    std::to_string(world_rank(me)) + ": " + what_of(problem);
    failed_ = true;
  }

  void complete(std::int64_t number) {
    arrivals_.store(static_cast<std::uint64_t>(number + 1) << 16, std::memory_order_release);
    completed_.store(number, std::memory_order_release);
    bell_.notify();
  }

  struct collective_waiter {
    group_state& group;
    int me;
    std::int64_t number;
    const collective_work& work;
    std::exception_ptr& problem;

    bool ready() const { return group.completed_.load(std::memory_order_acquire) == number; }
    void help() const { group.help(me, number, work, problem); }
    bool withdraw() const {
      std::uint64_t seen = group.arrivals_.load(std::memory_order_acquire);
      do {
        if (static_cast<std::int64_t>(seen >> 16) != number || static_cast<int>(seen & arrived_mask) == group.size())
          return false;
      } while (!group.arrivals_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel));
      group.slot(me).number.store(number - 1, std::memory_order_release);
      return true;
    }
    // Who has finished is read first, who has come second, so that a rank that came and then finished is not blamed.
    int gone() const {
      for (int r = 0; r < group.size(); ++r)
        if (group.world_.finished(group.world_rank(r)) && group.slot(r).number.load(std::memory_order_acquire) < number)
          return group.world_rank(r);
      return -1;
    }
    std::string absent() const {
      std::string text;
      for (int r = 0; r < group.size(); ++r)
        if (group.slot(r).entered.load(std::memory_order_relaxed) < number)
          text += (text.empty() ? " for rank " : ", rank ") + std::to_string(group.world_rank(r));
      return text;
    }
    template <class F>
    void for_each_peer(const F&) const {}  // members end with an alarm of the group
  };

  void follow(int me, std::int64_t number, const collective_work& work, std::exception_ptr& problem) {
    wait_until(world_, world_rank(me), bell_, blocked(slot(me).call, number),
               collective_waiter{*this, me, number, work, problem});
  }

  struct message_waiter {
    group_state& group;
    message& m;

    bool ready() const { return m.state.load(std::memory_order_acquire) != message::posted; }
    void help() const {}
    bool withdraw() const { return group.cancel(m); }
    int gone() const {
      const int peer = group.world_rank(m.call.root);
      return group.world_.finished(peer) ? peer : -1;
    }
    std::string absent() const { return {}; }
    template <class F>
    void for_each_peer(const F& f) const {
      f(group.world_rank(m.call.root));
    }
  };

  world_state& world_;
  std::string label_;
  std::vector<int> members_;
  std::vector<member_slot> slots_;
  std::vector<mailbox> boxes_;
  bool failed_ = false;       // of the last collective; written before it completes, read before the next is led
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

inline std::shared_ptr<group_state> world_state::group(const std::string& label, const std::vector<int>& members,
                                                       bool keep) {
  const std::lock_guard lock(groups_mutex_);
  for (const named_group& g : groups_)  // no map: it would be compiled into every program
    if (g.members == members && g.label == label)
      if (auto existing = g.state.lock()) return existing;
  if (groups_.size() >= 2 * groups_after_purge_ + 16) {  // so many have come since that a look at all of them pays
    std::erase_if(groups_, [](const named_group& g) { return g.state.expired(); });
    groups_after_purge_ = groups_.size();
  }
  auto made = std::make_shared<group_state>(*this, label, members);
  groups_.push_back({label, members, made});
  if (keep) kept_.push_back(made);
  for (const int member : members) {
    rank_record& record = rank(member);
    const std::lock_guard record_lock(record.mutex);
    if (record.groups.size() == record.groups.capacity())
      std::erase_if(record.groups, [](const std::weak_ptr<group_state>& g) { return g.expired(); });
    record.groups.push_back(made);
  }
  return made;
}

inline void world_state::finish(int r) {
  rank_record& record = rank(r);
  std::vector<int> sleepers;
  std::vector<std::weak_ptr<group_state>> groups;
  record.finished.store(true, std::memory_order_release);
  any_finished_.store(true, std::memory_order_release);
  {
    const std::lock_guard lock(record.mutex);
    sleepers = record.message_waits;
    groups = record.groups;
  }
  for (const int sleeper : sleepers) rank(sleeper).bell.notify();
  for (const auto& group : groups)
    if (const auto live = group.lock()) live->alarm();
}

inline void world_state::alarm() {
  for (rank_record& record : ranks_) record.bell.notify();
  const std::lock_guard lock(groups_mutex_);
  for (const named_group& group : groups_)
    if (const auto live = group.state.lock()) live->alarm();
}

}  // namespace heddle::inline v0::detail
