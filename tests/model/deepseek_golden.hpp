// tests/model/deepseek_golden.hpp: configurations of DeepSeek models in tests/golden.
#pragma once

#include "golden_file.hpp"

#include <heddle/model/deepseek.hpp>

namespace model_test {

/// The configuration of a file of transformers_golden.py.
inline heddle::model::deepseek_config deepseek_of(const golden_file& golden, heddle::compute::yarn_scaling yarn = {}) {
  const auto& n = golden.ids("config");
  const auto& rotary = golden.values("rotary");
  return {.layers = n[0],
          .heads = n[1],
          .width = n[3],
          .ffn = n[4],
          .context = n[5],
          .vocabulary = n[6],
          .query_latent = n[11],
          .key_latent = n[12],
          .still = n[13],
          .rotating = n[14],
          .value = n[15],
          .experts = n[9],
          .chosen = n[10],
          .shared = n[16],
          .groups = n[17],
          .kept_groups = n[18],
          .dense = n.size() > 19 ? n[19] : 0,
          .dense_ffn = n.size() > 19 ? n[20] : 0,
          .factor = 1.7,
          .theta = rotary[0],
          .yarn = yarn,
          .epsilon = rotary[1]};
}

}  // namespace model_test
