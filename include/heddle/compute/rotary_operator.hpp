// heddle/compute/rotary_operator.hpp: rotary positions on [batch, heads, sequence, size].
#pragma once

#include <heddle/compute/operator_kernel.hpp>
#include <heddle/compute/rotary_table.hpp>
#include <heddle/core/error.hpp>
#include <heddle/layout/token_operations.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace heddle::inline v0 {
namespace compute {

/// How `op::rotary` turns: frequencies of `theta`, scaled; `rotating` elements of each head (0: all), of which the rest is copied; the
/// tensor's first row is position `first` of the sequence.
struct rotary_setting {
  double theta = 10000;
  std::int64_t first = 0, rotating = 0;
  rotary_scaling scaling{};
};

}  // namespace compute
namespace op {

/// Rotary positions of queries or keys [batch, heads, sequence, head_dim], paired as `Pairs` says; the setting is a
/// `compute::rotary_setting`. The sequence may be split: positions are those of the whole tensor.
/// Source: Su et al. 2021, arXiv:2104.09864.
template <compute::rotary_pairs Pairs = compute::rotary_pairs::halves>
struct rotary : turned_pairs<3> {};

}  // namespace op
namespace compute {

template <rotary_pairs Pairs>
struct operator_kernel<op::rotary<Pairs>> : detail::kernel_base {
  using setting_type = rotary_setting;
  static constexpr rotary_setting default_value{};
  template <std::size_t...>
  static constexpr std::size_t rank = 4;
  template <std::size_t R>
  static constexpr bool fits = R == 4;
  template <class B, class T>
  static constexpr bool runs_on = offered<rotary_facet, B, T>;
  template <class Op, class X>
  static auto shape(const X& x) {
    detail::expect_unpadded<Op>(x);
    return x.shape();
  }
  template <class C, class S, class Y, class X>
  static void forward(C& c, S&, Y& y, const X& x) {
    turn(c.setting, x, y, [&](auto... arguments) { run<ops::rotary<Pairs>>(c.backend, arguments...); });
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S&, const auto& dy, const Y&, G& g, const X&) {
    if constexpr (detail::is_wanted<0, G>)
      turn(c.setting, dy, std::get<0>(g),
           [&](auto... arguments) { run<ops::rotary_backward<Pairs>>(c.backend, arguments...); });
  }

 private:
  // Each row of each head is a row of one head; `kernel(x, positions, cosines, sines, y)`.
  template <class X, class Y, class Kernel>
  static void turn(const rotary_setting& how, const X& x, Y& y, const Kernel& kernel) {
    using T = typename X::value_type;
    const auto mine = x.local_shape();
    const std::int64_t sequence = mine.extent(2), begin = how.first + detail::offset_along<2>(x);
    const std::int64_t rotating = how.rotating == 0 ? x.shape().extent(3) : how.rotating;
    if (rotating > x.shape().extent(3) || how.first < 0 ||
        how.first + x.shape().extent(2) > (std::numeric_limits<std::int32_t>::max)())
      throw config_error("heddle: apply<rotary>: " + std::to_string(rotating) + " elements should rotate of heads of " +
                         std::to_string(x.shape().extent(3)) + ", from position " + std::to_string(how.first) +
                         " on; give at most all of them, and a position of at least 0");
    const std::vector<double> frequencies = rotary_frequencies(rotating, how.theta, how.scaling);
    const rotary_table<T> table(begin + sequence, frequencies);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(detail::rows_count(x)));
    for (std::size_t r = 0; r < positions.size(); ++r)
      positions[r] = static_cast<std::int32_t>(begin + static_cast<std::int64_t>(r) % sequence);
    const auto from = detail::as_rows(x);
    const auto to = detail::as_rows(y);
    kernel(head_rows<const T>{from.data(), from.extent(0), 1, from.extent(1), from.extent(1)},
           std::span<const std::int32_t>(positions), table.cosines(), table.sines(),
           head_rows<T>{to.data(), to.extent(0), 1, to.extent(1), to.extent(1)});
  }
};

}  // namespace compute
}  // namespace heddle::inline v0
