// heddle/comm/impl/threads/group_state.hpp: bodies of heddle/comm/threads/group_state.hpp.
#pragma once

#include <heddle/comm/threads/group_state.hpp>
#include <heddle/comm/flight_recorder.hpp>
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
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

struct alignas(64) group_state::mailbox {
  std::mutex mutex;
  std::vector<message*> sends;  // in the order they were posted
  std::vector<message*> recvs;
};

HEDDLE_INLINE group_state::group_state(world_state& world, std::string label, std::vector<int> members)
    : world_(world),
      label_(std::move(label)),
      members_(std::move(members)),
      slots_(members_.size()),
      boxes_(members_.size()) {}
HEDDLE_INLINE group_state::~group_state() = default;

HEDDLE_INLINE std::string group_state::on_communicator() const {
  return " on communicator (" + label_ + ")";
}

HEDDLE_INLINE rank_record::blocked group_state::blocked(const call_info& call, std::int64_t number) const {
  return {call, number, &members_, &label_, {}};
}

HEDDLE_INLINE void group_state::count(comm_counters& counters, comm_operation what, std::int64_t bytes) {
  counters[what].calls += 1;
  counters[what].bytes += bytes;
}

HEDDLE_INLINE std::int64_t group_state::bytes() const {
  std::int64_t sum = 0;
  for (const member_slot& s : slots_)
    sum += (std::max)(s.in_count, s.out_count) * static_cast<std::int64_t>(s.call.element_size);
  return sum;
}

HEDDLE_INLINE void group_state::help(int me, std::int64_t number, const collective_work& work,
                                     std::exception_ptr& problem) {
  if (open_.load(std::memory_order_acquire) != number) return;
  for (;;) {
    const std::int64_t chunk = take_chunk(me, work.chunks);
    if (chunk < 0) return;
    run_chunk(me, chunk, work, problem);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == work.chunks) complete(number);
  }
}

HEDDLE_INLINE std::int64_t group_state::take_chunk(int me, std::int64_t chunks) {
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

HEDDLE_INLINE void group_state::run_chunk(int me, std::int64_t chunk, const collective_work& work,
                                          std::exception_ptr& problem) {
  try {
    slot(me).counters.bytes_moved += work.run(work.context, chunk);
  } catch (...) {
    fail(me, problem);
  }
}

HEDDLE_INLINE void group_state::complete(std::int64_t number) {
  arrivals_.store(static_cast<std::uint64_t>(number + 1) << 16, std::memory_order_release);
  completed_.store(number, std::memory_order_seq_cst);
  bell_.notify_sleepers();
}

class group_state::collective_waiter final : public waiter {
 public:
  collective_waiter(group_state& of, int rank, std::int64_t n, const collective_work& w, std::exception_ptr& p)
      : group_(of), me_(rank), number_(n), work_(w), problem_(p) {}
  bool ready() const override { return group_.completed_.load(std::memory_order_seq_cst) == number_; }
  void help() const override { group_.help(me_, number_, work_, problem_); }
  bool withdraw() const override {
    std::uint64_t seen = group_.arrivals_.load(std::memory_order_acquire);
    do {
      if (static_cast<std::int64_t>(seen >> 16) != number_ || static_cast<int>(seen & arrived_mask) == group_.size())
        return false;
    } while (!group_.arrivals_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel));
    group_.slot(me_).number.store(number_ - 1, std::memory_order_release);
    return true;
  }
  // Who has finished is read first, who has come second, so that a rank that came and then finished is not blamed.
  int gone() const override {
    for (int r = 0; r < group_.size(); ++r)
      if (group_.world_.finished(group_.world_rank(r)) &&
          group_.slot(r).number.load(std::memory_order_acquire) < number_)
        return group_.world_rank(r);
    return -1;
  }
  std::string absent() const override {
    std::string text;
    for (int r = 0; r < group_.size(); ++r)
      if (group_.slot(r).entered.load(std::memory_order_relaxed) < number_)
        text += (text.empty() ? " for rank " : ", rank ") + std::to_string(group_.world_rank(r));
    return text;
  }
  // Members end with an alarm of the group: there are no peers.

 private:
  group_state& group_;
  int me_;
  std::int64_t number_;
  const collective_work& work_;
  std::exception_ptr& problem_;
};

HEDDLE_INLINE void group_state::follow(int me, std::int64_t number, const collective_work& work,
                                       std::exception_ptr& problem) {
  wait_until(world_, world_rank(me), bell_, blocked(slot(me).call, number),
             collective_waiter(*this, me, number, work, problem));
}

class group_state::message_waiter final : public waiter {
 public:
  message_waiter(group_state& of, message& awaited) : group_(of), m_(awaited) {}
  bool ready() const override { return m_.state.load(std::memory_order_acquire) != message::posted; }
  bool withdraw() const override { return group_.cancel(m_); }
  int gone() const override {
    const int peer = group_.world_rank(m_.call.root);
    return group_.world_.finished(peer) ? peer : -1;
  }
  int peer(std::size_t i) const override { return i == 0 ? group_.world_rank(m_.call.root) : -1; }

 private:
  group_state& group_;
  message& m_;
};

HEDDLE_INLINE void group_state::cancel_or_finish(message& m) {
  if (m.state.load(std::memory_order_acquire) != message::posted || cancel(m)) return;
  while (m.state.load(std::memory_order_acquire) == message::posted) std::this_thread::yield();  // a copy is under way
}

HEDDLE_INLINE void group_state::collective(int me, const collective_work& work) {
  member_slot& mine = slot(me);
  enter(me, mine.call);
  count(mine.counters, mine.call.what, static_cast<std::int64_t>(mine.call.element_size) * mine.in_count);
  flight_recorder* const flight = world_.rank(world_rank(me)).flight;
  const flight_scope shown(flight, mine.flight_group, label_, members_, mine.call,
                           flight == nullptr ? 0 : mine.counters.collectives());
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

HEDDLE_INLINE std::shared_ptr<started_collective> group_state::start(int me, const call_info& call, const void* in,
                                                                     void* out, std::int64_t bytes,
                                                                     std::int64_t chunks) {
  enter(me, call);
  member_slot& mine = slot(me);
  count(mine.counters, call.what, bytes);
  // It is entered, and left: the rank is inside of it when it waits.
  std::int64_t flight_number = 0;
  if (flight_recorder* const flight = world_.rank(world_rank(me)).flight; flight != nullptr) {
    flight_number = mine.counters.collectives();
    const flight_scope shown(flight, mine.flight_group, label_, members_, call, flight_number);
  }
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
  m.flight_number = flight_number;
  m.here.store(true, std::memory_order_release);
  if (++started->arrived < size()) return started;
  std::erase(started_, started);
  if (started->state.load(std::memory_order_relaxed) == started_collective::broken) return started;
  if (world_.options().check != checking::off) started->failure = disagreement(*started);
  if (started->failure.empty())
    started->state.store(chunks > 0 ? started_collective::open : started_collective::done, std::memory_order_release);
  else
    started->state.store(started_collective::failed, std::memory_order_release);
  bell_.notify();
  return started;
}

HEDDLE_INLINE bool group_state::break_started(int me, started_collective& call) {
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

HEDDLE_INLINE void group_state::complete_started(started_collective& call) {
  {
    const std::lock_guard lock(started_mutex_);
    call.state.store(call.failure.empty() ? started_collective::done : started_collective::failed,
                     std::memory_order_release);
  }
  bell_.notify();
}

HEDDLE_INLINE void group_state::post(int me, int peer, message& m) {
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

  const bool agree = other->bytes == m.bytes && other->move == m.move &&
                     (world_.options().check == checking::off ||
                      (other->call.count == m.call.count && other->call.element == m.call.element));
  m.other = other->call;
  std::exception_ptr problem;
  if (agree && m.move != nullptr) {
    try {
      m.move(sends ? m : *other, sends ? *other : m);
    } catch (...) {
      problem = std::current_exception();
      other->failure = std::make_exception_ptr(comm_error("heddle: " + describe(m.call, members_) + on_communicator() +
                                                          " failed on rank " + std::to_string(world_rank(me)) + ": " +
                                                          what_of(problem)));
    }
  } else if (agree) {
    if (m.bytes != 0) std::memcpy(sends ? other->to : m.to, sends ? m.from : other->from, m.bytes);
  } else {
    other->other = m.call;
  }
  const std::uint32_t state = !agree ? message::mismatch : problem != nullptr ? message::failed : message::done;
  wait_word& bell = world_.rank(world_rank(other->owner)).bell;
  other->state.store(state, std::memory_order_release);  // `other` may be gone from here on
  bell.notify();
  m.state.store(state, std::memory_order_relaxed);
  if (!agree) throw_mismatch(m);
  if (problem != nullptr) std::rethrow_exception(problem);
}

HEDDLE_INLINE bool group_state::cancel(message& m) {
  mailbox& box = boxes_[static_cast<std::size_t>(m.receiver())];
  const std::lock_guard lock(box.mutex);
  std::vector<message*>& mine = m.call.what == comm_operation::send ? box.sends : box.recvs;
  const auto found = std::find(mine.begin(), mine.end(), &m);
  if (found == mine.end()) return false;
  mine.erase(found);
  return true;
}

HEDDLE_INLINE void group_state::throw_mismatch(const message& m) const {
  throw comm_error("heddle: rank " + std::to_string(world_rank(m.owner)) + " and rank " +
                   std::to_string(world_rank(m.call.root)) + " disagree about a message" + on_communicator() +
                   ": rank " + std::to_string(world_rank(m.owner)) + " entered " + describe(m.call, members_) +
                   "; rank " + std::to_string(world_rank(m.call.root)) + " entered " + describe(m.other, members_));
}

HEDDLE_INLINE bool group_state::agree() noexcept {
  const member_slot& zero = slot(0);
  for (int r = 1; r < size(); ++r)
    if (const member_slot& other = slot(r); !same_call(other.call, zero.call) || other.started != zero.started)
      return false;
  return true;
}

HEDDLE_INLINE std::string group_state::disagreement(std::int64_t number) {
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

HEDDLE_INLINE std::string group_state::disagreement(started_collective& started) {
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

HEDDLE_INLINE std::string group_state::out_of_order(int r, const std::string& call, std::int64_t theirs,
                                                    std::int64_t zero, const char* kind) const {
  return "heddle: ranks disagree about the order of calls" + on_communicator() + ": rank " +
         std::to_string(world_rank(r)) + " entered " + call + " after " + std::to_string(theirs) + " " + kind +
         " calls; rank " + std::to_string(world_rank(0)) + " after " + std::to_string(zero);
}

HEDDLE_INLINE void group_state::lead(int me, std::int64_t number, const collective_work& work,
                                     std::exception_ptr& problem) {
  if (failed_) failed_ = false;
  try {
    if (world_.options().check != checking::off) {
      std::string fault;
      if (!agree()) {
        fault = disagreement(number);
      } else if (work.check != nullptr) {
        fault = work.check(work.context);
        if (!fault.empty())
          fault = "heddle: call " + std::to_string(number) + on_communicator() + ", " +
                  describe(slot(me).call, members_) + ": " + fault;
      }
      if (!fault.empty()) {
        failure_text_ = std::move(fault);
        failed_ = true;
      }
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

HEDDLE_INLINE void group_state::fail(int me, std::exception_ptr& problem) {
  problem = std::current_exception();
  const std::lock_guard lock(failure_mutex_);
  failure_text_ = "heddle: " + describe(slot(me).call, members_) + on_communicator() + " failed on rank " +
                  std::to_string(world_rank(me)) + ": " + what_of(problem);
  failed_ = true;
}

HEDDLE_INLINE std::shared_ptr<group_state> world_state::group(const std::string& label, const std::vector<int>& members,
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

HEDDLE_INLINE void world_state::finish(int r) {
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

HEDDLE_INLINE void world_state::alarm() {
  for (rank_record& record : ranks_) record.bell.notify();
  const std::lock_guard lock(groups_mutex_);
  for (const named_group& group : groups_)
    if (const auto live = group.state.lock()) live->alarm();
}

HEDDLE_INLINE void group_state::fail_started(int me, started_collective& call, const std::exception_ptr& problem) {
  const std::lock_guard lock(started_mutex_);
  call.failure = "heddle: " + where(call[me].call, call.number) + " failed on rank " + std::to_string(world_rank(me)) +
                 ": " + what_of(problem);
}

HEDDLE_INLINE std::string group_state::where(const call_info& call, std::int64_t number) const {
  return describe(call, members_) + ", call " + std::to_string(number) + on_communicator();
}

HEDDLE_INLINE void group_state::wait(message& m) {
  const int my_rank = world_rank(m.owner);
  const flight_scope shown(world_.rank(my_rank).flight, slot(m.owner).flight_group, label_, members_, m.call, 0);
  wait_until(world_, my_rank, world_.rank(my_rank).bell, blocked(m.call, 0), message_waiter(*this, m));
  const std::uint32_t state = m.state.load(std::memory_order_relaxed);
  if (state == message::mismatch) throw_mismatch(m);
  if (state == message::failed) std::rethrow_exception(m.failure);
}

HEDDLE_INLINE void group_state::throw_if_aborted(const message& m) {
  if (world_.aborted()) world_.throw_aborted(world_rank(m.owner), describe(m.call, members_) + on_communicator());
}

HEDDLE_INLINE void group_state::enter(int me, const call_info& call) {
  world_.throw_late_error(world_rank(me));
  if (world_.aborted()) world_.throw_aborted(world_rank(me), describe(call, members_) + on_communicator());
}

HEDDLE_INLINE std::shared_ptr<world_state> make_world_state(int size, const launch_options& options) {
  return std::make_shared<world_state>(size, options);
}

}  // namespace heddle::inline v0::detail
