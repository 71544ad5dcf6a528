// heddle/compute/host/host.hpp: the host backend: every kernel in C++ and threads, products by a chosen library.
#pragma once

#include <heddle/compute/host/adamw.hpp>
#include <heddle/compute/host/attention.hpp>
#include <heddle/compute/host/check.hpp>
#include <heddle/compute/host/cross_entropy.hpp>
#include <heddle/compute/host/elementwise.hpp>
#include <heddle/compute/host/embedding.hpp>
#include <heddle/compute/host/gemm.hpp>
#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/kernels.hpp>

#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::compute {

/// The host backend: `compute::host<compute::onednn> backend{threads}` serves one rank with that many cores, the
/// calling thread among them. Kernels are described in kernels.hpp; all are deterministic for a given number of
/// threads, and all but the library's products do not depend on that number at all (the portable ones neither).
/// Errors: `config_error` for fewer than one thread, `layout_error` if the arguments of a kernel do not fit together.
template <class Gemm = portable>
  requires gemm_library<Gemm, float> && gemm_library<Gemm, double>
class host {
 public:
  using kind = backend_kind;
  using gemm = Gemm;

  explicit host(int threads = 1) : team_(threads) {}

  int threads() const noexcept { return team_.size(); }
  const char* gemm_name() const noexcept { return Gemm::name(); }
  /// The threads themselves, for work that has no kernel here.
  team& workers() noexcept { return team_; }

  template <transpose TA = transpose::no, transpose TB = transpose::no, class T>
  void matmul(input_matrix<T> a, input_matrix<T> b, matrix_view<T> c, std::type_identity_t<T> beta = T(0)) {
    constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
    const std::int64_t m = c.extent(0), n = c.extent(1), k = a.extent(ta ? 0 : 1);
    detail::expect("matmul", "rows of op(a)", m, a.extent(ta ? 1 : 0));
    detail::expect("matmul", "rows of op(b)", k, b.extent(tb ? 1 : 0));
    detail::expect("matmul", "columns of op(b)", n, b.extent(tb ? 0 : 1));
    if (m == 0 || n == 0) return;
    if (k == 0) {
      if (beta == T(0)) return fill(c.elements(), T(0));
      return scale(c.elements(), beta);
    }
    detail::multiply_shared<Gemm, TA, TB>(team_, m, n, k, a.data(), a.extent(1), b.data(), b.extent(1), beta, c.data(),
                                          n);
  }

  template <class T>
  void add_bias(matrix_view<T> y, input_vector<T> b) {
    detail::expect("add_bias", "elements of b", y.extent(1), b.size());
    detail::add_bias(team_, y.extent(0), y.extent(1), y.data(), b.data());
  }
  template <class T>
  void add_bias_backward(input_matrix<T> dy, std::span<T> db) {
    detail::expect("add_bias_backward", "elements of db", dy.extent(1), db.size());
    detail::add_bias_backward(team_, dy.extent(0), dy.extent(1), dy.data(), db.data());
  }

  template <class T>
  void gelu(input_vector<T> x, std::span<T> y) {
    detail::expect("gelu", "elements of y", size_of(x), y.size());
    detail::gelu(team_, size_of(x), x.data(), y.data());
  }
  template <class T>
  void gelu_backward(input_vector<T> x, input_vector<T> dy, std::span<T> dx) {
    detail::expect("gelu_backward", "elements of dy", size_of(x), dy.size());
    detail::expect("gelu_backward", "elements of dx", size_of(x), dx.size());
    detail::gelu_backward(team_, size_of(x), x.data(), dy.data(), dx.data());
  }

  template <class T>
  void layer_norm(input_matrix<T> x, input_vector<T> w, input_vector<T> b, std::type_identity_t<T> eps,
                  matrix_view<T> y, std::type_identity_t<std::span<T>> mean, std::type_identity_t<std::span<T>> rstd) {
    const std::int64_t rows = x.extent(0), columns = x.extent(1);
    same_shape<T>("layer_norm", "y", x, y);
    detail::expect("layer_norm", "elements of w", columns, w.size());
    detail::expect("layer_norm", "elements of b", columns, b.size());
    detail::expect("layer_norm", "elements of mean", rows, mean.size());
    detail::expect("layer_norm", "elements of rstd", rows, rstd.size());
    detail::layer_norm(team_, rows, columns, x.data(), w.data(), b.data(), eps, y.data(), mean.data(), rstd.data());
  }
  template <class T>
  void layer_norm_backward_input(input_matrix<T> dy, input_matrix<T> x, input_vector<T> w, input_vector<T> mean,
                                 input_vector<T> rstd, matrix_view<T> dx) {
    const std::int64_t rows = x.extent(0), columns = x.extent(1);
    same_shape<T>("layer_norm_backward_input", "dy", x, dy);
    same_shape<T>("layer_norm_backward_input", "dx", x, dx);
    detail::expect("layer_norm_backward_input", "elements of w", columns, w.size());
    detail::expect("layer_norm_backward_input", "elements of mean", rows, mean.size());
    detail::expect("layer_norm_backward_input", "elements of rstd", rows, rstd.size());
    detail::layer_norm_backward_input(team_, rows, columns, dy.data(), x.data(), w.data(), mean.data(), rstd.data(),
                                      dx.data());
  }
  template <class T>
  void layer_norm_backward_weight(input_matrix<T> dy, input_matrix<T> x, input_vector<T> mean, input_vector<T> rstd,
                                  std::span<T> dw, std::type_identity_t<std::span<T>> db) {
    const std::int64_t rows = x.extent(0), columns = x.extent(1);
    same_shape<T>("layer_norm_backward_weight", "dy", x, dy);
    detail::expect("layer_norm_backward_weight", "elements of mean", rows, mean.size());
    detail::expect("layer_norm_backward_weight", "elements of rstd", rows, rstd.size());
    detail::expect("layer_norm_backward_weight", "elements of dw", columns, dw.size());
    detail::expect("layer_norm_backward_weight", "elements of db", columns, db.size());
    detail::layer_norm_backward_weight(team_, rows, columns, dy.data(), x.data(), mean.data(), rstd.data(), dw.data(),
                                       db.data());
  }

  template <class T>
  void attention(input_matrix<T> qkv, attention_shape s, matrix_view<T> out, std::type_identity_t<std::span<T>> lse) {
    attention_sizes<T>("attention", s, qkv, out, lse.size());
    detail::attention<Gemm>(team_, s, qkv.data(), out.data(), lse.data());
  }
  template <class T>
  void attention_backward(input_matrix<T> dout, input_matrix<T> qkv, input_matrix<T> out, input_vector<T> lse,
                          attention_shape s, matrix_view<T> dqkv) {
    attention_sizes<T>("attention_backward", s, qkv, out, lse.size());
    same_shape<T>("attention_backward", "dout", out, dout);
    same_shape<T>("attention_backward", "dqkv", qkv, dqkv);
    detail::attention_backward<Gemm>(team_, s, dout.data(), qkv.data(), out.data(), lse.data(), dqkv.data());
  }

  template <class T>
  void embedding(token_ids ids, input_matrix<T> table, std::int64_t first_id, matrix_view<T> out) {
    detail::expect("embedding", "rows of out", out.extent(0), ids.size());
    detail::expect("embedding", "columns of out", table.extent(1), out.extent(1));
    detail::embedding(team_, ids, table.extent(0), table.extent(1), table.data(), first_id, out.data());
  }
  template <class T>
  void embedding_backward(token_ids ids, input_matrix<T> dout, std::int64_t first_id, matrix_view<T> dtable) {
    detail::expect("embedding_backward", "rows of dout", dout.extent(0), ids.size());
    detail::expect("embedding_backward", "columns of dout", dtable.extent(1), dout.extent(1));
    detail::embedding_backward(team_, ids, dtable.extent(0), dtable.extent(1), dout.data(), first_id, dtable.data());
  }
  template <class T>
  void add_positions(matrix_view<T> x, input_matrix<T> wpe, std::int64_t sequence) {
    position_sizes("add_positions", x.extent(0), x.extent(1), wpe.extent(0), wpe.extent(1), sequence);
    detail::add_positions(team_, x.extent(0), x.extent(1), sequence, x.data(), wpe.data());
  }
  template <class T>
  void add_positions_backward(input_matrix<T> dx, std::int64_t sequence, matrix_view<T> dwpe) {
    position_sizes("add_positions_backward", dx.extent(0), dx.extent(1), dwpe.extent(0), dwpe.extent(1), sequence);
    detail::add_positions_backward(team_, dx.extent(0), dx.extent(1), sequence, dx.data(), dwpe.data());
  }

  template <class T>
  void row_max(input_matrix<T> logits, std::span<T> m) {
    detail::expect("row_max", "elements of m", logits.extent(0), m.size());
    detail::row_max(team_, logits.extent(0), logits.extent(1), logits.data(), m.data());
  }
  template <class T>
  void row_sum_exp(input_matrix<T> logits, input_vector<T> m, std::span<T> sum) {
    detail::expect("row_sum_exp", "elements of m", logits.extent(0), m.size());
    detail::expect("row_sum_exp", "elements of sum", logits.extent(0), sum.size());
    detail::row_sum_exp(team_, logits.extent(0), logits.extent(1), logits.data(), m.data(), sum.data());
  }
  template <class T>
  void pick_target(input_matrix<T> logits, token_ids targets, std::int64_t first_id, std::span<T> picked) {
    detail::expect("pick_target", "number of targets", logits.extent(0), targets.size());
    detail::expect("pick_target", "elements of picked", logits.extent(0), picked.size());
    detail::pick_target(logits.extent(0), logits.extent(1), logits.data(), targets, first_id, picked.data());
  }
  template <class T>
  void cross_entropy_backward(matrix_view<T> logits, input_vector<T> m, input_vector<T> sum, token_ids targets,
                              std::int64_t first_id, std::type_identity_t<T> scale) {
    detail::expect("cross_entropy_backward", "elements of m", logits.extent(0), m.size());
    detail::expect("cross_entropy_backward", "elements of sum", logits.extent(0), sum.size());
    detail::expect("cross_entropy_backward", "number of targets", logits.extent(0), targets.size());
    detail::cross_entropy_backward(team_, logits.extent(0), logits.extent(1), logits.data(), m.data(), sum.data(),
                                   targets, first_id, scale);
  }

  template <class T>
  void add(input_vector<T> a, input_vector<T> b, std::span<T> c) {
    detail::expect("add", "elements of b", size_of(a), b.size());
    detail::expect("add", "elements of c", size_of(a), c.size());
    detail::map_shared(team_, size_of(a), c.data(), [](T x, T y) { return x + y; }, a.data(), b.data());
  }
  template <class T>
  void scale(std::span<T> x, std::type_identity_t<T> factor) {
    const T* in = x.data();
    detail::map_shared(team_, static_cast<std::int64_t>(x.size()), x.data(), [factor](T v) { return v * factor; }, in);
  }
  template <class T>
  void fill(std::span<T> x, std::type_identity_t<T> value) {
    detail::fill(team_, static_cast<std::int64_t>(x.size()), x.data(), value);
  }
  template <class T>
  void copy(input_vector<T> x, std::span<T> y) {
    detail::expect("copy", "elements of y", size_of(x), y.size());
    detail::copy(team_, size_of(x), x.data(), y.data());
  }
  /// In double, in an order that depends on the number of elements alone.
  template <class T>
  double sum_of_squares(std::span<T> x) {
    return detail::sum_of_squares<std::remove_const_t<T>>(team_, static_cast<std::int64_t>(x.size()), x.data());
  }
  /// Whether there is neither an infinity nor a NaN.
  template <class T>
  bool all_finite(std::span<T> x) {
    return detail::all_finite<std::remove_const_t<T>>(team_, static_cast<std::int64_t>(x.size()), x.data());
  }

  template <class T>
  void adamw(std::span<T> p, input_vector<T> g, std::type_identity_t<std::span<T>> m,
             std::type_identity_t<std::span<T>> v, const adamw_step& step) {
    const std::int64_t n = size_of(std::span<const T>(p));
    detail::expect("adamw", "elements of g", n, g.size());
    detail::expect("adamw", "elements of m", n, m.size());
    detail::expect("adamw", "elements of v", n, v.size());
    detail::adamw(team_, n, p.data(), g.data(), m.data(), v.data(), step);
  }
  /// Takes the last `adamw` with the same arguments back, up to rounding.
  template <class T>
  void undo_adamw(std::span<T> p, input_vector<T> g, std::type_identity_t<std::span<T>> m,
                  std::type_identity_t<std::span<T>> v, const adamw_step& step) {
    const std::int64_t n = size_of(std::span<const T>(p));
    detail::expect("undo_adamw", "elements of g", n, g.size());
    detail::expect("undo_adamw", "elements of m", n, m.size());
    detail::expect("undo_adamw", "elements of v", n, v.size());
    detail::undo_adamw(team_, n, p.data(), g.data(), m.data(), v.data(), step);
  }

 private:
  template <class T>
  static std::int64_t size_of(std::span<const T> x) noexcept {
    return static_cast<std::int64_t>(x.size());
  }
  template <class T>
  static void same_shape(const char* kernel, const char* what, matrix_view<const T> x, matrix_view<const T> y) {
    if (x.extent(0) != y.extent(0) || x.extent(1) != y.extent(1)) [[unlikely]]
      throw layout_error("heddle: " + std::string(kernel) + ": " + what + " should be " + to_string(x.shape()) +
                         ", got " + to_string(y.shape()));
  }
  template <class T>
  static void attention_sizes(const char* kernel, const attention_shape& s, matrix_view<const T> qkv,
                              matrix_view<const T> out, std::size_t lse) {
    detail::expect(kernel, "rows of qkv (batch * sequence)", s.rows(), qkv.extent(0));
    detail::expect(kernel, "columns of qkv (3 * heads * head_dim)", 3 * s.width(), qkv.extent(1));
    detail::expect(kernel, "rows of out (batch * sequence)", s.rows(), out.extent(0));
    detail::expect(kernel, "columns of out (heads * head_dim)", s.width(), out.extent(1));
    detail::expect(kernel, "elements of lse (batch * heads * sequence)", s.rows() * s.heads, lse);
  }
  static void position_sizes(const char* kernel, std::int64_t rows, std::int64_t columns, std::int64_t positions,
                             std::int64_t width, std::int64_t sequence) {
    detail::expect(kernel, "columns of the position table", columns, width);
    if (rows > 0 && (sequence < 1 || rows % sequence != 0)) [[unlikely]]
      throw layout_error("heddle: " + std::string(kernel) + ": " + std::to_string(rows) +
                         " rows are not whole sequences of " + std::to_string(sequence));
    if (sequence > positions) [[unlikely]]
      throw layout_error("heddle: " + std::string(kernel) + ": a sequence of " + std::to_string(sequence) +
                         " does not fit a position table of " + std::to_string(positions) + " rows");
  }

  team team_;
};

static_assert(kernel_set<host<>, float> && kernel_set<host<>, double>);

}  // namespace heddle::inline v0::compute
