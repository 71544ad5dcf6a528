// heddle/testing/impl/checked_memory.hpp: bodies of heddle/testing/checked_memory.hpp.
#pragma once

#include <heddle/testing/checked_memory.hpp>
#include <heddle/core/error.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

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

HEDDLE_INLINE checked_pages::checked_pages(std::size_t bytes, std::size_t alignment)
    : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
  if (bytes > (std::size_t{1} << 62) || alignment > page_) return;
  const std::size_t pages = (bytes + page_ - 1) / page_;
  void* const there =
      ::mmap(nullptr, (pages + 1) * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (there == MAP_FAILED) return;
  pages_ = static_cast<std::byte*>(there);
  users_.assign(pages, 0);
  // The end of the memory is near the end of its pages, so that what lies behind it is a fault.
  begin_ = pages_ + (pages * page_ - bytes) / alignment * alignment;
  bytes_ = bytes;
}

HEDDLE_INLINE void checked_pages::change(const void* at, std::size_t bytes, int by) {
  const auto offset = reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(pages_);
  const std::size_t first = offset / page_, end = (offset + bytes + page_ - 1) / page_;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = first; i < end;) {  // pages that change together
    std::size_t j = i;
    for (; j < end && changes(j, by); ++j) users_[j] += by;
    if (j > i) ::mprotect(pages_ + i * page_, (j - i) * page_, by > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
    for (; j < end && !changes(j, by); ++j) users_[j] += by;
    i = j;
  }
}

HEDDLE_INLINE std::shared_ptr<checked_pages> checked_arena::allocate(std::size_t bytes, std::size_t alignment) {
  const auto size = static_cast<std::int64_t>(bytes);
  if (size < 0) return nullptr;
  auto pages = std::make_unique<checked_pages>(bytes, alignment);
  if (pages->begin() == nullptr || !count_->add(size, limit_)) return nullptr;
  std::shared_ptr<checked_pages> made(pages.release(), [size, count = count_](checked_pages* p) {
    delete p;
    count->give(size);
  });
  const std::lock_guard lock(mutex_);
  blocks_[made->begin()] = made;
  return made;
}

HEDDLE_INLINE std::shared_ptr<checked_pages> checked_arena::find(const void* at, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto after = blocks_.upper_bound(static_cast<const std::byte*>(at));
  if (after != blocks_.begin()) {
    auto pages = std::prev(after)->second.lock();
    if (pages != nullptr && pages->holds(at, bytes)) return pages;
  }
  throw memory_error("heddle: checked_memory: an operation names " + std::to_string(bytes) +
                     " bytes that are no memory of its queue's arena: released, outside a buffer, or of another space");
}

HEDDLE_INLINE checked_stream::~checked_stream() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    // While an exception unwinds the stack, nobody will use what has not begun; what others wait for ends with the world.
    if (std::uncaught_exceptions() > unwinding_) jobs_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

HEDDLE_INLINE void checked_stream::add(checked_job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

HEDDLE_INLINE void checked_stream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    {
      checked_job job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      const bool skipped = problem_ != nullptr;
      lock.unlock();
      std::exception_ptr thrown;
      if (!skipped) {
        const opened_pages open(job.uses);
        try {
          job.work();
        } catch (...) {
          thrown = std::current_exception();
        }
      }
      job = {};  // what it refers to ends before anyone is told
      lock.lock();
      busy_ = false;
      if (thrown != nullptr) problem_ = std::move(thrown);
    }
    changed_.notify_all();
  }
}

}  // namespace detail
}  // namespace testing
}  // namespace heddle::inline v0
