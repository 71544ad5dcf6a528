// heddle/compute/kokkos/kokkos.hpp: a backend on a Kokkos execution space: Kokkos kernels, and products of the host in memory of the host.
#pragma once

#include <heddle/compute/host/argument_checks.hpp>
#include <heddle/compute/host/check.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/kokkos/adamw.hpp>
#include <heddle/compute/kokkos/elementwise.hpp>
#include <heddle/compute/kokkos/rows.hpp>
#include <heddle/compute/kokkos/sums.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/kokkos/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute {

namespace detail::on_kokkos {

// What a kernel of the host takes for an argument in Kokkos memory that the host can use.
template <class Space, class X>
constexpr const X& for_host(const X& x) noexcept {
  return x;
}
template <class Space, class T, class Shape>
constexpr auto for_host(const view<T, Shape, Space>& x) noexcept {
  if constexpr (Shape::rank() == 1)
    return std::span<T>(x.address(), static_cast<std::size_t>(x.size()));
  else
    return view<T, Shape>(x.address(), x.shape());
}
template <class Space, class T>
constexpr head_rows<T> for_host(const head_rows<T, Space>& x) noexcept {
  return {x.data, x.rows, x.heads, x.head_dim, x.stride};
}
template <class Space>
constexpr key_pages for_host(const key_pages_in<Space>& x) noexcept {
  return {for_host<Space>(x.pages), x.page_rows};
}

}  // namespace detail::on_kokkos

/// A backend on an instance of a Kokkos execution space: `compute::kokkos<Kokkos::Serial, compute::onednn>`. It serves one rank;
/// tensors lie in `kokkos_memory<ExecSpace>`. Element-wise kernels, biases, norms, embeddings, softmax cross-entropy, sums, casts
/// and AdamW are Kokkos kernels on that instance; where that runs on the host they are made of the host's vectorised loops. Sums are
/// added in an order that depends on their shape, and on whether the host computes them, but not on the number of threads. Matrix products and attention run on the host, by `host<Gemm>` with `threads` cores, after a fence of the
/// instance: the backend has them where the host can use the memory of the execution space.
/// Kernels are described in kernels.hpp.
/// Errors: `kokkos_not_initialized` if Kokkos is not; `config_error` for fewer than one thread; `layout_error` if the arguments
/// of a kernel do not fit together.
template <class ExecSpace, class Gemm = portable>
  requires gemm_library<Gemm, float> && gemm_library<Gemm, double>
class kokkos {
 public:
  using kind = backend_kind;
  using space = kokkos_memory<ExecSpace>;
  using gemm = Gemm;

  /// On an instance of its own.
  explicit kokkos(int threads = 1) : host_(threads) {}
  /// On this instance.
  explicit kokkos(ExecSpace instance, int threads = 1) : host_(threads), queue_(std::move(instance)) {}

  typename space::queue& queue() noexcept { return queue_; }
  /// The cores of products; how many threads kernels have is Kokkos' own setting.
  int threads() const noexcept { return host_.threads(); }
  const char* gemm_name() const noexcept { return host_.gemm_name(); }
  const char* half_product_name() const noexcept { return host_.half_product_name(); }

 private:
  template <class T>
  using row = vector_view<T, space>;
  template <class T>
  using matrix = matrix_view<T, space>;
  // What a kernel only reads: the element type is deduced from what it writes.
  template <class T>
  using in_row = std::type_identity_t<row<const T>>;
  template <class T>
  using in_matrix = std::type_identity_t<matrix<const T>>;
  template <class T>
  using also = std::type_identity_t<row<T>>;
  using ids_row = row<const std::int32_t>;
  template <class T>
  using heads = head_rows<T, space>;
  template <class T>
  using in_heads = std::type_identity_t<heads<const T>>;
  using number = scalar_view<double, space>;
  using host_kernels = host<Gemm>;

 public:
  // ---- on the host ----
  template <transpose TA = transpose::no, transpose TB = transpose::no, class... Args>
    requires space::host_accessible && requires(host_kernels& h, const Args&... args) {
      h.template matmul<TA, TB>(detail::on_kokkos::for_host<space>(args)...);
    }
  void matmul(const Args&... args) {
    queue_.instance().fence();
    host_.template matmul<TA, TB>(detail::on_kokkos::for_host<space>(args)...);
  }
  template <class... Args>
    requires space::host_accessible && requires(host_kernels& h, const Args&... args) {
      h.attention(detail::on_kokkos::for_host<space>(args)...);
    }
  void attention(const Args&... args) {
    queue_.instance().fence();
    host_.attention(detail::on_kokkos::for_host<space>(args)...);
  }
  template <class... Args>
    requires space::host_accessible && requires(host_kernels& h, const Args&... args) {
      h.attention_backward(detail::on_kokkos::for_host<space>(args)...);
    }
  void attention_backward(const Args&... args) {
    queue_.instance().fence();
    host_.attention_backward(detail::on_kokkos::for_host<space>(args)...);
  }

  // ---- element by element ----
  template <class T>
  void add_bias(matrix<T> y, in_row<T> b) {
    detail::expect("add_bias", "elements of b", y.extent(1), b.size());
    detail::on_kokkos::add_bias(exec(), y.extent(0), y.extent(1), y.address(), b.address());
  }
  template <class T>
  void add_bias_backward(in_matrix<T> dy, row<T> db) {
    detail::expect("add_bias_backward", "elements of db", dy.extent(1), db.size());
    detail::on_kokkos::add_bias_backward(exec(), dy.extent(0), dy.extent(1), dy.address(), db.address());
  }
  template <class T>
  void gelu(in_row<T> x, row<T> y) {
    detail::expect("gelu", "elements of y", x.size(), y.size());
    detail::on_kokkos::gelu(exec(), x.size(), x.address(), y.address());
  }
  template <class T>
  void gelu_backward(in_row<T> x, in_row<T> dy, row<T> dx) {
    detail::expect("gelu_backward", "elements of dy", x.size(), dy.size());
    detail::expect("gelu_backward", "elements of dx", x.size(), dx.size());
    detail::on_kokkos::gelu_backward(exec(), x.size(), x.address(), dy.address(), dx.address());
  }
  template <class A, class T>
  void gated(in_row<T> gate, in_row<T> up, row<T> h) {
    detail::expect("gated", "elements of up", gate.size(), up.size());
    detail::expect("gated", "elements of h", gate.size(), h.size());
    detail::on_kokkos::gated<A>(exec(), gate.size(), gate.address(), up.address(), h.address());
  }
  template <class A, class T>
  void gated_backward(in_row<T> gate, in_row<T> up, in_row<T> dh, row<T> dgate, also<T> dup) {
    detail::expect("gated_backward", "elements of up", gate.size(), up.size());
    detail::expect("gated_backward", "elements of dh", gate.size(), dh.size());
    detail::expect("gated_backward", "elements of dgate", gate.size(), dgate.size());
    detail::expect("gated_backward", "elements of dup", gate.size(), dup.size());
    detail::on_kokkos::gated_backward<A>(exec(), gate.size(), gate.address(), up.address(), dh.address(),
                                         dgate.address(), dup.address());
  }
  template <class T>
  void add(in_row<T> a, in_row<T> b, row<T> c) {
    detail::expect("add", "elements of b", a.size(), b.size());
    detail::expect("add", "elements of c", a.size(), c.size());
    detail::on_kokkos::add(exec(), a.size(), a.address(), b.address(), c.address());
  }
  template <class T>
  void scale(row<T> x, std::type_identity_t<T> factor) {
    detail::on_kokkos::scale(exec(), x.size(), x.address(), factor);
  }
  template <class T>
  void fill(row<T> x, std::type_identity_t<T> value) {
    detail::on_kokkos::fill(exec(), x.size(), x.address(), value);
  }
  template <class T>
  void copy(in_row<T> x, row<T> y) {
    detail::expect("copy", "elements of y", x.size(), y.size());
    if (x.address() != y.address()) queue_.copy(x, y);
  }
  template <class From, class To>
  void cast(row<From> x, row<To> y) {
    detail::expect("cast", "elements of y", x.size(), y.size());
    detail::on_kokkos::cast(exec(), x.size(), static_cast<const From*>(x.address()), y.address());
  }

  /// Errors: also `layout_error` for a position that the tables do not have, where the execution space runs on the host: then
  /// the positions are looked at after a fence of the instance.
  template <rotary_pairs Pairs = rotary_pairs::halves, class T>
  void rotary(in_heads<T> x, ids_row positions, in_matrix<T> cos, in_matrix<T> sin, heads<T> y) {
    turn<Pairs, false, T>("rotary", x, positions, cos, sin, y);
  }
  template <rotary_pairs Pairs = rotary_pairs::halves, class T>
  void rotary_backward(in_heads<T> dy, ids_row positions, in_matrix<T> cos, in_matrix<T> sin, heads<T> dx) {
    turn<Pairs, true, T>("rotary_backward", dy, positions, cos, sin, dx);
  }

  // ---- norms ----
  template <class T>
  void layer_norm(in_matrix<T> x, in_row<T> w, in_row<T> b, std::type_identity_t<T> eps, matrix<T> y, also<T> mean,
                  also<T> rstd) {
    same_shape("layer_norm", "y", x, y);
    detail::expect("layer_norm", "elements of w", x.extent(1), w.size());
    detail::expect("layer_norm", "elements of b", x.extent(1), b.size());
    detail::expect("layer_norm", "elements of mean", x.extent(0), mean.size());
    detail::expect("layer_norm", "elements of rstd", x.extent(0), rstd.size());
    detail::on_kokkos::layer_norm(exec(), x.extent(0), x.extent(1), x.address(), w.address(), b.address(), eps,
                                  y.address(), mean.address(), rstd.address());
  }
  template <class T>
  void layer_norm_backward_input(in_matrix<T> dy, in_matrix<T> x, in_row<T> w, in_row<T> mean, in_row<T> rstd,
                                 matrix<T> dx) {
    same_shape("layer_norm_backward_input", "dy", x, dy);
    same_shape("layer_norm_backward_input", "dx", x, dx);
    detail::expect("layer_norm_backward_input", "elements of w", x.extent(1), w.size());
    detail::expect("layer_norm_backward_input", "elements of mean", x.extent(0), mean.size());
    detail::expect("layer_norm_backward_input", "elements of rstd", x.extent(0), rstd.size());
    detail::on_kokkos::layer_norm_backward_input(exec(), x.extent(0), x.extent(1), dy.address(), x.address(),
                                                 w.address(), mean.address(), rstd.address(), dx.address());
  }
  template <class T>
  void layer_norm_backward_weight(in_matrix<T> dy, in_matrix<T> x, in_row<T> mean, in_row<T> rstd, row<T> dw,
                                  also<T> db) {
    same_shape("layer_norm_backward_weight", "dy", x, dy);
    detail::expect("layer_norm_backward_weight", "elements of mean", x.extent(0), mean.size());
    detail::expect("layer_norm_backward_weight", "elements of rstd", x.extent(0), rstd.size());
    detail::expect("layer_norm_backward_weight", "elements of dw", x.extent(1), dw.size());
    detail::expect("layer_norm_backward_weight", "elements of db", x.extent(1), db.size());
    detail::on_kokkos::layer_norm_backward_weight(exec(), x.extent(0), x.extent(1), dy.address(), x.address(),
                                                  mean.address(), rstd.address(), dw.address(), db.address());
  }
  template <class T>
  void rms_norm(in_matrix<T> x, in_row<T> w, std::type_identity_t<T> eps, matrix<T> y, also<T> rstd) {
    same_shape("rms_norm", "y", x, y);
    detail::expect("rms_norm", "elements of w", x.extent(1), w.size());
    detail::expect("rms_norm", "elements of rstd", x.extent(0), rstd.size());
    detail::on_kokkos::rms_norm(exec(), x.extent(0), x.extent(1), x.address(), w.address(), eps, y.address(),
                                rstd.address());
  }
  template <class T>
  void rms_norm_backward_input(in_matrix<T> dy, in_matrix<T> x, in_row<T> w, in_row<T> rstd, matrix<T> dx) {
    same_shape("rms_norm_backward_input", "dy", x, dy);
    same_shape("rms_norm_backward_input", "dx", x, dx);
    detail::expect("rms_norm_backward_input", "elements of w", x.extent(1), w.size());
    detail::expect("rms_norm_backward_input", "elements of rstd", x.extent(0), rstd.size());
    detail::on_kokkos::rms_norm_backward_input(exec(), x.extent(0), x.extent(1), dy.address(), x.address(), w.address(),
                                               rstd.address(), dx.address());
  }
  template <class T>
  void rms_norm_backward_weight(in_matrix<T> dy, in_matrix<T> x, in_row<T> rstd, row<T> dw) {
    same_shape("rms_norm_backward_weight", "dy", x, dy);
    detail::expect("rms_norm_backward_weight", "elements of rstd", x.extent(0), rstd.size());
    detail::expect("rms_norm_backward_weight", "elements of dw", x.extent(1), dw.size());
    detail::on_kokkos::rms_norm_backward_weight(exec(), x.extent(0), x.extent(1), dy.address(), x.address(),
                                                rstd.address(), dw.address());
  }

  // ---- embeddings ----
  template <class T>
  void embedding(ids_row ids, in_matrix<T> table, std::int64_t first_id, matrix<T> out) {
    detail::expect("embedding", "rows of out", out.extent(0), ids.size());
    detail::expect("embedding", "columns of out", table.extent(1), out.extent(1));
    detail::on_kokkos::embedding(exec(), ids.size(), ids.address(), table.extent(0), table.extent(1), table.address(),
                                 first_id, out.address());
  }
  template <class T>
  void embedding_backward(ids_row ids, in_matrix<T> dout, std::int64_t first_id, matrix<T> dtable) {
    detail::expect("embedding_backward", "rows of dout", dout.extent(0), ids.size());
    detail::expect("embedding_backward", "columns of dout", dtable.extent(1), dout.extent(1));
    detail::on_kokkos::embedding_backward(exec(), ids.size(), ids.address(), dtable.extent(0), dtable.extent(1),
                                          dout.address(), first_id, dtable.address());
  }
  template <class T>
  void add_positions(matrix<T> x, in_matrix<T> wpe, std::int64_t sequence) {
    detail::argument_checks::position_sizes("add_positions", x.extent(0), x.extent(1), wpe.extent(0), wpe.extent(1),
                                            sequence);
    detail::on_kokkos::add_positions(exec(), x.extent(0), x.extent(1), sequence, x.address(), wpe.address());
  }
  template <class T>
  void add_positions_backward(in_matrix<T> dx, std::int64_t sequence, matrix<T> dwpe) {
    detail::argument_checks::position_sizes("add_positions_backward", dx.extent(0), dx.extent(1), dwpe.extent(0),
                                            dwpe.extent(1), sequence);
    detail::on_kokkos::add_positions_backward(exec(), dx.extent(0), dx.extent(1), sequence, dx.address(),
                                              dwpe.address());
  }

  // ---- softmax cross-entropy ----
  template <class T>
  void row_max(in_matrix<T> logits, row<T> m) {
    detail::expect("row_max", "elements of m", logits.extent(0), m.size());
    detail::on_kokkos::row_max(exec(), logits.extent(0), logits.extent(1), logits.address(), m.address());
  }
  template <class T>
  void row_sum_exp(in_matrix<T> logits, in_row<T> m, row<T> sum) {
    detail::expect("row_sum_exp", "elements of m", logits.extent(0), m.size());
    detail::expect("row_sum_exp", "elements of sum", logits.extent(0), sum.size());
    detail::on_kokkos::row_sum_exp(exec(), logits.extent(0), logits.extent(1), logits.address(), m.address(),
                                   sum.address());
  }
  template <class T>
  void pick_target(in_matrix<T> logits, ids_row targets, std::int64_t first_id, row<T> picked) {
    detail::expect("pick_target", "number of targets", logits.extent(0), targets.size());
    detail::expect("pick_target", "elements of picked", logits.extent(0), picked.size());
    detail::on_kokkos::pick_target(exec(), logits.extent(0), logits.extent(1), logits.address(), targets.address(),
                                   first_id, picked.address());
  }
  template <class T>
  void cross_entropy_backward(matrix<T> logits, in_row<T> m, in_row<T> sum, ids_row targets, std::int64_t first_id,
                              std::type_identity_t<T> scale) {
    detail::expect("cross_entropy_backward", "elements of m", logits.extent(0), m.size());
    detail::expect("cross_entropy_backward", "elements of sum", logits.extent(0), sum.size());
    detail::expect("cross_entropy_backward", "number of targets", logits.extent(0), targets.size());
    detail::on_kokkos::cross_entropy_backward(exec(), logits.extent(0), logits.extent(1), logits.address(), m.address(),
                                              sum.address(), targets.address(), first_id, scale);
  }
  template <class T>
  void cross_entropy_loss(row<T> m, in_row<std::remove_const_t<T>> sum, in_row<std::remove_const_t<T>> picked,
                          ids_row targets, number out) {
    using element = std::remove_const_t<T>;
    detail::expect("cross_entropy_loss", "elements of sum", m.size(), sum.size());
    detail::expect("cross_entropy_loss", "elements of picked", m.size(), picked.size());
    detail::expect("cross_entropy_loss", "number of targets", m.size(), targets.size());
    detail::on_kokkos::cross_entropy_loss<ExecSpace, element>(exec(), m.size(), m.address(), sum.address(),
                                                              picked.address(), targets.address(), parts(m.size()),
                                                              out.address());
  }

  // ---- sums ----
  template <class T>
  void squared_error(row<T> x, in_row<std::remove_const_t<T>> target, number out) {
    detail::expect("squared_error", "elements of target", x.size(), target.size());
    detail::on_kokkos::squared_error<ExecSpace, std::remove_const_t<T>>(exec(), x.size(), x.address(), target.address(),
                                                                        parts(x.size()), out.address());
  }
  template <class T>
  void squared_error_backward(row<T> x, in_row<T> target, std::type_identity_t<T> scale) {
    detail::expect("squared_error_backward", "elements of target", x.size(), target.size());
    detail::on_kokkos::squared_error_backward(exec(), x.size(), x.address(), target.address(), scale);
  }
  template <class T>
  void sum_of_squares(row<T> x, number out) {
    detail::on_kokkos::sum_of_squares<ExecSpace, std::remove_const_t<T>>(exec(), x.size(), x.address(), parts(x.size()),
                                                                         out.address());
  }
  template <class T>
  void count_nonfinite(row<T> x, number out) {
    detail::on_kokkos::count_nonfinite<ExecSpace, std::remove_const_t<T>>(exec(), x.size(), x.address(),
                                                                          parts(x.size()), out.address());
  }
  /// Waits for the queue.
  template <class T>
  double sum_of_squares(row<T> x) {
    return number_of([&](number out) { sum_of_squares(x, out); });
  }
  /// Whether there is neither an infinity nor a NaN. Waits for the queue.
  template <class T>
  bool all_finite(row<T> x) {
    return number_of([&](number out) { count_nonfinite(x, out); }) == 0;
  }

  // ---- AdamW ----
  template <class T>
  void adamw(row<T> p, in_row<T> g, also<T> m, also<T> v, const adamw_step& step) {
    optimizer_sizes(p.size(), p.size(), g.size(), m.size(), v.size());
    detail::on_kokkos::adamw(exec(), p.size(), p.address(), g.address(), m.address(), v.address(), step);
  }
  template <class T, class W, class G>
  void adamw(row<T> master, row<W> weights, row<G> g, also<T> m, also<T> v, const adamw_step& step) {
    optimizer_sizes(master.size(), weights.size(), g.size(), m.size(), v.size());
    detail::on_kokkos::adamw(exec(), master.size(), master.address(), weights.address(),
                             static_cast<const G*>(g.address()), m.address(), v.address(), step);
  }
  /// Takes the last `adamw` with the same arguments back, up to rounding.
  template <class T>
  void undo_adamw(row<T> p, in_row<T> g, also<T> m, also<T> v, const adamw_step& step) {
    optimizer_sizes(p.size(), p.size(), g.size(), m.size(), v.size());
    detail::on_kokkos::undo_adamw(exec(), p.size(), p.address(), g.address(), m.address(), v.address(), step);
  }

 private:
  const ExecSpace& exec() const noexcept { return queue_.instance(); }
  template <class T, class U>
  static void same_shape(const char* kernel, const char* what, const matrix<T>& x, const matrix<U>& y) {
    if (x.extent(0) != y.extent(0) || x.extent(1) != y.extent(1)) [[unlikely]]
      throw layout_error("heddle: " + std::string(kernel) + ": " + what + " should be " + to_string(x.shape()) +
                         ", got " + to_string(y.shape()));
  }
  template <rotary_pairs Pairs, bool Back, class T>
  void turn(const char* kernel, const heads<const T>& x, const ids_row& positions, const matrix<const T>& cos,
            const matrix<const T>& sin, const heads<T>& y) {
    using checks = detail::argument_checks;
    const head_rows<const T> from = detail::on_kokkos::for_host<space>(x), to = detail::on_kokkos::for_host<space>(y);
    checks::same_heads<T>(kernel, "the output", from, to);
    checks::rows_apart(kernel, "the input", from);
    same_shape(kernel, "the table of sines", cos, sin);
    detail::expect(kernel, "number of positions", x.rows, positions.size());
    if (2 * cos.extent(1) > x.head_dim) [[unlikely]]
      throw layout_error("heddle: " + std::string(kernel) + ": tables of " + std::to_string(cos.extent(1)) +
                         " columns turn " + std::to_string(2 * cos.extent(1)) + " elements, but a head has " +
                         std::to_string(x.head_dim));
    if constexpr (detail::on_kokkos::runs_on_host<ExecSpace>) {
      exec().fence();
      for (const std::int32_t p : detail::on_kokkos::for_host<space>(positions))
        if (p < 0 || p >= cos.extent(0)) [[unlikely]]
          throw layout_error("heddle: " + std::string(kernel) + ": positions should be from 0 to " +
                             std::to_string(cos.extent(0) - 1) + ", as the tables are, got " + std::to_string(p));
    }
    detail::on_kokkos::rotary<Pairs, Back>(exec(), x, positions.address(), cos.extent(1), cos.address(), sin.address(),
                                           y);
  }
  static void optimizer_sizes(std::int64_t n, std::int64_t weights, std::int64_t g, std::int64_t m, std::int64_t v) {
    detail::expect("adamw", "elements of the weights", n, weights);
    detail::expect("adamw", "elements of g", n, g);
    detail::expect("adamw", "elements of m", n, m);
    detail::expect("adamw", "elements of v", n, v);
  }
  // Room for the sums of blocks. What runs before on the instance may still use it: the end of a buffer waits for that.
  double* parts(std::int64_t elements) {
    const std::int64_t n = detail::on_kokkos::sum_blocks(elements);
    if (static_cast<std::int64_t>(parts_.size()) < n) parts_ = buffer<double, space>(queue_, n, "the sums of blocks");
    return parts_.address();
  }
  template <class Add>
  double number_of(Add add) {
    if (number_.empty()) number_ = buffer<double, space>(queue_, 1, "a sum");
    queue_.zero(number_);
    add(number{number_.address(), {}});
    double got = 0;
    queue_.copy(number_, std::span<double>(&got, 1));
    queue_.wait();
    return got;
  }

  host_kernels host_;
  typename space::queue queue_{};
  buffer<double, space> parts_{}, number_{};
};

}  // namespace heddle::inline v0::compute
