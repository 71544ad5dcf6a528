// heddle/compute/bf16_products.hpp: a backend with products of operands rounded to bf16.
#pragma once

#include <heddle/compute/growing_room.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/ops/products.hpp>
#include <heddle/compute/rounded_weights.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute {
namespace detail {
template <class Backend, class Op, class T>
inline constexpr bool rounds_product = false;
template <class Backend, class Op>
  requires requires { typename Op::of_halves; }
inline constexpr bool rounds_product<Backend, Op, float> = offered<typename Op::of_halves, Backend, bf16>;
}  // namespace detail

/// `Backend` whose `matmul`, `grouped_matmul` and `grouped_matmul_backward_weight` of floats round both operands to the nearest bf16
/// and add products up in float: on the host by the library where the processor multiplies bf16 (`half_product_name()`), else
/// after conversion back, which saves no time. All other kernels, attention among them, and products of other types are those of
/// `Backend`. A backend that rounds operands as it reads them (`rounds_operands()`: the host with AMX) does so for `matmul` of 32
/// rows and more. An error of a product of k terms is at most (2^-7 + 2^-16 + (k + 2) 2^-24) of the sum of |a b|.
/// Weights that stay for some time (`weights_stay`) are rounded once in it, not at each product: the same bits.
/// Memory: bf16 copies of the operands of the largest product so far, and of weights that stay, in the backend's memory, made in the order of its queue;
/// on a device also the smaller ones before, since graphs have their addresses: below three times as much.
template <class Backend>
  requires offered<half_product_facet, Backend, bf16> && offered<ops::cast<bf16>, Backend, float>
class bf16_products : public Backend {
  using memory = space_of<Backend>;
  template <class T>
  using matrix = matrix_view<T, memory>;
  template <class T>
  using input = std::type_identity_t<matrix<const T>>;
  template <class T>
  using stack = view<T, dynamic_shape<3>, memory>;
  using group_offsets = row_view<const std::int64_t, memory>;
  template <class Op, class T>
  static constexpr bool rounds = detail::rounds_product<Backend, Op, T>;

 public:
  using Backend::Backend;
  /// Whose products of floats are not rounded: what is no product of the model takes these.
  using unrounded = Backend;

  /// As `weight_keeper` has it: between the two, whoever writes these weights calls `weights_written`. Errors: `memory_error`.
  void weights_stay(row_view<const float, memory> weights) { weights_.stay(own_queue(), weights); }
  void weights_written(row_view<const float, memory> weights) noexcept { weights_.written(weights); }
  void weights_go(row_view<const float, memory> weights) noexcept { weights_.go(weights); }
  /// Of the copies of weights.
  std::int64_t rounded_weight_bytes() const noexcept { return weights_.bytes(); }
  kept_weight_memory kept_weights() const noexcept { return weights_.memory(); }
  /// Gives back what is kept for copies of weights that stay later.
  void release_kept_weights() noexcept { weights_.release(); }

  /// Products of floats are those of `Backend` of rounded operands; the gradient of a bias is added up from what was not rounded.
  template <class Op, class T, class... V>
    requires(rounds<Op, T> || detail::has_run<Backend, Op, T, V...>)
  void run(const V&... v) {
    if constexpr (rounds<Op, T>)
      multiply(Op{}, v...);
    else
      Backend::template run<Op, T>(v...);
  }

 private:
  Backend& own() noexcept { return *this; }

  template <transpose TA, transpose TB, bool Sums>
  void multiply(ops::matmul<TA, TB, Sums>, input<float> a, input<float> b, matrix<float> c, float beta) {
    if constexpr (requires(Backend& k) { k.rounds_operands(); } &&
                  offered<ops::matmul_rounded<TA, TB, bf16>, Backend, float>)
      if (Backend::rounds_operands() && c.extent(0) >= few_rows) return round_in_product<TA, TB>(a, b, c, beta);
    compute::run<ops::matmul<TA, TB, true>>(own(), rounded(a, left_), rounded(b, right_), c, beta);
  }
  template <transpose TB, bool Sums>
  void multiply(ops::grouped_matmul<TB, Sums>, input<float> x, group_offsets offsets, stack<const float> w,
                matrix<float> y, float beta) {
    compute::run<ops::grouped_matmul<TB, true>>(own(), rounded(x, left_), offsets, rounded(w, right_), y, beta);
  }
  void multiply(ops::grouped_matmul_backward_weight op, input<float> x, input<float> dy, group_offsets offsets,
                stack<float> dw, float beta) {
    compute::run<decltype(op)>(own(), rounded(x, left_), rounded(dy, right_), offsets, dw, beta);
  }
  template <summed_operand Of>
  void multiply(ops::matmul_add_bias_backward<Of>, input<float> a, input<float> b, matrix<float> c,
                row_view<float, memory> db) {
    multiply(ops::matmul<transpose::yes, transpose::no>{}, a, b, c, 1.0f);
    compute::run<ops::add_bias_backward>(own(), Of == summed_operand::left ? a : b, db);
  }
  // What comes behind a product is of the type of its result.
  template <std::derived_from<ops::fused_product_operation> Op, class... V>
  void multiply(Op, input<float> a, input<float> b, const V&... v) {
    compute::run<typename Op::of_halves>(own(), rounded(a, left_), rounded(b, right_), v...);
  }

  // With fewer, rounding them costs little, and libraries read b once.
  static constexpr std::int64_t few_rows = 32;

  decltype(auto) own_queue() noexcept { return queue_of(own()); }
  void round(const float* x, bf16* to, std::int64_t n) {
    compute::run<ops::cast<bf16>>(own(), row_at<memory>(x, n), row_at<memory>(to, n));
  }
  // A backend that rounds operands as it reads them: only weights that stay are read in bf16.
  template <transpose TA, transpose TB>
  void round_in_product(matrix<const float> a, matrix<const float> b, matrix<float> c, float beta) {
    if (const bf16* const weights = copy_of_weights(b.address(), b.shape().size()); weights != nullptr)
      compute::run<ops::matmul_rounded<TA, TB, bf16>>(own(), a, matrix<const bf16>(weights, b.shape()), c, beta);
    else
      compute::run<ops::matmul_rounded<TA, TB, float>>(own(), a, b, c, beta);
  }
  const bf16* copy_of_weights(const float* x, std::int64_t n) {
    return weights_.copy_of(x, n, [&](const float* from, bf16* to) { round(from, to, n); });
  }
  template <class T, class Shape>
  view<const bf16, Shape, memory> rounded(view<T, Shape, memory> x, detail::growing_room<bf16, memory>& room) {
    const std::int64_t n = x.shape().size();
    if (const bf16* const weight = copy_of_weights(x.address(), n); weight != nullptr) return {weight, x.shape()};
    bf16* const to = room.of(own_queue(), n, "operands of a product in bf16");
    round(x.address(), to, n);
    return {to, x.shape()};
  }

  rounded_weights<memory> weights_{};
  detail::growing_room<bf16, memory> left_{}, right_{};
};

}  // namespace heddle::inline v0::compute
