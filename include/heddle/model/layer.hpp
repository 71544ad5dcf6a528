// heddle/model/layer.hpp: the batch that a stage is given, and views of flat memory as matrices.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline v0::model {

using compute::transpose;

/// The samples one call works on. Units: samples, tokens per sample.
struct extent_of_batch {
  std::int64_t samples = 0;
  std::int64_t sequence = 0;
  constexpr std::int64_t rows() const noexcept { return samples * sequence; }
  friend constexpr bool operator==(const extent_of_batch&, const extent_of_batch&) = default;
};

/// One microbatch. `tokens` are needed on the first stage, `targets` (already shifted; negative: ignored) on the last;
/// both are row-major [samples, sequence]. `loss_scale` multiplies the gradient: 1 / (targets of the whole step).
/// `sequence` 0 means the model's context.
template <class T>
struct batch {
  std::span<const std::int32_t> tokens{}, targets{};
  int samples = 0;
  sum_of_type<T> loss_scale = 1;
  int sequence = 0;
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
