// heddle/model/gru_operator.hpp: a GRU cell as a learned commutative operator, with its gradients.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/layer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::model {

namespace detail {
template <class Kind, bool Commutative>
struct operand_order {
  static constexpr bool commutative = Commutative;
  using kind = Kind;
};
template <class Kind, bool Together>
struct operand_rows {
  static constexpr bool together = Together;
  using kind = Kind;
};
}  // namespace detail

/// The kind of policies that say in which order operands go into the operator.
struct operand_order_kind {};
/// a op b = (G(a, b) + G(b, a)) / 2: commutative, to the bit where a product's rows are independent.
struct both_orders : detail::operand_order<operand_order_kind, true> {};
/// a op b = G(a, b): input a, state b. Not commutative.
struct one_order : detail::operand_order<operand_order_kind, false> {};

/// The kind of policies that say whether operands share products.
struct operand_rows_kind {};
/// All operands in one product. The result has the same bits on any number of ranks if a row of the backend's products
/// depends on that row alone, wherever it lies and whatever else is multiplied: so do the portable ones; libraries
/// choose their way by the number of rows, and some by the row.
struct rows_together : detail::operand_rows<operand_rows_kind, true> {};
/// Each operand in a product of its own: the bits depend on the operands alone, whatever the library does. Slow.
struct rows_alone : detail::operand_rows<operand_rows_kind, false> {};

namespace detail {
template <class T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}
}  // namespace detail

/// A learned operator on vectors of `width` numbers, many pairs at once: one GRU cell G(x, h), input x, state h, in
/// both orders. With s the logistic function, .* element by element:
///   r = s(W_ir x + b_ir + W_hr h + b_hr)   z = s(W_iz x + b_iz + W_hz h + b_hz)
///   n = tanh(W_in x + b_in + r .* (W_hn h + b_hn))   G(x, h) = (1 - z) .* n + z .* h
/// It is not associative: the shape of the tree matters. `dyadic_fold` and `algo::dyadic` keep it; algorithms that
/// regroup or cut vectors refuse it. All products of both orders are one product of the backend.
/// Shapes: operands and results [pairs, width]; weight [6 width, width]: the rows of W_ir, W_iz, W_in, W_hr, W_hz,
/// W_hn; bias [6 width] in the same order (PyTorch's weight_ih then weight_hh, bias_ih then bias_hh). Saved: 12 width
/// per pair.
/// The products are the backend's; the rest is done here, so that weights and operands must lie where the host can
/// read them.
/// Errors: `layout_error` if the weights do not have these shapes.
/// Source: Ong and Velickovic 2022, arXiv:2212.08541; the cell is Cho et al. 2014, arXiv:1406.1078, in PyTorch's form.
template <class T, class Backend, class Order = both_orders, class Rows = rows_together>
class gru_operator {
 public:
  static constexpr bool commutative = Order::commutative;
  static constexpr bool associative = false;
  static constexpr bool elementwise = false;

  gru_operator(Backend& compute, const weight_views<T>& at) : compute_(&compute), at_(at) {
    const std::int64_t width = at.weight.extent(1);
    if (width < 1 || at.weight.extent(0) != 6 * width || static_cast<std::int64_t>(at.bias.size()) != 6 * width) {
      std::string text = "heddle: gru_operator: the weight must be [6 width, width] and the bias [6 width]; got ";
      text += to_string(at.weight.shape());
      text += " and ";
      text += std::to_string(at.bias.size());
      throw layout_error(text);
    }
  }

  std::int64_t width() const noexcept { return at_.weight.extent(1); }

  void operator()(std::span<const T> a, std::span<const T> b, std::span<T> result) const {
    // A few rows at a time, so that the products stay in the cache.
    constexpr std::int64_t block = 256;
    const std::int64_t pairs = pairs_of(result);
    std::vector<T> products(size_of(12 * (std::min)(pairs, block) * width()));
    for (std::int64_t begin = 0; begin < pairs; begin += block) {
      const std::int64_t n = (std::min)(block, pairs - begin);
      const std::size_t at = size_of(begin * width()), count = size_of(n * width());
      forward(a.subspan(at, count), b.subspan(at, count), result.subspan(at, count),
              std::span<T>(products).first(size_of(12 * n * width())));
    }
  }

  std::int64_t saved_size(std::int64_t scalars) const noexcept { return 12 * scalars; }

  /// Saves the gates: r, z, n in the columns of the input's products, W_hn h + b_hn in the state's.
  void forward(std::span<const T> a, std::span<const T> b, std::span<T> result, std::span<T> saved) const {
    const std::int64_t n = pairs_of(result), w = width();
    std::vector<T> copy;
    multiply(stacked(a, b, copy), as_matrix(saved, 2 * n, 6 * w));
    const T* const bias = at_.bias.data();
    for (std::int64_t i = 0; i < n; ++i) {
      T* const out = result.data() + i * w;
      for (int order = 0; order < orders; ++order) {
        T* const x = saved.data() + (order == 0 ? i : n + i) * 6 * w;          // products of the input
        T* const h = saved.data() + (order == 0 ? n + i : i) * 6 * w + 3 * w;  // products of the state
        const T* const state = (order == 0 ? b : a).data() + i * w;
        for (std::int64_t j = 0; j < w; ++j) {
          const T r = detail::sigmoid((x[j] + bias[j]) + (h[j] + bias[3 * w + j]));
          const T z = detail::sigmoid((x[w + j] + bias[w + j]) + (h[w + j] + bias[4 * w + j]));
          const T hn = h[2 * w + j] + bias[5 * w + j];
          const T m = std::tanh((x[2 * w + j] + bias[2 * w + j]) + r * hn);
          x[j] = r;
          x[w + j] = z;
          x[2 * w + j] = m;
          h[2 * w + j] = hn;
          const T g = m + z * (state[j] - m);
          if constexpr (commutative)
            out[j] = order == 0 ? g : (out[j] + g) / T(2);
          else
            out[j] = g;
        }
      }
    }
  }

  /// Replaces what was saved by the gradients of the products, [2 pairs, 6 width].
  void backward_input(std::span<const T> a, std::span<const T> b, std::span<T> saved, std::span<const T> d_result,
                      std::span<T> d_a, std::span<T> d_b) const {
    const std::int64_t n = pairs_of(d_result), w = width();
    std::fill(d_a.begin(), d_a.end(), T(0));
    std::fill(d_b.begin(), d_b.end(), T(0));
    for (std::int64_t i = 0; i < n; ++i)
      for (int order = 0; order < orders; ++order) {
        T* const x = saved.data() + (order == 0 ? i : n + i) * 6 * w;
        T* const h = saved.data() + (order == 0 ? n + i : i) * 6 * w + 3 * w;
        const T* const state = (order == 0 ? b : a).data() + i * w;
        T* const d_state = (order == 0 ? d_b : d_a).data() + i * w;
        for (std::int64_t j = 0; j < w; ++j) {
          const T g = d_result[size_of(i * w + j)] / T(orders);
          const T r = x[j], z = x[w + j], m = x[2 * w + j], hn = h[2 * w + j];
          const T d_m = g * (T(1) - z) * (T(1) - m * m);
          const T d_z = g * (state[j] - m) * z * (T(1) - z);
          const T d_r = d_m * hn * r * (T(1) - r);
          d_state[j] = g * z;
          x[j] = h[j] = d_r;
          x[w + j] = h[w + j] = d_z;
          x[2 * w + j] = d_m;
          h[2 * w + j] = d_m * r;
        }
        if constexpr (!commutative) {  // products that nothing came of
          std::fill_n(saved.data() + i * 6 * w + 3 * w, 3 * w, T(0));
          std::fill_n(saved.data() + (n + i) * 6 * w, 3 * w, T(0));
        }
      }
    const auto d_products = as_matrix(std::span<const T>(saved), 2 * n, 6 * w);
    const auto half = [&](std::int64_t first) {
      return matrix_view<const T>(d_products.data() + first * 6 * w, dynamic_shape<2>(n, 6 * w));
    };
    if (d_b.data() == d_a.data() + d_a.size()) {
      compute::matmul<transpose::no, transpose::no>(*compute_, d_products, at_.weight, as_matrix(whole(d_a), 2 * n, w),
                                                    T(1));
    } else {
      compute::matmul<transpose::no, transpose::no>(*compute_, half(0), at_.weight, as_matrix(d_a, n, w), T(1));
      compute::matmul<transpose::no, transpose::no>(*compute_, half(n), at_.weight, as_matrix(d_b, n, w), T(1));
    }
  }

  /// After `backward_input`: adds to the gradients of weight and bias.
  void backward_weight(std::span<const T> a, std::span<const T> b, std::span<const T> saved) const {
    std::vector<T> copy;
    const matrix_view<const T> operands = stacked(a, b, copy);
    const auto d_products = as_matrix(saved, operands.extent(0), 6 * width());
    compute::matmul<transpose::yes, transpose::no>(*compute_, d_products, operands, at_.weight_gradient, T(1));
    compute::run<compute::ops::add_bias_backward>(*compute_, d_products, at_.bias_gradient);
  }

 private:
  static constexpr int orders = commutative ? 2 : 1;

  static std::size_t size_of(std::int64_t n) noexcept { return static_cast<std::size_t>(n); }
  template <class U>
  std::int64_t pairs_of(std::span<U> rows) const noexcept {
    return static_cast<std::int64_t>(rows.size()) / width();
  }
  static std::span<T> whole(std::span<T> first) noexcept { return {first.data(), 2 * first.size()}; }

  // Both operands in one matrix, copied only where they do not follow each other in memory.
  matrix_view<const T> stacked(std::span<const T> a, std::span<const T> b, std::vector<T>& copy) const {
    const T* from = a.data();
    if (b.data() != a.data() + a.size()) {
      copy.assign(a.begin(), a.end());
      copy.insert(copy.end(), b.begin(), b.end());
      from = copy.data();
    }
    return {from, dynamic_shape<2>(2 * pairs_of(a), width())};
  }

  void multiply(matrix_view<const T> operands, matrix_view<T> products) const {
    if constexpr (Rows::together) {
      compute::matmul<transpose::no, transpose::yes>(*compute_, operands, at_.weight, products, T(0));
    } else {
      const dynamic_shape<2> in(1, operands.extent(1)), out(1, products.extent(1));
      for (std::int64_t r = 0; r < operands.extent(0); ++r)
        compute::matmul<transpose::no, transpose::yes>(
            *compute_, matrix_view<const T>(operands.data() + r * in.extent(1), in), at_.weight,
            matrix_view<T>(products.data() + r * out.extent(1), out), T(0));
    }
  }

  Backend* compute_;
  weight_views<T> at_;
};

}  // namespace heddle::inline v0::model
