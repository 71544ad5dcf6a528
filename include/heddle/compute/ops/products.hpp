// heddle/compute/ops/products.hpp: operations that are matrix products, also grouped.
#pragma once

#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/compute/ops/elementwise.hpp>
#include <heddle/compute/ops/routing.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace heddle::inline v0::compute {

/// Which operand of a product the sums of a bias's gradient are taken of.
enum class summed_operand : bool { left, right };

namespace detail {
constexpr unsigned turned_operands(transpose a, transpose b) noexcept {
  return static_cast<unsigned>(a) + 2 * static_cast<unsigned>(b);
}
// A function of its own: what is compared takes no room where products are called.
// Errors: `layout_error` unless c is of the size of op(a) op(b). Bit 0 of `turned`: a is transposed; bit 1: b is.
[[gnu::noinline]] inline void expect_product(const char* name, unsigned turned, const argument_extents& a,
                                             const argument_extents& b, const argument_extents& c) {
  const unsigned ta = turned & 1, tb = turned >> 1;
  expect(name, "rows of op(a)", c.n[0], a.n[ta]);
  expect(name, "rows of op(b)", a.n[1 - ta], b.n[tb]);
  expect(name, "columns of op(b)", c.n[1], b.n[1 - tb]);
}
// What a product writes: elements of T, or sums.
template <class T, bool Sums>
using product_result = typename typed_argument<Sums>::template type<T, sum_of_type<T>>;

// Arguments of products.
template <transpose T, class Rows, class Columns>
using operand =
    typename typed_argument<T == transpose::yes>::template type<ops::in<Rows, Columns>, ops::in<Columns, Rows>>;
template <bool Sums, class... Dims>
using input = typename typed_argument<Sums>::template type<ops::in<Dims...>, ops::in_sums<Dims...>>;
template <bool Sums, class... Dims>
using output = typename typed_argument<Sums>::template type<ops::out<Dims...>, ops::out_sums<Dims...>>;
template <bool Sums, class... Dims>
using updated = typename typed_argument<Sums>::template type<ops::inout<Dims...>, ops::inout_sums<Dims...>>;
}  // namespace detail

namespace ops {
struct depth {};  ///< a dimension: what a product adds up

/// The base of descriptions of products c = op(a) op(b) + beta c; beta 0 overwrites whatever c held, NaN too. Operands of 16 bits are
/// added up in float; with `Sums` c is of `sum_of_type<T>`, else of T, rounded once. Errors: `layout_error` for sizes that do not fit.
struct product_operation : operation {
  using dims = sizes<rows, columns, depth>;
  static constexpr std::int64_t flops(const dims& n) { return 2 * n.product(); }
  static void expect_sizes(const char* name, unsigned turned, const detail::argument_extents* got) {
    detail::expect_product(name, turned, got[0], got[1], got[2]);
  }
};
/// c = op(a) op(b) + beta c.
template <transpose TA = transpose::no, transpose TB = transpose::no, bool Sums = false>
struct matmul : product_operation {
  static constexpr const char* name = "matmul";
  static constexpr const char* arguments[] = {"a", "b", "c", "beta"};
  static constexpr unsigned turned = detail::turned_operands(TA, TB);
  using of_halves = matmul<TA, TB, true>;
  using takes = signature<detail::operand<TA, rows, depth>, detail::operand<TB, depth, columns>,
                          detail::updated<Sums, rows, columns>, number>;
};
/// Of a in float and b in float or bf16, both rounded to the nearest bf16, added up in float in an order that depends on the depth
/// alone. Subnormal numbers are zero. For a backend whose `rounds_operands()` is true.
template <transpose TA, transpose TB, class W>
struct matmul_rounded : product_operation {
  static constexpr const char* name = "matmul";
  static constexpr const char* arguments[] = {"a", "b", "c", "beta"};
  static constexpr unsigned turned = detail::turned_operands(TA, TB);
  using right = typename detail::typed_argument<TB == transpose::yes>::template type<in_of<W, depth, columns>,
                                                                                     in_of<W, columns, depth>>;
  using takes = signature<detail::operand<TA, rows, depth>, right, inout<rows, columns>, number>;
};

/// The base of products with what comes behind them, in one pass over the result where the backend has it. Optional: layers that find
/// them use them, and others do what they say in two steps.
struct fused_product_operation : product_operation {
  // `bias` and `before`: which arguments they are; 0: none.
  [[gnu::noinline]] static void expect_fused(const char* name, unsigned turned, const detail::argument_extents* x,
                                             std::size_t bias, std::size_t before) {
    const auto& c = x[bias + before < 5 ? 3 : 4];
    if (bias != 0) detail::expect(name, "elements of the bias", c.n[1], x[bias].n[0]);
    if (before != 0) {
      detail::expect(name, "rows of what is before GELU", c.n[0], x[before].n[0]);
      detail::expect(name, "columns of what is before GELU", c.n[1], x[before].n[1]);
    }
    detail::expect_product("matmul", turned, x[0], x[1], c);
  }
};
/// c = op(a) op(b) + bias on every row.
template <transpose TA = transpose::no, transpose TB = transpose::no, bool Sums = false>
struct matmul_add_bias : fused_product_operation {
  static constexpr const char* name = "matmul_add_bias";
  static constexpr const char* arguments[] = {"a", "b", "bias", "c"};
  static constexpr unsigned turned = detail::turned_operands(TA, TB);
  using of_halves = matmul_add_bias<TA, TB, true>;
  using takes = signature<detail::operand<TA, rows, depth>, detail::operand<TB, depth, columns>,
                          detail::input<Sums, columns>, detail::output<Sums, rows, columns>>;
  static void expect_sizes(const char* n, unsigned t, const detail::argument_extents* got) {
    expect_fused(n, t, got, 2, 0);
  }
};
/// before = op(a) op(b) + bias, c = gelu(before), tanh form.
template <transpose TA = transpose::no, transpose TB = transpose::no, bool Sums = false>
struct matmul_add_bias_gelu : fused_product_operation {
  static constexpr const char* name = "matmul_add_bias_gelu";
  static constexpr const char* arguments[] = {"a", "b", "bias", "before", "c"};
  static constexpr unsigned turned = detail::turned_operands(TA, TB);
  using of_halves = matmul_add_bias_gelu<TA, TB, true>;
  using takes =
      signature<detail::operand<TA, rows, depth>, detail::operand<TB, depth, columns>, detail::input<Sums, columns>,
                detail::output<Sums, rows, columns>, detail::output<Sums, rows, columns>>;
  static void expect_sizes(const char* n, unsigned t, const detail::argument_extents* got) {
    expect_fused(n, t, got, 2, 3);
  }
};
/// c = op(a) op(b) gelu'(before), element by element.
template <transpose TA = transpose::no, transpose TB = transpose::no, bool Sums = false>
struct matmul_gelu_backward : fused_product_operation {
  static constexpr const char* name = "matmul_gelu_backward";
  static constexpr const char* arguments[] = {"a", "b", "before", "c"};
  static constexpr unsigned turned = detail::turned_operands(TA, TB);
  using of_halves = matmul_gelu_backward<TA, TB, true>;
  using takes = signature<detail::operand<TA, rows, depth>, detail::operand<TB, depth, columns>,
                          detail::input<Sums, rows, columns>, detail::output<Sums, rows, columns>>;
  static void expect_sizes(const char* n, unsigned t, const detail::argument_extents* got) {
    expect_fused(n, t, got, 0, 2);
  }
};
/// c += a^T b, and db += the sums of the columns of a or b: the gradients of a weight and a bias.
template <summed_operand Of>
struct matmul_add_bias_backward : product_operation {
  static constexpr const char* name = "matmul_add_bias_backward";
  static constexpr const char* arguments[] = {"a", "b", "c", "db"};
  static constexpr unsigned turned = detail::turned_operands(transpose::yes, transpose::no);
  using of_halves = matmul_add_bias_backward<Of>;
  using summed = typename detail::typed_argument<Of == summed_operand::right>::template type<rows, columns>;
  using takes = signature<in<depth, rows>, in<depth, columns>, inout_sums<rows, columns>, inout_sums<summed>>;
  static void expect_sizes(const char* n, unsigned t, const detail::argument_extents* got) {
    detail::expect(n, "elements of db", got[2].n[Of == summed_operand::left ? 0 : 1], got[3].n[0]);
    product_operation::expect_sizes("matmul", t, got);
  }
};

/// The base of products of rows grouped by expert; group e is rows [offsets[e], offsets[e + 1]), which may be none. Rows in no group
/// are left as they are. Errors: `layout_error` for sizes that do not fit; for offsets that descend or that x does not have, where the
/// host can read them.
struct grouped_product_operation : product_operation {
  using dims = sizes<rows, columns, depth, experts, offsets>;
  static constexpr std::int64_t flops(const dims& n) { return 2 * n[rows{}] * n[columns{}] * n[depth{}]; }
  [[gnu::noinline]] static void expect_sizes(const char* of, unsigned t, const detail::argument_extents* x) {
    detail::expect(of, "elements of offsets (matrices + 1)", x[2].n[0] + 1, x[1].n[0]);
    detail::expect(of, "rows of y", x[0].n[0], x[3].n[0]);
    detail::expect(of, "rows of op(w)", x[0].n[1], x[2].n[t == 0 ? 1 : 2]);
    detail::expect(of, "columns of op(w)", x[3].n[1], x[2].n[t == 0 ? 2 : 1]);
  }

 protected:
  static void check_groups(const char* name, const dims& n, const std::int64_t* at) {
    for (std::int64_t e = 0; e < n[offsets{}]; ++e)
      if (at[e] < (e == 0 ? 0 : at[e - 1]) || at[e] > n[rows{}]) [[unlikely]]
        throw layout_error("heddle: " + std::string(name) + ": offsets should not descend and be from 0 to " +
                           std::to_string(n[rows{}]) + ", the rows of x, got " + std::to_string(at[e]) + " at " +
                           std::to_string(e));
  }
};
/// y = x op(w[e]) + beta y in the rows of each group; the gradient of x is the same with dy and the other TB.
template <transpose TB = transpose::no, bool Sums = false>
struct grouped_matmul : grouped_product_operation {
  static constexpr const char* name = "grouped_matmul";
  static constexpr const char* arguments[] = {"x", "offsets", "w", "y", "beta"};
  static constexpr unsigned turned = detail::turned_operands(transpose::no, TB);
  using of_halves = grouped_matmul<TB, true>;
  using weights = typename detail::typed_argument<TB == transpose::yes>::template type<in<experts, depth, columns>,
                                                                                       in<experts, columns, depth>>;
  using takes =
      signature<in<rows, depth>, in_of<std::int64_t, offsets>, weights, detail::updated<Sums, rows, columns>, number>;
  static void check_values(const dims& n, const void*, const std::int64_t* at, const void*, const void*, double) {
    check_groups(name, n, at);
  }
};
/// dw[e] = x^T dy over the rows of group e, + beta dw[e].
struct grouped_matmul_backward_weight : grouped_product_operation {
  static constexpr const char* name = "grouped_matmul_backward_weight";
  static constexpr const char* arguments[] = {"x", "dy", "offsets", "dw", "beta"};
  static constexpr unsigned turned = 0;
  using of_halves = grouped_matmul_backward_weight;
  using takes = signature<in<rows, depth>, in<rows, columns>, in_of<std::int64_t, offsets>,
                          inout_sums<experts, depth, columns>, number>;
  static void check_values(const dims& n, const void*, const void*, const std::int64_t* at, const void*, double) {
    check_groups(name, n, at);
  }
  [[gnu::noinline]] static void expect_sizes(const char* of, unsigned, const detail::argument_extents* x) {
    detail::expect(of, "elements of offsets (matrices + 1)", x[3].n[0] + 1, x[2].n[0]);
    detail::expect(of, "rows of dy", x[0].n[0], x[1].n[0]);
    detail::expect(of, "rows of dw", x[0].n[1], x[3].n[1]);
    detail::expect(of, "columns of dw", x[1].n[1], x[3].n[2]);
  }
};
}  // namespace ops

namespace detail {
// Whether a product of elements of A that is written to C is written as sums of another type.
template <class A, class C>
inline constexpr bool into_sums = !std::is_same_v<typename A::value_type, typename C::value_type>;
}  // namespace detail

/// Runs `ops::matmul` on operands of the element type of a, into c of the same type or of its sums.
template <transpose TA = transpose::no, transpose TB = transpose::no, class B, class X, class Y, class C>
constexpr void matmul(B& backend, const X& a, const Y& b, const C& c, sum_of_type<typename X::value_type> beta = 0) {
  run<ops::matmul<TA, TB, detail::into_sums<X, C>>>(backend, a, b, c, beta);
}
/// Runs `ops::grouped_matmul` on operands of the element type of x, into y of the same type or of its sums.
template <transpose TB = transpose::no, class B, class X, class O, class W, class Y>
constexpr void grouped_matmul(B& backend, const X& x, const O& offsets, const W& w, const Y& y,
                              sum_of_type<typename X::value_type> beta = 0) {
  run<ops::grouped_matmul<TB, detail::into_sums<X, Y>>>(backend, x, offsets, w, y, beta);
}

/// Matrix products and biases.
struct product_facet : operations<ops::matmul<transpose::no, transpose::no>, ops::matmul<transpose::no, transpose::yes>,
                                  ops::matmul<transpose::yes, transpose::no>,
                                  ops::matmul<transpose::yes, transpose::yes>, ops::add_bias, ops::add_bias_backward> {
};
/// Products of operands of a 16-bit type T, into float or rounded once. `half_product_name()` of the backend: by which library.
struct half_product_facet {
  template <class B, class T>
  static constexpr bool offered =
      operations<ops::matmul<transpose::no, transpose::no, true>, ops::matmul<transpose::no, transpose::yes, true>,
                 ops::matmul<transpose::yes, transpose::no, true>, ops::matmul<transpose::no, transpose::no>,
                 ops::matmul<transpose::no, transpose::yes>,
                 ops::matmul<transpose::yes, transpose::no>>::template offered<B, T> &&
      requires(B& backend) {
        { backend.half_product_name() } -> std::convertible_to<const char*>;
      };
};
/// Products of rows grouped by expert.
struct grouped_product_facet : operations<ops::grouped_matmul<transpose::no>, ops::grouped_matmul<transpose::yes>,
                                          ops::grouped_matmul_backward_weight> {};
/// Products with what comes behind them.
struct fused_product_facet
    : operations<
          ops::matmul_add_bias<transpose::no, transpose::no>, ops::matmul_add_bias<transpose::no, transpose::yes>,
          ops::matmul_add_bias_gelu<transpose::no, transpose::no>,
          ops::matmul_add_bias_gelu<transpose::no, transpose::yes>,
          ops::matmul_gelu_backward<transpose::no, transpose::no>,
          ops::matmul_gelu_backward<transpose::no, transpose::yes>, ops::matmul_add_bias_backward<summed_operand::left>,
          ops::matmul_add_bias_backward<summed_operand::right>> {};

}  // namespace heddle::inline v0::compute
