// heddle/tensor/impl/expected_memory.hpp: bodies of heddle/tensor/expected_memory.hpp.
#pragma once

#include <heddle/tensor/expected_memory.hpp>
#include <heddle/tensor/buffer.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// One that is alive, until `end`; `text` is called under the mutex, so that what it reads does not end meanwhile.
struct expectation {
  std::uint64_t thread;
  std::mutex mutex;
  std::function<std::string()> text;

  expectation(std::uint64_t of, std::function<std::string()> says) : thread(of), text(std::move(says)) {}

  std::string say() {
    const std::lock_guard lock(mutex);
    return text ? text() : std::string();
  }
  void end() {
    const std::lock_guard lock(mutex);
    text = nullptr;
  }
};

// All that are alive, on all threads: one may end on another thread than it began on.
struct expectations {
  std::mutex mutex;
  std::vector<std::shared_ptr<expectation>> all;

  static expectations& get() {
    static expectations one;
    return one;
  }
  // A number that no other thread has or gets; an address would be another thread's after this one has ended.
  static std::uint64_t this_thread() {
    static std::atomic<std::uint64_t> threads{0};
    static thread_local const std::uint64_t here = ++threads;
    return here;
  }
  // Whether this thread calls texts: one that asks for memory in vain itself is not asked again.
  static bool& in_text() {
    static thread_local bool here = false;
    return here;
  }
};

struct inside_text {
  inside_text() { expectations::in_text() = true; }
  ~inside_text() { expectations::in_text() = false; }
  inside_text(const inside_text&) = delete;
  inside_text& operator=(const inside_text&) = delete;
};

}  // namespace detail

HEDDLE_INLINE expected_memory::expected_memory(std::function<std::string()> text)
    : expectation_(std::make_shared<detail::expectation>(detail::expectations::this_thread(), std::move(text))) {
  auto& known = detail::expectations::get();
  const std::lock_guard lock(known.mutex);
  known.all.push_back(expectation_);
  detail::memory_expected_by_thread.store(&of_thread);
}

HEDDLE_INLINE expected_memory::~expected_memory() {
  {
    auto& known = detail::expectations::get();
    const std::lock_guard lock(known.mutex);
    std::erase(known.all, expectation_);
  }
  expectation_->end();
}

HEDDLE_INLINE std::string expected_memory::of_thread() {
  std::string all;
  if (detail::expectations::in_text()) return all;
  const detail::inside_text inside;
  try {  // whatever is thrown here, even for want of memory: the error of memory says more
    std::vector<std::shared_ptr<detail::expectation>> mine;
    {
      auto& known = detail::expectations::get();
      const std::lock_guard lock(known.mutex);
      for (const auto& one : known.all)
        if (one->thread == detail::expectations::this_thread()) mine.push_back(one);
    }
    for (const auto& expectation : mine) {
      std::string one;
      try {
        one = expectation->say();
      } catch (...) {  // the others may have something to say
        continue;
      }
      if (!one.empty()) all += "; " + one;
    }
  } catch (...) {
  }
  return all;
}

}  // namespace heddle::inline v0
