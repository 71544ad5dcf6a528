// heddle/compute/growing_room.hpp: workspace of kernels, which grows and is kept.
#pragma once

#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <cstdint>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::compute::detail {

/// Room for the elements of the largest call so far. In memory of a device what was too small is kept, too, since a graph that was captured before has its address; it grows by
/// half at least there, so that all of it together is below three times the last. On the host it is replaced.
template <class T, memory_space Space>
class growing_room {
  static constexpr bool replaced = std::is_same_v<Space, host_memory>;

 public:
  /// The address of n elements, until the next call on the host, else as long as this is. Errors: `memory_error`.
  template <class Queue>
  T* of(Queue&& queue, std::int64_t n, const char* what) {
    const std::int64_t has = kept_.empty() ? 0 : static_cast<std::int64_t>(kept_.back().size());
    if (kept_.empty() || has < n) {
      if constexpr (replaced) kept_.clear();
      const std::int64_t grown = replaced ? n : has + has / 2;
      kept_.emplace_back(queue, n > grown ? n : grown, what);
    }
    return kept_.back().address();
  }

 private:
  std::vector<buffer<T, Space>> kept_{};
};

}  // namespace heddle::inline v0::compute::detail
