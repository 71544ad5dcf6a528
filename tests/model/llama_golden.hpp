// tests/model/llama_golden.hpp: configurations of Llama and of models like it in tests/golden.
#pragma once

#include "golden_file.hpp"

#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral.hpp>

namespace model_test {

/// The configuration of a file of llama_golden.py, or of a Qwen's or a Mixtral's dense part of transformers_golden.py.
inline heddle::model::llama_config llama_of(const golden_file& golden) {
  const auto n = golden.ids("config");
  const auto& rotary = golden.values("rotary");
  return {.layers = n[0],
          .heads = n[1],
          .kv_heads = n[2],
          .width = n[3],
          .ffn = n[4],
          .context = n[5],
          .vocabulary = n[6],
          .theta = rotary[0],
          .epsilon = rotary[1],
          .head_elements = n.size() == 9 ? n[8] : 0};  // of Qwen
}

/// The configuration of a Mixtral of transformers_golden.py.
inline heddle::model::mixtral_config mixtral_of(const golden_file& golden) {
  const auto n = golden.ids("config");
  return {llama_of(golden), n[9], n[10]};
}

}  // namespace model_test
