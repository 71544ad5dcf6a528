// heddle/model/layers/linear.hpp: a linear layer with or without bias, in either storage order.
#pragma once

#include <heddle/model/layers/call.hpp>
#include <heddle/model/layers/moving_rows.hpp>
#include <heddle/model/layers/multiply.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::model::layers {

/// Tags of the parameters that most layers have.
struct weight {};
struct bias {};  ///< added to each row of the product

/// Tags of tensors with the rows of all ranks, where the sequence is split between layers.
struct whole_in {};     ///< what goes into products, or its gradient
struct whole_out {};    ///< what leaves one
struct d_whole_out {};  ///< gradient of `whole_out`

namespace detail {
// Whether products of a call go together with what is behind them: the backend has such products, and no scales are looked for first.
template <class B>
inline constexpr bool fuses_products =
    compute::offered<compute::fused_product_facet, std::remove_cvref_t<decltype(std::declval<const B&>().compute())>,
                     typename B::scalar> &&
    !multiplies_in_float8<B>;
}  // namespace detail

/// How a linear layer's weight lies: `in_out` [in, out] as GPT-2's, `out_in` [out, in] as PyTorch's `Linear`.
enum class storage : bool { in_out, out_in };

/// y = x W + b over the dimensions `In`, which become `Out`. What the sharding splits of `Out` is split in y; what it splits of
/// `In` makes y a sum, which forward settles before the bias is added, once. backward_input leaves the sum over split outputs
/// to the caller, who may have other products that add to the same gradient. All verbs may be called for some rows at a time where
/// nothing is settled in them.
/// Where a sharding splits the sequence, the caller gives and takes the rows that y has, `laid::x_taken`. A sum is settled to the
/// rows that y has by itself (reduce_scatter), whose gradient is gathered in backward_input, once, and kept for
/// backward_weight.
/// Shapes: x [rows, In...], y [rows, Out...].
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3, figure 3.
template <class In, class Out, bool Bias = true, storage Stored = storage::in_out>
struct linear : leaf {
  using in_dims = In;
  using out_dims = Out;
  static constexpr bool takes_some_rows = true;
  static constexpr bool transposed = Stored == storage::out_in;
  using weight_parameter = std::conditional_t<transposed, parameter<weight, Out, In>, parameter<weight, In, Out>>;
  using bias_parameter = parameter<bias, Out>;

  const char* name;
  std::array<std::int64_t, In::count> in;
  std::array<std::int64_t, Out::count> out;
  double deviation = 0;

  constexpr linear(const char* called, std::array<std::int64_t, In::count> from,
                   std::array<std::int64_t, Out::count> to, double initial_deviation = 0)
      : name(called), in(from), out(to), deviation(initial_deviation) {}

  constexpr auto parameters() const {
    std::array<std::int64_t, In::count + Out::count> both{};
    for (std::size_t i = 0; i < In::count; ++i) both[i + (transposed ? Out::count : 0)] = in[i];
    for (std::size_t i = 0; i < Out::count; ++i) both[i + (transposed ? 0 : In::count)] = out[i];
    const weight_parameter w{"weight", both, deviation};
    if constexpr (Bias)
      return list(w, bias_parameter{"bias", out});
    else
      return list(w);
  }

  constexpr auto activations() const {
    return list(gathered_rows<whole_out, life::scratch, Out, In>{{out}},
                gathered_rows<d_whole_out, life::deferred, Out, In>{{out}});
  }

  /// Two for each weight forward, four backward.
  constexpr double training_flops(std::int64_t /*sequence*/) const {
    double n = 6;
    for (const std::int64_t e : in) n *= static_cast<double>(e);
    for (const std::int64_t e : out) n *= static_cast<double>(e);
    return n;
  }

  using needs = compute::facet_list<compute::product_facet>;

  template <class Layouts>
  using laid = product_layouts<Layouts, In, Out, typename Layouts::template parameter<typename weight_parameter::own>,
                               transposed>;

  /// Whether, in such a call, the bias goes with the product on every mesh of this type: its result is complete, and the backend has both in
  /// one (`compute::fused_product_facet`). It does, too, where axes along which the result is a sum turn out to have one rank.
  template <class B>
  static constexpr bool adds_bias_at_once =
      Bias && detail::fuses_products<B> &&
      std::is_same_v<typename laid<typename B::layouts>::made, typename laid<typename B::layouts>::y>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    using l = laid<typename B::layouts>;
    if constexpr (Bias && detail::fuses_products<B> && !B::template moves_rows<typename l::made, typename l::y>) {
      if (settles_alone<typename l::made, typename l::y>(b.run().world)) {
        b.give(y, [&](auto v) {
          compute::run<compute::ops::matmul_add_bias<transpose::no, product_of_weight>>(b.compute(), x, b[weight{}],
                                                                                        b.vector(bias{}), v);
        });
        return made<typename l::y>{};
      }
    }
    return forward_with(b, x, y, [](auto, row_range) {});
  }
  /// The same with `more(rows, at)` between the product and its settlement, which may add to these rows of the product.
  template <class B, class More>
  auto forward_with(const B& b, typename B::const_view x, typename B::view y, More&& more) const {
    using T = typename B::scalar;
    using l = laid<typename B::layouts>;
    b.give(y, [&](auto v) {
      make_scattered<typename l::made, typename l::y>(b, whole_out{}, v, [&](auto part, row_range at) {
        multiply<transpose::no, product_of_weight, float8_operand::value, float8_operand::value, typename l::x,
                 weights<B>>(b, rows_of(x, at), b[weight{}], part, T(0));
        more(part, at);
      });
      if constexpr (Bias) compute::run<compute::ops::add_bias>(b.compute(), v, b.vector(bias{}));
    });
    return made<typename l::y>{};
  }
  /// gelu(y) with y beside it, for some rows at a time where nothing is settled: only with `adds_bias_at_once`.
  template <class B>
  void forward_gelu(const B& b, typename B::const_view x, typename B::view y, typename B::view activated) const {
    compute::run<compute::ops::matmul_add_bias_gelu<transpose::no, product_of_weight>>(b.compute(), x, b[weight{}],
                                                                                       b.vector(bias{}), y, activated);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view /*x*/, typename B::const_view dy, typename B::view dx,
                      bool add = false) const {
    using T = typename B::scalar;
    using l = laid<typename B::layouts>;
    use_gathered<dual<typename l::y>, dual<typename l::made>>(b, d_whole_out{}, dy, true, [&](auto d, row_range at) {
      multiply<transpose::no, transposed ? transpose::no : transpose::yes, float8_operand::gradient,
               float8_operand::value, dual<typename l::made>, weights<B>>(b, d, b[weight{}], rows_of(dx, at),
                                                                          add ? T(1) : T(0));
    });
    return made<typename l::dx_made>{};
  }
  /// The gradient of z of x = gelu(z), from `z` and dy, where the backend has it in one: only with `detail::fuses_products`.
  template <class B>
  auto backward_gelu(const B& b, typename B::const_view dy, typename B::const_view z, typename B::view dz) const {
    using l = laid<typename B::layouts>;
    use_gathered<dual<typename l::y>, dual<typename l::made>>(b, d_whole_out{}, dy, true, [&](auto d, row_range at) {
      compute::run<compute::ops::matmul_gelu_backward<transpose::no, transposed ? transpose::no : transpose::yes>>(
          b.compute(), d, b[weight{}], rows_of(z, at), rows_of(dz, at));
    });
    return made<typename l::dx_made>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    using T = typename B::scalar;
    using l = laid<typename B::layouts>;
    const typename B::const_view d = b.template room<dual<typename l::y>, dual<typename l::made>>(d_whole_out{}, dy);
    if constexpr (Bias && detail::fuses_products<B> &&
                  !B::template moves_rows<dual<typename l::y>, dual<typename l::made>>) {
      using compute::summed_operand;
      constexpr auto of = transposed ? summed_operand::left : summed_operand::right;
      compute::run<compute::ops::matmul_add_bias_backward<of>>(b.compute(), transposed ? d : x, transposed ? x : d,
                                                               b.gradient(weight{}), b.gradient_vector(bias{}));
      return;
    }
    if constexpr (transposed)
      multiply<transpose::yes, transpose::no, float8_operand::gradient, float8_operand::value, dual<typename l::made>,
               typename l::x>(b, d, x, b.gradient(weight{}), T(1));
    else
      multiply<transpose::yes, transpose::no, float8_operand::value, float8_operand::gradient, typename l::x,
               dual<typename l::made>>(b, x, d, b.gradient(weight{}), T(1));
    if constexpr (Bias) compute::run<compute::ops::add_bias_backward>(b.compute(), dy, b.gradient_vector(bias{}));
  }

 private:
  static constexpr transpose product_of_weight = transposed ? transpose::yes : transpose::no;
  template <class B>
  using weights = typename B::layouts::template parameter<typename weight_parameter::own>;
};

}  // namespace heddle::inline v0::model::layers
