// heddle/infer/serve/answer_channel.hpp: events of a call, from engine to caller.
#pragma once

#include <heddle/infer/event.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// An event of one of the requests of a call. `choice`: index of the request among them.
struct choice_event {
  std::size_t choice = 0;
  event what{};
};

/// Events of the requests of one call, in order. One thread puts, another takes. It holds at most the tokens that the call asked for.
class answer_channel {
 public:
  void put(choice_event e) {
    {
      const std::scoped_lock lock(mutex_);
      events_.push_back(std::move(e));
    }
    came_.notify_one();
  }
  /// Replaces `to` with what came, after waiting for it at most `most`. False if nothing came.
  bool take(std::vector<choice_event>& to, std::chrono::milliseconds most) {
    to.clear();
    std::unique_lock lock(mutex_);
    if (!came_.wait_for(lock, most, [&] { return !events_.empty(); })) return false;
    std::swap(to, events_);
    return true;
  }

 private:
  std::mutex mutex_{};
  std::condition_variable came_{};
  std::vector<choice_event> events_{};
};

}  // namespace heddle::inline v0::infer
