// heddle/train/activations/uring.hpp: a store in files through io_uring: no threads, the system works on many requests.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/train/activations/store.hpp>
#include <heddle/train/activations/store_files.hpp>

#if !__has_include(<liburing.h>)
#error \
    "heddle/train/activations/uring.hpp needs liburing: link heddle::uring (CMake: find_package(heddle COMPONENTS uring))"
#endif
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <system_error>
#include <utility>

namespace heddle::inline v0::activations {

/// As `file_store`, without threads of its own: writes and reads are handed to the system, in tasks of at most 64 MiB,
/// until it works on two such of a kind; the others wait, and may be cancelled.
/// What they have come to is looked at whenever the store is called. Where a process may not use io_uring (containers
/// often forbid it) the constructor throws; `uring_store::available()` says so before.
class uring_store {
 public:
  static constexpr std::size_t most_bytes = std::size_t{64} << 20;  ///< of one task

  explicit uring_store(const store_options& options = {}) : files_(options) {
    const int code = ::io_uring_queue_init(depth, &ring_, 0);
    if (code < 0) {
      std::string text = "heddle: io_uring cannot be used here: ";
      text += std::generic_category().message(-code);
      text += "; use activations::file_store";
      throw io_error(text);
    }
  }
  uring_store(const uring_store&) = delete;
  uring_store& operator=(const uring_store&) = delete;
  ~uring_store() {
    try {
      while (under_way_ > 0 || waits()) reap(true);
    } catch (...) {  // nobody is left who could be told
    }
    ::io_uring_queue_exit(&ring_);
  }

  /// Whether this process may use io_uring.
  static bool available() noexcept {
    struct ::io_uring ring;
    if (::io_uring_queue_init(2, &ring, 0) < 0) return false;
    ::io_uring_queue_exit(&ring);
    return true;
  }

  void store(int id, std::span<const std::byte> bytes) {
    entry& e = idle_entry(id, "store");
    if (std::exchange(e.stored, false)) files_.give(e.part);
    e.part = files_.take(static_cast<std::int64_t>(bytes.size()));
    e.stored = true;
    e.bytes = bytes.size();
    // Nothing is written to: the two directions share a type.
    begin(e, const_cast<std::byte*>(bytes.data()), true);
  }
  void load(int id, std::span<std::byte> bytes) {
    entry& e = idle_entry(id, "load");
    if (!e.stored || e.bytes != bytes.size()) {
      std::string text = "heddle: a store was asked for " + std::to_string(bytes.size()) + " bytes of id ";
      text += std::to_string(id) + ", of which it has " + std::to_string(e.stored ? e.bytes : 0);
      throw io_error(text);
    }
    begin(e, bytes.data(), false);
  }
  bool finished(int id) {
    entry& e = known(id);
    reap(false);
    if (e.tasks > 0) return false;
    raise(e);
    return true;
  }
  void wait(int id) {
    entry& e = known(id);
    while (e.tasks > 0) reap(true);
    raise(e);
  }
  bool cancel(int id) {
    entry& e = known(id);
    if (!e.writes || e.tasks == 0 || e.begun) return false;
    std::erase_if(writing_.waiting, [&](const task& t) { return t.of == &e; });
    e.tasks = 0;
    ++counters_.cancelled;
    if (std::exchange(e.stored, false)) files_.give(e.part);
    return true;
  }
  void forget(int id) {
    entry& e = idle_entry(id, "forget");
    if (std::exchange(e.stored, false)) files_.give(e.part);
  }
  store_counters counters() const { return counters_; }
  const store_files& files() const noexcept { return files_; }

 private:
  static constexpr unsigned depth = 64;

  struct entry {
    store_files::part part{};
    std::size_t bytes = 0;
    bool stored = false;
    bool writes = false;
    bool begun = false;  // one of its tasks was handed over
    int tasks = 0;       // under way or waiting for their turn
    int code = 0;        // of the first that failed
  };
  struct task {
    entry* of = nullptr;
    std::byte* memory = nullptr;
    store_files::piece at{};
    bool used = false;
  };
  struct direction {
    std::deque<task> waiting{};
    int active = 0;
    std::size_t bytes = 0;  // of the active ones
    std::int64_t since = 0;
  };

  entry& known(int id) {
    if (id < 0 || id >= static_cast<int>(entries_.size()))
      throw io_error("heddle: a store knows no id " + std::to_string(id));
    return entries_[static_cast<std::size_t>(id)];
  }
  entry& idle_entry(int id, const char* what) {
    if (id >= static_cast<int>(entries_.size())) entries_.resize(static_cast<std::size_t>(id) + 1);
    entry& e = known(id);
    reap(false);
    if (e.tasks > 0) {
      std::string text = "heddle: ";
      text += what;
      text += " of id " + std::to_string(id) + ", of which a write or read is under way";
      throw io_error(text);
    }
    e.code = 0;
    return e;
  }
  void raise(entry& e) const {
    if (const int code = std::exchange(e.code, 0); code != 0)
      files_.refuse(e.part, e.writes ? "writing" : "reading", code);
  }

  void begin(entry& e, std::byte* memory, bool writes) {
    e.writes = writes;
    e.begun = false;
    const store_files::pieces all = files_.pieces_of(e.part, memory, e.bytes);
    for (int i = 0; i < all.count; ++i) {
      store_files::piece rest = all.what[static_cast<std::size_t>(i)];
      while (rest.bytes > 0) {
        store_files::piece one = rest;
        one.bytes = (std::min)(rest.bytes, most_bytes);
        rest.begin += one.bytes;
        rest.offset += static_cast<std::int64_t>(one.bytes);
        rest.bytes -= one.bytes;
        ++e.tasks;
        way(e).waiting.push_back({&e, memory, one, true});
      }
    }
    submit();
  }

  direction& way(const entry& e) noexcept { return e.writes ? writing_ : reading_; }
  bool waits() const noexcept { return !writing_.waiting.empty() || !reading_.waiting.empty(); }
  // Gives the system what it has room for; reads, which somebody waits for, first.
  void submit() {
    bool any = false;
    for (direction* const d : {&reading_, &writing_})
      while (!d->waiting.empty() && d->bytes < 2 * most_bytes && under_way_ < static_cast<int>(depth) && hand_over(*d))
        any = true;
    if (!any) return;
    int code = 0;
    do {
      code = ::io_uring_submit(&ring_);
    } while (code == -EINTR || code == -EAGAIN);
    if (code < 0) {
      std::string text = "heddle: io_uring took no requests: ";
      text += std::generic_category().message(-code);
      throw io_error(text);
    }
  }
  // The first that waits; false if there is no room in the ring.
  bool hand_over(direction& d) {
    struct ::io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return false;
    std::size_t k = 0;
    while (k < tasks_.size() && tasks_[k].used) ++k;
    if (k == tasks_.size()) tasks_.emplace_back();
    task& t = tasks_[k];
    t = d.waiting.front();
    d.waiting.pop_front();
    std::byte* const from = t.memory + t.at.begin;
    const auto bytes = static_cast<unsigned>(t.at.bytes);
    const auto offset = static_cast<std::uint64_t>(t.at.offset);
    if (t.of->writes)
      ::io_uring_prep_write(sqe, t.at.descriptor, from, bytes, offset);
    else
      ::io_uring_prep_read(sqe, t.at.descriptor, from, bytes, offset);
    // Through the page cache the call itself would do the work, on this thread.
    if (!t.at.direct) ::io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
    ::io_uring_sqe_set_data(sqe, &t);
    t.of->begun = true;
    if (d.active++ == 0) d.since = now_ns();
    d.bytes += t.at.bytes;
    ++under_way_;
    return true;
  }

  // Looks at what has ended; `block`: waits for one at least.
  void reap(bool block) {
    struct ::io_uring_cqe* cqe = nullptr;
    while (under_way_ > 0) {
      const int code = block ? ::io_uring_wait_cqe(&ring_, &cqe) : ::io_uring_peek_cqe(&ring_, &cqe);
      if (code == -EINTR) continue;
      if (code < 0 || cqe == nullptr) break;
      block = false;
      task& t = *static_cast<task*>(::io_uring_cqe_get_data(cqe));
      const int result = cqe->res;
      ::io_uring_cqe_seen(&ring_, cqe);
      ended(t, result);
    }
    if (waits()) submit();
  }
  void ended(task& t, int result) {
    entry& e = *t.of;
    --under_way_;
    direction& d = way(e);
    --d.active;
    d.bytes -= t.at.bytes;
    const std::int64_t now = now_ns();
    (e.writes ? counters_.write_seconds : counters_.read_seconds) +=
        1e-9 * static_cast<double>(now - std::exchange(d.since, now));
    t.used = false;
    task next = t;
    next.used = true;
    if (result == -EINTR || result == -EAGAIN) return d.waiting.push_front(next);
    if (result == -EINVAL && t.at.direct) {
      next.at = files_.without_direct(e.part, t.at);
      return d.waiting.push_front(next);
    }
    if (result > 0) {
      if (t.at.direct) counters_.bytes_direct += result;
      next.at.begin += static_cast<std::size_t>(result);
      next.at.offset += result;
      next.at.bytes -= static_cast<std::size_t>(result);
      if (next.at.bytes > 0) {  // a short call
        if (next.at.direct && result % store_files::page != 0) next.at = files_.without_direct(e.part, next.at);
        return d.waiting.push_front(next);
      }
    } else if (e.code == 0) {
      e.code = result < 0 ? -result : EIO;  // 0: the file ends where it should not
    }
    if (--e.tasks > 0 || e.code != 0) return;
    ++(e.writes ? counters_.stores : counters_.loads);
    (e.writes ? counters_.bytes_written : counters_.bytes_read) += static_cast<std::int64_t>(e.bytes);
  }

  store_files files_;
  struct ::io_uring ring_{};
  std::deque<entry> entries_;
  std::deque<task> tasks_;  // deques: the system and the tasks hold addresses
  int under_way_ = 0;
  direction writing_, reading_;
  store_counters counters_;
};

}  // namespace heddle::inline v0::activations
