// heddle/model/learned_monoid.hpp: aggregates sets by a learned operator, on any ranks.
#pragma once

#include <heddle/collective/dyadic_fold.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/gru_operator.hpp>
#include <heddle/model/layer.hpp>
#include <heddle/model/parameters.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// The sizes of a learned monoid. Units: elements.
struct learned_monoid_config {
  std::int64_t width = 128;  ///< numbers of an element
  std::int64_t inputs = 0;   ///< numbers of a leaf before x <- relu(x W + b); 0: leaves are elements as they come
};

/// The parameters of a learned commutative operator, and folds of sets with it. Each set is one dyadic tree: its value
/// depends on its own elements alone, not on what other sets are there, nor on the ranks that hold its leaves. The same
/// parameters are on all ranks.
///
///     model::learned_monoid<float> monoid({.width = 128}, seed);
///     model::learned_monoid<float>::saved s(hd::dyadic_plan(sets, bounds, group.rank()), monoid.config());
///     monoid.forward(backend, group, s, leaves);         // s.fold.root(set)
///     monoid.backward(backend, s, d_roots, d_leaves);    // adds to parameters().gradients()
///     group.all_reduce(monoid.parameters().gradients(), hd::plus{});
///
/// Shapes: leaves [own leaves, inputs or width], roots [sets, width]; projection weight [inputs, width]. A set without
/// leaves has no value (`root` is empty), and its gradient is not read.
/// Communication: the plan's messages in `forward`; none in `backward`, where all ranks give the same `d_roots`: each
/// node's parameter gradient is on one rank, so that the sum over the ranks is the whole's.
/// Errors: `config_error` for a width below 1 or negative inputs; `layout_error` for leaves of another size.
/// Source: Ong and Velickovic 2022, arXiv:2212.08541.
template <class T>
class learned_monoid {
 public:
  /// What backward needs from forward.
  struct saved {
    saved(dyadic_plan plan, const learned_monoid_config& config) : fold(std::move(plan), config.width) {}
    dyadic_fold<T> fold;
    matrix_view<const T> x{};
    std::vector<T> projected{};
  };

  explicit learned_monoid(const learned_monoid_config& config, std::uint64_t seed = 1) : config_(config) {
    if (config.width < 1 || config.inputs < 0) {
      throw config_error(text_of({"heddle: learned_monoid: width must be at least 1 and inputs at least 0, got ",
                                  config.width, " and ", config.inputs}));
    }
    const std::int64_t w = config.width;
    // Biases of zero put z near 1/2: neither operand is forgotten, and tanh is far from flat.
    add("gru.weight", std::array<std::int64_t, 2>{6 * w, w}, 1 / std::sqrt(3 * static_cast<double>(w)));
    add("gru.bias", std::array<std::int64_t, 1>{6 * w}, 0);
    if (config.inputs > 0) {
      add("projection.weight", std::array<std::int64_t, 2>{config.inputs, w},
          std::sqrt(2 / static_cast<double>(config.inputs)));
      add("projection.bias", std::array<std::int64_t, 1>{w}, 0);
    }
    parameters_.allocate();
    parameters_.initialize(seed);
  }

  const learned_monoid_config& config() const noexcept { return config_; }
  parameter_store<T>& parameters() noexcept { return parameters_; }
  const parameter_store<T>& parameters() const noexcept { return parameters_; }

  /// The operator, as a handle to these parameters; it must not outlive them or the backend.
  template <class Order = both_orders, class Rows = rows_together, class Backend>
  gru_operator<T, Backend, Order, Rows> op(Backend& compute) {
    return {compute, views(0, 6 * config_.width, config_.width)};
  }

  /// All ranks of the group call it with their own leaves; where these are projected, they are read again by `backward`.
  template <class Rows = rows_together, class Backend, class Communicator>
  void forward(Backend& compute, Communicator& group, saved& s, matrix_view<const T> x) {
    require_leaves(s, x.extent(0), x.extent(1));
    std::span<const T> leaves = x.elements();
    if (config_.inputs > 0) {
      const weight_views<T> p = views(2, config_.inputs, config_.width);
      s.x = x;
      s.projected.resize(static_cast<std::size_t>(x.extent(0) * config_.width));
      const auto y = as_matrix(std::span<T>(s.projected), x.extent(0), config_.width);
      const auto rows = [&](std::int64_t first, std::int64_t count) {
        compute::matmul<transpose::no, transpose::no>(
            compute, matrix_view<const T>(x.data() + first * config_.inputs, dynamic_shape<2>(count, config_.inputs)),
            p.weight, matrix_view<T>(y.data() + first * config_.width, dynamic_shape<2>(count, config_.width)), T(0));
      };
      if constexpr (Rows::together)
        rows(0, x.extent(0));
      else
        for (std::int64_t i = 0; i < x.extent(0); ++i) rows(i, 1);
      compute::run<compute::ops::add_bias>(compute, y, p.bias);
      for (T& v : s.projected) v = (std::max)(v, T(0));
      leaves = s.projected;
    }
    s.fold.forward(group, leaves, op<both_orders, Rows>(compute));
  }

  /// Adds to the gradients of the parameters and writes those of the leaves; once after each forward.
  template <class Backend>
  void backward(Backend& compute, saved& s, std::span<const T> d_roots, matrix_view<T> d_x) {
    require_leaves(s, d_x.extent(0), d_x.extent(1));
    if (config_.inputs == 0) return s.fold.backward(op(compute), d_roots, d_x.elements());
    const weight_views<T> p = views(2, config_.inputs, config_.width);
    std::vector<T> memory(s.projected.size());
    s.fold.backward(op(compute), d_roots, std::span<T>(memory));
    for (std::size_t i = 0; i < memory.size(); ++i)
      if (!(s.projected[i] > T(0))) memory[i] = T(0);
    const auto d_y = as_matrix(std::span<const T>(memory), d_x.extent(0), config_.width);
    compute::matmul<transpose::no, transpose::yes>(compute, d_y, p.weight, d_x, T(0));
    compute::matmul<transpose::yes, transpose::no>(compute, s.x, d_y, p.weight_gradient, T(1));
    compute::run<compute::ops::add_bias_backward>(compute, d_y, p.bias_gradient);
  }

 private:
  template <std::size_t Rank>
  void add(std::string name, const std::array<std::int64_t, Rank>& shape, double deviation) {
    parameter p;
    p.name = std::move(name);
    p.id = static_cast<int>(parameters_.table().size());
    p.shape.assign(shape.begin(), shape.end());
    p.initial_deviation = deviation;
    parameters_.add(std::move(p), shape, layout<mesh<axis<dp, 1>>>{}, 0);
  }
  // The weight at `i` in the table, its bias right behind.
  weight_views<T> views(std::size_t i, std::int64_t rows, std::int64_t columns) {
    return {as_matrix(parameters_.weight(i), rows, columns), as_matrix(parameters_.gradient(i), rows, columns),
            parameters_.weight(i + 1), parameters_.gradient(i + 1)};
  }
  void require_leaves(const saved& s, std::int64_t rows, std::int64_t columns) const {
    const std::int64_t wanted = config_.inputs > 0 ? config_.inputs : config_.width;
    if (rows == s.fold.plan().leaves() && columns == wanted) return;
    throw layout_error(
        text_of({"heddle: learned_monoid on rank ", s.fold.plan().rank(), ": expected ", s.fold.plan().leaves(),
                 " leaves of ", wanted, " numbers, got ", rows, " of ", columns}));
  }

  learned_monoid_config config_;
  parameter_store<T> parameters_;
};

}  // namespace heddle::inline v0::model
