// heddle/model/tied_gradients.hpp: sums the gradient of a tied embedding over stages.
#pragma once

#include <heddle/compute/op.hpp>
#include <heddle/compute/ops/elementwise.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/sum_among.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline v0::model {

/// Sums the token embedding's gradient over its two uses, when the embedding and a tied head lie on different ranks:
/// afterwards both have the same sum. To be called by all ranks along the pipeline, once per step, after the last backward,
/// where rank r of `pipeline` has stage r. Nothing happens on the stages between, or when one stage has both.
template <class Stage, class Pipeline, class Backend>
void reduce_tied_gradients(Stage& stage, Pipeline& pipeline, Backend& backend) {
  using T = sum_of_type<typename Stage::scalar>;
  constexpr int tag = 7001;
  constexpr std::int64_t at_once = std::int64_t{1} << 18;  // elements
  const std::span<T> mine = stage.tied_gradient();
  if (mine.empty() || stage.is_first() == stage.is_last()) return;
  const std::array<int, 2> ends{0, pipeline.size() - 1};
  buffer<T> room((std::min)(at_once, static_cast<std::int64_t>(mine.size())));
  sum_among(
      pipeline, std::span<const int>(ends), mine, std::span<T>(room.data(), room.size()), tag,
      [&](std::span<T> x, std::span<T> y, std::span<T> to) { compute::run<compute::ops::add>(backend, x, y, to); });
}

}  // namespace heddle::inline v0::model
