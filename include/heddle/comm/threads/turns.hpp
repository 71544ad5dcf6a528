// heddle/comm/threads/turns.hpp: turns of ranks that are threads: one of them runs at a time.
#pragma once

#include <heddle/core/config.hpp>

#include <condition_variable>
#include <mutex>

namespace heddle::inline v0::detail {

// Turns that ranks of one world take: whoever has the turn runs, the others wait for it. A rank that waits for another in a call of the
// world gives its turn away meanwhile (`poll_and_sleep`). The first rank opens and closes the work that is done by turns.
class rank_turns {
 public:
  rank_turns() = default;
  rank_turns(const rank_turns&) = delete;
  rank_turns& operator=(const rank_turns&) = delete;

  void take() { mutex_.lock(); }
  void give() noexcept { mutex_.unlock(); }

  // With the turn.
  void open() noexcept { closed_ = false; }
  void close() noexcept {
    closed_ = true;
    changed_.notify_all();
  }
  // With the turn, which others have meanwhile.
  void wait_until_closed() noexcept {
    std::unique_lock lock(mutex_, std::adopt_lock);
    changed_.wait(lock, [this] { return closed_; });
    lock.release();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = true;
};

// The turn is somebody else's in a scope.
class turn_given_away {
 public:
  explicit turn_given_away(rank_turns* turns) noexcept : turns_(turns) {
    if (turns_ != nullptr) turns_->give();
  }
  turn_given_away(const turn_given_away&) = delete;
  turn_given_away& operator=(const turn_given_away&) = delete;
  ~turn_given_away() {
    if (turns_ != nullptr) turns_->take();
  }

 private:
  rank_turns* turns_;
};

}  // namespace heddle::inline v0::detail
