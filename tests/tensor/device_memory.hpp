// tests/tensor/device_memory.hpp: a memory space as a device has it, whose queue runs no host code: host code may not touch the elements, and
// what a queue is given is done when somebody waits for it.
#pragma once

#include <heddle/core/device_runtime.hpp>
#include <heddle/core/error.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace tensor_test {

/// Protected pages that a transport may be given, while there are any `transport_call`s of this process: it opens them where code of the
/// transport may run, so that any touch of the host outside ends the program.
class transport_call {
 public:
  transport_call() {
    const std::lock_guard lock(all().mutex);
    if (++all().calls == 1) all().protect(PROT_READ | PROT_WRITE);
  }
  transport_call(const transport_call&) = delete;
  transport_call& operator=(const transport_call&) = delete;
  ~transport_call() {
    const std::lock_guard lock(all().mutex);
    if (--all().calls == 0) all().protect(PROT_NONE);
  }
  static void add(void* begin, std::size_t bytes) {
    const std::lock_guard lock(all().mutex);
    all().pages[begin] = bytes;
  }
  static void remove(void* begin) {
    const std::lock_guard lock(all().mutex);
    all().pages.erase(begin);
  }

 private:
  struct open_pages {
    std::mutex mutex{};
    std::map<void*, std::size_t> pages{};
    int calls = 0;
    void protect(int how) const {
      for (const auto& [begin, bytes] : pages)
        if (::mprotect(begin, bytes, how) != 0) std::abort();  // a destructor cannot throw
    }
  };
  static open_pages& all() {
    static open_pages pages;
    return pages;
  }
};

/// Whether the host can read what is there now. A system call says so, where a touch would end the program.
inline bool host_can_read(const void* address) {
  int ends[2];
  if (::pipe(ends) != 0) throw heddle::memory_error("no pipe");
  const bool can = ::write(ends[1], address, 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  return can;
}

/// Protected pages; if `Open` they are open during a `transport_call`. `Runtime`: what the space says it belongs to.
template <bool Open, heddle::device_runtime Runtime = heddle::device_runtime::other>
struct device_memory {
  static constexpr bool host_accessible = false;
  static constexpr heddle::device_runtime runtime = Runtime;

  // All pages of one queue, opened while it works.
  class pages {
   public:
    static constexpr std::size_t bytes = std::size_t{64} << 20;
    pages()
        : begin_(static_cast<std::byte*>(
              ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
      if (static_cast<void*>(begin_) == MAP_FAILED) throw heddle::memory_error("no pages");
      if (Open) transport_call::add(begin_, bytes);
    }
    pages(const pages&) = delete;
    pages& operator=(const pages&) = delete;
    ~pages() {
      if (Open) transport_call::remove(begin_);
      ::munmap(begin_, bytes);
    }
    void* take(std::size_t n) {
      void* const at = begin_ + used_;
      used_ += (n + 4095) / 4096 * 4096;
      if (used_ > bytes) throw heddle::memory_error("the test's device is full");
      return at;
    }
    template <class F>
    void opened(F&& f) {
      protect(PROT_READ | PROT_WRITE);
      f();
      protect(PROT_NONE);
    }

   private:
    void protect(int how) {
      if (::mprotect(begin_, bytes, how) != 0) throw heddle::memory_error("pages cannot be protected");
    }
    std::byte* begin_;
    std::size_t used_ = 0;
  };

  template <std::size_t>
  class allocation {
   public:
    allocation() = default;
    allocation(std::shared_ptr<pages> of, void* at) : of_(std::move(of)), at_(at) {}
    void* address() const noexcept { return at_; }

   private:
    std::shared_ptr<pages> of_{};
    void* at_ = nullptr;
  };

  class queue {
   public:
    template <std::size_t Alignment>
    allocation<Alignment> allocate(std::size_t bytes) {
      return {pages_, pages_->take(bytes)};
    }
    template <class X>
      requires heddle::elements_in<X, device_memory>
    void zero(X&& x) {
      void* const at = heddle::first_element(x);
      const std::size_t bytes = bytes_of(x);
      jobs_.push_back([at, bytes] { std::memset(at, 0, bytes); });
    }
    template <class From, class To>
      requires(heddle::elements_in<From, device_memory> || heddle::elements_in<From, heddle::host_memory>) &&
              (heddle::elements_in<To, device_memory> || heddle::elements_in<To, heddle::host_memory>) &&
              std::same_as<heddle::element_of<From>, heddle::element_of<To>>
    void copy(const From& from, To&& to) {
      const std::size_t n = heddle::element_count(from), room = heddle::element_count(to);
      if (n != room) heddle::detail::throw_copy_of(n, room);
      const void* const source = heddle::first_element(from);
      void* const target = heddle::first_element(to);
      const std::size_t bytes = bytes_of(from);
      if constexpr (!heddle::elements_in<From, device_memory> || !heddle::elements_in<To, device_memory>)
        with_host_ += static_cast<std::int64_t>(bytes);
      if (bytes != 0) jobs_.push_back([source, target, bytes] { std::memmove(target, source, bytes); });
    }
    template <class Body>
    friend void launch_each(queue& q, std::int64_t n, const Body& body) {
      q.jobs_.push_back([n, body] {
        for (std::int64_t i = 0; i < n; ++i) body(i);
      });
    }
    void wait() {
      const auto jobs = std::exchange(jobs_, {});
      pages_->opened([&] {
        for (const auto& job : jobs) job();
      });
    }
    /// Bytes that were copied from the host or to it.
    std::int64_t bytes_copied_with_host() const noexcept { return with_host_; }

   private:
    template <class X>
    static std::size_t bytes_of(const X& x) {
      return heddle::element_count(x) * sizeof(*heddle::first_element(x));
    }
    std::shared_ptr<pages> pages_ = std::make_shared<pages>();
    std::vector<std::function<void()>> jobs_{};
    std::int64_t with_host_ = 0;
  };
};

}  // namespace tensor_test
