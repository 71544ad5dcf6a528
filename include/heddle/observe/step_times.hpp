// heddle/observe/step_times.hpp: an observer of compute and communication times of steps.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace heddle::inline v0::observe {

/// What a rank did in one step. Units: nanoseconds, bytes.
struct step_time {
  std::int64_t step = -1;
  std::int64_t compute_ns = 0;        ///< forward, backward and optimizer, without the communication inside of them
  std::int64_t communication_ns = 0;  ///< collectives, sends, receives
  std::int64_t bytes = 0;             ///< that its communication named
  std::int64_t longest_ns = 0;        ///< the longest event
};

/// An observer of constant memory that may stay on in long runs: of each rank the times of its last `window` steps. What an event
/// encloses counts as the enclosed event's, so that a collective inside of a forward is communication. `record` may be called by all
/// ranks at once, by one thread per rank; `last` by that thread, or when the ranks have finished. Events without a step are passed over.
/// For times of a device, give it the events of `cuda_device_times`: the host's times of queued calls say nothing.
/// Errors: `config_error` for no ranks or a window below 2.
class step_times {
 public:
  using kind = observer_kind;
  static constexpr bool enabled = true;

  explicit step_times(int ranks, int window = 64) : window_(window) {
    if (ranks <= 0)
      throw config_error("heddle: observe::step_times needs at least one rank, got " + std::to_string(ranks));
    if (window < 2)
      throw config_error("heddle: observe::step_times needs a window of at least 2 steps, got " +
                         std::to_string(window));
    lanes_.reserve(static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r) lanes_.push_back(std::make_unique<lane>(static_cast<std::size_t>(window)));
  }

  void record(const event& e) noexcept {
    if (e.rank < 0 || e.rank >= ranks() || e.step < 0) return;
    lane& mine = *lanes_[static_cast<std::size_t>(e.rank)];
    if (e.step != mine.steps[mine.now].step) mine.begin(e.step);
    const std::int64_t took = e.end_ns - e.begin_ns, own = took - mine.inside(e.begin_ns);
    mine.close(e.begin_ns, took);
    step_time& to = mine.steps[mine.now];
    switch (e.kind) {
      case activity::forward:
      case activity::backward:
      case activity::backward_input:
      case activity::backward_weight:
      case activity::optimizer:
        to.compute_ns += own;
        break;
      case activity::send:
      case activity::recv:
      case activity::collective:
        to.communication_ns += own;
        if (e.bytes > 0) to.bytes += e.bytes;
        break;
      default:
        break;
    }
    to.longest_ns = (std::max)(to.longest_ns, took);
  }

  int ranks() const noexcept { return static_cast<int>(lanes_.size()); }
  /// How many steps are kept of each rank.
  int window() const noexcept { return window_; }
  /// The last steps of a rank, at most `window()`, the oldest first; the one under way is the last.
  /// Errors: `config_error` for a rank that does not exist.
  std::vector<step_time> last(int rank) const {
    if (rank < 0 || rank >= ranks())
      throw config_error("heddle: observe::step_times has ranks 0 to " + std::to_string(ranks() - 1) + ", not " +
                         std::to_string(rank));
    const lane& of = *lanes_[static_cast<std::size_t>(rank)];
    std::vector<step_time> all;
    for (std::size_t i = 1; i <= of.steps.size(); ++i)
      if (const step_time& t = of.steps[(of.now + i) % of.steps.size()]; t.step >= 0) all.push_back(t);
    return all;
  }

 private:
  struct span_of_time {
    std::int64_t begin, took;
  };
  struct alignas(64) lane {
    explicit lane(std::size_t window) : steps(window) {}
    void begin(std::int64_t step) noexcept {
      if (steps[now].step >= 0) now = (now + 1) % steps.size();
      steps[now] = {.step = step};
      closed = 0;
    }
    // Time of what has ended since `start`, which whatever ends now encloses.
    std::int64_t inside(std::int64_t start) noexcept {
      std::int64_t sum = 0;
      while (closed > 0 && ended[closed - 1].begin >= start) sum += ended[--closed].took;
      return sum;
    }
    // The older half of what nothing has enclosed yet becomes one: either all of it is enclosed later or none is.
    void close(std::int64_t start, std::int64_t took) noexcept {
      if (closed == ended.size()) {
        const std::size_t half = closed / 2;
        for (std::size_t i = 1; i < half; ++i) ended[0].took += ended[i].took;
        std::copy(ended.begin() + static_cast<std::ptrdiff_t>(half), ended.end(), ended.begin() + 1);
        closed -= half - 1;
      }
      ended[closed++] = {start, took};
    }

    std::vector<step_time> steps;
    std::size_t now = 0, closed = 0;
    std::array<span_of_time, 64> ended;
  };

  int window_;
  std::vector<std::unique_ptr<lane>> lanes_;
};

static_assert(observer<step_times>);

}  // namespace heddle::inline v0::observe
