// heddle/compute/fused_products.hpp: products together with the bias, activation or sum of columns behind them, which a backend may offer.
#pragma once

#include <heddle/compute/kernels.hpp>

#include <type_traits>

namespace heddle::inline v0::compute {

/// Which operand of a product the sums of a bias's gradient are taken of.
enum class summed_operand : bool { left, right };

/// Products with what comes behind them, in one pass over the result where the backend has it. All overwrite c and `before`.
/// `matmul_add_bias<TA, TB>(a, b, bias, c)`: c = op(a) op(b) + bias on every row.
/// `matmul_add_bias_gelu<TA, TB>(a, b, bias, before, c)`: before = op(a) op(b) + bias, c = gelu(before), tanh form.
/// `matmul_gelu_backward<TA, TB>(a, b, before, c)`: c = op(a) op(b) gelu'(before), element by element.
/// `matmul_add_bias_backward<Of>(a, b, c, db)`: c += a^T b, and db += the sums of the columns of a or b: the gradients of a weight and a
/// bias. Optional: layers that find them use them, and others do what they say in two steps.
/// Shapes: as `matmul`; bias [columns of c], before [rows of c, columns of c], db [columns of a or b].
template <class B, class T>
concept fused_product_kernels = requires(B& backend, detail::arguments_of<B, T> x) {
  backend.template matmul_add_bias<transpose::no, transpose::no>(x.in, x.in, x.values, x.out);
  backend.template matmul_add_bias<transpose::no, transpose::yes>(x.in, x.in, x.values, x.out);
  backend.template matmul_add_bias_gelu<transpose::no, transpose::no>(x.in, x.in, x.values, x.out, x.out);
  backend.template matmul_add_bias_gelu<transpose::no, transpose::yes>(x.in, x.in, x.values, x.out, x.out);
  backend.template matmul_gelu_backward<transpose::no, transpose::no>(x.in, x.in, x.in, x.out);
  backend.template matmul_gelu_backward<transpose::no, transpose::yes>(x.in, x.in, x.in, x.out);
  backend.template matmul_add_bias_backward<summed_operand::left>(x.in, x.in, x.gradient, x.added);
  backend.template matmul_add_bias_backward<summed_operand::right>(x.in, x.in, x.gradient, x.added);
};

}  // namespace heddle::inline v0::compute
