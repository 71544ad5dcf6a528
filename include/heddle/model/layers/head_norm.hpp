// heddle/model/layers/head_norm.hpp: the root mean square norm of each head's elements.
#pragma once

#include <heddle/layout/operations.hpp>
#include <heddle/model/layers/norms.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0::model::layers {

/// y = x / sqrt(mean(x^2) + epsilon) w over the elements of each head. All heads share w: where an axis splits heads, its gradient is
/// a sum over that axis, too, and the stage keeps it in a bucket of its own. No verb sends anything.
/// Shapes: x, y [rows, Heads..., head_size]; w [head_size].
/// Errors: `config_error` where the statistics are computed again and the output is not.
/// Source: Henry et al. 2020, arXiv:2010.04245 (norms of queries and keys); Yang et al. 2025, arXiv:2505.09388.
template <class... Heads>
struct head_norm : detail::rms_norm_verbs<head_norm<Heads...>> {
  const char* name = "";
  std::array<std::int64_t, sizeof...(Heads)> heads{};
  std::int64_t head_size = 0;
  double epsilon = 0;
  activation_set role{};  ///< what recomputation calls its output and statistics

  constexpr head_norm() = default;
  constexpr head_norm(const char* called, std::array<std::int64_t, sizeof...(Heads)> of_heads, std::int64_t elements,
                      double added, activation_set kept_as = {})
      : name(called), heads(of_heads), head_size(elements), epsilon(added), role(kept_as) {}

  constexpr auto parameters() const {
    return list(parameter<weight, dims<dim::head_size>, dims<>, dims<Heads...>>{"weight", {head_size}, 0, 1});
  }
  constexpr auto activations() const {
    return list(activation<inverse_deviation, life::until_weight, dims<Heads...>>{heads, role});
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

}  // namespace heddle::inline v0::model::layers
