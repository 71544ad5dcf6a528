// heddle/compute/packed_weights.hpp: a host backend whose products read packed weights.
#pragma once

#include <heddle/compute/host/packed_matrix.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/ops/products.hpp>
#include <heddle/compute/weight_formats.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace heddle::inline v0::compute {
namespace detail {
// Products of rows with a matrix that may be a weight.
template <class Op>
inline constexpr bool reads_right_operand = false;
template <transpose TB, bool Sums>
inline constexpr bool reads_right_operand<ops::matmul<transpose::no, TB, Sums>> = true;
template <transpose TB, bool Sums>
inline constexpr bool reads_right_operand<ops::grouped_matmul<TB, Sums>> = true;
}  // namespace detail

/// `Backend`, a `compute::host`, for inference: products x w of floats whose right operand lies in memory that `pack` names read w from a copy in
/// `Format` (`f32_weights`, `bf16_weights`, `q8_weights<Block>`, `w8a8_weights<Block>`, `spike_weights<Group, K>`), which is made when a product first reads w. Everything
/// else, embeddings and norms among it, is computed by `Backend` from the floats, which therefore stay.
/// A row of a result does not depend on the other rows or on the number of threads. With `f32_weights` and `bf16_weights` it has the bits of
/// `compute::portable` on the rounded weights. In 8 bits an element of x w is off by at most the sum of |x| times half the scale of each block,
/// besides the rounding of sums. With `w8a8_weights` x is rounded, too, to half a scale of each of its blocks.
/// `spike_weights` (`spike_weights.hpp`) rounds it to half a threshold of its row.
template <class Backend, weight_format Format>
  requires std::same_as<space_of<Backend>, host_memory>
class packed_weights : public Backend {
  template <class T>
  using input = std::type_identity_t<matrix_view<const T>>;
  template <class Op, class T>
  static constexpr bool reads_weights = std::is_same_v<T, float> && detail::reads_right_operand<Op>;

 public:
  using format = Format;
  using Backend::Backend;

  /// From now on weights among these are packed, each when a product first reads it; earlier copies of any weights are dropped. Call it
  /// again after weights have changed, and `pack({})` before the memory that it names is freed: what lies there later would be taken for the weights.
  /// No weights: none are packed.
  void pack(std::span<const float> weights, std::span<const float> more = {}) {
    packed_.clear();
    ranges_ = {weights, more};
  }
  /// Weights among these have changed: their copies are dropped, and made again when a product next reads them.
  void weights_written(row_view<const float, host_memory> weights) noexcept {
    std::erase_if(packed_, [&](const auto& one) { return is_among(weights, one.first, 1); });
    if constexpr (requires(Backend& b) { b.weights_written(weights); }) Backend::weights_written(weights);
  }
  /// Bytes of the copies that have been made.
  std::int64_t packed_bytes() const noexcept {
    std::int64_t n = 0;
    for (const auto& [address, one] : packed_) n += one.matrix.bytes();
    return n;
  }

  template <class Op, class T, class... V>
    requires(reads_weights<Op, T> || detail::has_run<Backend, Op, T, V...>)
  void run(const V&... v) {
    if constexpr (reads_weights<Op, T>)
      multiply(Op{}, v...);
    else
      Backend::template run<Op, T>(v...);
  }

 private:
  Backend& own() noexcept { return *this; }
  template <transpose TB, bool Sums>
  void multiply(ops::matmul<transpose::no, TB, Sums> op, input<float> a, input<float> b, matrix_view<float> c,
                float beta) {
    if (is_weight(b)) return packed(b, TB).multiply(Backend::workers(), a, c, beta);
    compute::run<decltype(op)>(own(), a, b, c, beta);
  }
  template <transpose TB, bool Sums>
  void multiply(ops::grouped_matmul<TB, Sums> op, input<float> x, std::span<const std::int64_t> offsets,
                stack_view<const float> w, matrix_view<float> y, float beta) {
    const std::int64_t experts = w.extent(0), size = w.extent(1) * w.extent(2);
    if (experts == 0 || !is_weight({w.data(), dynamic_shape<2>(w.extent(1), w.extent(2))}))
      return compute::run<decltype(op)>(own(), x, offsets, w, y, beta);
    if constexpr (detail::checks_arguments) {
      const detail::argument_extents sizes[] = {
          detail::extents_of(x), {{std::ssize(offsets)}}, detail::extents_of(w), detail::extents_of(y)};
      op.expect_sizes(op.name, op.turned, sizes);
      op.check_values({{x.extent(0), y.extent(1), x.extent(1), experts, std::ssize(offsets)}}, nullptr, offsets.data(),
                      nullptr, nullptr, 0);
    }
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t first = offsets[static_cast<std::size_t>(e)];
      const std::int64_t rows = offsets[static_cast<std::size_t>(e) + 1] - first;
      if (rows == 0) continue;
      packed({w.data() + e * size, dynamic_shape<2>(w.extent(1), w.extent(2))}, TB)
          .multiply(Backend::workers(), {x.data() + first * x.extent(1), dynamic_shape<2>(rows, x.extent(1))},
                    {y.data() + first * y.extent(1), dynamic_shape<2>(rows, y.extent(1))}, beta);
    }
  }

  struct packed_copy {
    packed_matrix<Format> matrix{};
    transpose how = transpose::no;
  };

  static bool is_among(std::span<const float> all, const float* first, std::int64_t n) noexcept {
    const auto place = [](const float* p) { return reinterpret_cast<std::uintptr_t>(p); };
    return n > 0 && place(all.data()) <= place(first) && place(first + n) <= place(all.data() + all.size());
  }
  bool is_weight(matrix_view<const float> w) const noexcept {
    return std::any_of(ranges_.begin(), ranges_.end(),
                       [&](std::span<const float> r) { return is_among(r, w.data(), w.size()); });
  }
  const packed_matrix<Format>& packed(matrix_view<const float> w, transpose how) {
    packed_copy& one = packed_[w.data()];
    const bool across = how == transpose::yes;
    if (one.how != how || one.matrix.columns() != w.extent(across ? 0 : 1) ||
        one.matrix.depth() != w.extent(across ? 1 : 0))
      one = {packed_matrix<Format>(Backend::workers(), w, how), how};
    return one.matrix;
  }

  std::array<std::span<const float>, 2> ranges_{};
  std::unordered_map<const float*, packed_copy> packed_{};
};

}  // namespace heddle::inline v0::compute
