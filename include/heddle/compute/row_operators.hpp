// heddle/compute/row_operators.hpp: softmax and norms along the last dimension of tensors.
#pragma once

#include <heddle/compute/operator_kernel.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <type_traits>

namespace heddle::inline v0::compute {
namespace detail {

// Operators that work on whole rows: the dimension they name is the last one.
template <int... Dims>
struct row_operator : kernel_base {
  template <std::size_t R, std::size_t...>
  static constexpr std::size_t rank = R;
  template <std::size_t R, std::size_t... Rs>
  static constexpr bool fits = sizeof...(Dims) == 1 && ((Dims + 1 == static_cast<int>(R)) && ...) && ((Rs == 1) && ...);
  template <class Op, class X, class... Ws>
  static auto shape(const X& x, const Ws&... weights) {
    std::size_t at = 0;
    (expect_shape<Op>(++at, make_shape(std::array{x.shape().extent(X::dimensions - 1)}), weights), ...);
    expect_unpadded<Op>(x);
    return x.shape();
  }
};

// A weight that is not given.
template <class T>
buffer<T> vector_of(auto& backend, std::int64_t n, T value) {
  buffer<T> b(n);
  run<ops::fill>(backend, std::span<T>(b), value);
  return b;
}
// The elements to write a gradient to, or memory that nobody looks at.
template <std::size_t At, class T, class G>
std::span<T> wanted_or(G& gradients, buffer<T>& unused, std::int64_t n) {
  if constexpr (At < std::tuple_size_v<G>) {
    if constexpr (is_wanted<At, G>) return std::get<At>(gradients).elements();
  }
  unused = buffer<T>(n);
  return unused;
}

// Weight `At` of a norm, or a vector of `value` in `other` where it was not given.
template <std::size_t At, class T>
std::span<const T> given_or(buffer<T>& other, const auto& x, T value, auto& backend, const auto&... w) {
  if constexpr (sizeof...(w) > At) {
    return std::get<At>(std::forward_as_tuple(w...)).elements();
  } else {
    other = vector_of<T>(backend, columns_of(x), value);
    return other;
  }
}

// Norms: the setting is what is added to the variance.
template <int... Dims>
struct norm_operator : row_operator<Dims...> {
  static constexpr unsigned reads = 3;
  using setting_type = double;
  static constexpr double default_value = 1e-5;
};

}  // namespace detail

template <int Dim>
struct operator_kernel<op::softmax<Dim>> : detail::row_operator<Dim> {
  static constexpr bool reads_result = true;
  template <class B, class T>
  static constexpr bool runs_on = cross_entropy_facet::offered<B, T> && offered<elementwise_facet, B, T>;
  template <class C, class S, class Y, class X>
  static void forward(C& c, S&, Y& y, const X& x) {
    using T = typename X::value_type;
    const std::int64_t rows = detail::rows_count(x), columns = detail::columns_of(x);
    if (columns > (std::numeric_limits<std::int32_t>::max)())
      throw layout_error("heddle: apply<softmax>: rows of " + std::to_string(columns) + " elements are too long");
    buffer<T> top(rows), sum(rows);
    buffer<std::int32_t> elsewhere(rows);  // the kernel takes 1 off at a target; these are in no row
    for (auto& t : elsewhere) t = static_cast<std::int32_t>(columns);
    run<ops::copy>(c.backend, x.elements(), y.elements());
    run<ops::row_max>(c.backend, detail::as_rows(x), std::span<T>(top));
    run<ops::row_sum_exp>(c.backend, detail::as_rows(x), top, std::span<T>(sum));
    run<ops::cross_entropy_backward>(c.backend, detail::as_rows(y), top, sum, elsewhere, 0, T(1));
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C&, S&, const auto& dy, const Y& y, G& g, const X&) {
    if constexpr (detail::is_wanted<0, G>) {
      using T = typename X::value_type;
      const auto from = detail::as_rows(dy), p = detail::as_rows(y);
      const auto to = detail::as_rows(std::get<0>(g));
      for (std::int64_t r = 0; r < to.extent(0); ++r) {
        T dot = 0;
        for (std::int64_t k = 0; k < to.extent(1); ++k) dot += from(r, k) * p(r, k);
        for (std::int64_t k = 0; k < to.extent(1); ++k) to(r, k) = p(r, k) * (from(r, k) - dot);
      }
    }
  }
};

template <int... Dims>
struct operator_kernel<op::rms_norm<Dims...>> : detail::norm_operator<Dims...> {
  template <class T>
  struct state {
    buffer<T> rstd{};
  };
  template <class B, class T>
  static constexpr bool runs_on = rms_norm_facet::offered<B, T> && offered<elementwise_facet, B, T>;
  template <class C, class S, class Y, class X>
  static void forward(C& c, S& s, Y& y, const X& x, const auto&... w) {
    using T = typename X::value_type;
    buffer<T> ones;
    s.rstd = buffer<T>(detail::rows_count(x));
    run<ops::rms_norm>(c.backend, detail::as_rows(x), detail::given_or<0, T>(ones, x, T(1), c.backend, w...),
                       static_cast<T>(c.setting), detail::as_rows(y), std::span<T>(s.rstd));
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S& s, const auto& dy, const Y&, G& g, const X& x, const auto&... w) {
    using T = typename X::value_type;
    buffer<T> ones;
    const auto weight = detail::given_or<0, T>(ones, x, T(1), c.backend, w...);
    if constexpr (detail::is_wanted<0, G>)
      run<ops::rms_norm_backward_input>(c.backend, detail::as_rows(dy), detail::as_rows(x), weight, s.rstd,
                                        detail::as_rows(std::get<0>(g)));
    if constexpr (sizeof...(w) > 0)
      if constexpr (detail::is_wanted<1, G>)
        run<ops::rms_norm_backward_weight>(c.backend, detail::as_rows(dy), detail::as_rows(x), s.rstd,
                                           std::get<1>(g).elements());
  }
};

template <int... Dims>
struct operator_kernel<op::layer_norm<Dims...>> : detail::norm_operator<Dims...> {
  template <class T>
  struct state {
    buffer<T> mean{}, rstd{};
  };
  template <class B, class T>
  static constexpr bool runs_on = layer_norm_facet::offered<B, T> && offered<elementwise_facet, B, T>;
  template <class C, class S, class Y, class X>
  static void forward(C& c, S& s, Y& y, const X& x, const auto&... w) {
    using T = typename X::value_type;
    buffer<T> ones, zeros;
    s.mean = buffer<T>(detail::rows_count(x));
    s.rstd = buffer<T>(detail::rows_count(x));
    run<ops::layer_norm>(c.backend, detail::as_rows(x), detail::given_or<0, T>(ones, x, T(1), c.backend, w...),
                         detail::given_or<1, T>(zeros, x, T(0), c.backend, w...), static_cast<T>(c.setting),
                         detail::as_rows(y), std::span<T>(s.mean), std::span<T>(s.rstd));
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S& s, const auto& dy, const Y&, G& g, const X& x, const auto&... w) {
    using T = typename X::value_type;
    buffer<T> ones, no_weight, no_bias;
    if constexpr (detail::is_wanted<0, G>)
      run<ops::layer_norm_backward_input>(c.backend, detail::as_rows(dy), detail::as_rows(x),
                                          detail::given_or<0, T>(ones, x, T(1), c.backend, w...), s.mean, s.rstd,
                                          detail::as_rows(std::get<0>(g)));
    if constexpr (sizeof...(w) > 0)
      run<ops::layer_norm_backward_weight>(c.backend, detail::as_rows(dy), detail::as_rows(x), s.mean, s.rstd,
                                           detail::wanted_or<1, T>(g, no_weight, detail::columns_of(x)),
                                           detail::wanted_or<2, T>(g, no_bias, detail::columns_of(x)));
  }
};

}  // namespace heddle::inline v0::compute
