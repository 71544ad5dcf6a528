// heddle/tensor/impl/expected_memory.hpp: bodies of heddle/tensor/expected_memory.hpp.
#pragma once

#include <heddle/tensor/expected_memory.hpp>
#include <heddle/tensor/buffer.hpp>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// All that are alive, on all threads: one may end on another thread than it began on.
struct expectations {
  std::mutex mutex;
  std::vector<std::pair<const void*, const std::function<std::string()>*>> all;

  static expectations& get() {
    static expectations one;
    return one;
  }
  static const void* this_thread() {
    static thread_local char here = 0;
    return &here;
  }
};

}  // namespace detail

HEDDLE_INLINE expected_memory::expected_memory(std::function<std::string()> text)
    : thread_(detail::expectations::this_thread()), text_(std::move(text)) {
  auto& known = detail::expectations::get();
  const std::lock_guard lock(known.mutex);
  known.all.emplace_back(thread_, &text_);
  detail::memory_expected_by_thread.store(&of_thread);
}

HEDDLE_INLINE expected_memory::~expected_memory() {
  auto& known = detail::expectations::get();
  const std::lock_guard lock(known.mutex);
  std::erase(known.all, std::pair<const void*, const std::function<std::string()>*>(thread_, &text_));
}

HEDDLE_INLINE std::string expected_memory::of_thread() {
  std::vector<const std::function<std::string()>*> mine;
  {
    auto& known = detail::expectations::get();
    const std::lock_guard lock(known.mutex);
    for (const auto& [thread, text] : known.all)
      if (thread == detail::expectations::this_thread()) mine.push_back(text);
  }
  std::string all;
  for (const auto* text : mine) {
    std::string one;
    try {
      one = (*text)();
    } catch (...) {  // the error of memory says more
      continue;
    }
    if (!one.empty()) all += "; " + one;
  }
  return all;
}

}  // namespace heddle::inline v0
