// heddle/model/hugging_face/spiking_brain.hpp: the sizes of a SpikingBrain-7B from its config.json.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error "heddle/model/hugging_face/spiking_brain.hpp needs nlohmann/json.hpp: link heddle::json (Debian: apt install nlohmann-json3-dev)"
#endif

#include <heddle/model/hugging_face/config_object.hpp>
#include <heddle/model/spiking_brain_config.hpp>

#include <nlohmann/json.hpp>

#include <span>
#include <string>

namespace heddle::inline v0::model {

/// Whether a config.json is that of a SpikingBrain-7B: its `model_type` is "gla_swa".
inline bool is_spiking_brain(const nlohmann::json& config) {
  return config.is_object() && config.contains("model_type") && config["model_type"] == "gla_swa";
}

/// The model that such a config.json describes. What a key leaves out is what the published one has; unknown keys are refused as `from_config` does.
/// Errors: `config_error` naming key, expected and got; sizes that do not fit (`validate`).
/// Source: BICLab/SpikingBrain-7B, `GLAswaConfig`.
inline spiking_brain_config spiking_brain_from_config(const nlohmann::json& config,
                                                      const std::string& what = "config.json",
                                                      std::span<const std::string> ignored_keys = {}) {
  detail::config_object c(config, what, ignored_keys);
  const spiking_brain_config family = spiking_brain_7b();
  c.text("model_type", "", {"gla_swa"});
  spiking_brain_config out(llama_config{.layers = c.integer("num_hidden_layers", family.layers),
                                        .heads = c.integer("num_attention_heads", family.heads),
                                        .kv_heads = c.integer("num_key_value_heads", family.kv_heads),
                                        .width = c.integer("hidden_size", family.width),
                                        .ffn = c.integer("intermediate_size", family.ffn),
                                        .context = c.integer("max_position_embeddings", family.context),
                                        .vocabulary = c.integer("vocab_size", family.vocabulary),
                                        .theta = c.number("rope_theta", family.theta),
                                        .epsilon = c.number("norm_eps", family.epsilon),
                                        .initial_deviation = c.number("initializer_range", 0.02)},
                           c.integer("sliding_window", family.window),
                           c.integer("gate_low_rank_dim", family.gate_rank));
  out.gate_normalizer = c.number("gate_logit_normalizer", family.gate_normalizer);
  c.only("use_short_conv", false);
  c.only("hidden_act", "swish");
  c.only("elementwise_affine", true);
  c.only("tie_word_embeddings", false);
  for (const char* unused : {"architectures", "attn_mode", "conv_size", "fuse_cross_entropy"})
    static_cast<void>(c.find(unused));  // how kernels compute the same
  c.no_others();
  out.validate();
  return out;
}

}  // namespace heddle::inline v0::model
