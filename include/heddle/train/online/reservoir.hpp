// heddle/train/online/reservoir.hpp: buffers between what produces samples and what trains on them.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// Settings of a buffer of samples, of one rank.
struct buffer_options {
  std::int64_t capacity = 1000;  ///< samples
  std::int64_t threshold = 200;  ///< `get` waits until there are more; until reception ends
  std::uint64_t seed = 0;
};

/// What went through a buffer.
struct buffer_counters {
  std::int64_t put = 0, drawn = 0;
  std::int64_t put_waits = 0, get_waits = 0;  ///< calls that had to wait
  std::int64_t seen = 0, unseen = 0;          ///< there now, drawn before or not
  double age_sum = 0;                         ///< of all draws: samples that arrived since the drawn one
  std::vector<std::int64_t> exposures{};      ///< [k]: samples that are gone, and were drawn k times

  double mean_age() const noexcept { return drawn == 0 ? 0 : age_sum / static_cast<double>(drawn); }
  /// Draws of those that are gone.
  double mean_draws() const noexcept {
    double samples = 0, draws = 0;
    for (std::size_t k = 0; k < exposures.size(); ++k) {
      samples += static_cast<double>(exposures[k]);
      draws += static_cast<double>(exposures[k]) * static_cast<double>(k);
    }
    return samples == 0 ? 0 : draws / samples;
  }
};

/// What produces calls `put`, which waits where there is no room and says whether the sample was taken (not once it is
/// closed); what trains calls `get`, which waits for samples and gives none when it is closed and empty. Any threads.
template <class B>
concept sample_buffer = requires(B& b, typename B::sample x, std::span<typename B::sample> batch) {
  { b.put(std::move(x)) } -> std::same_as<bool>;
  { b.get(batch) } -> std::convertible_to<std::int64_t>;
  { b.ready() } -> std::same_as<bool>;
  b.close();
};

/// Which samples are drawn, and which go.
enum class buffer_kind : std::uint8_t {
  fifo,       ///< in the order of arrival, each once
  firo,       ///< at random, each once
  reservoir,  ///< at random, again and again: one that was drawn goes when another needs its place
};

/// A buffer of one of these kinds. A sample that was never drawn never goes. When it is closed, what is left is drawn
/// once more, in the manner of its kind, and goes.
/// Errors: `config_error` for a capacity below 1, a threshold that is negative or not below the capacity.
/// Source: Meyer, Schouler, Caulk, Ribes, Raffin, "Training deep surrogate models with large scale online learning",
/// ICML 2023, arXiv:2306.16133, section 3.2.
template <class Sample, buffer_kind Kind>
class basic_buffer {
 public:
  using sample = Sample;

  explicit basic_buffer(buffer_options options = {}) : options_(options), random_(options.seed, 0x72657365u) {
    if (options.capacity < 1 || options.threshold < 0 || options.threshold >= options.capacity)
      throw config_error("heddle: a buffer of " + std::to_string(options.capacity) + " samples with a threshold of " +
                         std::to_string(options.threshold) +
                         "; expected 1 sample or more, and a threshold from 0 to one less than that");
  }

  bool put(Sample x) {
    std::unique_lock lock(mutex_);
    if (!closed_ && full()) ++counters_.put_waits;
    changed_.wait(lock, [&] { return closed_ || !full(); });
    if (closed_) return false;
    if (size() == options_.capacity) {
      const std::size_t i = draw(seen_.size());
      forget(seen_[i]);
      remove(seen_, i);
    }
    unseen_.push_back({std::move(x), counters_.put++});
    lock.unlock();
    changed_.notify_all();
    return true;
  }

  /// Whether `get` would not wait, and give a sample.
  bool ready() {
    const std::lock_guard lock(mutex_);
    return enough(1) && size() > 0;
  }
  /// Waits until it is; false: it is closed and empty.
  bool wait_ready() {
    std::unique_lock lock(mutex_);
    wait(lock, 1);
    return size() > 0;
  }
  /// One sample.
  std::optional<Sample> get() {
    Sample x{};
    if (get(std::span<Sample>(&x, 1)) == 0) return std::nullopt;
    return x;
  }
  /// Draws a batch at once, of which no two are the same sample. Returns how many: less than asked when the buffer is
  /// closed and has no more.
  /// Errors: `config_error` for a batch larger than the capacity.
  std::int64_t get(std::span<Sample> batch) {
    const auto n = static_cast<std::int64_t>(batch.size());
    if (n > options_.capacity)
      throw config_error("heddle: a batch of " + std::to_string(n) + " samples of a buffer of " +
                         std::to_string(options_.capacity));
    std::unique_lock lock(mutex_);
    wait(lock, n);
    const std::int64_t there = (std::min)(n, size());
    ++batch_;
    for (std::int64_t i = 0; i < there; ++i) batch[static_cast<std::size_t>(i)] = take();
    lock.unlock();
    changed_.notify_all();
    return there;
  }
  /// Nothing arrives any more.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }
  buffer_counters counters() const {
    const std::lock_guard lock(mutex_);
    buffer_counters c = counters_;
    c.seen = std::ssize(seen_);
    c.unseen = std::ssize(unseen_) - head_;
    return c;
  }
  const buffer_options& options() const noexcept { return options_; }

 private:
  struct entry {
    Sample value;
    std::int64_t arrival = 0, draws = 0, batch = -1;  // the last batch that it was in
  };
  std::int64_t size() const noexcept { return std::ssize(seen_) + std::ssize(unseen_) - head_; }
  // No room: of the reservoir, if all are unseen.
  bool full() const noexcept { return std::ssize(unseen_) - head_ == options_.capacity; }
  bool enough(std::int64_t batch) const noexcept {
    return closed_ || size() >= (std::max)(batch, Kind == buffer_kind::fifo ? 1 : options_.threshold + 1);
  }
  void wait(std::unique_lock<std::mutex>& lock, std::int64_t batch) {
    if (enough(batch)) return;
    ++counters_.get_waits;
    changed_.wait(lock, [&] { return enough(batch); });
  }
  std::size_t draw(std::size_t below) noexcept { return static_cast<std::size_t>(random_.integer(draws_++) % below); }
  static void remove(std::vector<entry>& of, std::size_t i) {
    if (i + 1 < of.size()) of[i] = std::move(of.back());
    of.pop_back();
  }
  void forget(const entry& e) {
    const auto k = static_cast<std::size_t>(e.draws);
    if (counters_.exposures.size() <= k) counters_.exposures.resize(k + 1, 0);
    ++counters_.exposures[k];
  }
  void note(entry& e) noexcept {
    ++e.draws;
    e.batch = batch_;
    ++counters_.drawn;
    counters_.age_sum += static_cast<double>(counters_.put - 1 - e.arrival);
  }
  Sample take() {
    if constexpr (Kind == buffer_kind::fifo) {
      entry& e = unseen_[static_cast<std::size_t>(head_++)];
      note(e);
      forget(e);
      Sample x = std::move(e.value);
      if (2 * head_ > std::ssize(unseen_)) {  // so that each is moved once, on the average
        unseen_.erase(unseen_.begin(), unseen_.begin() + head_);
        head_ = 0;
      }
      return x;
    } else {
      for (;;) {
        const std::size_t i = draw(seen_.size() + unseen_.size());
        std::vector<entry>& of = i < unseen_.size() ? unseen_ : seen_;
        const std::size_t at = i < unseen_.size() ? i : i - unseen_.size();
        if (of[at].batch == batch_) continue;  // in this batch already
        note(of[at]);
        if (Kind == buffer_kind::firo || closed_) {
          forget(of[at]);
          Sample x = std::move(of[at].value);
          remove(of, at);
          return x;
        }
        if (&of == &seen_) return of[at].value;
        seen_.push_back(std::move(unseen_[at]));
        remove(unseen_, at);
        return seen_.back().value;
      }
    }
  }

  buffer_options options_;
  counter_random random_;
  std::uint64_t draws_ = 0;
  mutable std::mutex mutex_{};
  std::condition_variable changed_{};
  std::vector<entry> seen_{}, unseen_{};
  std::int64_t head_ = 0;  // of a fifo: the oldest
  std::int64_t batch_ = 0;
  bool closed_ = false;
  buffer_counters counters_{};
};

/// A buffer that gives each sample once, the oldest first.
template <class Sample>
using fifo = basic_buffer<Sample, buffer_kind::fifo>;
/// A buffer that gives each sample once, in random order.
template <class Sample>
using firo = basic_buffer<Sample, buffer_kind::firo>;
/// A buffer that gives samples at random, again and again, until new ones take their place.
template <class Sample>
using reservoir = basic_buffer<Sample, buffer_kind::reservoir>;

}  // namespace heddle::inline v0::train
