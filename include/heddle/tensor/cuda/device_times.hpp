// heddle/tensor/cuda/device_times.hpp: an observer of times on the device (not run on a GPU).
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/tensor/cuda/memory.hpp>
#include <heddle/tensor/cuda/stream.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// An observer that records a CUDA event on a rank's stream before each observed action and behind it, and tells another observer
/// when the device began and ended the action, as the same `event` with those times. Streams are never waited for while ranks work: the times are
/// read when the events have happened, by the rank's thread on its way or by `finish`. Events are kept in a pool and used again.
/// A trainer (each executor) says which stream is whose: `follow`; ranks without one, on other backends, are not measured. Messages between
/// stages are on streams of their own, one for each direction (`follow_messages`): the interval of a send or a receive begins when the stream comes
/// to it, and contains what it waits for its peer. Of what a capture of a graph is given nothing is told; a launch of the graph is one action
/// (`cuda_graph::launch` with an observer). Times of other streams are read during a capture, too.
/// Times are those between an action's neighbours on the stream, so they contain what the action waits for there.
/// Units: nanoseconds of the steady clock. A stream's clock is compared with the host's once, when it is first followed; CUDA says times between events to
/// half a microsecond. What the other observer has is there after `finish`. An action that cannot be measured is counted by `dropped`.
/// `hd::observe::recorder device(ranks); hd::cuda_device_times times(device, ranks);`
template <observer Observer>
class cuda_device_times {
 public:
  using kind = observer_kind;
  static constexpr bool enabled = true;
  /// Events that a rank has at most: two for each action that the device has not ended.
  static constexpr std::size_t most_events = std::size_t{1} << 14;

  /// Errors: `config_error` for a number of ranks that is not positive.
  cuda_device_times(Observer& to, int ranks) : to_(to) {
    if (ranks <= 0)
      throw config_error("heddle: cuda_device_times needs at least one rank, got " + std::to_string(ranks));
    ranks_.resize(static_cast<std::size_t>(ranks));
  }
  cuda_device_times(const cuda_device_times&) = delete;
  cuda_device_times& operator=(const cuda_device_times&) = delete;

  /// Measures the actions of this rank on the stream of the queue, on the rank's own thread. Waits once for what the stream was given before;
  /// does nothing if the stream is followed already. Errors: `cuda_error`; `config_error` for a rank that does not exist.
  void follow(int rank, cuda_memory::queue& queue) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= ranks_.size())
      throw config_error("heddle: cuda_device_times has ranks 0 to " + std::to_string(ranks_.size() - 1) + ", not " +
                         std::to_string(rank));
    follow(ranks_[static_cast<std::size_t>(rank)].actions, queue);
  }
  /// The same for the stream of this rank's messages in direction 0 (forward along the pipeline) or 1.
  void follow_messages(int rank, int way, cuda_memory::queue& queue) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= ranks_.size() || way < 0 || way > 1)
      throw config_error("heddle: cuda_device_times has ranks 0 to " + std::to_string(ranks_.size() - 1) +
                         " with messages in directions 0 and 1, not rank " + std::to_string(rank) + " and direction " +
                         std::to_string(way));
    follow(ranks_[static_cast<std::size_t>(rank)].messages[static_cast<std::size_t>(way)], queue);
  }

  void begin(const event& e) noexcept {
    if (lane* const mine = lane_of(e)) mine->begin(to_);
  }
  void end(const event& e) noexcept {
    if (lane* const mine = lane_of(e)) mine->end(e, to_);
  }
  void record(const event&) const noexcept {}
  /// Around what a queue of messages is given of one. Does nothing where the queue is not followed.
  void begin_message(const event& e, const cuda_memory::queue& queue) noexcept {
    if (lane* const mine = lane_of(e, queue)) mine->begin(to_);
  }
  void end_message(const event& e, const cuda_memory::queue& queue) noexcept {
    if (lane* const mine = lane_of(e, queue)) mine->end(e, to_);
  }

  /// Tells what is known of a rank's actions by now, without waiting for the device: for the rank's own thread.
  void collect(int rank) noexcept {
    if (rank < 0 || static_cast<std::size_t>(rank) >= ranks_.size()) return;
    ranks_[static_cast<std::size_t>(rank)].each([&](lane& mine) { mine.collect(to_); });
  }
  /// Waits for the device and tells the rest, when the ranks are done.
  void finish() noexcept {
    for (rank_lanes& one : ranks_) one.each([&](lane& mine) { mine.finish(to_); });
  }
  /// Actions without times: where CUDA refused an event, or a rank had `most_events` on their way.
  std::int64_t dropped() const noexcept {
    std::int64_t n = 0;
    for (const rank_lanes& one : ranks_) one.each([&](const lane& mine) { n += mine.dropped(); });
    return n;
  }
  /// Events of CUDA that were made, of all ranks.
  std::int64_t events_made() const noexcept {
    std::int64_t n = 0;
    for (const rank_lanes& one : ranks_) one.each([&](const lane& mine) { n += mine.events_made(); });
    return n;
  }

 private:
  // A stream of a rank: used by the rank's thread.
  class lane {
   public:
    lane(const cuda_memory::queue& of, std::int64_t dropped_before) : queue_(of), dropped_(dropped_before) {
      const detail::on_cuda_device here(queue_.device());
      // Of a few tries the one that the host knows best when it happened; the first waits for what the stream was given before.
      std::int64_t least = (std::numeric_limits<std::int64_t>::max)();
      for (int i = 0; i < 5; ++i) {
        owned_event e = made();
        const std::int64_t before = now_ns();
        require(cudaEventRecord(e.get(), queue_.stream()), "cudaEventRecord");
        require(cudaEventSynchronize(e.get()), "cudaEventSynchronize");
        const std::int64_t after = now_ns();
        if (after - before < least) {
          least = after - before;
          origin_ns_ = after;
          std::swap(origin_, e);
        }
        if (e != nullptr) keep(e);
      }
    }
    cudaStream_t stream() const noexcept { return queue_.stream(); }
    int device() const noexcept { return queue_.device(); }
    std::int64_t dropped() const noexcept { return dropped_; }
    std::int64_t events_made() const noexcept { return made_; }

    void begin(Observer& to) noexcept {
      try {
        if (lost_ == 0) {
          open_.emplace_back();
          if (!is_captured()) open_.back() = recorded(to);
          return;
        }
      } catch (...) {
      }
      ++lost_;  // there is no memory for it, or for what it is part of
    }
    void end(const event& e, Observer& to) noexcept {
      if (lost_ > 0) {
        --lost_;
        ++dropped_;
        return;
      }
      if (open_.empty()) return;  // it began before the stream was followed
      owned_event began = std::move(open_.back());
      open_.pop_back();
      if (began == nullptr) return;
      owned_event ended = is_captured() ? owned_event{} : recorded(to);
      if (ended == nullptr) return keep(began);
      try {
        under_way_.push_back({e, std::move(began), std::move(ended), open_.empty()});
      } catch (...) {
        ++dropped_;
      }
    }
    // What has happened, in order: what is at the front has ended first.
    void collect(Observer& to) noexcept {
      if (under_way_.empty()) return;
      const detail::on_cuda_device here(queue_.device(), std::nothrow);
      const detail::relaxed_in_capture asks;
      while (!under_way_.empty()) {
        const cudaError_t happened = cudaEventQuery(under_way_.front().ended.get());
        if (happened != cudaSuccess) detail::ignore_cuda(happened);
        if (happened == cudaErrorNotReady) return;
        tell_front(to, happened == cudaSuccess);
      }
    }
    void finish(Observer& to) noexcept {
      const detail::on_cuda_device here(queue_.device(), std::nothrow);
      const detail::relaxed_in_capture asks;
      while (!under_way_.empty()) {
        const cudaError_t happened = cudaEventSynchronize(under_way_.front().ended.get());
        if (happened != cudaSuccess) detail::ignore_cuda(happened);
        tell_front(to, happened == cudaSuccess);
      }
    }

   private:
    struct destroys {
      void operator()(cudaEvent_t e) const noexcept { detail::ignore_cuda(cudaEventDestroy(e)); }
    };
    using owned_event = std::unique_ptr<CUevent_st, destroys>;
    struct measured {
      event what;
      owned_event began, ended;
      bool outermost;
    };

    void require(cudaError_t result, const char* call) const { detail::require_cuda(result, call, queue_.device()); }
    // Errors: `cuda_error`.
    owned_event made() {
      cudaEvent_t e = nullptr;
      require(cudaEventCreateWithFlags(&e, cudaEventDefault), "cudaEventCreateWithFlags");
      ++made_;
      return owned_event(e);
    }
    // An event of the graph would have no time.
    bool is_captured() const noexcept {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      detail::ignore_cuda(cudaStreamIsCapturing(queue_.stream(), &status));
      return status != cudaStreamCaptureStatusNone;
    }
    // An event on the stream; null, and counted, where there is none.
    owned_event recorded(Observer& to) noexcept {
      const detail::on_cuda_device here(queue_.device(), std::nothrow);
      owned_event e;
      if (free_.empty()) collect(to);
      if (!free_.empty()) {
        e = std::move(free_.back());
        free_.pop_back();
      } else if (made_ < static_cast<std::int64_t>(most_events)) {
        cudaEvent_t fresh = nullptr;
        if (const cudaError_t result = cudaEventCreateWithFlags(&fresh, cudaEventDefault); result == cudaSuccess) {
          e.reset(fresh);
          ++made_;
        } else {
          detail::ignore_cuda(result);
        }
      }
      if (e != nullptr) {
        if (const cudaError_t result = cudaEventRecord(e.get(), queue_.stream()); result != cudaSuccess) {
          detail::ignore_cuda(result);
          e.reset();
          --made_;
        }
      }
      if (e == nullptr) ++dropped_;
      return e;
    }
    // Nanoseconds from the origin.
    bool since_origin(const owned_event& e, std::int64_t& ns) const noexcept {
      float ms = 0;
      const cudaError_t result = cudaEventElapsedTime(&ms, origin_.get(), e.get());
      detail::ignore_cuda(result);
      ns = std::llround(static_cast<double>(ms) * 1e6);
      return result == cudaSuccess;
    }
    void tell_front(Observer& to, bool happened) noexcept {
      measured& m = under_way_.front();
      std::int64_t began = 0, ended = 0;
      if (happened && since_origin(m.began, began) && since_origin(m.ended, ended)) {
        m.what.begin_ns = origin_ns_ + began;
        m.what.end_ns = origin_ns_ + ended;
        to.record(m.what);
        // CUDA gives a float of milliseconds, in which 2 s have 0.12 us: later times begin here. All later actions begin behind this one.
        if (m.outermost && ended > 1'000'000'000) {
          std::swap(origin_, m.ended);
          origin_ns_ += ended;
        }
      } else {
        ++dropped_;
      }
      keep(m.began);
      keep(m.ended);
      under_way_.pop_front();
    }
    void keep(owned_event& e) noexcept {
      try {
        free_.push_back(std::move(e));
      } catch (...) {  // its owner destroys it
      }
    }

    cuda_pinned_memory::queue queue_;  // keeps the stream
    owned_event origin_;
    std::int64_t origin_ns_ = 0;
    std::vector<owned_event> free_, open_;
    std::deque<measured> under_way_;
    std::int64_t made_ = 0, dropped_ = 0, lost_ = 0;
  };

  struct rank_lanes {
    std::unique_ptr<lane> actions;
    std::array<std::unique_ptr<lane>, 2> messages;
    template <class F>
    void each(F&& f) const {
      for (lane* const one : {actions.get(), messages[0].get(), messages[1].get()})
        if (one != nullptr) f(*one);
    }
  };

  void follow(std::unique_ptr<lane>& mine, const cuda_memory::queue& queue) {
    if (mine != nullptr && mine->stream() == queue.stream() && mine->device() == queue.device()) return;
    if (mine != nullptr) mine->finish(to_);
    const std::int64_t before = mine != nullptr ? mine->dropped() : 0;
    mine = std::make_unique<lane>(queue, before);
  }
  rank_lanes* lanes_of(const event& e) noexcept {
    return e.rank < 0 || static_cast<std::size_t>(e.rank) >= ranks_.size() ? nullptr
                                                                           : &ranks_[static_cast<std::size_t>(e.rank)];
  }
  // Of what the rank's own stream does: a host's event of a message is that of another.
  lane* lane_of(const event& e) noexcept {
    rank_lanes* const of = e.kind != activity::send && e.kind != activity::recv ? lanes_of(e) : nullptr;
    return of != nullptr ? of->actions.get() : nullptr;
  }
  lane* lane_of(const event& e, const cuda_memory::queue& queue) noexcept {
    if (rank_lanes* const of = lanes_of(e))
      for (const auto& one : of->messages)
        if (one != nullptr && one->stream() == queue.stream() && one->device() == queue.device()) return one.get();
    return nullptr;
  }

  Observer& to_;
  std::vector<rank_lanes> ranks_;
};

}  // namespace heddle::inline v0
