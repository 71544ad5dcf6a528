// heddle/comm/call_mark.hpp: the number that the ranks of a checked call must agree on: world.mark(n).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace heddle::inline v0::detail {

// What a communicator knows of its world's mark. Each world has its own: two worlds of the same ranks may be at different steps.
class call_mark {
 public:
  call_mark() = default;
  explicit call_mark(std::shared_ptr<const std::int64_t> of_world) noexcept : at_(std::move(of_world)) {}
  // -1 where nothing has been marked.
  std::int64_t now() const noexcept { return at_ == nullptr ? -1 : *at_; }

 private:
  std::shared_ptr<const std::int64_t> at_;
};

}  // namespace heddle::inline v0::detail
