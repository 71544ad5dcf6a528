// heddle/model/pipeline/companion.hpp: a second thread of a rank, for two computations.
#pragma once

#include <heddle/core/config.hpp>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::model {

/// A thread that sleeps until it is given work. `together(first, second)` runs `second` on it while the caller runs
/// `first`, and returns when both have ended. The caller's thread and this one see each other's writes at both ends.
/// Errors: what `first` throws, else what `second` throws, in either case after both have ended.
class companion {
 public:
  companion();
  companion(const companion&) = delete;
  companion& operator=(const companion&) = delete;
  ~companion();

  template <class First, class Second>
  void together(First&& first, Second&& second) {
    using work = std::remove_reference_t<Second>;
    work_ = const_cast<void*>(static_cast<const void*>(std::addressof(second)));
    call_ = [](void* w) { (*static_cast<work*>(w))(); };
    pass(state::work);
    try {
      std::forward<First>(first)();
    } catch (...) {
      finish();  // the work lies in frames that this exception ends
      throw;
    }
    if (const std::exception_ptr error = finish()) std::rethrow_exception(error);
  }

 private:
  enum class state { idle, work, leave };

  void pass(state to);
  std::exception_ptr finish();
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  state state_ = state::idle;
  void* work_ = nullptr;
  void (*call_)(void*) = nullptr;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace heddle::inline v0::model

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/model/impl/pipeline/companion.hpp>
#endif
