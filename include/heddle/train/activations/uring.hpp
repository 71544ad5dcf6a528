// heddle/train/activations/uring.hpp: a store in files through io_uring.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/train/activations/file_store.hpp>
#include <heddle/train/activations/store.hpp>
#include <heddle/train/activations/store_files.hpp>

#if !__has_include(<liburing.h>)
#error \
    "heddle/train/activations/uring.hpp needs liburing: link heddle::uring (CMake: find_package(heddle COMPONENTS uring))"
#endif
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace heddle::inline v0::activations {

namespace detail {

/// A ring, and an event that wakes whoever sleeps in it. `refused()` is 0, or the errno with which the system refused
/// one of its parts: containers often forbid io_uring, systems before Linux 5.6 lack reads and writes, and some count
/// the ring as locked memory.
class uring {
 public:
  static constexpr unsigned depth = 64;

  uring() noexcept {
    refused_ = -::io_uring_queue_init(depth, &ring_, 0);
    if (refused_ != 0) return;
    refused_ = missing();
    if (refused_ == 0) event_ = ::eventfd(0, EFD_CLOEXEC);
    if (refused_ == 0 && event_ < 0) refused_ = errno;
    if (refused_ != 0) ::io_uring_queue_exit(&ring_);
  }
  uring(const uring&) = delete;
  uring& operator=(const uring&) = delete;
  ~uring() {
    if (refused_ == 0) ::io_uring_queue_exit(&ring_);
    if (event_ >= 0) ::close(event_);
  }

  int refused() const noexcept { return refused_; }
  struct ::io_uring& operator*() noexcept { return ring_; }

  /// Asks to be woken: a request whose data is null.
  void listen() noexcept {
    struct ::io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_);
    ::io_uring_prep_read(sqe, event_, &count_, sizeof count_, 0);
    ::io_uring_sqe_set_data(sqe, nullptr);
  }
  /// On any thread.
  void wake() const noexcept {
    const std::uint64_t one = 1;
    while (::write(event_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

 private:
  // The errno of what is needed and not there. A request that does nothing is made: some forbid only that call.
  int missing() noexcept {
    struct ::io_uring_probe* const probe = ::io_uring_get_probe_ring(&ring_);
    if (probe == nullptr) return ENOSYS;
    const bool both = ::io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                      ::io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
    ::io_uring_free_probe(probe);
    if (!both) return ENOSYS;
    struct ::io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_);
    ::io_uring_prep_nop(sqe);
    int code = 0;
    do {
      code = ::io_uring_submit_and_wait(&ring_, 1);
    } while (code == -EINTR);
    if (code < 0) return -code;
    struct ::io_uring_cqe* cqe = nullptr;
    if (::io_uring_wait_cqe(&ring_, &cqe) == 0) ::io_uring_cqe_seen(&ring_, cqe);
    return 0;
  }

  struct ::io_uring ring_{};
  int refused_ = 0;
  int event_ = -1;
  std::uint64_t count_ = 0;
};

}  // namespace detail

/// As `file_store`, through io_uring: one thread, which sleeps while there is nothing to do, hands requests to the
/// system and sees to it that there are always some, whoever calls the store and whenever. Requests are of at most
/// 64 MiB; of each kind the system has 2 of them (`store_options::threads`, if these are more), or as many as make up
/// 16 MiB. The others wait, and writes among them may be cancelled. Reads, which somebody waits for, are handed over
/// first. Where the process may not use io_uring the store works with threads as `file_store` does: `refused()` says
/// why, and `store_counters::moved_by` which of the two it is.
class uring_store : public threaded_store<file_device> {
 public:
  static constexpr std::size_t most_bytes = std::size_t{64} << 20;    ///< of one request
  static constexpr std::size_t enough_bytes = std::size_t{16} << 20;  ///< of the requests of one kind

  explicit uring_store(const store_options& options = {})
      : threaded_store(options, no_threads{}), most_requests_((std::max)(options.threads, 2)) {
    if (ring_.refused() != 0)
      start_threads(options.threads);
    else
      threads_.emplace_back([this] { serve_ring(); });
  }
  ~uring_store() override { leave(); }

  /// Whether this process may use io_uring.
  static bool available() noexcept { return detail::uring().refused() == 0; }
  /// Why io_uring is not used, in the system's words; empty if it is.
  std::string refused() const {
    return ring_.refused() == 0 ? std::string() : std::generic_category().message(ring_.refused());
  }

 private:
  struct operation {  // one of a queue that has begun
    entry* of = nullptr;
    int requests = 0;  // that have not ended
    int code = 0;      // of the first that failed
    std::int64_t direct = 0;
  };
  struct request {
    operation* of = nullptr;
    store_files::piece at{};
    bool writes = false;
  };
  struct direction {
    queue& from;
    std::deque<request> next{};  // of the operations that have begun
    int active = 0;
    std::size_t bytes = 0;  // of the active ones
  };

  void announce() override {
    if (ring_.refused() == 0) ring_.wake();
    threaded_store::announce();
  }
  std::string_view moved_by() const noexcept override {
    return ring_.refused() == 0 ? "io_uring" : "threads, as io_uring was refused";
  }

  void serve_ring() {
    std::unique_lock lock(mutex_);
    bool listens = false;
    for (;;) {
      for (direction* const d : {&reading_, &writing_}) fill(*d);
      if (!listens && !leaving_) {
        ring_.listen();
        listens = true;
      }
      // Whoever sets `leaving_` wakes: nothing is under way in the ring then.
      if (!listens && reading_.active == 0 && writing_.active == 0) return;
      lock.unlock();
      const int code = ::io_uring_submit_and_wait(&*ring_, 1);
      // Short of memory: there may be more of it when something has ended.
      if (code == -EAGAIN || code == -EBUSY) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      lock.lock();
      if (code < 0 && code != -EINTR && code != -EAGAIN && code != -EBUSY) return give_up(lock, -code);
      struct ::io_uring_cqe* cqe = nullptr;
      while (::io_uring_peek_cqe(&*ring_, &cqe) == 0 && cqe != nullptr) {
        auto* const r = static_cast<request*>(::io_uring_cqe_get_data(cqe));
        const int result = cqe->res;
        ::io_uring_cqe_seen(&*ring_, cqe);
        if (r == nullptr)
          listens = false;
        else
          ended(*r, result);
      }
    }
  }

  // Gives the system as much of one kind as it may have. Half of the ring is for the other kind and for waking.
  void fill(direction& d) {
    while (d.active < static_cast<int>(uring::depth) / 2 - 1 && (d.active < most_requests_ || d.bytes < enough_bytes)) {
      if (d.next.empty()) {
        if (d.from.waiting.empty()) return;
        begin(d);
      } else {
        hand_over(d);
      }
    }
  }
  // Cuts the first operation that waits into requests.
  void begin(direction& d) {
    operation& o = unused(operations_);
    o = {&begin_next(d.from)};
    const store_files::pieces all = device().files().pieces_of(o.of->place, o.of->memory, o.of->bytes);
    for (int i = 0; i < all.count; ++i) {
      store_files::piece rest = all.what[static_cast<std::size_t>(i)];
      while (rest.bytes > 0) {
        store_files::piece one = rest;
        one.bytes = (std::min)(rest.bytes, most_bytes);
        rest.begin += one.bytes;
        rest.offset += static_cast<std::int64_t>(one.bytes);
        rest.bytes -= one.bytes;
        ++o.requests;
        d.next.push_back({&o, one, d.from.writes});
      }
    }
    if (o.requests == 0) end_of(o, d);
  }
  void hand_over(direction& d) {
    struct ::io_uring_sqe* const sqe = ::io_uring_get_sqe(&*ring_);
    request& r = unused(requests_);
    r = d.next.front();
    d.next.pop_front();
    std::byte* const memory = r.of->of->memory + r.at.begin;
    const auto bytes = static_cast<unsigned>(r.at.bytes);
    const auto offset = static_cast<std::uint64_t>(r.at.offset);
    if (r.writes)
      ::io_uring_prep_write(sqe, r.at.descriptor, memory, bytes, offset);
    else
      ::io_uring_prep_read(sqe, r.at.descriptor, memory, bytes, offset);
    // Through the page cache the call itself would do the work, and the others would wait for it.
    if (!r.at.direct) ::io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
    ::io_uring_sqe_set_data(sqe, &r);
    ++d.active;
    d.bytes += r.at.bytes;
  }

  void ended(request& r, int result) {
    direction& d = r.writes ? writing_ : reading_;
    --d.active;
    d.bytes -= r.at.bytes;
    request left = r;
    r.of = nullptr;
    operation& o = *left.of;
    if (result > 0 && left.at.direct) o.direct += result;
    const int code = device().files().advance(o.of->place, left.at, result);
    if (code != 0) {
      if (o.code == 0) o.code = code;
    } else if (left.at.bytes > 0) {
      return d.next.push_front(left);
    }
    if (--o.requests == 0) end_of(o, d);
  }
  void end_of(operation& o, direction& d) {
    end(d.from, *o.of, o.code == 0 ? nullptr : error_of(*o.of, d, o.code), o.direct);
    o.of = nullptr;
  }
  std::exception_ptr error_of(const entry& e, const direction& d, int code) {
    try {
      device().files().refuse(e.place, d.from.writes ? "writing" : "reading", code);
    } catch (...) {
      return std::current_exception();
    }
  }
  // The system takes no requests any more: what has begun, what waits and what comes fails.
  void give_up(std::unique_lock<std::mutex>& lock, int code) {
    for (request& r : requests_)
      if (r.of != nullptr) ended(r, -code);
    for (;;) {
      for (direction* const d : {&reading_, &writing_}) {
        while (!d->next.empty()) {
          operation& o = *std::exchange(d->next.front().of, nullptr);
          d->next.pop_front();
          if (o.code == 0) o.code = code;
          if (--o.requests == 0) end_of(o, *d);
        }
        while (!d->from.waiting.empty()) {
          entry& e = begin_next(d->from);
          end(d->from, e, error_of(e, *d, code), 0);
        }
      }
      if (leaving_) return;
      work_.wait(lock, [&] { return leaving_ || !reads_.waiting.empty() || !writes_.waiting.empty(); });
    }
  }

  using uring = detail::uring;
  template <class T>
  static T& unused(std::deque<T>& all) {
    for (T& t : all)
      if (t.of == nullptr) return t;
    return all.emplace_back();
  }

  uring ring_;
  int most_requests_;
  direction reading_{reads_}, writing_{writes_};  // as what follows: of the thread that serves
  std::deque<operation> operations_;              // deques: the system and the requests hold addresses
  std::deque<request> requests_;
};

}  // namespace heddle::inline v0::activations
