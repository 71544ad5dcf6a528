// heddle/model/layer_operations.hpp: floating-point operations of layers, for planners.
#pragma once

#include <heddle/model/layers/ends.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// Floating-point operations of one training step per token in each block, and besides in the stages with the embedding and
/// the head. Look-ups, norms, activations, softmax and the optimizer are not counted.
struct layer_operations {
  std::vector<double> layers{};
  double first = 0, last = 0;
};

/// From the description, in sequences of `sequence` tokens.
template <class In, class Block, class Out, class Other>
layer_operations operations_by_layer(const layers::language_model<In, Block, Out, Other>& m, std::int64_t sequence) {
  std::vector<double> blocks;
  for (std::int64_t l = 0; l < m.count; ++l)
    blocks.push_back(m.with_block(l, [&](const auto& block) { return layers::training_flops(block, sequence); }));
  return {std::move(blocks), layers::training_flops(m.in, sequence), layers::training_flops(m.out, sequence)};
}

}  // namespace heddle::inline v0::model
