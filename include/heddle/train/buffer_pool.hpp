// heddle/train/buffer_pool.hpp: memory for whole weights and gradients, reused between uses.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// Counts memory that comes and goes. Units: bytes.
struct byte_meter {
  std::int64_t now = 0;
  std::int64_t peak = 0;
  void take(std::int64_t bytes) noexcept { peak = (std::max)(peak, now += bytes); }
  void give(std::int64_t bytes) noexcept { now -= bytes; }
};

/// Buffers that are lent to the stages of a rank, and kept when they come back: fresh pages each time cost more than the zeros or the
/// gathered weights that are written to them. A buffer is used again for the same number of elements. What is lent and what
/// is kept are together at most `limit`, or what is lent alone where that is more. Units: bytes.
/// Elsewhere than on the host the users of all buffers work in the order of one queue, so the next need not wait for the last.
template <class T, memory_space Space = host_memory>
class buffer_pool {
 public:
  using element_type = T;
  using queue_type = typename Space::queue;
  enum class contents { any, zeros };

  std::int64_t lent_bytes() const noexcept { return lent_; }
  std::int64_t kept_bytes() const noexcept { return held_.now - lent_; }
  /// The most of both together, so far.
  std::int64_t peak_bytes() const noexcept { return held_.peak; }
  /// With 0, the first value, nothing is kept.
  void set_limit(std::int64_t bytes) noexcept { limit_ = bytes; }
  std::int64_t limit() const noexcept { return limit_; }
  /// Buffers that are taken from now on are parts of this memory of somebody else while there is room, one behind the other in units of 256 bytes, and are kept
  /// for their size until `parts_anew`; it outlives all use of them.
  void lie_in(T* first, std::int64_t elements) noexcept
    requires heddle::v0::detail::lends_buffers<Space>
  {
    parts_ = first;
    parts_left_ = elements;
  }

  /// That memory has room for parts of any size again, where nothing is lent.
  void parts_anew() noexcept {
    if (parts_ == nullptr || lent_buffers_ > 0) return;
    const auto goes = [&](const buffer<T, Space>& b) {
      if (!is_part(b)) return false;
      held_.give(bytes_of(b));
      return true;
    };
    kept_.erase(std::remove_if(kept_.begin(), kept_.end(), goes), kept_.end());
    parts_left_ += std::exchange(parts_taken_, 0);
  }

  /// `what` names it in errors. Errors: `memory_error` naming it, the bytes wanted and free, what is lent and kept, and the limit,
  /// which is what the trainer's strategy predicts.
  buffer<T, Space> take(queue_type& queue, std::int64_t elements, contents holds, std::string_view what) {
    if (elements == 0) return {};
    kept_.reserve(kept_.size() + static_cast<std::size_t>(lent_buffers_) + 1);  // so that giving back needs no memory
    const auto same =
        std::find_if(kept_.rbegin(), kept_.rend(), [&](const auto& b) { return bytes_of(b) == in_bytes(elements); });
    buffer<T, Space> taken;
    if (same != kept_.rend()) {
      if (holds == contents::zeros) queue.zero(*same);
      taken = std::move(*same);
      kept_.erase(std::next(same).base());
    } else if (fits_in_parts(elements)) {
      taken = next_part(elements);
      if (holds == contents::zeros) queue.zero(taken);
      held_.take(bytes_of(taken));
    } else {
      shrink_to(limit_ - in_bytes(elements));
      // What was released may still be used by what is queued: a host that is ahead of its queue takes no more memory than one
      // that is not.
      if (std::exchange(released_, false)) queue.wait();
      try {
        taken = buffer<T, Space>(queue, elements, what);
      } catch (const memory_error& e) {
#if defined(__cpp_rtti)
        if (typeid(e) != typeid(memory_error)) throw;  // a kind of its own says more than a number of bytes
#endif
        throw memory_error(e.what() + of_prediction());
      }
      held_.take(bytes_of(taken));
    }
    lent_ += bytes_of(taken);
    ++lent_buffers_;
    return taken;
  }
  void give_back(buffer<T, Space>&& memory) noexcept {
    if (memory.empty()) return;
    lent_ -= bytes_of(memory);
    --lent_buffers_;
    kept_.push_back(std::move(memory));
    memory = {};
    shrink_to(limit_);
  }
  /// Releases what is kept: the next use allocates again.
  void release_kept() noexcept { shrink_to(0); }

 private:
  static std::int64_t in_bytes(std::int64_t elements) noexcept {
    return elements * static_cast<std::int64_t>(sizeof(T));
  }
  std::string of_prediction() const {
    std::string text =
        "; " + std::to_string(lent_) + " bytes are lent and " + std::to_string(held_.now - lent_) + " kept for later";
    if (limit_ > 0) text += ", and the strategy predicted at most " + std::to_string(limit_) + " of both on this rank";
    return text;
  }
  static std::int64_t bytes_of(const buffer<T, Space>& b) noexcept {
    return in_bytes(static_cast<std::int64_t>(b.size()));
  }
  // Releases those that are kept, the oldest first, until no more than this is held; not those of somebody else's memory.
  void shrink_to(std::int64_t bytes) noexcept {
    const auto is_released = [&](const buffer<T, Space>& b) {
      if (held_.now <= bytes || is_part(b)) return false;
      held_.give(bytes_of(b));
      released_ = true;
      return true;
    };
    kept_.erase(std::remove_if(kept_.begin(), kept_.end(), is_released), kept_.end());
  }
  static constexpr std::int64_t unit = 256 / static_cast<std::int64_t>(sizeof(T));
  bool fits_in_parts(std::int64_t elements) const noexcept { return elements <= parts_left_; }
  buffer<T, Space> next_part(std::int64_t elements) noexcept {
    if constexpr (heddle::v0::detail::lends_buffers<Space>) {
      T* const first = parts_ + parts_taken_;
      const std::int64_t in_units = (std::min)((elements + unit - 1) / unit * unit, parts_left_);
      parts_taken_ += in_units;
      parts_left_ -= in_units;
      return heddle::v0::detail::borrowing::of<T, Space>(first, elements);
    } else {
      return {};
    }
  }
  bool is_part(const buffer<T, Space>& b) const noexcept {
    const T* const at = b.address();
    return parts_ != nullptr && !std::less<>{}(at, static_cast<const T*>(parts_)) &&
           std::less<>{}(at, static_cast<const T*>(parts_) + parts_taken_);
  }

  std::int64_t limit_ = 0;
  std::int64_t lent_ = 0;
  int lent_buffers_ = 0;
  byte_meter held_;        // lent or kept
  bool released_ = false;  // since the queue was waited for
  std::vector<buffer<T, Space>> kept_;
  T* parts_ = nullptr;  // of somebody else
  std::int64_t parts_taken_ = 0, parts_left_ = 0;
};

/// What a rank lends to stages with weights of type T: one memory for weights and gradients where both have that type, so that each
/// uses what the other gave back, and one for each where gradients are of `sum_of_type<T>`. Units: bytes.
template <class T, memory_space Space = host_memory>
class lent_memories {
 public:
  using sum = sum_of_type<T>;
  static constexpr bool are_one = std::is_same_v<T, sum>;

  buffer_pool<T, Space>& of_weights() noexcept { return weights_; }
  buffer_pool<sum, Space>& of_gradients() noexcept {
    if constexpr (are_one)
      return weights_;
    else
      return gradients_;
  }
  std::int64_t lent_bytes() const noexcept { return weights_.lent_bytes() + gradients_.lent_bytes(); }
  std::int64_t kept_bytes() const noexcept { return weights_.kept_bytes() + gradients_.kept_bytes(); }
  /// The sum of the most of each.
  std::int64_t peak_bytes() const noexcept { return weights_.peak_bytes() + gradients_.peak_bytes(); }
  void release_kept() noexcept {
    weights_.release_kept();
    gradients_.release_kept();
  }
  void parts_anew() noexcept {
    weights_.parts_anew();
    gradients_.parts_anew();
  }

 private:
  struct no_memory {
    static std::int64_t lent_bytes() noexcept { return 0; }
    static std::int64_t kept_bytes() noexcept { return 0; }
    static std::int64_t peak_bytes() noexcept { return 0; }
    static void release_kept() noexcept {}
    static void parts_anew() noexcept {}
  };
  buffer_pool<T, Space> weights_;
  [[no_unique_address]] std::conditional_t<are_one, no_memory, buffer_pool<sum, Space>> gradients_;
};

}  // namespace heddle::inline v0::train
