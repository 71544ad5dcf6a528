// heddle/compute/in_turns.hpp: host backends that share cores and multiply one at a time.
#pragma once

#include <heddle/compute/op.hpp>
#include <heddle/compute/ops/products.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <chrono>
#include <concepts>
#include <condition_variable>
#include <mutex>
#include <type_traits>

namespace heddle::inline v0::compute {

/// Turns among those who share cores. Who had the last turn gets the next where it asks again within `patience`: layers of one batch then
/// follow each other until it waits for messages, in place of all batches waiting for messages at the same time.
class turns {
 public:
  using clock = std::chrono::steady_clock;
  explicit turns(clock::duration patience = std::chrono::microseconds(100)) : patience_(patience) {}

  /// Until `give`, nobody else has a turn.
  void take(const void* who) {
    std::unique_lock lock(mutex_);
    while (busy_ || (who != last_ && clock::now() < free_at_)) {
      if (busy_) {
        given_.wait(lock);
      } else {
        const clock::time_point until = free_at_;
        given_.wait_until(lock, until);
      }
    }
    busy_ = true;
    last_ = who;
  }
  void give() {
    const std::lock_guard lock(mutex_);
    busy_ = false;
    free_at_ = clock::now() + patience_;
    given_.notify_all();
  }
  /// The next turn is for `who`, if it takes it within so long.
  void keep_for(const void* who, clock::duration time = std::chrono::milliseconds(1)) {
    const std::lock_guard lock(mutex_);
    last_ = who;
    free_at_ = clock::now() + time;
    given_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable given_;
  clock::duration patience_;
  const void* last_ = nullptr;
  clock::time_point free_at_{};
  bool busy_ = false;
};

/// `Backend`, a host's, whose matrix products wait for a turn: backends that were given the same `turns` multiply one at a time, while others
/// attend, norm or wait for messages. All else is as it is, and results have its bits. Without turns it never waits.
template <class Backend>
  requires std::same_as<space_of<Backend>, host_memory>
class in_turns : public Backend {
  template <class Op, class T>
  static constexpr bool waits() {
    if constexpr (std::is_base_of_v<ops::product_operation, Op> ||
                  std::is_base_of_v<ops::grouped_product_operation, Op>)
      return offered<Op, Backend, T>;
    else
      return false;
  }

 public:
  using Backend::Backend;
  using turns_type = turns;

  /// From now on products wait for these turns, which must outlive the backend or the next call; none: they do not wait.
  void take_turns(turns* among) noexcept { turns_ = among; }
  /// The next turn is this backend's, if it soon takes it.
  void expect_turn() {
    if (turns_ != nullptr) turns_->keep_for(this);
  }

  template <class Op, class T, class... V>
    requires(waits<Op, T>() || detail::has_run<Backend, Op, T, V...>)
  void run(const V&... v) {
    if constexpr (waits<Op, T>()) {
      const turn mine(turns_, this);
      compute::run<Op>(static_cast<Backend&>(*this), v...);
    } else {
      Backend::template run<Op, T>(v...);
    }
  }

 private:
  struct turn {
    turn(turns* among, const void* who) : among_(among) {
      if (among_ != nullptr) among_->take(who);
    }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn() {
      if (among_ != nullptr) among_->give();
    }
    turns* among_;
  };
  turns* turns_ = nullptr;
};

}  // namespace heddle::inline v0::compute
