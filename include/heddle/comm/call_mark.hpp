// heddle/comm/call_mark.hpp: numbers on which ranks of a checked call must agree: world.mark(n).
#pragma once

#include <atomic>
#include <cstdint>

namespace heddle::inline v0::detail {

// The mark of a world, shared with its communicators: two worlds of the same ranks may be at different steps. It lives as long as
// one of them; `std::shared_ptr` would be another class that every program instantiates.
class call_mark {
 public:
  call_mark() = default;
  static call_mark of_new_world() {
    call_mark mark;
    mark.at_ = new counted;
    return mark;
  }
  call_mark(const call_mark& other) noexcept : at_(other.at_) {
    if (at_ != nullptr) at_->owners.fetch_add(1, std::memory_order_relaxed);
  }
  call_mark(call_mark&& other) noexcept : at_(other.at_) { other.at_ = nullptr; }
  call_mark& operator=(call_mark other) noexcept {
    counted* const before = at_;
    at_ = other.at_;
    other.at_ = before;
    return *this;
  }
  ~call_mark() {
    if (at_ != nullptr && at_->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete at_;
  }

  // -1 where nothing has been marked.
  std::int64_t now() const noexcept { return at_ == nullptr ? -1 : at_->step; }
  void set(std::int64_t step) noexcept { at_->step = step; }

 private:
  struct counted {
    std::int64_t step = -1;
    std::atomic<int> owners{1};
  };
  counted* at_ = nullptr;
};

}  // namespace heddle::inline v0::detail
