// heddle/model/layer.hpp: what every layer is called with, and how its saved activations get their memory.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline v0::model {

using compute::transpose;

/// What a layer works with: the kernels of this rank and the ranks it shares the layer with.
template <class Backend, class Communicator>
struct layer_context {
  Backend& compute;
  Communicator& tp_group;
};

/// The samples one call works on. Units: samples, tokens per sample.
struct extent_of_batch {
  std::int64_t samples = 0;
  std::int64_t sequence = 0;
  constexpr std::int64_t rows() const noexcept { return samples * sequence; }
};

/// One microbatch. `tokens` are needed on the first stage, `targets` (already shifted; negative: ignored) on the last;
/// both are row-major [samples, sequence]. `loss_scale` multiplies the gradient: 1 / (targets of the whole step).
/// `sequence` 0 means the model's context.
template <class T>
struct batch {
  std::span<const std::int32_t> tokens{};
  std::span<const std::int32_t> targets{};
  int samples = 0;
  T loss_scale = T(1);
  int sequence = 0;
};

/// Cuts one allocation into pieces of whole cache lines. Without memory it only counts, so that the same function tells
/// the size and makes the cuts.
template <class T>
class carver {
 public:
  carver() = default;
  explicit carver(std::span<T> memory) noexcept : memory_(memory), counting_(false) {}

  std::span<T> take(std::int64_t elements) noexcept {
    constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
    const std::int64_t at = used_;
    used_ += (elements + line - 1) / line * line;
    if (counting_) return {};
    return memory_.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(elements));
  }
  /// Elements taken so far, with the ends of cache lines.
  std::int64_t used() const noexcept { return used_; }

 private:
  std::span<T> memory_{};
  bool counting_ = true;
  std::int64_t used_ = 0;
};

/// The first `rows * columns` elements as a matrix.
template <class T>
constexpr matrix_view<T> as_matrix(std::span<T> memory, std::int64_t rows, std::int64_t columns) noexcept {
  return {memory.data(), dynamic_shape<2>(rows, columns)};
}

/// A weight, its bias if it has one, and where their gradients are summed.
template <class T>
struct weight_views {
  matrix_view<const T> weight{};
  matrix_view<T> weight_gradient{};
  std::span<const T> bias{};
  std::span<T> bias_gradient{};
};

}  // namespace heddle::inline v0::model
