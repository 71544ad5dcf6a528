// heddle/train/activations/threaded_store.hpp: a store by threads, on any device.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/core/text.hpp>
#include <heddle/train/activations/store.hpp>

#include <algorithm>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0::activations {

/// What a threaded store writes to. `prepare(bytes)` makes a place for so many, `release(place)` takes it back: both on
/// the caller's thread. `write(place, bytes)` and `read(place, bytes)` do the work, on several threads at a time, and
/// return how many bytes went past the page cache. All but `release` may throw `io_error`.
template <class D>
concept store_device =
    std::constructible_from<D, const store_options&> && std::default_initializable<typename D::place> &&
    requires(D& d, typename D::place p, std::span<const std::byte> out, std::span<std::byte> in) {
      { d.prepare(std::int64_t{}) } -> std::same_as<typename D::place>;
      d.release(p);
      { d.write(p, out) } -> std::convertible_to<std::int64_t>;
      { d.read(p, in) } -> std::convertible_to<std::int64_t>;
    };

/// Writes and reads on threads of its own, `store_options::threads` of each, so that reads do not wait for writes. Each
/// kind is begun in the order of the calls. A class derived from it may serve the queues in another way.
template <store_device Device>
class threaded_store {
 public:
  explicit threaded_store(const store_options& options = {}) : threaded_store(options, no_threads{}) {
    start_threads(options.threads);
  }
  threaded_store(const threaded_store&) = delete;
  threaded_store& operator=(const threaded_store&) = delete;
  virtual ~threaded_store() {
    leave();
    for (entry& e : entries_) let_go(e);
  }

  void store(int id, std::span<const std::byte> bytes) {
    entry& e = idle_entry(id, "store");
    let_go(e);
    e.place = device_.prepare(static_cast<std::int64_t>(bytes.size()));
    e.stored = true;
    e.bytes = bytes.size();
    e.memory = const_cast<std::byte*>(bytes.data());  // nothing is written to: the two directions share a type
    begin(e, writes_);
  }
  void load(int id, std::span<std::byte> bytes) {
    entry& e = idle_entry(id, "load");
    raise(e);  // of a write that nobody has asked for
    if (!e.stored || e.bytes != bytes.size()) {
      std::string text = "heddle: a store was asked for " + std::to_string(bytes.size()) + " bytes of id ";
      text += std::to_string(id) + ", of which it has " + std::to_string(e.stored ? e.bytes : 0);
      throw io_error(text);
    }
    e.memory = bytes.data();
    begin(e, reads_);
  }
  bool finished(int id) {
    entry& e = known(id);
    const std::lock_guard lock(mutex_);
    if (e.busy) return false;
    raise(e);
    return true;
  }
  void wait(int id) {
    entry& e = known(id);
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return !e.busy; });
    raise(e);
  }
  bool cancel(int id) {
    entry& e = known(id);
    {
      const std::lock_guard lock(mutex_);
      const auto at = std::find(writes_.waiting.begin(), writes_.waiting.end(), &e);
      if (at == writes_.waiting.end()) return false;
      writes_.waiting.erase(at);
      e.busy = false;
      ++counters_.cancelled;
    }
    forget(id);
    return true;
  }
  void forget(int id) {
    entry& e = idle_entry(id, "forget");
    let_go(e);
  }
  store_counters counters() const {
    const std::lock_guard lock(mutex_);
    store_counters now = counters_;
    now.moved_by = moved_by();
    return now;
  }
  Device& device() noexcept { return device_; }

 protected:
  struct entry {
    typename Device::place place{};
    std::size_t bytes = 0;
    bool stored = false;
    std::byte* memory = nullptr;
    bool busy = false;     // guarded by mutex_, as what follows
    bool written = false;  // by the last operation, not read
    std::exception_ptr error = nullptr;
  };
  struct queue {
    std::deque<entry*> waiting{};
    int active = 0;
    std::int64_t since = 0;
    bool writes = false;
  };

  struct no_threads {};
  threaded_store(const store_options& options, no_threads) : device_(options) {
    if (options.threads < 1)
      throw config_error("heddle: a store writes with at least one thread, not " + std::to_string(options.threads));
  }
  void start_threads(int of_each) {
    for (int i = 0; i < of_each; ++i) {
      threads_.emplace_back([this] { serve(writes_); });
      threads_.emplace_back([this] { serve(reads_); });
    }
  }
  /// Ends the threads when they have done what waits: its memory is still there.
  void leave() {
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    announce();
    for (std::thread& t : threads_) t.join();
    threads_.clear();
  }
  /// Something waits in a queue, or `leaving_` was set. Without the mutex.
  virtual void announce() { work_.notify_all(); }
  virtual std::string_view moved_by() const noexcept { return "threads"; }

  /// The next one of a queue begins. With the mutex.
  entry& begin_next(queue& q) {
    entry& e = *q.waiting.front();
    q.waiting.pop_front();
    if (q.active++ == 0) q.since = now_ns();  // the time of each kind is counted up to its last end
    return e;
  }
  /// It has ended, with an error or with so many bytes past the page cache. With the mutex.
  void end(queue& q, entry& e, std::exception_ptr error, std::int64_t direct) {
    --q.active;
    const std::int64_t now = now_ns();
    (q.writes ? counters_.write_seconds : counters_.read_seconds) +=
        1e-9 * static_cast<double>(now - std::exchange(q.since, now));
    if (!error) {
      counters_.bytes_direct += direct;
      ++(q.writes ? counters_.stores : counters_.loads);
      (q.writes ? counters_.bytes_written : counters_.bytes_read) += static_cast<std::int64_t>(e.bytes);
    }
    e.error = std::move(error);
    e.busy = false;
    ended_.notify_all();
  }

 private:
  entry& known(int id) {
    if (id < 0 || id >= static_cast<int>(entries_.size()))
      throw io_error("heddle: a store knows no id " + std::to_string(id));
    return entries_[static_cast<std::size_t>(id)];
  }
  entry& idle_entry(int id, const char* what) {
    if (id >= static_cast<int>(entries_.size())) entries_.resize(static_cast<std::size_t>(id) + 1);
    entry& e = known(id);
    const std::lock_guard lock(mutex_);
    if (e.busy) {
      throw io_error(text_of({"heddle: ", what, " of id ", id, ", of which a write or read is under way"}));
    }
    return e;
  }
  void begin(entry& e, queue& q) {
    {
      const std::lock_guard lock(mutex_);
      q.waiting.push_back(&e);
      e.busy = true;
      e.written = q.writes;
    }
    announce();
  }
  // Of an entry that is not busy. What could not be written is not stored.
  void raise(entry& e) {
    const std::exception_ptr error = std::exchange(e.error, nullptr);
    if (!error) return;
    if (e.written) let_go(e);
    std::rethrow_exception(error);
  }
  void let_go(entry& e) {
    if (e.stored) device_.release(e.place);
    e.stored = false;
    e.error = nullptr;
  }

  void serve(queue& q) {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return leaving_ || !q.waiting.empty(); });
      if (q.waiting.empty()) return;
      entry& e = begin_next(q);
      lock.unlock();
      std::exception_ptr error;
      std::int64_t direct = 0;
      try {
        direct = q.writes ? device_.write(e.place, {e.memory, e.bytes}) : device_.read(e.place, {e.memory, e.bytes});
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      end(q, e, std::move(error), direct);
    }
  }

  Device device_;
  std::deque<entry> entries_;  // a deque: the threads hold addresses
  std::condition_variable ended_;
  store_counters counters_;

 protected:
  mutable std::mutex mutex_;
  std::condition_variable work_;
  queue writes_{{}, 0, 0, true};
  queue reads_{};
  bool leaving_ = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace heddle::inline v0::activations
