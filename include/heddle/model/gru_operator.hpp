// heddle/model/gru_operator.hpp: a GRU cell as a learned commutative operator, with its gradients.
#pragma once

#include <heddle/compute/host/lanes.hpp>
#include <heddle/compute/host/math.hpp>
#include <heddle/core/error.hpp>
#include <heddle/model/layer.hpp>

#include <algorithm>
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

/// A learned operator on vectors of `width` numbers, many pairs at once: one GRU cell G(x, h), input x, state h, in
/// both orders. With s the logistic function, .* element by element:
///   r = s(W_ir x + b_ir + W_hr h + b_hr)   z = s(W_iz x + b_iz + W_hz h + b_hz)
///   n = tanh(W_in x + b_in + r .* (W_hn h + b_hn))   G(x, h) = (1 - z) .* n + z .* h
/// It is not associative: the shape of the tree matters. `dyadic_fold` and `algo::dyadic` keep it; algorithms that
/// regroup or cut vectors refuse it. All products of both orders are one product of the backend.
/// Shapes: operands and results [pairs, width]; weight [6 width, width]: the rows of W_ir, W_iz, W_in, W_hr, W_hz,
/// W_hn; bias [6 width] in the same order (PyTorch's weight_ih then weight_hh, bias_ih then bias_hh). Saved: 12 width
/// per pair, 6 in one order.
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
    std::vector<T> products(size_of(saved_size((std::min)(pairs, block) * width())));
    for (std::int64_t begin = 0; begin < pairs; begin += block) {
      const std::int64_t n = (std::min)(block, pairs - begin);
      const std::size_t at = size_of(begin * width()), count = size_of(n * width());
      forward(a.subspan(at, count), b.subspan(at, count), result.subspan(at, count),
              std::span<T>(products).first(size_of(saved_size(n * width()))));
    }
  }

  std::int64_t saved_size(std::int64_t scalars) const noexcept { return 6 * orders * scalars; }

  /// Saves the gates: r, z, n in the columns of the input's products, W_hn h + b_hn in the state's.
  void forward(std::span<const T> a, std::span<const T> b, std::span<T> result, std::span<T> saved) const {
    const std::int64_t n = pairs_of(result), w = width();
    std::vector<T> copy;
    each_product(a, b, copy, [&](const matrix_view<const T>& operands, std::int64_t first) {
      multiply(operands, weights_of(first), products_of(saved, first, operands.extent(0)));
    });
    const T* const bias = at_.bias.data();
    // In place over the products, each gate a loop that is vectorised.
    const auto gate = [](T in, T c, T of_state, T d) {
      return compute::detail::sigmoid_lane((in + c) + (of_state + d));
    };
    const auto added = [](T v, T c) { return v + c; };
    const auto candidate = [](T in, T c, T r, T hn) { return compute::detail::tanh_lane((in + c) + r * hn); };
    const auto mixed = [](T m, T z, T s) { return m + z * (s - m); };
    const auto halved = [&](T m, T z, T s, T first) { return (first + mixed(m, z, s)) / T(2); };
    for (std::int64_t i = 0; i < n; ++i) {
      T* const out = result.data() + i * w;
      for (int order = 0; order < orders; ++order) {
        T* const r = saved.data() + of_input(order, i, n);
        T *const z = r + w, *const m = z + w;
        T* const h = saved.data() + of_state(order, i, n);
        T* const hn = h + 2 * w;
        const T* const state = (order == 0 ? b : a).data() + i * w;
        lanes(w, r, gate, r, bias, h, bias + 3 * w);
        lanes(w, z, gate, z, bias + w, h + w, bias + 4 * w);
        lanes(w, hn, added, hn, bias + 5 * w);
        lanes(w, m, candidate, m, bias + 2 * w, r, hn);
        if (order == 0)
          lanes(w, out, mixed, m, z, state);
        else
          lanes(w, out, halved, m, z, state, out);
      }
    }
  }

  /// Replaces what was saved by the gradients of the products.
  void backward_input(std::span<const T> a, std::span<const T> b, std::span<T> saved, std::span<const T> d_result,
                      std::span<T> d_a, std::span<T> d_b) const {
    const std::int64_t n = pairs_of(d_result), w = width();
    std::fill(d_a.begin(), d_a.end(), T(0));
    std::fill(d_b.begin(), d_b.end(), T(0));
    for (std::int64_t i = 0; i < n; ++i)
      for (int order = 0; order < orders; ++order) {
        T* const x = saved.data() + of_input(order, i, n);
        T* const h = saved.data() + of_state(order, i, n);
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
      }
    const auto add = [&](std::int64_t first, std::int64_t rows, std::span<T> to) {
      compute::matmul<transpose::no, transpose::no>(*compute_, products_of(saved, first, rows), weights_of(first),
                                                    as_matrix(to, rows, w), T(1));
    };
    if (commutative && d_b.data() == d_a.data() + d_a.size()) {
      add(0, 2 * n, whole(d_a));
    } else {
      add(0, n, d_a);
      add(n, n, d_b);
    }
  }

  /// After `backward_input`: adds to the gradients of weight and bias.
  void backward_weight(std::span<const T> a, std::span<const T> b, std::span<const T> saved) const {
    std::vector<T> copy;
    each_product(a, b, copy, [&](const matrix_view<const T>& operands, std::int64_t first) {
      const auto d_products = products_of(saved, first, operands.extent(0));
      const std::int64_t begin = first_weight(first);
      compute::matmul<transpose::yes, transpose::no>(
          *compute_, d_products, operands,
          matrix_view<T>(at_.weight_gradient.data() + begin * width(), dynamic_shape<2>(columns(), width())), T(1));
      compute::run<compute::ops::add_bias_backward>(*compute_, d_products,
                                                    at_.bias_gradient.subspan(size_of(begin), size_of(columns())));
    });
  }

 private:
  static constexpr int orders = commutative ? 2 : 1;
  template <class Op, class... In>
  static void lanes(std::int64_t n, T* out, Op op, const In*... in) {
    compute::detail::map_lanes(n, out, op, in...);
  }

  static std::size_t size_of(std::int64_t n) noexcept { return static_cast<std::size_t>(n); }
  template <class U>
  std::int64_t pairs_of(std::span<U> rows) const noexcept {
    return static_cast<std::int64_t>(rows.size()) / width();
  }
  static std::span<T> whole(std::span<T> first) noexcept { return {first.data(), 2 * first.size()}; }

  // In both orders each operand is multiplied by all six matrices, in one by the three of its place.
  std::int64_t columns() const noexcept { return 3 * orders * width(); }
  std::int64_t of_input(int order, std::int64_t i, std::int64_t n) const noexcept {
    return (order == 0 ? i : n + i) * columns();
  }
  std::int64_t of_state(int order, std::int64_t i, std::int64_t n) const noexcept {
    return (order == 0 ? n + i : i) * columns() + (orders - 1) * 3 * width();
  }
  // Products of `rows` operands, of which the first is the `first`; the weights that they come of.
  template <class U>
  matrix_view<U> products_of(std::span<U> saved, std::int64_t first, std::int64_t rows) const noexcept {
    return {saved.data() + first * columns(), dynamic_shape<2>(rows, columns())};
  }
  std::int64_t first_weight(std::int64_t first) const noexcept { return first == 0 ? 0 : 6 * width() - columns(); }
  matrix_view<const T> weights_of(std::int64_t first) const noexcept {
    return {at_.weight.data() + first_weight(first) * width(), dynamic_shape<2>(columns(), width())};
  }

  // f(operands, number of the first) for each product. Both orders: all operands in one matrix, copied only where they do not follow each other in memory.
  template <class F>
  void each_product(std::span<const T> a, std::span<const T> b, std::vector<T>& copy, F&& f) const {
    const std::int64_t n = pairs_of(a);
    if constexpr (commutative) {
      const T* from = a.data();
      if (b.data() != a.data() + a.size()) {
        copy.assign(a.begin(), a.end());
        copy.insert(copy.end(), b.begin(), b.end());
        from = copy.data();
      }
      f(matrix_view<const T>(from, dynamic_shape<2>(2 * n, width())), 0);
    } else {
      f(as_matrix(a, n, width()), 0);
      f(as_matrix(b, n, width()), n);
    }
  }

  void multiply(const matrix_view<const T>& operands, const matrix_view<const T>& weights,
                const matrix_view<T>& products) const {
    const std::int64_t rows = operands.extent(0), each = Rows::together ? rows : 1;
    const dynamic_shape<2> in(each, operands.extent(1)), out(each, products.extent(1));
    for (std::int64_t r = 0; r < rows; r += each)
      compute::matmul<transpose::no, transpose::yes>(
          *compute_, matrix_view<const T>(operands.data() + r * in.extent(1), in), weights,
          matrix_view<T>(products.data() + r * out.extent(1), out), T(0));
  }

  Backend* compute_;
  weight_views<T> at_;
};

}  // namespace heddle::inline v0::model
