// A group of threads that wait for each other, for bodies of kernels on the host.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CUDA_DOUBLE_THREADS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CUDA_DOUBLE_THREADS 1
#endif
#endif

#ifdef CUDA_DOUBLE_THREADS
#include <barrier>
#include <thread>
#else
#include <ucontext.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#endif
#include <vector>

namespace cuda_double {

#ifdef CUDA_DOUBLE_THREADS
/// Threads of the system's: sanitizers see what two of them do to the same memory.
class group_of_threads {
 public:
  explicit group_of_threads(int size) : size_(size), all_(size) {}
  int size() const { return size_; }
  void sync() { all_.arrive_and_wait(); }
  template <class Body>
  void run(const Body& body) {
    std::vector<std::thread> others;
    for (int rank = 1; rank < size_; ++rank) others.emplace_back([&body, rank] { body(rank); });
    body(0);
    for (std::thread& t : others) t.join();
  }

 private:
  int size_;
  std::barrier<> all_;
};
#else
/// Threads that take turns on the caller's: `sync` goes on with the next of them, and returns when each of the others has
/// called it. The system's threads would wait for a core at every `sync` where other programs compute, a hundred times as long.
/// Errors: `std::logic_error` if threads do not call `sync` equally often, which would wait for ever on a GPU.
class group_of_threads {
 public:
  explicit group_of_threads(int size) : threads_(static_cast<std::size_t>(size)) {}
  int size() const { return static_cast<int>(threads_.size()); }
  void sync() {
    ++threads_[current_].syncs;
    next();
  }
  template <class Body>
  void run(const Body& body) {
    body_ = [&body](int rank) { body(rank); };
    for (std::size_t rank = 1; rank < threads_.size(); ++rank) {
      one& t = threads_[rank];
      t.stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
      getcontext(&t.context);
      t.context.uc_stack.ss_sp = t.stack.get();
      t.context.uc_stack.ss_size = stack_bytes;
      t.context.uc_link = nullptr;
      const auto here = reinterpret_cast<std::size_t>(this);
      makecontext(&t.context, reinterpret_cast<void (*)()>(&begin), 3, static_cast<unsigned>(here >> 32),
                  static_cast<unsigned>(here), static_cast<int>(rank));
    }
    current_ = 0;
    body(0);
    threads_[0].ended = true;
    for (std::size_t rank = 1; rank < threads_.size(); ++rank)
      while (!threads_[rank].ended) next();
    for (const one& t : threads_)
      if (t.syncs != threads_[0].syncs)
        throw std::logic_error("threads of a group call sync " + std::to_string(threads_[0].syncs) + " and " +
                               std::to_string(t.syncs) + " times");
  }

 private:
  static constexpr std::size_t stack_bytes = 256 << 10;
  struct one {
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    long syncs = 0;
    bool ended = false;
  };
  // makecontext passes ints.
  static void begin(unsigned high, unsigned low, int rank) {
    auto& group = *reinterpret_cast<group_of_threads*>((static_cast<std::size_t>(high) << 32) | low);
    group.body_(rank);
    group.threads_[static_cast<std::size_t>(rank)].ended = true;
    for (;;) group.next();  // thread 0 returns when all have ended
  }
  // To the next thread that has not ended, or to thread 0, on which `run` returns.
  void next() {
    const std::size_t from = current_;
    do current_ = (current_ + 1) % threads_.size();
    while (current_ != 0 && threads_[current_].ended);
    if (current_ != from) swapcontext(&threads_[from].context, &threads_[current_].context);
  }
  std::vector<one> threads_;
  std::function<void(int)> body_;
  std::size_t current_ = 0;
};
#endif

}  // namespace cuda_double
