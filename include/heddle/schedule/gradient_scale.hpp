// heddle/schedule/gradient_scale.hpp: gradient scales of layers that only some microbatches visit.
#pragma once

#include <heddle/core/policy.hpp>

#include <concepts>

namespace heddle::inline v0::schedule {

/// How the gradients of a part are scaled once they are added up over its replicas and their microbatches.
struct gradient_scale_kind {};

/// Divided by the microbatches of the step: a part that fewer of them visit is updated less, as SkipPipe does.
struct by_batch {
  using kind = gradient_scale_kind;
  static constexpr int divisor(int /*visits*/, int microbatches) noexcept { return microbatches; }
};

/// Divided by the microbatches that visited the part: the mean of those that were there, however many.
struct by_visits {
  using kind = gradient_scale_kind;
  static constexpr int divisor(int visits, int /*microbatches*/) noexcept { return visits > 0 ? visits : 1; }
};

/// A policy of this kind: `divisor(visits, all)`, of the microbatches that visit a part and of all there are; a trainer
/// gives it samples, so that microbatches of several sizes count as what they are.
template <class P>
concept gradient_scale = policy<P> && std::same_as<typename P::kind, gradient_scale_kind> && requires(int n) {
  { P::divisor(n, n) } -> std::same_as<int>;
};

}  // namespace heddle::inline v0::schedule
