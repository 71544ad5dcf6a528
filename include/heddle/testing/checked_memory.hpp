// heddle/testing/checked_memory.hpp: a memory space with protected pages and a queue.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace heddle::inline v0 {
namespace testing {
namespace detail {

// Pages of one allocation. They can be touched while somebody has them open, page by page; between and after them lie
// pages that can never be.
class checked_pages {
 public:
  checked_pages(std::size_t bytes, std::size_t alignment);
  checked_pages(const checked_pages&) = delete;
  checked_pages& operator=(const checked_pages&) = delete;
  ~checked_pages() {
    if (pages_ != nullptr) ::munmap(pages_, (users_.size() + 1) * page_);
  }

  std::byte* begin() const noexcept { return begin_; }
  std::size_t size() const noexcept { return bytes_; }
  bool holds(const void* at, std::size_t bytes) const noexcept {
    const auto a = reinterpret_cast<std::uintptr_t>(at), b = reinterpret_cast<std::uintptr_t>(begin_);
    return a >= b && a - b <= bytes_ && bytes <= bytes_ - (a - b);
  }
  void open(const void* at, std::size_t bytes) { change(at, bytes, 1); }
  void close(const void* at, std::size_t bytes) noexcept { change(at, bytes, -1); }

 private:
  void change(const void* at, std::size_t bytes, int by);
  bool changes(std::size_t page, int by) const noexcept { return users_[page] == (by > 0 ? 0 : 1); }

  std::size_t page_;
  std::byte* pages_ = nullptr;
  std::byte* begin_ = nullptr;
  std::size_t bytes_ = 0;
  std::mutex mutex_;
  std::vector<int> users_;
};

// Bytes that arenas which this thread makes may give (`limited_checked_memory`).
inline std::int64_t& limit_of_thread() noexcept {
  static thread_local std::int64_t bytes = memory_limit();
  return bytes;
}

// All memory of an arena that is owned by somebody.
class checked_arena {
 public:
  std::shared_ptr<checked_pages> allocate(std::size_t bytes, std::size_t alignment);
  void forget(const checked_pages& pages) noexcept {
    const std::lock_guard lock(mutex_);
    blocks_.erase(pages.begin());
  }
  // Errors: `memory_error` if nobody owns all of it in this arena.
  std::shared_ptr<checked_pages> find(const void* at, std::size_t bytes);

  // Bytes that it may still give, of pages that count as below.
  std::int64_t free_bytes() const {
    const std::lock_guard lock(count_->mutex);
    return limit_ - count_->now;
  }

  std::atomic<std::int64_t> with_host = 0;  // bytes of copies that the host has a side of
  // The most bytes at a time; pages count until nobody may use them any more, of what was queued, either.
  std::int64_t most_bytes() const {
    const std::lock_guard lock(count_->mutex);
    return count_->most;
  }

 private:
  struct byte_count {
    std::mutex mutex;
    std::int64_t now = 0, most = 0;
    // Whether there are so many below the limit.
    bool add(std::int64_t bytes, std::int64_t limit) {
      const std::lock_guard lock(mutex);
      if (bytes > limit - now) return false;
      most = now + bytes > most ? now + bytes : most;
      now += bytes;
      return true;
    }
    void give(std::int64_t bytes) {
      const std::lock_guard lock(mutex);
      now -= bytes;
    }
  };
  std::int64_t limit_ = limit_of_thread();
  std::shared_ptr<byte_count> count_ = std::make_shared<byte_count>();  // pages may live longer than the arena
  std::mutex mutex_;
  std::map<const std::byte*, std::weak_ptr<checked_pages>, std::less<>> blocks_;
};

struct checked_use {
  std::shared_ptr<checked_pages> pages{};
  const void* at = nullptr;
  std::size_t bytes = 0;
};
struct checked_job {
  std::function<void()> work{};
  std::vector<checked_use> uses{};
};

// Keeps the pages of a job open.
class opened_pages {
 public:
  explicit opened_pages(std::vector<checked_use>& uses) : uses_(uses) {
    for (checked_use& u : uses_) u.pages->open(u.at, u.bytes);
  }
  opened_pages(const opened_pages&) = delete;
  opened_pages& operator=(const opened_pages&) = delete;
  ~opened_pages() {
    for (checked_use& u : uses_) u.pages->close(u.at, u.bytes);
  }

 private:
  std::vector<checked_use>& uses_;
};

// Has happened when the last owner of `signal` has gone, whether its job ran or was left out.
class checked_event {
 public:
  std::shared_ptr<void> signal() {
    return {static_cast<void*>(state_.get()), [state = state_](void*) {
              const std::lock_guard lock(state->mutex);
              state->happened = true;
              state->changed.notify_all();
            }};
  }
  void wait() const {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->happened; });
  }

 private:
  struct state {
    std::mutex mutex;
    std::condition_variable changed;
    bool happened = false;
  };
  std::shared_ptr<state> state_ = std::make_shared<state>();
};

// A thread that does jobs in their order. After one has thrown, the others are left out until `wait` has told it.
class checked_stream {
 public:
  checked_stream() : thread_([this] { work(); }) {}
  checked_stream(const checked_stream&) = delete;
  checked_stream& operator=(const checked_stream&) = delete;
  ~checked_stream();

  void add(checked_job job);
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return jobs_.empty() && !busy_; });
    if (problem_ != nullptr) std::rethrow_exception(std::exchange(problem_, nullptr));
  }

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<checked_job> jobs_;
  std::exception_ptr problem_;
  int unwinding_ = std::uncaught_exceptions();
  bool busy_ = false, ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace detail

/// A memory space for tests that treats the host as a device does. Memory is in protected pages, which are open only while an
/// operation of a queue runs that names them: host code that touches an element, or forgets to wait, is ended by the system
/// (SIGSEGV), as is a kernel that writes behind its memory or to memory that it was not given. Queues work asynchronously, each on a
/// thread of its own, and run host code (`run`), so every algorithm of `tensor/` and every transport runs on it.
///
/// Pages are counted, so several queues may work side by side, on one memory too. Released memory is unmapped after all that was queued on it.
/// Linux and other systems with mmap.
struct checked_memory {
  static constexpr bool host_accessible = false;

  template <std::size_t>
  class allocation {
   public:
    allocation() = default;
    allocation(allocation&& other) noexcept
        : arena_(std::move(other.arena_)), pages_(std::exchange(other.pages_, nullptr)) {}
    allocation& operator=(allocation&& other) noexcept {
      if (this == &other) return *this;
      release();
      arena_ = std::move(other.arena_);
      pages_ = std::exchange(other.pages_, nullptr);
      return *this;
    }
    ~allocation() { release(); }
    void* address() const noexcept { return pages_ == nullptr ? nullptr : pages_->begin(); }

   private:
    friend struct checked_memory;
    allocation(std::shared_ptr<detail::checked_arena> arena, std::shared_ptr<detail::checked_pages> pages)
        : arena_(std::move(arena)), pages_(std::move(pages)) {}
    void release() noexcept {
      if (pages_ != nullptr) arena_->forget(*pages_);
      pages_ = nullptr;  // what is queued keeps the pages until it is done
    }
    std::shared_ptr<detail::checked_arena> arena_{};
    std::shared_ptr<detail::checked_pages> pages_{};
  };

  /// An arena and a thread. The end of a queue waits for what it was given; while an exception unwinds the stack it leaves out
  /// what has not begun, and waits for what has: a collective whose peers never come ends by the transport's timeout
  /// (`launch_options::timeout`). It moves, does not copy.
  /// Errors: what queued work throws comes out of the next `wait`, and what follows it in the queue is left out until then;
  /// `memory_error` from the call itself for memory that is not of the arena.
  class queue {
   public:
    queue() : queue(std::make_shared<detail::checked_arena>()) {}
    /// Another queue for the same memory, with an order of its own.
    queue beside() const { return queue(arena_); }

    template <std::size_t Alignment>
    allocation<Alignment> allocate(std::size_t bytes) {
      static_assert(Alignment <= 4096, "heddle: checked_memory aligns to a page at most");
      return make<Alignment>(arena_, arena_->allocate(bytes, Alignment));
    }
    template <class X>
      requires elements_in<X, checked_memory>
    void zero(X&& x) {
      void* const at = first_element(x);
      const std::size_t bytes = bytes_of(x);
      if (bytes != 0) add([at, bytes] { std::memset(at, 0, bytes); }, {use(at, bytes)});
    }
    template <class From, class To>
      requires(elements_in<From, checked_memory> || elements_in<From, host_memory>) &&
              (elements_in<To, checked_memory> || elements_in<To, host_memory>) &&
              std::same_as<element_of<From>, element_of<To>>
    void copy(const From& from, To&& to) {
      const std::size_t n = element_count(from), room = element_count(to);
      if (n != room) heddle::v0::detail::throw_copy_of(n, room);
      const void* const source = first_element(from);
      void* const target = first_element(to);
      const std::size_t bytes = bytes_of(from);
      std::vector<detail::checked_use> uses;
      if constexpr (elements_in<From, checked_memory>) uses.push_back(use(source, bytes));
      if constexpr (elements_in<To, checked_memory>) uses.push_back(use(target, bytes));
      if (uses.size() < 2) arena_->with_host += static_cast<std::int64_t>(bytes);
      if (bytes != 0) add([source, target, bytes] { std::memmove(target, source, bytes); }, std::move(uses));
    }
    /// `f(views...)` in its turn, on the queue's thread, with views of the host's space. What `f` refers to must live until then.
    template <class F, class... T, class... Shape>
    void run(F&& f, const view<T, Shape, checked_memory>&... views) {
      std::vector<detail::checked_use> uses{use(views.address(), bytes_of(views))...};
      add([work = std::make_shared<std::decay_t<F>>(std::forward<F>(f)),
           ... at = view<T, Shape>(views.address(), views.shape())] { (*work)(at...); },
          std::move(uses));
    }
    /// What happens when all that this queue was given so far is done, or left out.
    detail::checked_event record() {
      detail::checked_event e;
      add([signal = e.signal()] {}, {});
      return e;
    }
    /// What follows begins when this event has happened.
    void after(const detail::checked_event& e) {
      add([e] { e.wait(); }, {});
    }
    /// Bytes that all queues of this memory have been given to copy from the host or to it.
    std::int64_t bytes_copied_with_host() const noexcept { return arena_->with_host; }
    /// Bytes that are left of `limited_checked_memory`, else of what the process can have.
    std::size_t free_bytes() const { return static_cast<std::size_t>(arena_->free_bytes()); }
    /// The most bytes of this memory at a time. Memory that was released counts until all that was queued on it is done.
    std::int64_t most_bytes() const { return arena_->most_bytes(); }
    /// Errors: the first that the work has thrown since the last call.
    void wait() { stream_->wait(); }

   private:
    explicit queue(std::shared_ptr<detail::checked_arena> arena)
        : arena_(std::move(arena)), stream_(std::make_unique<detail::checked_stream>()) {}
    template <class X>
    static std::size_t bytes_of(const X& x) {
      return element_count(x) * sizeof(*first_element(x));
    }
    detail::checked_use use(const void* at, std::size_t bytes) const {
      if (bytes == 0) return {};
      return {arena_->find(at, bytes), at, bytes};
    }
    template <class F>
    void add(F&& f, std::vector<detail::checked_use> uses) {
      std::erase_if(uses, [](const detail::checked_use& u) { return u.bytes == 0; });
      stream_->add({std::forward<F>(f), std::move(uses)});
    }

    std::shared_ptr<detail::checked_arena> arena_;
    std::unique_ptr<detail::checked_stream> stream_;
  };

 private:
  template <std::size_t Alignment>
  static allocation<Alignment> make(std::shared_ptr<detail::checked_arena> arena,
                                    std::shared_ptr<detail::checked_pages> pages) {
    return {std::move(arena), std::move(pages)};
  }
};

/// As long as it lives, queues that its thread makes, and those beside them, have so many bytes of checked memory together, as a small
/// device has: a `memory_error` says so. In the body of a rank: of this rank.
class limited_checked_memory {
 public:
  explicit limited_checked_memory(std::int64_t bytes) noexcept
      : before_(std::exchange(detail::limit_of_thread(), bytes)) {}
  limited_checked_memory(const limited_checked_memory&) = delete;
  limited_checked_memory& operator=(const limited_checked_memory&) = delete;
  ~limited_checked_memory() { detail::limit_of_thread() = before_; }

 private:
  std::int64_t before_;
};

}  // namespace testing
}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/testing/impl/checked_memory.hpp>
#endif
