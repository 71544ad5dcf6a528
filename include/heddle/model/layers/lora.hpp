// heddle/model/layers/lora.hpp: low-rank adapters of linear layers, in any description.
#pragma once

#include <heddle/model/layers/linear.hpp>
#include <heddle/model/layers/trained.hpp>

#include <array>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::model::layers {

struct lora_a {};  ///< parameter of an adapter: A', [rank, in]
struct lora_b {};  ///< parameter of an adapter: B', [out, rank]
struct low {};     ///< activation: (alpha / rank) x A
struct d_low {};   ///< gradient of x A

/// A linear layer with a low-rank adapter: y = x W + b + (alpha / rank) x A B. A begins as N(0, 1 / rank^2), B as zero: the layer then is
/// the one without adapter. With `train_only<adapters>` W and b are frozen.
///
/// An axis that splits the outputs splits B, and A is copied along it; one that splits the inputs splits A, and B is copied. Nothing is
/// sent for the adapter in forward and backward: x A is left as the sum that it is along split inputs, the gradient of x A along split
/// outputs, and they go into the sums that y and the gradient of x are anyway. The gradient of the copied matrix is a sum over that axis, as its
/// layout says, and is added up with the gradients of the step.
/// Shapes: x [rows, In...], y [rows, Out...]; stored are A' [rank, In...] and B' [Out..., rank], as PEFT has them.
/// Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
template <class Linear>
struct lora {
  using base_layer = Linear;
  using in_dims = typename Linear::in_dims;
  using out_dims = typename Linear::out_dims;
  using a_parameter = parameter<lora_a, dims<dim::low_rank>, in_dims, out_dims>;
  using b_parameter = parameter<lora_b, out_dims, dims<dim::low_rank>, in_dims>;

  const char* name;
  std::array<std::int64_t, in_dims::count> in;
  std::array<std::int64_t, out_dims::count> out;
  std::int64_t rank;
  double alpha;
  Linear base;

  constexpr lora(const Linear& of, std::int64_t low_rank, double scale)
      : name(of.name), in(of.in), out(of.out), rank(low_rank), alpha(scale), base(of) {
    base.name = "";  // its parameters have the names that they have without an adapter
  }

  constexpr auto parameters() const {
    std::array<std::int64_t, in_dims::count + 1> of_a{rank};
    std::array<std::int64_t, out_dims::count + 1> of_b{};
    for (std::size_t i = 0; i < in_dims::count; ++i) of_a[i + 1] = in[i];
    for (std::size_t i = 0; i < out_dims::count; ++i) of_b[i] = out[i];
    of_b[out_dims::count] = rank;
    return list(a_parameter{"lora_A.weight", of_a, rank > 0 ? 1.0 / static_cast<double>(rank) : 0},
                b_parameter{"lora_B.weight", of_b});
  }
  constexpr auto activations() const {
    using beside = typename detail::dims_joined<in_dims, out_dims>::type;  // its rows are those that the product takes
    return list(activation<low, life::until_weight, dims<dim::low_rank>, beside>{{rank}},
                activation<d_low, life::deferred, dims<dim::low_rank>, beside>{{rank}});
  }
  constexpr auto children() const { return list(base); }
  /// Two for each weight of A and B forward, four backward.
  constexpr double training_flops(std::int64_t /*sequence*/) const {
    double ins = 1, outs = 1;
    for (const std::int64_t e : in) ins *= static_cast<double>(e);
    for (const std::int64_t e : out) outs *= static_cast<double>(e);
    return 6.0 * static_cast<double>(rank) * (ins + outs);
  }
  using needs = compute::facet_list<compute::product_facet, compute::elementwise_facet>;

  template <class Layouts>
  struct laid : Linear::template laid<Layouts> {
    using of_base = typename Linear::template laid<Layouts>;
    using a = typename Layouts::template parameter<typename a_parameter::own, typename a_parameter::meets>;
    using b = typename Layouts::template parameter<typename b_parameter::own, typename b_parameter::meets>;
    using low = propagate<model::detail::product_formula<in_dims::count, 1>("bi", "oi", "bo"),
                          typename Layouts::template used<typename of_base::x_taken, a>, a>;
    using made = propagate<model::detail::product_formula<1, out_dims::count>("bi", "oi", "bo"), low, b>;
    using d_low = propagate<model::detail::product_formula<1, out_dims::count>("bo", "oi", "bi"), dual<made>, b>;
    using db = propagate<model::detail::product_formula<1, out_dims::count>("bi", "bo", "oi"), low, dual<made>>;
    static_assert(std::is_same_v<made, typename of_base::made>,
                  "heddle: an adapter leaves its outputs in another layout than the linear layer: a sharding must not "
                  "split dim::low_rank");
    static_assert(std::is_same_v<db, dual<b>> && std::is_same_v<d_low, dual<low>>,
                  "heddle: the gradients of an adapter must be the duals of its layouts");
  };

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    using T = typename B::scalar;
    using l [[maybe_unused]] = laid<typename B::layouts>;
    auto [linear_layer] = b.children();
    b.make(low{}, [&](auto u) {
      compute::matmul<transpose::no, transpose::yes>(b.compute(), x, b[lora_a{}], u, T(0));
      compute::run<compute::ops::scale>(b.compute(), elements_of(u), static_cast<T>(factor()));
    });
    return base.forward_with(linear_layer, x, y, [&](auto v, row_range at) {
      compute::matmul<transpose::no, transpose::yes>(b.compute(), typename B::const_view(rows_of(b[low{}], at)),
                                                     b[lora_b{}], v, T(1));
    });
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx,
                      bool add = false) const {
    using T = typename B::scalar;
    auto [linear_layer] = b.children();
    const auto left = linear_layer.backward_input(x, dy, dx, add);
    compute::matmul<transpose::no, transpose::no>(b.compute(), whole_rows(b, dy), b[lora_b{}], b[d_low{}], T(0));
    compute::run<compute::ops::scale>(b.compute(), b.vector(d_low{}), static_cast<T>(factor()));
    compute::matmul<transpose::no, transpose::no>(b.compute(), b[d_low{}], b[lora_a{}], dx, T(1));
    return left;
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    using T = typename B::scalar;
    auto [linear_layer] = b.children();
    linear_layer.backward_weight(x, dy);
    compute::matmul<transpose::yes, transpose::no>(b.compute(), b[d_low{}], x, b.gradient(lora_a{}), T(1));
    compute::matmul<transpose::yes, transpose::no>(b.compute(), whole_rows(b, dy), b[low{}], b.gradient(lora_b{}),
                                                   T(1));
  }

  /// W += (alpha / rank) A B and B = 0, so that the layer computes the same without its adapter. Each rank changes its own part.
  template <class B>
  void merge(const B& b) const {
    using T = typename B::scalar;
    auto [linear_layer] = b.children();
    const auto weights = linear_layer.weight_to_change(weight{});
    const auto outs = b.weight_to_change(lora_b{});
    compute::run<compute::ops::scale>(b.compute(), elements_of(outs), static_cast<T>(factor()));
    if constexpr (Linear::transposed)
      compute::matmul<transpose::no, transpose::no>(b.compute(), b[lora_b{}], b[lora_a{}], weights, T(1));
    else
      compute::matmul<transpose::yes, transpose::yes>(b.compute(), b[lora_a{}], b[lora_b{}], weights, T(1));
    compute::run<compute::ops::fill>(b.compute(), elements_of(outs), T(0));
  }

 private:
  // The gradient of the product, which the linear layer has gathered where the sequence is split.
  template <class B>
  static typename B::const_view whole_rows(const B& b, typename B::const_view dy) {
    using l = laid<typename B::layouts>;
    auto [linear_layer] = b.children();
    return linear_layer.template room<dual<typename l::y>, dual<typename l::made>>(d_whole_out{}, dy);
  }
  constexpr double factor() const noexcept { return alpha / static_cast<double>(rank); }
};

/// The parameters that adapters have: `train_only<adapters>(...)` freezes all others.
struct adapters {
  template <class Parameter>
  static constexpr bool trains =
      std::is_same_v<typename Parameter::tag, lora_a> || std::is_same_v<typename Parameter::tag, lora_b>;
};

/// What a description gives its linear layers: `low_rank_adapter` puts a `lora` around each, `no_adapter` leaves them as they are.
struct no_adapter {
  template <class Linear>
  using layer = Linear;
  template <class Linear>
  constexpr Linear operator()(const Linear& of) const {
    return of;
  }
};
/// An adapter of this rank around each linear layer, its output times alpha / rank.
struct low_rank_adapter {
  std::int64_t rank = 8;
  double alpha = 16;
  template <class Linear>
  using layer = lora<Linear>;
  template <class Linear>
  constexpr lora<Linear> operator()(const Linear& of) const {
    return {of, rank, alpha};
  }
};

}  // namespace heddle::inline v0::model::layers
