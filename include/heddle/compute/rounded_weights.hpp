// heddle/compute/rounded_weights.hpp: bf16 copies of weights, made at their first read.
#pragma once

#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace heddle::inline v0::compute {

/// A backend that may keep what its products make of weights of type T. Between `weights_stay(row)` and `weights_go(row)` whoever writes elements of
/// the row calls `weights_written(row)` before a product reads them. Outside of that the backend keeps nothing, so that anyone may write.
template <class B, class T>
concept weight_keeper = requires(B& b, row_view<const T, space_of<B>> weights) {
  b.weights_stay(weights);
  b.weights_written(weights);
  b.weights_go(weights);
};

/// Memory of what a backend keeps of weights, of all stages that use it together. Units: bytes.
struct kept_weight_memory {
  const void* of = nullptr;           ///< which: the same where a backend is the same; null: nothing is kept
  std::int64_t bytes = 0;             ///< of weights that stay now, and kept for later ones
  std::int64_t peak_bytes = 0;        ///< the most so far
  std::int64_t bytes_per_weight = 0;  ///< of each that stays
};

/// That of a backend which keeps something of weights of type T, and says so (`kept_weights()`).
template <class T, class B>
kept_weight_memory kept_weights_of([[maybe_unused]] const B& b) noexcept {
  if constexpr (weight_keeper<B, T> && requires { b.kept_weights(); })
    return b.kept_weights();
  else
    return {};
}

/// Gives back what a backend keeps for copies of weights that stay later, where it keeps some.
template <class B>
void release_kept_weights(B& b) noexcept {
  if constexpr (requires { b.release_kept_weights(); }) b.release_kept_weights();
}

/// Copies in bf16 of what lies in rows of floats, as `weight_keeper` has it: the first product that reads an operand among them has it
/// rounded, later ones take that copy until the row is written or goes.
/// Memory: two bytes for each element of the rows that stay, kept for the next row of as many elements.
template <memory_space Space>
class rounded_weights {
 public:
  using row = row_view<const float, Space>;

  /// Errors: `memory_error`, and then nothing is kept of the row.
  void stay(typename Space::queue& queue, row weights) {
    go(weights);
    const auto n = static_cast<std::int64_t>(weights.size());
    if (n == 0) return;
    const auto same = std::find_if(free_.begin(), free_.end(), [&](const auto& b) { return size_of(b) == n; });
    buffer<bf16, Space> copies;
    if (same != free_.end()) {
      copies = std::move(*same);
      free_.erase(same);
    } else {
      free_.clear();
      copies = buffer<bf16, Space>(queue, n, "weights in bf16");
    }
    held_.push_back({first_element(weights), std::move(copies), {}});
    peak_bytes_ = (std::max)(peak_bytes_, bytes());
    free_.reserve(held_.size() + free_.size());  // so that `go` needs no memory
  }
  void written(row weights) noexcept {
    const place begin = place_of(first_element(weights));
    const place end = begin + static_cast<place>(weights.size()) * sizeof(float);
    for (held& h : held_)
      if (begin < end_of(h) && place_of(h.weights) < end) h.made.clear();
  }
  void go(row weights) noexcept {
    const auto at = std::find_if(held_.begin(), held_.end(), [&](const held& h) {
      return h.weights == first_element(weights) && size_of(h.copies) == static_cast<std::int64_t>(weights.size());
    });
    if (at == held_.end()) return;
    free_.push_back(std::move(at->copies));
    held_.erase(at);
  }
  /// The copy of n elements there, or null where they are not among rows that stay. `round(from, to)` makes it.
  template <class Round>
  const bf16* copy_of(const float* weights, std::int64_t n, Round&& round) {
    for (held& h : held_) {
      if (n == 0 || place_of(weights) < place_of(h.weights) || end_of(h) < place_of(weights + n)) continue;
      bf16* const to = h.copies.address() + (weights - h.weights);
      std::int64_t& made = h.made[weights - h.weights];
      if (made < n) {
        round(weights, to);
        made = n;
      }
      return to;
    }
    return nullptr;
  }
  /// Of the copies of rows that stay, and of memory for later ones.
  std::int64_t bytes() const noexcept {
    std::int64_t n = 0;
    for (const held& h : held_) n += size_of(h.copies);
    for (const auto& b : free_) n += size_of(b);
    return n * static_cast<std::int64_t>(sizeof(bf16));
  }
  kept_weight_memory memory() const noexcept { return {this, bytes(), peak_bytes_, sizeof(bf16)}; }
  /// Gives back what is kept for later rows.
  void release() noexcept { free_.clear(); }

 private:
  using place = std::uintptr_t;  // addresses of different arrays are not to be compared
  struct held {
    const float* weights;
    buffer<bf16, Space> copies;
    std::unordered_map<std::int64_t, std::int64_t> made;  // from the first element of a copy: how many
  };
  static place place_of(const float* at) noexcept { return reinterpret_cast<place>(at); }
  static place end_of(const held& h) noexcept { return place_of(h.weights + size_of(h.copies)); }
  static std::int64_t size_of(const buffer<bf16, Space>& b) noexcept { return static_cast<std::int64_t>(b.size()); }

  std::vector<held> held_;
  std::vector<buffer<bf16, Space>> free_;
  std::int64_t peak_bytes_ = 0;
};

}  // namespace heddle::inline v0::compute
