// heddle/compute/cuda/fused_products.hpp: products with the bias, GELU or sum of columns behind them, as epilogues of the library where it has them.
#pragma once

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/fused_products.hpp>
#include <heddle/compute/growing_room.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/cuda/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail::on_cuda {

/// The kernels of `fused_product_kernels` as members of the backend `Backend`: by the library of its launcher, `multiply_ending`, where that
/// has a product with such an end for these sizes and types, else by a product and kernels of the backend.
template <class Backend>
class fused_product_members {
  template <class T>
  using matrix = matrix_view<T, cuda_memory>;
  template <class T>
  using in_matrix = std::type_identity_t<matrix<const T>>;
  template <class T>
  using in_row = std::type_identity_t<row_view<const T, cuda_memory>>;
  // What products of these operands are written as.
  template <class A, class B, class T>
  static constexpr bool multiplies_to = std::is_same_v<std::remove_const_t<A>, std::remove_const_t<B>> &&
                                        (std::is_same_v<std::remove_const_t<A>, T> ||
                                         (is_half_precision<std::remove_const_t<A>> && std::is_same_v<T, float>));

 public:
  template <transpose TA = transpose::no, transpose TB = transpose::no, class A, class B, class T>
    requires(multiplies_to<A, B, T>)
  void matmul_add_bias(matrix<A> a, matrix<B> b, in_row<T> bias, matrix<T> c) {
    expect("matmul_add_bias", "elements of the bias", c.extent(1), bias.size());
    if (ended<TA, TB>(a, b, c, 0, product_ending<T>{.end = product_end::bias, .bias = bias.address()})) return;
    self().template matmul<TA, TB>(a, b, c, sum_of_type<T>(0));
    run<ops::add_bias>(self(), c, bias);
  }
  template <transpose TA = transpose::no, transpose TB = transpose::no, class A, class B, class T>
    requires(multiplies_to<A, B, T>)
  void matmul_add_bias_gelu(matrix<A> a, matrix<B> b, in_row<T> bias, std::type_identity_t<matrix<T>> before,
                            matrix<T> c) {
    expect("matmul_add_bias_gelu", "elements of the bias", c.extent(1), bias.size());
    same_size("matmul_add_bias_gelu", c, before);
    if (ended<TA, TB>(
            a, b, c, 0,
            product_ending<T>{.end = product_end::gelu_of_bias, .bias = bias.address(), .before = before.address()}))
      return;
    matmul_add_bias<TA, TB>(a, b, bias, before);
    run<ops::gelu>(self(), elements(matrix<const T>(before)), elements(c));
  }
  template <transpose TA = transpose::no, transpose TB = transpose::no, class A, class B, class T>
    requires(multiplies_to<A, B, T>)
  void matmul_gelu_backward(matrix<A> a, matrix<B> b, in_matrix<T> before, matrix<T> c) {
    same_size("matmul_gelu_backward", c, before);
    // The library only reads it there.
    if (ended<TA, TB>(
            a, b, c, 0,
            product_ending<T>{.end = product_end::gelu_derivative, .before = const_cast<T*>(before.address())}))
      return;
    self().template matmul<TA, TB>(a, b, c, sum_of_type<T>(0));
    run<ops::gelu_backward>(self(), elements(before), elements(matrix<const T>(c)), elements(c));
  }
  template <summed_operand Of, class A, class B, class T>
    requires(multiplies_to<A, B, T> && std::is_floating_point_v<T>)
  void matmul_add_bias_backward(matrix<A> a, matrix<B> b, matrix<T> c,
                                std::type_identity_t<row_view<T, cuda_memory>> db) {
    constexpr bool left = Of == summed_operand::left;
    expect("matmul_add_bias_backward", "elements of db", c.extent(left ? 0 : 1), db.size());
    const std::int64_t n = db.size();
    const product_ending<T> with{
        .end = left ? product_end::sums_of_left : product_end::sums_of_right,
        .sums = reinterpret_cast<T*>(
            sums_.of(self().queue(), n * static_cast<std::int64_t>(sizeof(T)), "the gradient of a bias"))};
    if (ended<transpose::yes, transpose::no>(a, b, c, 1, with)) {
      // The library overwrites sums, while c is added to.
      const auto sums = heddle::v0::detail::row_at<cuda_memory>(static_cast<const T*>(with.sums), n);
      run<ops::add>(self(), row_view<const T, cuda_memory>(db), sums, db);
      return;
    }
    self().template matmul<transpose::yes, transpose::no>(a, b, c, T(1));
    run<ops::add_bias_backward>(self(), left ? a : b, db);
  }

 private:
  friend Backend;
  fused_product_members() = default;
  Backend& self() noexcept { return static_cast<Backend&>(*this); }
  template <class T>
  static row_view<T, cuda_memory> elements(const matrix<T>& x) {
    return heddle::v0::detail::row_at<cuda_memory>(x.address(), x.size());
  }
  template <class T, class U>
  static void same_size(const char* kernel, const matrix<T>& c, const matrix<U>& before) {
    expect(kernel, "rows of what is before GELU", c.extent(0), before.extent(0));
    expect(kernel, "columns of what is before GELU", c.extent(1), before.extent(1));
  }
  // Whether the library has made c; sizes that do not fit are left to `matmul`, which refuses them, and so are empty products.
  template <transpose TA, transpose TB, class A, class B, class T>
  bool ended(const matrix<A>& a, const matrix<B>& b, const matrix<T>& c, sum_of_type<T> beta,
             const product_ending<T>& with) {
    constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
    const std::int64_t m = c.extent(0), n = c.extent(1), k = a.extent(ta ? 0 : 1);
    const bool fits = a.extent(ta ? 1 : 0) == m && b.extent(tb ? 1 : 0) == k && b.extent(tb ? 0 : 1) == n;
    if (!fits || m == 0 || n == 0 || k == 0) return false;
    using in = std::remove_const_t<A>;
    return self().launcher().template multiply_ending<ta, tb>(
        m, n, k, static_cast<const in*>(a.address()), static_cast<const in*>(b.address()), c.address(), beta, with);
  }

  growing_room<std::byte, cuda_memory> sums_{};
};

}  // namespace heddle::inline v0::compute::detail::on_cuda
