// tests/nccl/small_mixtral.hpp: the configuration of the small Mixtral that the tests of NCCL train.
#pragma once

#include <heddle/model/mixtral.hpp>

namespace nccl_test {

/// Experts, 5 by default, of 7 hidden units divide by nothing. Initial weights are large, so that the router has preferences.
constexpr heddle::model::mixtral_config small_mixtral(int layers, int context, int vocabulary, int experts = 5) {
  return {{.layers = layers,
           .heads = 4,
           .kv_heads = 2,
           .width = 12,
           .ffn = 7,
           .context = context,
           .vocabulary = vocabulary,
           .initial_deviation = 0.3,
           .head_elements = 4},
          experts,
          2};
}

}  // namespace nccl_test
