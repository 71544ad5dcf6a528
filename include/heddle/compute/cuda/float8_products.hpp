// heddle/compute/cuda/float8_products.hpp: products of float matrices whose operands are scaled and rounded to 8 bits, with scales on the device.
#pragma once

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/float8_products.hpp>
#include <heddle/compute/host/argument_checks.hpp>
#include <heddle/compute/host/check.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/launched_facets.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/float8.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/cuda/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail::on_cuda {

/// parts[b] = the greatest magnitude of elements [b block, (b + 1) block) of n; NaN are passed over.
struct greatest_of_part {
  std::int64_t n;
  const float* x;
  float* parts;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t b) const {
    const std::int64_t begin = b * sum_block, rest = n - begin;
    const float* const from = x + begin;
    float most = 0;
    for_each_of(g, rest < sum_block ? rest : sum_block, [&](std::int64_t i) {
      const float v = from[i] < 0 ? -from[i] : from[i];
      most = v > most ? v : most;
    });
    most = g.largest(most);
    if (g.leads()) parts[b] = most;
  }
};
template <launcher L>
void launch_greatest(const L& on, std::int64_t n, const float* x, float* out) {
  const std::int64_t parts = sum_blocks(n);
  if (parts <= 1) return on.each_row(1, n, greatest_of_part{n, x, out});
  auto between = on.template room<float>(parts);
  on.each_row(parts, sum_block, greatest_of_part{n, x, between.address()});
  launch_greatest(on, parts, between.address(), out);
}

/// factors[0]: what the tensor is multiplied by before it is rounded; factors[1]: by that the product is multiplied.
template <class Format>
struct float8_factors {
  const float* greatest;
  float* factors;
  HEDDLE_HD void operator()(std::int64_t) const {
    const double most = static_cast<double>(*greatest);
    const auto scale = static_cast<float>(static_cast<double>(Format::largest) / (most > 1e-12 ? most : 1e-12));
    factors[0] = scale;
    factors[1] = 1 / scale;
  }
};

/// out[rows, depth] = x or its transpose, scaled and rounded to `Format`, stored as `Stored`, which holds its numbers; zeros behind `rows_of_x` and `depth_of_x`.
template <class Format, class Stored, bool Transposed>
struct float8_rounded {
  std::int64_t rows_of_x, depth_of_x, depth;
  const float *x, *factors;
  Stored* out;
  HEDDLE_HD void operator()(std::int64_t at) const {
    const std::int64_t i = at / depth, p = at - i * depth;
    const bool inside = i < rows_of_x && p < depth_of_x;
    const float v = inside ? x[Transposed ? p * rows_of_x + i : i * depth_of_x + p] * factors[0] : 0.0f;
    if constexpr (std::is_same_v<Format, Stored>)
      out[at] = Format(v);
    else
      out[at] = Stored(static_cast<float>(Format(v)));
  }
};

/// c[i, j] = beta c[i, j] + d[i, j], of the columns that c has; d times both factors where it has them not yet.
template <class Out, class Sum>
struct add_float8_product {
  std::int64_t columns, columns_of_d;
  const Sum* d;
  const float *factors_a, *factors_b;  // null: d is complete
  float beta;
  Out* c;
  HEDDLE_HD void operator()(std::int64_t at) const {
    const std::int64_t i = at / columns, j = at - i * columns;
    float v = static_cast<float>(d[i * columns_of_d + j]);
    if (factors_a != nullptr) v *= factors_a[1] * factors_b[1];
    c[at] = Out(beta == 0 ? v : beta * static_cast<float>(c[at]) + v);
  }
};

/// The kernels of `scaled_product_kernels` as members of the backend `Backend`: by products in 8 bits of the library of its launcher, or, where the launcher
/// says so, by products of bf16, which holds the same numbers.
template <class Backend>
class float8_product_members {
  using input = matrix_view<const float, cuda_memory>;
  using number = row_view<const float, cuda_memory>;

 public:
  void find_greatest(input x, row_view<float, cuda_memory> most) {
    expect("find_greatest", "elements of most", 1, most.size());
    launch_greatest(self().launcher(), x.size(), x.address(), most.address());
  }
  template <transpose TA, transpose TB, class A, class B, class Out>
    requires(std::is_same_v<Out, float> || std::is_same_v<Out, bf16>)
  void scaled_product(input a, input b, matrix_view<Out, cuda_memory> c, number greatest_a, number greatest_b,
                      float beta = 0) {
    constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
    const auto [m, n, k] = argument_checks::product_size_of<ta, tb>("scaled_product", a, b, c);
    argument_checks::sizes("scaled_product", 1, "elements of greatest_a", greatest_a.size(), "elements of greatest_b",
                           greatest_b.size());
    if (m == 0 || n == 0) return;
    const bool in_8_bits = self().launcher().multiplies_float8();
    auto factors = self().launcher().template room<float>(4);
    self().launcher().each(1, float8_factors<A>{greatest_a.address(), factors.address()});
    self().launcher().each(1, float8_factors<B>{greatest_b.address(), factors.address() + 2});
    if (in_8_bits)
      multiplied<ta, tb, A, B, A, B>(a, b, c, {m, n, k}, factors.address(), beta);
    else
      multiplied<ta, tb, A, B, bf16, bf16>(a, b, c, {m, n, k}, factors.address(), beta);
  }

 private:
  friend Backend;
  float8_product_members() = default;
  Backend& self() noexcept { return static_cast<Backend&>(*this); }
  struct sizes {
    std::int64_t m, n, k;
  };

  // cuBLASLt multiplies 8 bits where both operands lie along what is added up, and sizes are multiples of 16: operands are rounded into that order, with zeros.
  template <bool TA, bool TB, class A, class B, class StoredA, class StoredB, class Out>
  void multiplied(const input& a, const input& b, const matrix_view<Out, cuda_memory>& c, const sizes& of,
                  const float* factors, float beta) {
    constexpr bool in_8_bits = sizeof(StoredA) == 1;
    const auto whole = [](std::int64_t x) { return (x + 15) / 16 * 16; };
    const std::int64_t m = whole(of.m), n = whole(of.n), k = whole(of.k < 1 ? 1 : of.k);
    const auto on = self().launcher();
    auto left = on.template room<StoredA>(m * k);
    auto right = on.template room<StoredB>(n * k);
    on.each(m * k, float8_rounded<A, StoredA, TA>{of.m, of.k, k, a.address(), factors, left.address()});
    on.each(n * k, float8_rounded<B, StoredB, !TB>{of.n, of.k, k, b.address(), factors + 2, right.address()});
    const bool in_place =
        in_8_bits && m == of.m && n == of.n && reinterpret_cast<std::uintptr_t>(c.address()) % 16 == 0;
    using sum_type = std::conditional_t<in_8_bits, Out, float>;
    const auto multiply = [&](sum_type* to, float beta_of_it) {
      if constexpr (in_8_bits)
        on.multiply_float8(m, n, k, static_cast<const StoredA*>(left.address()),
                           static_cast<const StoredB*>(right.address()), to, beta_of_it, factors + 1, factors + 3);
      else
        on.template multiply<false, true>(m, n, k, static_cast<const StoredA*>(left.address()),
                                          static_cast<const StoredB*>(right.address()), to, beta_of_it);
    };
    if constexpr (in_8_bits)
      if (in_place) return multiply(c.address(), beta);
    auto sum = on.template room<sum_type>(m * n);
    multiply(sum.address(), 0.0f);
    on.each(of.m * of.n, add_float8_product<Out, sum_type>{of.n, n, sum.address(), in_8_bits ? nullptr : factors,
                                                           factors + 2, beta, c.address()});
  }
};

}  // namespace heddle::inline v0::compute::detail::on_cuda
