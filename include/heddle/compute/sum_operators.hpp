// heddle/compute/sum_operators.hpp: einsum, sums, means, redistributions as operators.
#pragma once

#include <heddle/compute/einsum.hpp>
#include <heddle/compute/operator_kernel.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::compute {
namespace detail {

template <std::size_t Rank>
letter_list first_letters() {
  letter_list list;
  for (std::size_t d = 0; d < Rank; ++d) list.add(static_cast<char>('a' + d));
  return list;
}
template <class X>
letter_sizes sizes_of(const letter_list& letters, const X& x) {
  letter_sizes sizes;
  const auto valid = x.valid_shape();
  for (std::size_t d = 0; d < X::dimensions; ++d)
    sizes.extent[static_cast<std::size_t>(letters[static_cast<int>(d)])] = valid.extent(d);
  return sizes;
}

// dx[letters of x] = dy[letters of y], which are some of them: a sum's gradient. Padding keeps its zeros.
template <class T>
void spread(const T* in, const letter_places& from, T* out, const letter_places& to, const letter_sizes& sizes) {
  if (sizes.of(to.letters) == 0) return;
  paired_dimensions all;
  for (int d = 0; d < to.letters.count; ++d) {
    const char letter = to.letters[d];
    all.add(sizes.of(letter), from.stride(letter), to.stride(letter));
  }
  all.for_each([&](std::int64_t source, std::int64_t target) { out[target] = in[source]; });
}

// A gradient in another type only where an axis of one rank does nothing.
template <class To, class From, class World>
void put_gradient(To& to, From&& from, World& world) {
  if constexpr (std::is_same_v<To, std::remove_cvref_t<From>>)
    to = std::move(from);
  else
    to = redistribute<typename To::layout_type>(std::move(from), world);
}

template <int... Dims>
struct sum_operator : kernel_base {
  template <std::size_t R>
  static constexpr std::size_t rank = R - sizeof...(Dims);
  template <std::size_t R>
  static constexpr bool fits = ((Dims < static_cast<int>(R)) && ...);
  template <class B, class T>
  static constexpr bool runs_on = offered<elementwise_facet, B, T>;
  template <class X>
  static letter_list left() {
    letter_list list;
    for (int d = 0; d < static_cast<int>(X::dimensions); ++d)
      if (((Dims != d) && ...)) list.add(static_cast<char>('a' + d));
    return list;
  }
  template <class Op, class X>
  static auto shape(const X& x) {
    std::array<std::int64_t, X::dimensions - sizeof...(Dims)> extents{};
    std::size_t at = 0;
    for (int d = 0; d < static_cast<int>(X::dimensions); ++d)
      if (((Dims != d) && ...)) extents[at++] = x.shape().extent(static_cast<std::size_t>(d));
    return make_shape(extents);
  }
  template <class C, class S, class Y, class X>
  static void forward(C&, S&, Y& y, const X& x) {
    const auto all = first_letters<X::dimensions>();
    arrange<typename X::value_type>(x.elements().data(), letter_places(all, x.local_shape()), y.elements().data(),
                                    letter_places(left<X>(), y.local_shape()), sizes_of(all, x));
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C&, S&, const auto& dy, const Y&, G& g, const X& x) {
    if constexpr (is_wanted<0, G>) {
      const auto all = first_letters<X::dimensions>();
      spread<typename X::value_type>(dy.elements().data(), letter_places(left<X>(), dy.local_shape()),
                                     std::get<0>(g).elements().data(), letter_places(all, x.local_shape()),
                                     sizes_of(all, x));
    }
  }
};

// The same tensor in another layout.
template <class To>
struct moved_to {};

}  // namespace detail

template <int... Dims>
struct operator_kernel<op::reduce<plus, Dims...>> : detail::sum_operator<Dims...> {};

template <int... Dims>
struct operator_kernel<op::mean<Dims...>> : detail::sum_operator<Dims...> {
  using sum = detail::sum_operator<Dims...>;
  template <class X>
  static auto share(const X& x) {
    const std::int64_t count = (std::int64_t{1} * ... * x.shape().extent(Dims));
    return static_cast<typename X::value_type>(1.0 / static_cast<double>(count));
  }
  template <class C, class S, class Y, class X>
  static void forward(C& c, S& s, Y& y, const X& x) {
    sum::forward(c, s, y, x);
    run<ops::scale>(c.backend, y.elements(), share(x));
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S& s, const auto& dy, const Y& y, G& g, const X& x) {
    sum::backward(c, s, dy, y, g, x);
    if constexpr (detail::is_wanted<0, G>) run<ops::scale>(c.backend, std::get<0>(g).elements(), share(x));
  }
};

template <fixed_string Formula>
struct operator_kernel<op::einsum<Formula>> : detail::kernel_base {
  static constexpr bool makes_result = true;
  static constexpr int operands = heddle::v0::detail::checked_formula<Formula>::value.operand_count;
  static constexpr unsigned reads = operands == 1 ? 0 : 3;
  template <std::size_t...>
  static constexpr std::size_t rank =
      static_cast<std::size_t>(heddle::v0::detail::checked_formula<Formula>::value.output.count);
  template <std::size_t... R>
  static constexpr bool fits = heddle::v0::detail::formula_fits<Formula, R...>::value;
  template <class B, class T>
  static constexpr bool runs_on = offered<product_facet, B, T>;
  template <class Y, class C, class S>
  static Y make(C& c, S&, const auto&... x) {
    return einsum<Formula>(c.backend, c.world, x...);
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C&, S&, const auto& dy, const Y&, G& g, const X& x) {
    if constexpr (detail::is_wanted<0, G>) {
      using form = detail::einsum_form<Formula>;
      const auto letters = detail::letters_of(form::text.operands[0]);
      detail::spread<typename X::value_type>(
          dy.elements().data(), detail::letter_places(form::output, dy.local_shape()), std::get<0>(g).elements().data(),
          detail::letter_places(letters, x.local_shape()), detail::sizes_of(letters, x));
    }
  }
  template <class C, class S, class Y, class G>
  static void backward(C& c, S&, const auto& dy, const Y&, G& g, const auto& first, const auto& second) {
    if constexpr (detail::is_wanted<0, G>)
      detail::put_gradient(std::get<0>(g), einsum_gradient<Formula, 0>(c.backend, c.world, dy, first, second), c.world);
    if constexpr (detail::is_wanted<1, G>)
      detail::put_gradient(std::get<1>(g), einsum_gradient<Formula, 1>(c.backend, c.world, dy, first, second), c.world);
  }
};

// Backward it is the redistribution from the dual of the target to the dual of the source.
template <class To>
struct operator_kernel<detail::moved_to<To>> : detail::kernel_base {
  static constexpr bool makes_result = true;
  template <class...>
  using layout = To;
  template <std::size_t R>
  static constexpr std::size_t rank = R;
  template <std::size_t>
  static constexpr bool fits = true;
  template <class B, class T>
  static constexpr bool runs_on = true;
  template <class Y, class C, class S>
  static Y make(C& c, S&, const auto& x) {
    return redistribute<To>(x, c.world);
  }
  template <class C, class S, class Y, class G>
  static void backward(C& c, S&, const auto& dy, const Y&, G& g, const auto&) {
    if constexpr (detail::is_wanted<0, G>)
      std::get<0>(g) = redistribute<typename std::tuple_element_t<0, G>::layout_type>(dy, c.world);
  }
};

}  // namespace heddle::inline v0::compute
