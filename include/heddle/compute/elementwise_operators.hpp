// heddle/compute/elementwise_operators.hpp: elementwise operators and gated units on tensors.
#pragma once

#include <heddle/compute/operator_kernel.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
namespace op {

/// GELU in its tanh form.
struct gelu : elementwise {
  static constexpr int most = 1;
};
/// x times the sigmoid of x.
struct silu : elementwise {
  static constexpr int most = 1;
};
/// A gated unit of (gate, up): A(gate) * up. `gated<compute::silu>` is SwiGLU's.
template <class A = compute::silu>
struct gated : elementwise {
  static constexpr int least = 2;
  static constexpr int most = 2;
};
/// A function of elements of one's own, static: of one operand `F::value(x)` and `F::derivative(x)`; of two to eight of one shape
/// `F::value(x, y)` and `F::gradient(x, y)`, a `std::array` with the derivative by each.
template <class F>
struct map : elementwise {};

}  // namespace op
namespace compute {

template <>
struct operator_kernel<op::gelu> : elementwise_operator {
  static constexpr unsigned reads = 1;
  template <class C, class S, class Y, class X>
  static void forward(C& c, S&, Y& y, const X& x) {
    run<ops::gelu>(c.backend, x.elements(), y.elements());
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S&, const auto& dy, const Y&, G& g, const X& x) {
    if constexpr (detail::is_wanted<0, G>)
      run<ops::gelu_backward>(c.backend, x.elements(), dy.elements(), std::get<0>(g).elements());
  }
};

template <class A>
struct operator_kernel<op::gated<A>> : elementwise_operator {
  static constexpr unsigned reads = 3;
  template <class B, class T>
  static constexpr bool runs_on = offered<gated_facet<A>, B, T>;
  template <class C, class S, class Y, class X>
  static void forward(C& c, S&, Y& y, const X& gate, const auto& up) {
    run<ops::gated<A>>(c.backend, gate.elements(), up.elements(), y.elements());
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S&, const auto& dy, const Y&, G& g, const X& gate, const auto& up) {
    using T = typename X::value_type;
    buffer<T> unused(detail::is_wanted<0, G> && detail::is_wanted<1, G> ? 0 : std::int64_t(gate.elements().size()));
    std::span<T> to_gate = unused, to_up = unused;
    if constexpr (detail::is_wanted<0, G>) to_gate = std::get<0>(g).elements();
    if constexpr (detail::is_wanted<1, G>) to_up = std::get<1>(g).elements();
    run<ops::gated_backward<A>>(c.backend, gate.elements(), up.elements(), dy.elements(), to_gate, to_up);
  }
};

// A gated unit whose gate opens on ones.
template <>
struct operator_kernel<op::silu> : elementwise_operator {
  static constexpr unsigned reads = 1;
  template <class B, class T>
  static constexpr bool runs_on = offered<gated_facet<silu>, B, T> && offered<elementwise_facet, B, T>;
  template <class T>
  static buffer<T> ones(auto& backend, std::size_t n) {
    buffer<T> b(static_cast<std::int64_t>(n));
    run<ops::fill>(backend, std::span<T>(b), T(1));
    return b;
  }
  template <class C, class S, class Y, class X>
  static void forward(C& c, S&, Y& y, const X& x) {
    const auto up = ones<typename X::value_type>(c.backend, x.elements().size());
    run<ops::gated<silu>>(c.backend, x.elements(), up, y.elements());
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S&, const auto& dy, const Y&, G& g, const X& x) {
    if constexpr (detail::is_wanted<0, G>) {
      using T = typename X::value_type;
      const auto up = ones<T>(c.backend, x.elements().size());
      buffer<T> unused(static_cast<std::int64_t>(x.elements().size()));
      run<ops::gated_backward<silu>>(c.backend, x.elements(), up, dy.elements(), std::get<0>(g).elements(),
                                     std::span<T>(unused));
    }
  }
};

template <class F>
struct operator_kernel<op::map<F>> : elementwise_operator {
  static constexpr unsigned reads = 0xff;
  template <class B, class T>
  static constexpr bool runs_on = true;
  template <class C, class S, class Y, class X>
  static void forward(C&, S&, Y& y, const X& x) {
    const auto in = x.elements();
    const auto out = y.elements();
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = F::value(in[i]);
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C&, S&, const auto& dy, const Y&, G& g, const X& x) {
    if constexpr (detail::is_wanted<0, G>) {
      const auto in = x.elements();
      const auto from = dy.elements();
      const auto to = std::get<0>(g).elements();
      for (std::size_t i = 0; i < in.size(); ++i) to[i] = from[i] * F::derivative(in[i]);
    }
  }
  template <class C, class S, class Y, class... X>
    requires(sizeof...(X) > 1)
  static void forward(C&, S&, Y& y, const X&... x) {
    const auto out = y.elements();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = F::value(x.elements()[i]...);
  }
  template <class C, class S, class Y, class G, class... X>
    requires(sizeof...(X) > 1)
  static void backward(C&, S&, const auto& dy, const Y&, G& g, const X&... x) {
    const auto from = dy.elements();
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto derivatives = F::gradient(x.elements()[i]...);
      static_assert(std::tuple_size_v<std::remove_const_t<decltype(derivatives)>> == sizeof...(X),
                    "heddle: op::map<F>: F::gradient(x, y, ...) returns one derivative for each operand");
      [&]<std::size_t... K>(std::index_sequence<K...>) {
        const auto give = [&](auto& to, auto derivative) {
          if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(to)>, no_gradient>)
            to.elements()[i] = from[i] * derivative;
        };
        (give(std::get<K>(g), derivatives[K]), ...);
      }(std::index_sequence_for<X...>{});
    }
  }
};

template <>
struct operator_kernel<op::elementwise_linear> : elementwise_operator {
  template <class C, class S, class Y, class X>
  static void forward(C& c, S&, Y& y, const X& x, const auto&... more) {
    run<ops::copy>(c.backend, x.elements(), y.elements());
    const auto sum = y.elements();
    (run<ops::add>(c.backend, std::span<const typename X::value_type>(sum), more.elements(), sum), ...);
  }
  template <class C, class S, class Y, class G>
  static void backward(C& c, S&, const auto& dy, const Y&, G& g, const auto&...) {
    const auto give = [&](auto& to) {
      if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(to)>, no_gradient>)
        run<ops::copy>(c.backend, dy.elements(), to.elements());
    };
    std::apply([&](auto&... to) { (give(to), ...); }, g);
  }
};

template <>
struct operator_kernel<op::multiply> : elementwise_operator {
  static constexpr unsigned reads = 0xff;
  template <class B, class T>
  static constexpr bool runs_on = true;
  template <class C, class S, class Y, class X>
  static void forward(C&, S&, Y& y, const X& x, const auto&... more) {
    const auto out = y.elements();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = (x.elements()[i] * ... * more.elements()[i]);
  }
  template <class C, class S, class Y, class G, class... X>
  static void backward(C&, S&, const auto& dy, const Y&, G& g, const X&... x) {
    using T = typename Y::value_type;
    const std::span<const T> factors[]{x.elements()...};
    const auto from = dy.elements();
    const auto give = [&](std::size_t mine, auto& to) {
      if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(to)>, no_gradient>) {
        const auto out = to.elements();
        for (std::size_t i = 0; i < out.size(); ++i) {
          T product = from[i];
          for (std::size_t k = 0; k < sizeof...(X); ++k)
            if (k != mine) product *= factors[k][i];
          out[i] = product;
        }
      }
    };
    std::size_t at = 0;
    std::apply([&](auto&... to) { (give(at++, to), ...); }, g);
  }
};

template <>
struct operator_kernel<op::scale> : elementwise_operator {
  using setting_type = double;
  static constexpr bool needs_setting = true;
  template <class C, class S, class Y, class X>
  static void forward(C& c, S&, Y& y, const X& x) {
    run<ops::copy>(c.backend, x.elements(), y.elements());
    run<ops::scale>(c.backend, y.elements(), static_cast<typename X::value_type>(c.setting));
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S& s, const auto& dy, const Y&, G& g, const X&) {
    if constexpr (detail::is_wanted<0, G>) forward(c, s, std::get<0>(g), dy);
  }
};

namespace detail {
// "abc,c->abc"
template <std::size_t Rank>
constexpr auto bias_formula() {
  char text[2 * Rank + 5]{};
  for (std::size_t d = 0; d < Rank; ++d) text[d] = text[Rank + 4 + d] = static_cast<char>('a' + d);
  text[Rank] = ',';
  text[Rank + 1] = text[Rank - 1];
  text[Rank + 2] = '-';
  text[Rank + 3] = '>';
  return fixed_string<2 * Rank + 5>(text);
}
// Whether the second operand has the last letters of the first, in order, and the result those of the first.
template <fixed_string Formula>
constexpr bool repeats_rows() {
  constexpr auto f = heddle::v0::detail::checked_formula<Formula>::value;
  const auto &x = f.operands[0], &b = f.operands[1];
  if (f.operand_count != 2 || b.count > x.count || f.output.count != x.count) return false;
  for (int d = 0; d < x.count; ++d)
    if (f.output.letters[d] != x.letters[d]) return false;
  for (int d = 0; d < b.count; ++d)
    if (b.letters[d] != x.letters[x.count - b.count + d]) return false;
  return true;
}
}  // namespace detail

template <fixed_string Formula>
struct operator_kernel<op::add_of<Formula>> : detail::kernel_base {
  static constexpr bool exists = detail::repeats_rows<Formula>();
  template <std::size_t R, std::size_t...>
  static constexpr std::size_t rank = R;
  template <std::size_t... R>
  static constexpr bool fits = heddle::v0::detail::formula_fits<Formula, R...>::value;
  template <class Op, class X, class Bias>
  static auto shape(const X& x, const Bias& b) {
    std::array<std::int64_t, Bias::dimensions> last{};
    for (std::size_t d = 0; d < Bias::dimensions; ++d) last[d] = x.shape().extent(X::dimensions - Bias::dimensions + d);
    detail::expect_shape<Op>(1, make_shape(last), b);
    detail::expect_unpadded<Op>(x);
    return x.shape();
  }
  template <class B, class T>
  static constexpr bool runs_on = offered<product_facet, B, T> && offered<elementwise_facet, B, T>;
  template <class M, class X>
  static auto in_rows(M& m, const X& b) {
    const std::int64_t columns = b.local_shape().size();
    using element = std::remove_pointer_t<decltype(m.elements().data())>;
    const auto all = static_cast<std::int64_t>(m.elements().size());
    return matrix_view<element>(m.elements().data(), {columns == 0 ? 0 : all / columns, columns});
  }
  template <class C, class S, class Y, class X>
  static void forward(C& c, S&, Y& y, const X& x, const auto& b) {
    run<ops::copy>(c.backend, x.elements(), y.elements());
    run<ops::add_bias>(c.backend, in_rows(y, b), b.elements());
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S&, const auto& dy, const Y&, G& g, const X&, const auto& b) {
    if constexpr (detail::is_wanted<0, G>) run<ops::copy>(c.backend, dy.elements(), std::get<0>(g).elements());
    if constexpr (detail::is_wanted<1, G>)
      run<ops::add_bias_backward>(c.backend, in_rows(dy, b), std::get<1>(g).elements());
  }
};

}  // namespace compute
}  // namespace heddle::inline v0
