// heddle/compute/packed_weights.hpp: a host backend whose products read weights from copies in a storage format.
#pragma once

#include <heddle/compute/host/packed_matrix.hpp>
#include <heddle/compute/kernels.hpp>
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

/// `Backend`, a `compute::host`, for inference: products x w of floats whose right operand lies in memory that `pack` names read w from a copy in
/// `Format` (`f32_weights`, `bf16_weights`, `q8_weights<Block>`, `w8a8_weights<Block>`), which is made when a product first reads w. Everything
/// else, embeddings and norms among it, is computed by `Backend` from the floats, which therefore stay.
/// A row of a result does not depend on the other rows or on the number of threads. With `f32_weights` and `bf16_weights` it has the bits of
/// `compute::portable` on the rounded weights. In 8 bits an element of x w is off by at most the sum of |x| times half the scale of each block,
/// besides the rounding of sums. With `w8a8_weights` x is rounded, too, to half a scale of each of its blocks.
template <class Backend, weight_format Format>
  requires std::same_as<space_of<Backend>, host_memory>
class packed_weights : public Backend {
  template <class T>
  using input = std::type_identity_t<matrix_view<const T>>;

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

  template <transpose TA = transpose::no, transpose TB = transpose::no, class T>
    requires(!is_half_precision<T>)
  void matmul(input<T> a, input<T> b, matrix_view<T> c, std::type_identity_t<T> beta = T(0)) {
    if constexpr (std::is_same_v<T, float> && TA == transpose::no)
      if (is_weight(b)) return packed(b, TB).multiply(Backend::workers(), a, c, beta);
    Backend::template matmul<TA, TB>(a, b, c, beta);
  }
  template <transpose TA = transpose::no, transpose TB = transpose::no, class T>
    requires is_half_precision<T>
  void matmul(input<T> a, input<T> b, matrix_view<T> c, float beta = 0) {
    Backend::template matmul<TA, TB>(a, b, c, beta);
  }
  template <transpose TA = transpose::no, transpose TB = transpose::no, class A, class B>
    requires(is_half_precision<std::remove_const_t<A>> &&
             std::is_same_v<std::remove_const_t<A>, std::remove_const_t<B>>)
  void matmul(matrix_view<A> a, matrix_view<B> b, matrix_view<float> c, float beta = 0) {
    Backend::template matmul<TA, TB>(a, b, c, beta);
  }

  template <transpose TB = transpose::no, class X, class W, class Y, class Beta = Y>
  void grouped_matmul(matrix_view<X> x, std::span<const std::int64_t> offsets, view<W, dynamic_shape<3>> w,
                      matrix_view<Y> y, Beta beta = Beta(0)) {
    if constexpr (std::is_same_v<std::remove_const_t<X>, float> && std::is_same_v<std::remove_const_t<W>, float> &&
                  std::is_same_v<Y, float>) {
      const std::int64_t experts = w.extent(0), size = w.extent(1) * w.extent(2);
      if (experts > 0 && is_weight({w.data(), dynamic_shape<2>(w.extent(1), w.extent(2))})) {
        for (std::int64_t e = 0; e < experts; ++e) {
          const std::int64_t first = offsets[static_cast<std::size_t>(e)];
          const std::int64_t rows = offsets[static_cast<std::size_t>(e) + 1] - first;
          if (rows == 0) continue;
          packed({w.data() + e * size, dynamic_shape<2>(w.extent(1), w.extent(2))}, TB)
              .multiply(Backend::workers(), {x.data() + first * x.extent(1), dynamic_shape<2>(rows, x.extent(1))},
                        {y.data() + first * y.extent(1), dynamic_shape<2>(rows, y.extent(1))}, beta);
        }
        return;
      }
    }
    Backend::template grouped_matmul<TB>(x, offsets, w, y, beta);
  }

 private:
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
