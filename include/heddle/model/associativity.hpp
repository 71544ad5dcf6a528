// heddle/model/associativity.hpp: an operator's distance from associativity, as a loss.
#pragma once

#include <heddle/collective/dyadic_fold.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::model {

namespace detail {
inline void require_triples(std::int64_t width, std::size_t a, std::size_t b, std::size_t c) {
  if (width > 0 && a == b && b == c && a > 0 && a % static_cast<std::size_t>(width) == 0) return;
  throw layout_error(text_of({"heddle: triples of elements of ", width,
                              " need as many first, second and third elements, at least one of each; got scalars: ", a,
                              ", ", b, ", ", c}));
}
}  // namespace detail

/// The mean over triples of || (a op b) op c - a op (b op c) ||^2: zero for an associative operator. Summed in double,
/// in order. `Op` is one that `dyadic_fold` takes whole elements for (not elementwise).
/// Shapes: a, b, c [triples, width].
template <class T, class Op>
double associativity_defect(const Op& op, std::int64_t width, std::span<const T> a, std::span<const T> b,
                            std::span<const T> c) {
  detail::require_triples(width, a.size(), b.size(), c.size());
  std::vector<T> inner(a.size()), left(a.size()), right(a.size());
  op(a, b, std::span<T>(inner));
  op(std::span<const T>(inner), c, std::span<T>(left));
  op(b, c, std::span<T>(inner));
  op(a, std::span<const T>(inner), std::span<T>(right));
  double sum = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const double d = static_cast<double>(left[i]) - static_cast<double>(right[i]);
    sum += d * d;
  }
  return sum / static_cast<double>(a.size() / static_cast<std::size_t>(width));
}

/// `lambda` times the defect, for training: adds its gradient to the operator's parameters, the triples taken as they
/// are.
/// Returns the defect, without lambda; with lambda 0 nothing is added.
/// Source: an associativity loss is due to Ong and Velickovic 2022, arXiv:2212.08541; which triples to draw is the
/// caller's.
template <class T, class Op>
  requires differentiable_fold_operator<Op, T>
double associativity_loss(const Op& op, std::int64_t width, std::span<const T> a, std::span<const T> b,
                          std::span<const T> c, T lambda) {
  if (lambda == T(0)) return associativity_defect(op, width, a, b, c);
  detail::require_triples(width, a.size(), b.size(), c.size());
  const std::size_t n = a.size();
  const auto kept = static_cast<std::size_t>(op.saved_size(static_cast<std::int64_t>(n)));
  struct application {
    std::vector<T> result, saved, d_a, d_b;
  };
  const auto apply = [&](std::span<const T> x, std::span<const T> y) {
    application f{std::vector<T>(n), std::vector<T>(kept), std::vector<T>(n), std::vector<T>(n)};
    op.forward(x, y, std::span<T>(f.result), std::span<T>(f.saved));
    return f;
  };
  const auto differentiate = [&](application& f, std::span<const T> x, std::span<const T> y, const std::vector<T>& d) {
    op.backward_input(x, y, std::span<T>(f.saved), std::span<const T>(d), std::span<T>(f.d_a), std::span<T>(f.d_b));
    op.backward_weight(x, y, std::span<const T>(f.saved));
  };
  application ab = apply(a, b), bc = apply(b, c), left = apply(ab.result, c), right = apply(a, bc.result);
  const double triples = static_cast<double>(n / static_cast<std::size_t>(width));
  std::vector<T> d_left(n), d_right(n);
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(left.result[i]) - static_cast<double>(right.result[i]);
    sum += d * d;
    d_left[i] = static_cast<T>(2 * static_cast<double>(lambda) * d / triples);
    d_right[i] = -d_left[i];
  }
  differentiate(left, ab.result, c, d_left);
  differentiate(ab, a, b, left.d_a);
  differentiate(right, a, bc.result, d_right);
  differentiate(bc, b, c, right.d_b);
  return sum / triples;
}

}  // namespace heddle::inline v0::model
