// heddle/compute/kernels.hpp: the set of kernels a backend offers, as concepts, with the small structs they take.
#pragma once

#include <heddle/tensor/view.hpp>

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::compute {

/// The kind of the policies that compute: `host<...>` and, later, device backends.
struct backend_kind {};

/// Whether a product reads an operand as it lies or with rows and columns exchanged.
enum class transpose : bool { no, yes };

/// What causal self-attention works on. Units: sequences, tokens, heads, elements.
struct attention_shape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  /// Tokens: rows of the matrices that attention reads and writes.
  constexpr std::int64_t rows() const noexcept { return batch * sequence; }
  /// Columns of the output; q, k and v have three times as many.
  constexpr std::int64_t width() const noexcept { return heads * head_dim; }
};

/// The scalars of one AdamW step, kept in double. `step` counts from 1; gradients are multiplied by `grad_scale`
/// (clipping, loss normalisation) as they are read.
/// Source: Loshchilov and Hutter, arXiv:1711.05101, algorithm 2, in PyTorch's order of operations.
struct adamw_step {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  std::int64_t step = 1;
  double grad_scale = 1.0;
};

/// What a kernel only reads. The element type is deduced from what it writes, so that `matrix_view<T>` and
/// `std::span<T>` convert on the way in.
template <class T>
using input_matrix = std::type_identity_t<matrix_view<const T>>;
template <class T>
using input_vector = std::type_identity_t<std::span<const T>>;
using token_ids = std::span<const std::int32_t>;

namespace detail {
/// The arguments the concepts below call a backend with.
template <class T>
struct kernel_arguments {
  matrix_view<const T> in{};
  matrix_view<T> out{};
  std::span<const T> values{};
  std::span<T> results{};
  token_ids ids{};
  T factor{};
};
}  // namespace detail

/// Matrix products and biases.
/// `matmul<TA, TB>(a, b, c, beta)`: c = op(a) op(b) + beta c; beta 0 overwrites whatever c held, NaN too.
/// `add_bias(y, b)`: y += b on every row. `add_bias_backward(dy, db)`: db += column sums of dy.
template <class B, class T>
concept product_kernels = requires(B& backend, detail::kernel_arguments<T> x) {
  backend.template matmul<transpose::no, transpose::no>(x.in, x.in, x.out, x.factor);
  backend.template matmul<transpose::no, transpose::yes>(x.in, x.in, x.out, x.factor);
  backend.template matmul<transpose::yes, transpose::no>(x.in, x.in, x.out, x.factor);
  backend.template matmul<transpose::yes, transpose::yes>(x.in, x.in, x.out, x.factor);
  backend.add_bias(x.out, x.values);
  backend.add_bias_backward(x.in, x.results);
};

/// `gelu(x, y)` (tanh form) and `gelu_backward(x, dy, dx)`: dx = dy gelu'(x); `add(a, b, c)`: c = a + b;
/// `scale(x, f)`, `fill(x, f)`, `copy(x, y)`. Outputs may be the same memory as an input.
template <class B, class T>
concept elementwise_kernels = requires(B& backend, detail::kernel_arguments<T> x) {
  backend.gelu(x.values, x.results);
  backend.gelu_backward(x.values, x.values, x.results);
  backend.add(x.values, x.values, x.results);
  backend.scale(x.results, x.factor);
  backend.fill(x.results, x.factor);
  backend.copy(x.values, x.results);
};

/// Layer norm over each row. `layer_norm(x, w, b, eps, y, mean, rstd)`;
/// `layer_norm_backward_input(dy, x, w, mean, rstd, dx)` adds to dx;
/// `layer_norm_backward_weight(dy, x, mean, rstd, dw, db)` adds to dw and db.
template <class B, class T>
concept norm_kernels = requires(B& backend, detail::kernel_arguments<T> x) {
  backend.layer_norm(x.in, x.values, x.values, x.factor, x.out, x.results, x.results);
  backend.layer_norm_backward_input(x.in, x.in, x.values, x.values, x.values, x.out);
  backend.layer_norm_backward_weight(x.in, x.in, x.values, x.values, x.results, x.results);
};

/// Causal self-attention. `attention(qkv, shape, out, lse)` keeps only the log-sum-exp of each row of scores;
/// `attention_backward(dout, qkv, out, lse, shape, dqkv)` overwrites dqkv.
/// Shapes: qkv [batch*sequence, 3*heads*head_dim] with columns q|k|v, each head-major; out [batch*sequence,
/// heads*head_dim]; lse [batch*heads*sequence].
template <class B, class T>
concept attention_kernels = requires(B& backend, detail::kernel_arguments<T> x, attention_shape s) {
  backend.attention(x.in, s, x.out, x.results);
  backend.attention_backward(x.in, x.in, x.in, x.values, s, x.out);
};

/// Token and position embeddings. `embedding(ids, table, first_id, out)`: rows of a table that holds the ids from
/// `first_id` on; other ids give rows of zeros. `embedding_backward(ids, dout, first_id, dtable)` adds.
/// `add_positions(x, wpe, sequence)`: x[b*sequence + s] += wpe[s]; `add_positions_backward(dx, sequence, dwpe)` adds.
template <class B, class T>
concept embedding_kernels = requires(B& backend, detail::kernel_arguments<T> x, std::int64_t n) {
  backend.embedding(x.ids, x.in, n, x.out);
  backend.embedding_backward(x.ids, x.in, n, x.out);
  backend.add_positions(x.out, x.in, n);
  backend.add_positions_backward(x.in, n, x.out);
};

/// The pieces of a softmax cross-entropy whose columns may lie on several ranks; the caller combines `m`, `sum` and
/// `picked` over them. `row_max(logits, m)`: -inf for no columns; `row_sum_exp(logits, m, sum)`: sum of exp(l - m);
/// `pick_target(logits, targets, first_id, picked)`: 0 where the target is not here or negative (ignored);
/// `cross_entropy_backward(logits, m, sum, targets, first_id, scale)`: logits := (softmax - onehot) * scale, rows of
/// ignored targets become 0.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3 (parallel cross-entropy).
template <class B, class T>
concept cross_entropy_kernels = requires(B& backend, detail::kernel_arguments<T> x, std::int64_t n) {
  backend.row_max(x.in, x.results);
  backend.row_sum_exp(x.in, x.values, x.results);
  backend.pick_target(x.in, x.ids, n, x.results);
  backend.cross_entropy_backward(x.out, x.values, x.values, x.ids, n, x.factor);
};

/// `adamw(p, g, m, v, step)`, `sum_of_squares(x)` in double and in a fixed order, `all_finite(x)`.
template <class B, class T>
concept optimizer_kernels = requires(B& backend, detail::kernel_arguments<T> x, adamw_step s) {
  backend.adamw(x.results, x.values, x.results, x.results, s);
  { backend.sum_of_squares(x.values) } -> std::same_as<double>;
  { backend.all_finite(x.values) } -> std::same_as<bool>;
};

/// Optimizer steps that can be taken back: `undo_adamw(p, g, m, v, step)` after the `adamw` with the same arguments.
template <class B, class T>
concept reversible_optimizer_kernels =
    optimizer_kernels<B, T> && requires(B& backend, detail::kernel_arguments<T> x, adamw_step s) {
      backend.undo_adamw(x.results, x.values, x.results, x.results, s);
    };

/// Everything training a transformer needs from a backend, for elements of type T. Empty matrices and vectors are
/// legal everywhere. A backend object serves one rank: it is called from one thread at a time.
template <class B, class T = float>
concept kernel_set =
    product_kernels<B, T> && elementwise_kernels<B, T> && norm_kernels<B, T> && attention_kernels<B, T> &&
    embedding_kernels<B, T> && cross_entropy_kernels<B, T> && optimizer_kernels<B, T> && requires(const B& backend) {
      { backend.threads() } -> std::same_as<int>;
      { backend.gemm_name() } -> std::convertible_to<const char*>;
    };

}  // namespace heddle::inline v0::compute
