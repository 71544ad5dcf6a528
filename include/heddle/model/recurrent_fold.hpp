// heddle/model/recurrent_fold.hpp: folds sets by recurrent aggregators, with gradients.
#pragma once

#include <heddle/collective/dyadic_fold.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// The recurrent baseline beside `dyadic_fold`, with its calls: the state begins with zeros, then h = op(x, h) for each
/// element x of a set in order. Position k of all sets that are longer than k is one call, so that the calls are as many
/// as the largest set has elements, and each needs the one before. With `one_order` it is a GRU.
/// Shapes: leaves [plan.leaves(), element], roots [plan.trees(), element]. Nothing is sent: the plan is of one rank.
/// Memory: both operands of each leaf and what the operator saves.
/// Errors: `comm_error` for a plan of several ranks or other sizes.
template <class T>
class recurrent_fold {
 public:
  recurrent_fold(dyadic_plan plan, std::int64_t element) : plan_(std::move(plan)), element_(element) {
    if (plan_.ranks() != 1) refuse("ranks", 1, plan_.ranks());
    if (element < 1) refuse("scalars per element", 1, element);
    order_.resize(scalars(plan_.trees(), 1));
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
    std::sort(order_.begin(), order_.end(),
              [&](std::int64_t a, std::int64_t b) { return length(a) != length(b) ? length(a) > length(b) : a < b; });
    place_.resize(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) place_[static_cast<std::size_t>(order_[i])] = i;
  }

  const dyadic_plan& plan() const noexcept { return plan_; }

  /// Folds and keeps what `backward` needs.
  template <class Communicator, class Op>
    requires differentiable_fold_operator<Op, T>
  void forward(Communicator&, std::span<const T> leaves, const Op& op) {
    expect("scalars of the leaves", plan_.leaves() * element_, leaves.size());
    states_.assign(scalars(plan_.trees(), element_), T{});
    operands_.clear();
    saved_.clear();
    std::vector<T> result;
    for_each_step([&](std::int64_t k, std::int64_t n) {
      const std::size_t size = scalars(n, element_), at = operands_.size();
      for (std::int64_t i = 0; i < n; ++i) {
        const T* const leaf = leaves.data() + (begin(order_[static_cast<std::size_t>(i)]) + k) * element_;
        operands_.insert(operands_.end(), leaf, leaf + element_);
      }
      operands_.insert(operands_.end(), states_.begin(), states_.begin() + n * element_);
      const std::size_t from = saved_.size();
      saved_.resize(from + static_cast<std::size_t>(op.saved_size(n * element_)));
      result.resize(size);
      const std::span<const T> a(operands_.data() + at, size), b(a.data() + size, size);
      op.forward(a, b, std::span<T>(result), std::span<T>(saved_).subspan(from));
      std::copy(result.begin(), result.end(), states_.begin());
    });
  }

  /// The value of a set after `forward`; none for a set without elements.
  std::optional<std::span<const T>> root(std::int64_t set) const {
    if (length(set) == 0) return std::nullopt;
    return std::span<const T>(states_).subspan(place_[static_cast<std::size_t>(set)] * scalars(1, element_),
                                               scalars(1, element_));
  }

  /// Writes the gradients of the leaves and adds to those of the operator's parameters; once after each `forward`.
  template <class Op>
    requires differentiable_fold_operator<Op, T>
  void backward(const Op& op, std::span<const T> d_roots, std::span<T> d_leaves) {
    expect("scalars of the roots' gradients", plan_.trees() * element_, d_roots.size());
    expect("scalars of the leaves' gradients", plan_.leaves() * element_, d_leaves.size());
    expect("scalars kept by `forward`", 2 * plan_.leaves() * element_, operands_.size());
    std::vector<T> d_states(states_.size()), d_a, d_b;
    for (std::size_t i = 0; i < order_.size(); ++i)
      std::copy_n(d_roots.data() + order_[i] * element_, element_, d_states.data() + i * scalars(1, element_));
    std::vector<std::pair<std::int64_t, std::int64_t>> steps;
    for_each_step([&](std::int64_t k, std::int64_t n) { steps.emplace_back(k, n); });
    std::size_t operands_end = operands_.size(), saved_end = saved_.size();
    for (std::size_t s = steps.size(); s-- > 0;) {
      const auto [k, n] = steps[s];
      const std::size_t size = scalars(n, element_), kept = static_cast<std::size_t>(op.saved_size(n * element_));
      operands_end -= 2 * size;
      saved_end -= kept;
      const std::span<const T> a(operands_.data() + operands_end, size), b(a.data() + size, size);
      const std::span<T> saved(saved_.data() + saved_end, kept);
      d_a.resize(size);
      d_b.resize(size);
      op.backward_input(a, b, saved, std::span<const T>(d_states).first(size), std::span<T>(d_a), std::span<T>(d_b));
      op.backward_weight(a, b, std::span<const T>(saved));
      std::copy(d_b.begin(), d_b.end(), d_states.begin());
      for (std::int64_t i = 0; i < n; ++i)
        std::copy_n(d_a.data() + i * element_, element_,
                    d_leaves.data() + (begin(order_[static_cast<std::size_t>(i)]) + k) * element_);
    }
    operands_.clear();
  }

 private:
  static std::size_t scalars(std::int64_t n, std::int64_t each) noexcept { return static_cast<std::size_t>(n * each); }
  std::int64_t begin(std::int64_t set) const { return plan_.node(plan_.root(set)).begin; }
  std::int64_t length(std::int64_t set) const {
    if (plan_.root(set) < 0) return 0;
    const dyadic_node node = plan_.node(plan_.root(set));
    return node.end - node.begin;
  }
  // Calls f(position, sets that are longer).
  template <class F>
  void for_each_step(F&& f) const {
    std::int64_t n = plan_.trees();
    for (std::int64_t k = 0;; ++k) {
      while (n > 0 && length(order_[static_cast<std::size_t>(n - 1)]) <= k) --n;
      if (n == 0) return;
      f(k, n);
    }
  }
  [[noreturn]] static void refuse(const char* what, std::int64_t expected, std::int64_t got) {
    throw comm_error(text_of({"heddle: recurrent_fold: ", what, ": expected ", expected, ", got ", got}));
  }
  static void expect(const char* what, std::int64_t expected, std::size_t got) {
    if (expected != static_cast<std::int64_t>(got)) refuse(what, expected, static_cast<std::int64_t>(got));
  }

  dyadic_plan plan_;
  std::int64_t element_;
  std::vector<std::int64_t> order_;  // sets, the longest first
  std::vector<std::size_t> place_;   // of a set in that order
  std::vector<T> states_, operands_, saved_;
};

}  // namespace heddle::inline v0::model
