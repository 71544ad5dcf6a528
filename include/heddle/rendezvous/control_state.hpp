// heddle/rendezvous/control_state.hpp: host messages of a group over a rendezvous.
#pragma once

#include <heddle/comm/call_info.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/options.hpp>
#include <heddle/core/ownership.hpp>
#include <heddle/rendezvous/rendezvous.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

using message_bytes = std::vector<std::byte>;

// Of one group of one rank: used by that rank's thread only.
class control_state {
 public:
  control_state(std::shared_ptr<rendezvous> meeting, std::string label, std::vector<int> members, int index,
                const launch_options& options)
      : meeting_(std::move(meeting)),
        label_(std::move(label)),
        members_(std::move(members)),
        index_(index),
        options_(options),
        prefix_("control/" + label_) {
    options_.timeout = countable(options.timeout);
    for (const int m : members_) prefix_ += '/' + std::to_string(m);
    prefix_ += '#';
  }

  int rank() const noexcept { return index_; }
  int size() const noexcept { return static_cast<int>(members_.size()); }
  const std::string& label() const noexcept { return label_; }
  const std::vector<int>& members() const noexcept { return members_; }
  int world_rank(int r) const { return members_[static_cast<std::size_t>(r)]; }
  bool checked() const noexcept { return options_.check != checking::off; }
  const launch_options& options() const noexcept { return options_; }
  const std::shared_ptr<rendezvous>& meeting() const noexcept { return meeting_; }
  comm_counters& counters() noexcept { return counters_; }

  // What every call begins with.
  void begin(comm_operation what, std::size_t bytes) {
    if (late_ != nullptr) std::rethrow_exception(std::exchange(late_, nullptr));
    counters_[what].calls += 1;
    counters_[what].bytes += static_cast<std::int64_t>(bytes);
  }
  void late(std::exception_ptr problem) noexcept {
    if (late_ == nullptr) late_ = std::move(problem);
  }
  std::int64_t next_call() noexcept { return ++calls_; }
  std::int64_t next_started() noexcept { return ++started_; }
  std::int64_t calls() const noexcept { return calls_; }
  std::int64_t next_split() noexcept { return splits_++; }
  // The k-th message of a tag belongs to the k-th receive of that tag.
  std::string next_message(bool sends, int peer, int tag) {
    return "m" + std::to_string(tag) + '.' + std::to_string(messages_[{sends, peer, tag}]++);
  }

  // "all_reduce of 8 float with plus, call 3 on communicator (control)"
  std::string where(const call_info& call, std::int64_t number) const {
    std::string text = describe(call, members_);
    if (number > 0) text += ", call " + std::to_string(number);
    return text + " on communicator (" + label_ + ")";
  }

  void give(const std::string& key, int to, std::span<const std::byte> bytes) {
    meeting_->give(prefix_ + key, world_rank(to), bytes);
    counters_.bytes_moved += static_cast<std::int64_t>(bytes.size());
  }
  // False if it does not come within `patience`.
  bool try_take(const std::string& key, int from, message_bytes& bytes, std::chrono::milliseconds patience,
                const call_info& call, std::int64_t number) {
    try {
      return meeting_->take(prefix_ + key, world_rank(from), bytes, patience);
    } catch (const aborted_error& e) {
      throw aborted_error("heddle: rank " + std::to_string(world_rank(index_)) + " stopped in " + where(call, number) +
                          "; another rank failed first: " + e.what());
    }
  }
  message_bytes take(const std::string& key, int from, const call_info& call, std::int64_t number) {
    message_bytes bytes;
    const deadline until(options_.timeout);
    while (!try_take(key, from, bytes, slice, call, number))
      if (until.passed()) give_up(call, number, std::to_string(world_rank(from)));
    return bytes;
  }
  [[noreturn]] void give_up(const call_info& call, std::int64_t number, const std::string& ranks) const {
    throw comm_error("heddle: rank " + std::to_string(world_rank(index_)) + " has waited " +
                     std::to_string(options_.timeout.count()) + " ms in " + where(call, number) + " for rank " + ranks);
  }
  static constexpr std::chrono::milliseconds slice{100};

  // What goes ahead of a rank's part of a collective where calls are checked: its call in words, and its counts.
  message_bytes framed(const call_info& call, std::span<const std::byte> part) const {
    const std::string head =
        checked() ? describe(call, members_) + '#' + std::to_string(call.counts_hash) : std::string();
    const auto length = static_cast<std::uint32_t>(head.size());
    message_bytes all(sizeof length + head.size() + part.size());
    std::memcpy(all.data(), &length, sizeof length);
    if (!head.empty()) std::memcpy(all.data() + sizeof length, head.data(), head.size());
    if (!part.empty()) std::memcpy(all.data() + sizeof length + head.size(), part.data(), part.size());
    return all;
  }
  // Takes the head off. What is wrong, or nothing.
  std::string unframe(message_bytes& all, int from, const call_info& mine, std::int64_t number) const {
    std::uint32_t length = 0;
    std::memcpy(&length, all.data(), sizeof length);
    const std::string theirs(reinterpret_cast<const char*>(all.data()) + sizeof length, length);
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(sizeof length + length));
    if (!checked()) return {};
    const std::string own = describe(mine, members_), expected = own + '#' + std::to_string(mine.counts_hash);
    if (theirs == expected) return {};
    const std::string other = theirs.substr(0, theirs.rfind('#'));
    return "heddle: ranks disagree about call " + std::to_string(number) + " on communicator (" + label_ + "): rank " +
           std::to_string(world_rank(from)) + " entered " + other + "; rank " + std::to_string(world_rank(index_)) +
           " entered " + own + (other == own ? " with other counts per rank" : "");
  }

  // A collective: each rank's part goes to rank 0, which makes each rank's answer of all of them. `answer(parts, r)`; with
  // `Same` all ranks have the same.
  template <bool Same, class Answer>
  message_bytes meet(const call_info& call, std::span<const std::byte> mine, const Answer& answer) {
    begin(call.what, mine.size());
    const std::int64_t number = next_call();
    const std::string key = "c" + std::to_string(number);
    std::vector<message_bytes> parts(members_.size());
    if (index_ != 0) {
      give(key, 0, framed(call, mine));
      message_bytes reply = take(key, 0, call, number);
      const bool fine = !reply.empty() && reply.front() == std::byte{0};
      reply.erase(reply.begin());
      if (!fine) throw comm_error(std::string(reinterpret_cast<const char*>(reply.data()), reply.size()));
      return reply;
    }
    parts[0].assign(mine.begin(), mine.end());
    std::string wrong;
    for (int r = 1; r < size(); ++r) {
      message_bytes& part = parts[static_cast<std::size_t>(r)];
      part = take(key, r, call, number);
      const std::string problem = unframe(part, r, call, number);
      if (wrong.empty()) wrong = problem;
    }
    std::exception_ptr own;
    std::vector<message_bytes> answers(Same ? 1 : members_.size());
    try {
      if (wrong.empty())
        for (std::size_t r = 0; r < answers.size(); ++r) answers[r] = answer(parts, static_cast<int>(r));
    } catch (...) {
      own = std::current_exception();
      wrong =
          "heddle: " + where(call, number) + " failed on rank " + std::to_string(world_rank(0)) + ": " + what_of(own);
    }
    for (int r = 1; r < size(); ++r) {
      const auto reply = wrong.empty() ? std::span<const std::byte>(answers[Same ? 0 : static_cast<std::size_t>(r)])
                                       : std::as_bytes(std::span(wrong));
      message_bytes whole(1 + reply.size(), std::byte{static_cast<unsigned char>(wrong.empty() ? 0 : 1)});
      std::copy(reply.begin(), reply.end(), whole.begin() + 1);
      give(key, r, whole);
    }
    if (own != nullptr) std::rethrow_exception(own);
    if (!wrong.empty()) throw comm_error(wrong);
    return std::move(answers[0]);
  }

 private:
  std::shared_ptr<rendezvous> meeting_;
  std::string label_;
  std::vector<int> members_;
  int index_;
  launch_options options_;
  std::string prefix_;
  comm_counters counters_;
  std::int64_t calls_ = 0, started_ = 0, splits_ = 0;
  std::map<std::tuple<bool, int, int>, std::int64_t> messages_;  // sends, other side, tag
  std::exception_ptr late_;
};

// What a started call of a rank still waits for: messages of other ranks, and what is done when all have come.
struct control_work {
  call_info call;
  std::int64_t number = 0;
  struct expected {
    std::string key;
    int from = 0;
    bool here = false;
    message_bytes bytes{};
  };
  std::vector<expected> parts;
  std::shared_ptr<void> context;
  void (*finish)(void* context, control_work& work) = nullptr;
};

}  // namespace heddle::inline v0::detail

namespace heddle::inline v0 {

/// A started message or collective of a `rendezvous_control`. Its buffers belong to it until `wait` has returned or `test`
/// has said true. Destroying one that has not been waited for waits for it; an error met there is thrown by the
/// communicator's next call. While an exception unwinds the stack it is left.
class [[nodiscard("heddle: what was started must be waited for")]] control_request final {
 public:
  control_request() = default;
  control_request(std::shared_ptr<detail::control_state> state, std::unique_ptr<detail::control_work> work)
      : state_(std::move(state)), work_(std::move(work)), exceptions_(std::uncaught_exceptions()) {}
  control_request(control_request&&) noexcept = default;
  control_request& operator=(control_request&& other) noexcept { return move_assign(*this, std::move(other)); }
  ~control_request() { end(); }

  /// Returns when it is done; at once for an empty request, which it is afterwards in any case. Errors: as the blocking call.
  void wait() {
    if (work_ == nullptr) return;
    const auto work = std::move(work_);
    const detail::deadline until(state_->options().timeout);
    for (;;) {
      std::string missing;
      if (collect(*work, detail::control_state::slice, missing)) break;
      if (until.passed()) state_->give_up(work->call, work->number, missing);
    }
    finish(*work);
  }
  /// Whether it is done; never waits. Errors: as `wait`, but knows no timeout.
  bool test() {
    if (work_ == nullptr) return true;
    std::string missing;
    bool all = false;
    try {
      all = collect(*work_, std::chrono::milliseconds(0), missing);
    } catch (...) {
      work_.reset();
      throw;
    }
    if (!all) return false;
    const auto work = std::move(work_);
    finish(*work);
    return true;
  }

 private:
  bool collect(detail::control_work& work, std::chrono::milliseconds patience, std::string& missing) {
    for (auto& part : work.parts) {
      if (part.here) continue;
      part.here = state_->try_take(part.key, part.from, part.bytes, patience, work.call, work.number);
      if (!part.here) {
        missing = std::to_string(state_->world_rank(part.from));
        return false;
      }
    }
    return true;
  }
  void finish(detail::control_work& work) {
    if (!detail::is_message(work.call.what))
      for (auto& part : work.parts)
        if (const std::string wrong = state_->unframe(part.bytes, part.from, work.call, work.number); !wrong.empty())
          throw comm_error(wrong);
    work.finish(work.context.get(), work);
  }
  void end() noexcept {
    if (work_ == nullptr) return;
    if (std::uncaught_exceptions() > exceptions_) {
      work_.reset();
      return;
    }
    try {
      wait();
    } catch (...) {
      state_->late(std::current_exception());
    }
  }

  std::shared_ptr<detail::control_state> state_;
  std::unique_ptr<detail::control_work> work_;
  int exceptions_ = 0;
};

}  // namespace heddle::inline v0
