// tests/train/activation_stores.hpp: stores that are slow, instant, full or in virtual time.
#pragma once

#include <heddle/train/activations/file_store.hpp>
#include <heddle/train/activations/default_file_store.hpp>
#include <heddle/train/activations/memory_store.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace activation_stores {

namespace hd = heddle;
namespace act = heddle::activations;

// A device that takes its time.
template <std::int64_t BytesPerSecond>
struct slow_device : act::memory_device {
  using act::memory_device::memory_device;
  std::int64_t write(place p, std::span<const std::byte> bytes) {
    rest(bytes.size());
    return act::memory_device::write(p, bytes);
  }
  std::int64_t read(place p, std::span<std::byte> bytes) {
    rest(bytes.size());
    return act::memory_device::read(p, bytes);
  }
  static void rest(std::size_t bytes) {
    std::this_thread::sleep_for(
        std::chrono::duration<double>(static_cast<double>(bytes) / static_cast<double>(BytesPerSecond)));
  }
};
template <std::int64_t BytesPerSecond>
using slow_store = act::threaded_store<slow_device<BytesPerSecond>>;

// A device that fails from its n-th operation on: a disk that is full, or broken.
struct failing_device : act::memory_device {
  using act::memory_device::memory_device;
  static inline std::atomic<int> writes_left{0}, reads_left{0}, places_left{0}, writes_ended{0};
  static void fail_after(int places, int writes, int reads) {
    places_left = places;
    writes_left = writes;
    reads_left = reads;
  }
  place prepare(std::int64_t bytes) {
    if (places_left-- <= 0) throw hd::io_error("heddle: making room failed: No space left on device");
    return act::memory_device::prepare(bytes);
  }
  std::int64_t write(place p, std::span<const std::byte> bytes) {
    const bool fails = writes_left-- <= 0;
    if (!fails) act::memory_device::write(p, bytes);
    ++writes_ended;
    writes_ended.notify_all();
    if (fails) throw hd::io_error("heddle: writing failed: No space left on device");
    return 0;
  }
  std::int64_t read(place p, std::span<std::byte> bytes) {
    if (reads_left-- <= 0) throw hd::io_error("heddle: reading failed: Input/output error");
    return act::memory_device::read(p, bytes);
  }
};
using failing_store = act::threaded_store<failing_device>;
// The same, whose writes have ended, or failed, when `store` returns: none of them is cancelled.
class patient_failing_store : public failing_store {
 public:
  using failing_store::failing_store;
  void store(int id, std::span<const std::byte> bytes) {
    const int before = failing_device::writes_ended;
    failing_store::store(id, bytes);
    failing_device::writes_ended.wait(before);
  }
};

// A device that begins to write and goes on when the gate opens; it says how many writes have begun.
template <class Device>
struct gated_device : Device {
  using Device::Device;
  std::atomic<bool> open{false};
  std::atomic<int> begun{0};
  std::int64_t write(typename Device::place p, std::span<const std::byte> bytes) {
    ++begun;
    begun.notify_all();
    open.wait(false);
    return Device::write(p, bytes);
  }
  void wait_until_begun(int n) const {
    for (int now = begun; now < n; now = begun) begun.wait(now);
  }
  void open_gate() {
    open = true;
    open.notify_all();
  }
};
template <class Device>
using gated_store = act::threaded_store<gated_device<Device>>;

// A store that has written when `store` returns.
class instant_store {
 public:
  explicit instant_store(const act::store_options& = {}) {}
  void store(int id, std::span<const std::byte> bytes) {
    data_[id].assign(bytes.begin(), bytes.end());
    ++counters_.stores;
    counters_.bytes_written += static_cast<std::int64_t>(bytes.size());
  }
  void load(int id, std::span<std::byte> bytes) {
    std::copy(data_.at(id).begin(), data_.at(id).end(), bytes.begin());
    ++counters_.loads;
    counters_.bytes_read += static_cast<std::int64_t>(bytes.size());
  }
  bool finished(int) { return true; }
  void wait(int) {}
  bool cancel(int) { return false; }
  void forget(int id) { data_.erase(id); }
  act::store_counters counters() const { return counters_; }
  std::size_t held() const { return data_.size(); }

 private:
  std::map<int, std::vector<std::byte>> data_;
  act::store_counters counters_;
};

// The same, whose reads are never done before somebody waits for them, however fast or slow that program is.
class late_store : public instant_store {
 public:
  using instant_store::instant_store;
  void load(int id, std::span<std::byte> bytes) { reads_[id] = bytes; }
  bool finished(int id) { return !reads_.contains(id); }
  void wait(int id) {
    const auto read = reads_.find(id);
    if (read == reads_.end()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    instant_store::load(id, read->second);
    reads_.erase(read);
  }

 private:
  std::map<int, std::span<std::byte>> reads_;
};

// One that is instant, too, and says that it works at another rate.
class rated_store : public instant_store {
 public:
  static inline std::atomic<double> write_rate{1e15}, read_rate{1e15};  // bytes per second
  using instant_store::instant_store;
  void store(int id, std::span<const std::byte> bytes) {
    instant_store::store(id, bytes);
    write_seconds_ += static_cast<double>(bytes.size()) / write_rate;
  }
  void load(int id, std::span<std::byte> bytes) {
    instant_store::load(id, bytes);
    read_seconds_ += static_cast<double>(bytes.size()) / read_rate;
  }
  act::store_counters counters() const {
    act::store_counters c = instant_store::counters();
    c.write_seconds = write_seconds_;
    c.read_seconds = read_seconds_;
    return c;
  }

 private:
  double write_seconds_ = 0, read_seconds_ = 0;
};

// A store in virtual time: `now` is moved by the test, and by `wait`.
class virtual_store {
 public:
  double now = 0, bytes_per_time = 1, stalled = 0;

  void store(int id, std::span<const std::byte> bytes) {
    end_[id] = writer_ = (std::max)(writer_, now) + static_cast<double>(bytes.size()) / bytes_per_time;
    data_[id].assign(bytes.begin(), bytes.end());
    ++counters_.stores;
  }
  void load(int id, std::span<std::byte> bytes) {
    if (!finished(id)) throw hd::io_error("heddle: a read before its write ended");
    end_[id] = reader_ = (std::max)(reader_, now) + static_cast<double>(bytes.size()) / bytes_per_time;
    std::copy(data_.at(id).begin(), data_.at(id).end(), bytes.begin());
    ++counters_.loads;
  }
  bool finished(int id) { return end_[id] <= now; }
  void wait(int id) {
    stalled += (std::max)(0.0, end_[id] - now);
    now = (std::max)(now, end_[id]);
  }
  bool cancel(int) { return false; }
  void forget(int id) { data_.erase(id); }
  act::store_counters counters() const { return counters_; }

 private:
  std::map<int, double> end_;
  std::map<int, std::vector<std::byte>> data_;
  double writer_ = 0, reader_ = 0;
  act::store_counters counters_;
};

// Whichever of them the first directory names; so one trainer is compiled for all.
class any_store {
 public:
  explicit any_store(const act::store_options& options) {
    const std::string& kind = options.directories.at(0);
    if (kind == "instant") make<instant_store>({});
    if (kind == "memory") make<act::memory_store>({});
    if (kind == "rated") make<rated_store>({});
    if (kind == "late") make<late_store>({});
    if (kind == "crawling") make<slow_store<2'000'000>>({});
    if (kind == "failing") make<patient_failing_store>({});
    if (kind == "file") make<act::file_store>({.threads = 2});
    if (kind == "found") make<act::found_file_store>({});
    if (!calls_) throw hd::config_error("heddle: no store is called " + kind);
  }
  void store(int id, std::span<const std::byte> bytes) { calls_->store(id, bytes); }
  void load(int id, std::span<std::byte> bytes) { calls_->load(id, bytes); }
  bool finished(int id) { return calls_->finished(id); }
  void wait(int id) { calls_->wait(id); }
  bool cancel(int id) { return calls_->cancel(id); }
  void forget(int id) { calls_->forget(id); }
  act::store_counters counters() const { return calls_->counters(); }

 private:
  struct calls {
    virtual ~calls() = default;
    virtual void store(int, std::span<const std::byte>) = 0;
    virtual void load(int, std::span<std::byte>) = 0;
    virtual bool finished(int) = 0;
    virtual void wait(int) = 0;
    virtual bool cancel(int) = 0;
    virtual void forget(int) = 0;
    virtual act::store_counters counters() const = 0;
  };
  template <class S>
  struct calls_of : calls {
    S s;
    explicit calls_of(const act::store_options& o) : s(o) {}
    void store(int id, std::span<const std::byte> b) override { s.store(id, b); }
    void load(int id, std::span<std::byte> b) override { s.load(id, b); }
    bool finished(int id) override { return s.finished(id); }
    void wait(int id) override { s.wait(id); }
    bool cancel(int id) override { return s.cancel(id); }
    void forget(int id) override { s.forget(id); }
    act::store_counters counters() const override { return s.counters(); }
  };
  template <class S>
  void make(const act::store_options& o) {
    calls_ = std::make_unique<calls_of<S>>(o);
  }
  std::unique_ptr<calls> calls_;
};

}  // namespace activation_stores
