// heddle/model/layers/head_norm.hpp: RMS norms of each head, or of all heads together.
#pragma once

#include <heddle/layout/operations.hpp>
#include <heddle/model/layers/norms.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace heddle::inline v0::model::layers {

/// y = x / sqrt(mean(x^2) + epsilon) w over the elements of each head. All heads share w: where an axis splits heads, its gradient is
/// a sum over that axis, too, and the stage keeps it in a bucket of its own. No verb sends anything.
/// Shapes: x, y [rows, Heads..., head_size]; w [head_size].
/// Errors: `config_error` where the statistics are computed again and the output is not.
/// Source: Henry et al. 2020, arXiv:2010.04245 (norms of queries and keys); Yang et al. 2025, arXiv:2505.09388.
/// `Shifted`: times 1 + w, as `rms_norm`.
template <bool Shifted, class... Heads>
struct norm_of_heads : detail::rms_norm_verbs<norm_of_heads<Shifted, Heads...>> {
  const char* name = "";
  std::array<std::int64_t, sizeof...(Heads)> heads{};
  std::int64_t head_size = 0;
  double epsilon = 0;
  activation_set role{};  ///< what recomputation calls its output and statistics

  constexpr norm_of_heads() = default;
  constexpr norm_of_heads(const char* called, std::array<std::int64_t, sizeof...(Heads)> of_heads,
                          std::int64_t elements, double added, activation_set kept_as = {})
      : name(called), heads(of_heads), head_size(elements), epsilon(added), role(kept_as) {}

  constexpr auto parameters() const {
    return list(
        parameter<weight, dims<dim::head_size>, dims<>, dims<Heads...>>{"weight", {head_size}, 0, Shifted ? 0 : 1});
  }
  constexpr auto activations() const {
    const activation<inverse_deviation, life::until_weight, dims<Heads...>> statistics{heads, role};
    if constexpr (Shifted) {
      std::array<std::int64_t, sizeof...(Heads) + 1> extents{};
      for (std::size_t i = 0; i < heads.size(); ++i) extents[i] = heads[i];
      extents[heads.size()] = head_size;
      return list(statistics, activation<shifted_weight, life::scratch, dims<Heads..., dim::head_size>>{extents});
    } else {
      return list(statistics);
    }
  }
  template <class B>
  static typename B::const_row weights(const B& b) {
    return detail::norm_weights<Shifted>(b);
  }
  template <class Layouts>
  using laid = propagate_through<op::rms_norm<1 + sizeof...(Heads)>,
                                 typename Layouts::template edge<dims<Heads..., dim::head_size>>>;

  /// A row for each head of each token.
  template <class T, class Space>
  matrix_view<T, Space> rows(matrix_view<T, Space> m) const {
    return {m.address(), dynamic_shape<2>(m.size() / head_size, head_size)};
  }
};

/// A norm of each head.
template <class... Heads>
using head_norm = norm_of_heads<false, Heads...>;
/// The same, times 1 + w.
template <class... Heads>
using shifted_head_norm = norm_of_heads<true, Heads...>;

struct row_sum : statistic {};  ///< scratch: what is added up over the columns of each row, on all ranks that have some

/// y = x / sqrt(mean(x^2) + epsilon) w over the elements of all heads together. Where an axis splits heads, one number for each row is summed over
/// it forward, and one backward.
/// Shapes: x, y [rows, Heads..., head_size]; w [Heads..., head_size].
/// Errors: `config_error` where the statistics are computed again and the output is not.
/// Source: OLMo Team 2024, arXiv:2501.00656, section 3.2 (norms of queries and keys); Hugging Face `Olmo2Attention`.
template <class... Heads>
struct joined_head_norm : leaf {
  using columns = dims<Heads..., dim::head_size>;
  const char* name = "";
  std::array<std::int64_t, sizeof...(Heads)> heads{};
  std::int64_t head_size = 0;
  double epsilon = 0;
  activation_set role{};  ///< what recomputation calls its output and statistics

  constexpr joined_head_norm() = default;
  constexpr joined_head_norm(const char* called, std::array<std::int64_t, sizeof...(Heads)> of_heads,
                             std::int64_t elements, double added, activation_set kept_as = {})
      : name(called), heads(of_heads), head_size(elements), epsilon(added), role(kept_as) {}

  constexpr auto parameters() const {
    std::array<std::int64_t, sizeof...(Heads) + 1> extents{};
    for (std::size_t i = 0; i < heads.size(); ++i) extents[i] = heads[i];
    extents[heads.size()] = head_size;
    return list(parameter<weight, columns>{"weight", extents, 0, 1});
  }
  constexpr auto activations() const {
    return list(activation<inverse_deviation, life::until_weight, dims<>, columns>{{}, role},
                activation<row_sum, life::scratch, dims<>, columns>{});
  }
  using needs = compute::facet_list<compute::split_rms_norm_facet, compute::elementwise_facet>;
  template <class Layouts>
  using laid = typename Layouts::template edge<columns>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    detail::require_output(b, y);
    b.give(y, [&](auto v) {
      compute::run<compute::ops::row_sum_squares>(b.compute(), x, b.vector(row_sum{}));
      add_up(b);
      compute::run<compute::ops::rms_norm_of_sums>(b.compute(), x, b.vector(weight{}), b.vector(row_sum{}), count<B>(),
                                                   static_cast<typename B::sum>(epsilon), v,
                                                   b.vector(inverse_deviation{}));
    });
    return made<laid<typename B::layouts>>{};
  }
  /// Adds to dx.
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx,
                      bool add) const {
    if (!add) compute::run<compute::ops::fill>(b.compute(), elements_of(dx), typename B::scalar(0));
    compute::run<compute::ops::rms_norm_row_dot>(b.compute(), dy, x, b.vector(weight{}), b.vector(row_sum{}));
    add_up(b);
    compute::run<compute::ops::rms_norm_backward_of_sums>(
        b.compute(), dy, x, b.vector(weight{}), b.vector(inverse_deviation{}), b.vector(row_sum{}), count<B>(), dx);
    return made<dual<laid<typename B::layouts>>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    compute::run<compute::ops::rms_norm_backward_weight>(b.compute(), dy, x, b.vector(inverse_deviation{}),
                                                         b.gradient_vector(weight{}));
  }

 private:
  template <class Layouts, int... Of>
  static auto summed(std::integer_sequence<int, Of...>)
      -> propagate_through<op::reduce<plus, Of + 1 ...>, typename Layouts::template edge<columns>>;
  // The sums of all ranks that have columns of the rows.
  template <class B>
  void add_up(const B& b) const {
    using layouts = typename B::layouts;
    using part = decltype(summed<layouts>(std::make_integer_sequence<int, sizeof...(Heads) + 1>{}));
    b.template redistribute_in_place<part, typename layouts::template edge<dims<>, columns>>(b[row_sum{}]);
  }
  template <class B>
  typename B::sum count() const {
    std::int64_t n = head_size;
    for (const std::int64_t h : heads) n *= h;
    return static_cast<typename B::sum>(n);
  }
};

}  // namespace heddle::inline v0::model::layers
