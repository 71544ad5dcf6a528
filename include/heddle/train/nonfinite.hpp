// heddle/train/nonfinite.hpp: finds where a NaN or an infinity came from, and stops all ranks with that name.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// What one rank found. Lower is closer to the cause: a bad weight makes bad activations, those make bad gradients.
// Trivially copyable, so that it can be gathered.
struct nonfinite_finding {
  enum cause_kind : std::int32_t { weight, activation, gradient, nothing };
  std::int32_t cause = nothing;
  std::int32_t order = 0;
  std::int32_t rank = 0;
  char name[116] = {};

  bool is_closer_than(const nonfinite_finding& other) const noexcept {
    return cause != other.cause ? cause < other.cause : order < other.order;
  }
  void set(cause_kind kind, std::int32_t at, std::string_view text) noexcept {
    cause = kind;
    order = at;
    const std::size_t n = (std::min)(text.size(), sizeof name - 1);
    std::memcpy(name, text.data(), n);
    name[n] = 0;
  }
};

template <class Stage, class Backend>
nonfinite_finding find_nonfinite(Stage& stage, Backend& backend) {
  using scalar = typename Stage::scalar;
  nonfinite_finding found;
  const auto part = [](std::span<scalar> flat, const auto& p) {
    return std::span<const scalar>(flat.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count)));
  };
  for (const auto& p : stage.parameters())
    if (!backend.all_finite(part(stage.weights(), p))) {
      found.set(nonfinite_finding::weight, static_cast<std::int32_t>(p.id), p.name);
      return found;
    }
  if (const auto layer = stage.first_nonfinite_activation(); layer.index >= 0) {
    found.set(nonfinite_finding::activation, layer.index, layer.name);
    return found;
  }
  // Gradients flow from the last layer to the first: the last one that is bad is where it began.
  for (const auto& p : stage.parameters()) {
    const auto order = -static_cast<std::int32_t>(p.id);
    const bool later = found.cause == nonfinite_finding::nothing || order < found.order;
    if (later && !backend.all_finite(part(stage.gradients(), p))) found.set(nonfinite_finding::gradient, order, p.name);
  }
  return found;
}

}  // namespace detail

/// Where this rank's NaN or infinity is likeliest to have come from. `stages.for_each(f)` calls `f(held)` with
/// `held.stage` for each stage of this rank.
template <class Stages, class Backend>
detail::nonfinite_finding find_nonfinite(Stages& stages, Backend& backend) {
  detail::nonfinite_finding mine;
  stages.for_each([&](auto& held) {
    const detail::nonfinite_finding found = detail::find_nonfinite(held.stage, backend);
    if (found.is_closer_than(mine)) mine = found;
  });
  return mine;
}

/// Called on all ranks of `all` when the loss or the gradient norm of a step is not finite: agrees on the likeliest cause
/// of those that the ranks found and throws the same `numeric_error` everywhere, naming step, what is not finite, in which
/// layer and on which rank.
template <communicator Communicator>
[[noreturn]] void stop_nonfinite(Communicator& all, detail::nonfinite_finding mine, std::int64_t step, double loss,
                                 double gradient_norm) {
  using detail::nonfinite_finding;
  mine.rank = all.rank();
  std::vector<nonfinite_finding> findings(static_cast<std::size_t>(all.size()));
  all.all_gather(std::span<const nonfinite_finding>(&mine, 1), std::span<nonfinite_finding>(findings));
  const nonfinite_finding& first =
      *std::min_element(findings.begin(), findings.end(),
                        [](const nonfinite_finding& a, const nonfinite_finding& b) { return a.is_closer_than(b); });
  std::string what = "heddle: step " + std::to_string(step + 1) + " stopped: loss " + std::to_string(loss) +
                     ", gradient norm " + std::to_string(gradient_norm);
  switch (first.cause) {
    case nonfinite_finding::weight:
      what += "; the weight " + std::string(first.name) + " was not finite before the step";
      break;
    case nonfinite_finding::activation:
      what += "; first in the activations of " + std::string(first.name);
      break;
    case nonfinite_finding::gradient:
      what += "; first in the gradient of " + std::string(first.name);
      break;
    default:
      what += "; every weight, activation and gradient that is still held is finite: their sum overflowed";
      break;
  }
  if (first.cause != nonfinite_finding::nothing) what += ", rank " + std::to_string(first.rank);
  throw numeric_error(what + ". The weights are those before the step");
}

}  // namespace heddle::inline v0::train
