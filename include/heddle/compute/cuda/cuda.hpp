// heddle/compute/cuda/cuda.hpp: a backend on a CUDA stream.
#pragma once

#include <heddle/compute/cuda/elementwise.hpp>
#include <heddle/compute/cuda/fused_products.hpp>
#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/cuda/rows.hpp>
#include <heddle/compute/cuda/stream_launcher.hpp>
#include <heddle/compute/cuda/sums.hpp>
#include <heddle/compute/group/attention_tiles.hpp>
#include <heddle/compute/host/argument_checks.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/launched_facets.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/cuda/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::compute {

namespace detail::on_cuda {
using in_groups::at;
using in_groups::attend;
using in_groups::attend_backward;
using in_groups::attention_inputs;
using in_groups::causal_batch;
using in_groups::listed_slices;
}  // namespace detail::on_cuda

/// A backend on a stream of a CUDA device. It serves one rank; tensors lie in `cuda_memory`. Kernels element by element, biases, norms,
/// embeddings (rotary ones too), softmax cross-entropy, squared errors, sums, casts, attention and AdamW are kernels of the stream,
/// without atomics: results do not depend on the order in which threads run. Matrix products are cuBLASLt's: in full precision, or
/// of operands of bf16 or f16, added up in float; with a bias, GELU or sums of columns behind them as its epilogues, where it has them (`fused_product_kernels`).
/// Positions of rotary embeddings and slices and pages of attention lie on the device and are not checked there. `Launcher` launches (compute/cuda/launcher.hpp): `compute::cuda` launches on the stream.
/// Kernels are described in kernels.hpp.
/// Errors: `config_error` if there is no such device; `cuda_error` for what CUDA refuses; `layout_error` if the arguments of a kernel
/// do not fit together.
template <class Launcher>
class basic_cuda : public detail::launched_facets<basic_cuda<Launcher>, cuda_memory>,
                   public detail::on_cuda::fused_product_members<basic_cuda<Launcher>> {
  using facets = detail::launched_facets<basic_cuda<Launcher>, cuda_memory>;
  template <class T>
  using heads = head_rows<T, cuda_memory>;
  template <class T>
  using in_heads = std::type_identity_t<heads<const T>>;
  template <class T>
  using in_matrix = std::type_identity_t<matrix_view<const T, cuda_memory>>;

 public:
  using kind = backend_kind;
  using space = cuda_memory;

  /// On a stream of its own, of the thread's device.
  basic_cuda() = default;
  /// On this queue: `compute::cuda backend(hd::cuda_memory::queue(1))`.
  explicit basic_cuda(space::queue queue) : queue_(std::move(queue)) {}

  space::queue& queue() noexcept { return queue_; }
  /// Cores of the host that kernels take.
  static constexpr int threads() noexcept { return 1; }
  /// Whose matrix products they are.
  static constexpr const char* gemm_name() noexcept { return Launcher::products::name; }

  /// Whose products of 16-bit operands they are.
  static constexpr const char* half_product_name() noexcept { return Launcher::products::half_name; }

  template <transpose TA = transpose::no, transpose TB = transpose::no, class T>
    requires std::is_same_v<T, float> || std::is_same_v<T, double>
  void matmul(in_matrix<T> a, in_matrix<T> b, matrix_view<T, space> c, std::type_identity_t<T> beta = T(0)) {
    product<TA, TB, T>(a, b, beta, c);
  }
  /// Of bf16 and f16, added up in float and rounded once.
  template <transpose TA = transpose::no, transpose TB = transpose::no, class T>
    requires is_half_precision<T>
  void matmul(in_matrix<T> a, in_matrix<T> b, matrix_view<T, space> c, float beta = 0) {
    product<TA, TB, T>(a, b, beta, c);
  }
  template <transpose TA = transpose::no, transpose TB = transpose::no, class A, class B>
    requires(is_half_precision<std::remove_const_t<A>> &&
             std::is_same_v<std::remove_const_t<A>, std::remove_const_t<B>>)
  void matmul(matrix_view<A, space> a, matrix_view<B, space> b, matrix_view<float, space> c, float beta = 0) {
    product<TA, TB, std::remove_const_t<A>>(a, b, beta, c);
  }

  using facets::adamw;
  using facets::cast;
  /// From float to bf16 with stochastic rounding.
  void cast(row_view<const float, space> x, row_view<bf16, space> y, const stochastic& rounding) {
    detail::expect("cast", "elements of y", x.size(), y.size());
    detail::on_cuda::launch_cast_stochastic(launcher(), x.size(), x.address(), rounding, y.address());
  }
  /// Into bf16 weights that are rounded stochastically.
  template <class T, class G>
  void adamw(vector_view<T, space> master, vector_view<bf16, space> weights, vector_view<G, space> g,
             std::type_identity_t<vector_view<T, space>> m, std::type_identity_t<vector_view<T, space>> v,
             const adamw_step& step, const stochastic& rounding) {
    facets::optimizer_sizes(master.size(), weights.size(), g.size(), m.size(), v.size());
    detail::on_cuda::launch_adamw(launcher(), master.size(), master.address(), weights.address(),
                                  static_cast<const std::remove_const_t<G>*>(g.address()), m.address(), v.address(),
                                  step, rounding);
  }

  template <class T>
  void add_to_softmax(in_matrix<T> logits, token_ids_in<space> targets, std::int64_t first_id, vector_view<T, space> m,
                      std::type_identity_t<vector_view<T, space>> sum,
                      std::type_identity_t<vector_view<T, space>> picked) {
    detail::expect("add_to_softmax", "number of targets", logits.extent(0), targets.size());
    detail::expect("add_to_softmax", "elements of m", logits.extent(0), m.size());
    detail::expect("add_to_softmax", "elements of sum", logits.extent(0), sum.size());
    detail::expect("add_to_softmax", "elements of picked", logits.extent(0), picked.size());
    detail::on_cuda::launch_add_to_softmax(launcher(), logits.extent(0), logits.extent(1), logits.address(),
                                           targets.address(), first_id, m.address(), sum.address(), picked.address());
  }
  template <class T>
  void rescale_softmax(std::type_identity_t<row_view<const T, space>> before,
                       std::type_identity_t<row_view<const T, space>> m, vector_view<T, space> sum) {
    detail::expect("rescale_softmax", "elements of before", sum.size(), before.size());
    detail::expect("rescale_softmax", "elements of m", sum.size(), m.size());
    detail::on_cuda::launch_rescale_softmax(launcher(), sum.size(), before.address(), m.address(), sum.address());
  }

  template <class T>
  void attention(in_heads<T> q, in_heads<T> k, in_heads<T> v, row_view<const attention_slice, space> slices,
                 std::type_identity_t<T> scale, heads<T> out, std::type_identity_t<row_view<T, space>> lse,
                 key_pages_in<space> pages = {}) {
    check_heads<T>("attention", q, k, v, scale, out, lse.size(), pages);
    detail::on_cuda::attend(launcher(), inputs<T>(q, k, v, listed(slices), scale, pages), detail::on_cuda::at(out),
                            lse.address());
  }
  template <class T>
  void attention_backward(in_heads<T> dout, in_heads<T> q, in_heads<T> k, in_heads<T> v, in_heads<T> out,
                          std::type_identity_t<row_view<const T, space>> lse,
                          row_view<const attention_slice, space> slices, std::type_identity_t<T> scale, heads<T> dq,
                          std::type_identity_t<heads<T>> dk, std::type_identity_t<heads<T>> dv,
                          key_pages_in<space> pages = {}) {
    using checks = detail::argument_checks;
    constexpr const char* kernel = "attention_backward";
    check_heads<T>(kernel, q, k, v, scale, out, lse.size(), pages);
    checks::same_heads<T>(kernel, "dout", addresses(out), addresses(dout));
    checks::same_heads<T>(kernel, "dq", addresses(q), addresses(dq));
    checks::same_heads<T>(kernel, "dk", addresses(k), addresses(dk));
    checks::same_heads<T>(kernel, "dv", addresses(v), addresses(dv));
    const std::int64_t keys = pages.page_rows == 0 ? k.rows : pages.pages.size() * pages.page_rows;
    backward<T>(inputs<T>(q, k, v, listed(slices), scale, pages), k.rows, k.heads, keys, dout, out, lse, dq, dk, dv);
  }
  template <class T>
  void attention(std::type_identity_t<matrix_view<const T, space>> qkv, attention_shape s, matrix_view<T, space> out,
                 std::type_identity_t<row_view<T, space>> lse) {
    check_sizes<T>("attention", s, qkv, out, lse.size());
    detail::on_cuda::attend(
        launcher(), inputs<T>(third(qkv, s, 0), third(qkv, s, 1), third(qkv, s, 2), causal(s), score_scale<T>(s), {}),
        detail::on_cuda::at(heads_of(out, s.heads, s.head_dim)), lse.address());
  }
  template <class T>
  void attention_backward(std::type_identity_t<matrix_view<const T, space>> dout,
                          std::type_identity_t<matrix_view<const T, space>> qkv,
                          std::type_identity_t<matrix_view<const T, space>> out,
                          std::type_identity_t<row_view<const T, space>> lse, attention_shape s,
                          matrix_view<T, space> dqkv) {
    constexpr const char* kernel = "attention_backward";
    check_sizes<T>(kernel, s, qkv, out, lse.size());
    check_sizes<T>(kernel, s, matrix_view<const T, space>(dqkv), dout, lse.size());
    const heads<const T> of_out = heads_of(out, s.heads, s.head_dim), d_out = heads_of(dout, s.heads, s.head_dim);
    backward<T>(inputs<T>(third(qkv, s, 0), third(qkv, s, 1), third(qkv, s, 2), causal(s), score_scale<T>(s), {}),
                s.rows(), s.heads, s.rows(), d_out, of_out, lse, third(dqkv, s, 0), third(dqkv, s, 1),
                third(dqkv, s, 2));
  }

 private:
  friend class detail::launched_facets<basic_cuda, cuda_memory>;
  friend class detail::on_cuda::fused_product_members<basic_cuda>;
  Launcher launcher() noexcept { return {queue_, products_}; }

  template <transpose TA, transpose TB, class In, class Out, class Sum>
  void product(const matrix_view<const In, space>& a, const matrix_view<const In, space>& b, Sum beta,
               const matrix_view<Out, space>& c) {
    constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
    const std::int64_t m = c.extent(0), n = c.extent(1), k = a.extent(ta ? 0 : 1);
    detail::expect("matmul", "rows of op(a)", m, a.extent(ta ? 1 : 0));
    detail::expect("matmul", "rows of op(b)", k, b.extent(tb ? 1 : 0));
    detail::expect("matmul", "columns of op(b)", n, b.extent(tb ? 0 : 1));
    if (m == 0 || n == 0) return;
    if (k > 0)
      launcher().template multiply<ta, tb>(m, n, k, a.address(), b.address(), c.address(), beta);
    else if (beta == Sum(0))
      queue_.zero(heddle::v0::detail::row_at<space>(c.address(), m * n));
    else
      detail::on_cuda::launch_scale(launcher(), m * n, c.address(), beta);
  }

  // Sizes are checked by the host's functions, which look at no element.
  template <class T>
  static head_rows<T> addresses(const heads<T>& x) noexcept {
    return {x.data, x.rows, x.heads, x.head_dim, x.stride};
  }
  template <class T>
  static matrix_view<const T> addresses(const matrix_view<const T, space>& x) noexcept {
    return {x.address(), x.shape()};
  }
  template <class T>
  static void check_heads(const char* kernel, const heads<const T>& q, const heads<const T>& k, const heads<const T>& v,
                          T scale, const heads<const T>& out, std::int64_t lse, const key_pages_in<space>& pages) {
    detail::argument_checks::attention_arguments<T>(kernel, addresses(q), addresses(k), addresses(v), {}, scale,
                                                    addresses(out), static_cast<std::size_t>(lse),
                                                    key_pages{{}, pages.page_rows});
    if (pages.page_rows == 0 && pages.pages.size() != 0) [[unlikely]]
      throw layout_error("heddle: " + std::string(kernel) + ": a table of " + std::to_string(pages.pages.size()) +
                         " pages needs the number of rows in a page, got 0");
  }
  template <class T>
  static void check_sizes(const char* kernel, const attention_shape& s, const matrix_view<const T, space>& qkv,
                          const std::type_identity_t<matrix_view<const T, space>>& out, std::int64_t lse) {
    detail::argument_checks::attention_sizes<T>(kernel, s, addresses(qkv), addresses(out),
                                                static_cast<std::size_t>(lse));
  }
  template <class T, class Mask>
  static detail::on_cuda::attention_inputs<T, Mask> inputs(const heads<const T>& q, const heads<const T>& k,
                                                           const heads<const T>& v, const Mask& mask, T scale,
                                                           const key_pages_in<space>& pages) {
    using detail::on_cuda::at;
    return {at(q),   at(k),
            at(v),   q.rows,
            q.heads, k.heads == 0 ? 1 : q.heads / k.heads,
            mask,    {pages.pages.address(), pages.pages.size(), pages.page_rows},
            scale,   -(std::numeric_limits<T>::infinity)()};
  }
  template <class T, class Mask>
  void backward(const detail::on_cuda::attention_inputs<T, Mask>& in, std::int64_t rows, std::int64_t kv_heads,
                std::int64_t keys, const heads<const T>& dout, const heads<const T>& out,
                const row_view<const T, space>& lse, const heads<T>& dq, const heads<T>& dk, const heads<T>& dv) {
    using detail::on_cuda::at;
    detail::on_cuda::attend_backward(launcher(), in, rows, kv_heads, keys, at(dout), at(out), lse.address(), at(dq),
                                     at(dk), at(dv));
  }
  static detail::on_cuda::listed_slices listed(const row_view<const attention_slice, space>& slices) noexcept {
    return {slices.address(), slices.size()};
  }
  static detail::on_cuda::causal_batch causal(const attention_shape& s) noexcept { return {s.sequence}; }
  template <class T>
  static heads<T> third(const matrix_view<T, space>& qkv, const attention_shape& s, std::int64_t i) {
    return heads_of(qkv, s.heads, s.head_dim, i * s.width());
  }
  template <class T>
  static T score_scale(const attention_shape& s) {
    return s.head_dim == 0 ? T(1) : T(1) / std::sqrt(static_cast<T>(s.head_dim));
  }

  space::queue queue_{};
  typename Launcher::products products_{queue_};
};

#if defined(__CUDACC__)
/// The backend that launches on a CUDA stream; in files that nvcc compiles.
using cuda = basic_cuda<detail::on_cuda::stream_launcher<detail::on_cuda::full_floats>>;
/// The same, whose products of floats round operands to TensorFloat-32 (10 bits of the mantissa, relative error 2^-11 each) and add
/// up in float.
using cuda_tf32 = basic_cuda<detail::on_cuda::stream_launcher<detail::on_cuda::tensor_floats>>;
#endif

}  // namespace heddle::inline v0::compute
