// benchmarks/llama_100m.hpp: the model that decoding is measured with: a Llama of 100 million weights in products.
#pragma once

#include <heddle/model/llama_config.hpp>

inline constexpr heddle::model::llama_config llama_100m{
    .layers = 12, .heads = 12, .kv_heads = 4, .width = 768, .ffn = 2048, .context = 1024, .vocabulary = 32000};
