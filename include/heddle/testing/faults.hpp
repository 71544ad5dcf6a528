// heddle/testing/faults.hpp: an observer that skips, doubles, delays, fails or kills calls.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::testing {

/// What happens to which of the events that `observed` reports. A fault strikes at each event that fits all of its conditions.
struct fault {
  enum effect : unsigned char {
    slow,   ///< takes `stretch` times its time, and `delay` more
    skip,   ///< a collective is left out on this rank
    twice,  ///< a collective is called twice
    raise,  ///< `std::runtime_error` in its place
    kill    ///< the process ends as by SIGKILL
  };
  static constexpr int every = -1;

  int rank = every;
  std::optional<activity> kind{};
  std::string_view name{};                          ///< of the event; empty: any
  std::int64_t at = -1;                             ///< the how manieth on its rank that fits, from 0; -1: all
  int from_step = -1;                               ///< first step; -1: also what belongs to no step
  int to_step = (std::numeric_limits<int>::max)();  ///< one behind the last step
  double stretch = 1;
  std::chrono::nanoseconds delay{0};
  effect what = slow;
};

/// An observer for drills: it runs what is observed, with faults where they were asked for. It shows what a program does when a
/// rank is slow, leaves out a call, or dies, without a hook in any transport. `hd::testing::faults drill{{.rank = 3, .stretch = 1.1}};
/// hd::observers watch(times, drill);`. Threads of several ranks may share one.
/// Errors: `config_error` for a stretch below 1, a negative delay, and when `skip` or `twice` meets what is no collective, or one that is
/// only started, as the gathering of weights by `zero<3>`: what is left out would leave its memory undefined.
class faults {
 public:
  using kind = observer_kind;
  static constexpr bool enabled = true;

  faults(std::initializer_list<fault> all) : all_(all) {
    for (const fault& f : all_) {
      if (!(f.stretch >= 1)) refuse("stretch should be at least 1, got " + std::to_string(f.stretch));
      if (f.delay.count() < 0) refuse("delay should not be negative, got " + std::to_string(f.delay.count()) + " ns");
      if (only_collectives(f) && f.kind.value_or(activity::collective) != activity::collective) refuse_kind(f);
    }
  }

  void record(const event&) const noexcept {}

  template <class Work>
  decltype(auto) around(const event& e, Work&& work) {
    double stretch = 1;
    std::chrono::nanoseconds delay{0};
    bool twice = false, skip = false;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      const fault& f = all_[i];
      if (!strikes(i, e)) continue;
      if (only_collectives(f) && (e.kind != activity::collective || std::string_view(e.name).starts_with("wait for ")))
        refuse_kind(f);
      switch (f.what) {
        case fault::slow:
          stretch *= f.stretch;
          delay += f.delay;
          break;
        case fault::skip:
          skip = true;
          break;
        case fault::twice:
          twice = true;
          break;
        case fault::raise:
          throw std::runtime_error("heddle: testing::faults: " + std::string(e.name) + " fails on rank " +
                                   std::to_string(e.rank));
        case fault::kill:
          std::raise(SIGKILL);
      }
    }
    using result = decltype(std::forward<Work>(work)());
    if constexpr (std::is_void_v<result>) {
      if (skip) return;
      if (twice) work();
    } else if (skip || twice) {
      refuse("skip and twice are for calls that are complete when they return; " + std::string(e.name) +
             " has a result, or is only started there");
    }
    const slowed until_then{now_ns(), stretch, delay};
    return std::forward<Work>(work)();
  }

  /// Faults that struck, on all ranks.
  std::int64_t struck() const {
    const std::lock_guard lock(mutex_);
    return struck_;
  }

 private:
  // At the end of the work: the time that is to be added.
  struct slowed {
    std::int64_t begin;
    double stretch;
    std::chrono::nanoseconds delay;
    ~slowed() {
      if (stretch <= 1 && delay.count() == 0) return;
      const auto took = static_cast<double>(now_ns() - begin);
      std::this_thread::sleep_for(delay + std::chrono::nanoseconds(static_cast<std::int64_t>(took * (stretch - 1))));
    }
  };
  static bool only_collectives(const fault& f) noexcept { return f.what == fault::skip || f.what == fault::twice; }
  [[noreturn]] static void refuse(const std::string& what) { throw config_error("heddle: testing::faults: " + what); }
  [[noreturn]] static void refuse_kind(const fault& f) {
    refuse(std::string(f.what == fault::skip ? "skip" : "twice") +
           " is for collectives; a wait or a message that is left out leaves its memory undefined");
  }

  bool strikes(std::size_t i, const event& e) {
    const fault& f = all_[i];
    if ((f.rank != fault::every && f.rank != e.rank) || f.kind.value_or(e.kind) != e.kind) return false;
    if ((!f.name.empty() && f.name != e.name) || e.step < f.from_step || e.step >= f.to_step) return false;
    const std::lock_guard lock(mutex_);
    const bool now = f.at < 0 || seen_[{i, e.rank}]++ == f.at;
    struck_ += now ? 1 : 0;
    return now;
  }

  std::vector<fault> all_;
  mutable std::mutex mutex_;
  std::map<std::pair<std::size_t, int>, std::int64_t> seen_;  // of fault and rank: events that fit
  std::int64_t struck_ = 0;
};

static_assert(observer<faults>);

}  // namespace heddle::inline v0::testing
