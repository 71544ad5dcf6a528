// heddle/model/hugging_face/config.hpp: family, sizes, weight names by config.json.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error "heddle/model/hugging_face/config.hpp needs nlohmann/json.hpp: link heddle::json (Debian: apt install nlohmann-json3-dev)"
#endif

#include <heddle/compute/rotary_table.hpp>
#include <heddle/core/error.hpp>
#include <heddle/model/hugging_face/config_object.hpp>
#include <heddle/model/hugging_face/quantization.hpp>
#include <heddle/model/hugging_face_model.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace heddle::inline v0::model {

namespace detail {

inline gpt2_config gpt2_of(config_object& c) {
  gpt2_config out{.layers = c.integer("n_layer", 12),
                  .heads = c.integer("n_head", 12),
                  .width = c.integer("n_embd", 768),
                  .context = c.integer("n_positions", 1024),
                  .vocabulary = c.integer("vocab_size", 50257),
                  .epsilon = c.number("layer_norm_epsilon", 1e-5),
                  .initial_deviation = c.number("initializer_range", 0.02)};
  c.only_unless_null("architectures", {"GPT2LMHeadModel"});
  c.only_unless_null("n_ctx", out.context);
  c.only_unless_null("n_inner", 4 * static_cast<std::int64_t>(out.width));
  c.only("activation_function", "gelu_new");
  c.only("scale_attn_weights", true);
  c.only("scale_attn_by_inverse_layer_idx", false);
  c.only("add_cross_attention", false);
  c.only("n_special", 0);  // more tokens, of the first GPT
  return out;
}

inline compute::yarn_scaling yarn_of(config_object& c) {
  compute::yarn_scaling out;
  const auto number = [&](const char* key, double otherwise) {
    return c.find_unless_null(key) == nullptr ? otherwise : c.number(key);
  };
  out.factor = c.number("factor");
  out.fast = number("beta_fast", out.fast);
  out.slow = number("beta_slow", out.slow);
  out.original = c.number("original_max_position_embeddings");
  out.mscale = c.at_least_zero_unless_null("mscale", out.mscale);
  out.mscale_all = c.at_least_zero_unless_null("mscale_all_dim", out.mscale_all);
  if (c.find_unless_null("attention_factor") != nullptr)
    out.attention_factor = c.at_least_zero_unless_null("attention_factor", 1);
  out.whole = c.flag("truncate", true);
  return out;
}

inline void read_rotary(llama_config& out, config_object c) {
  out.theta = c.number("rope_theta", out.theta);
  c.only("partial_rotary_factor", 1.0);
  const char* const kind = c.find("type") != nullptr ? "type" : "rope_type";
  const std::string type = c.text(kind, "default", {"default", "linear", "llama3", "yarn", "dynamic"});
  if (kind == std::string_view("type")) c.only("rope_type", type);
  if (type == "linear") out.scaling = compute::linear_scaling(c.number("factor"));
  if (type == "dynamic") c.number("factor");  // frequencies change beyond the last of `context` positions alone
  if (type == "yarn") out.yarn = yarn_of(c);
  if (type == "llama3")
    out.scaling = {.factor = c.number("factor"),
                   .low = c.number("low_freq_factor"),
                   .high = c.number("high_freq_factor"),
                   .original = c.number("original_max_position_embeddings")};
  else if (type != "yarn" && c.find("original_max_position_embeddings") != nullptr)
    c.number("original_max_position_embeddings");  // says how the model was trained; nothing is computed from it
  c.no_others();
}

// The rotary settings of a configuration, under either of their names.
template <class Config, class Read>
void read_any_rotary(config_object& c, Config& out, const Read& read) {
  const nlohmann::json* const parameters = c.find_unless_null("rope_parameters");
  const nlohmann::json* const scaling = c.find_unless_null("rope_scaling");
  if (parameters != nullptr && scaling != nullptr && *parameters != *scaling)
    c.fail("rope_scaling", "nothing beside rope_parameters");
  if (parameters != nullptr)
    read(out, c.inside("rope_parameters"));
  else if (scaling != nullptr)
    read(out, c.inside("rope_scaling"));
}

// What Llama and its kin have in common but rotary settings; the family's own sizes are those that keys leave out.
inline llama_config still_llama_of(config_object& c, const llama_config& family, const char* architecture) {
  llama_config out{.layers = c.integer("num_hidden_layers", family.layers),
                   .heads = c.integer("num_attention_heads", family.heads),
                   .kv_heads = 0,
                   .width = c.integer("hidden_size", family.width),
                   .ffn = c.integer("intermediate_size", family.ffn),
                   .context = c.integer("max_position_embeddings", family.context),
                   .vocabulary = c.integer("vocab_size", family.vocabulary),
                   .theta = c.number("rope_theta", family.theta),
                   .epsilon = c.number("rms_norm_eps", family.epsilon),
                   .initial_deviation = c.number("initializer_range", 0.02)};
  out.kv_heads = c.integer_unless_null("num_key_value_heads", out.heads);
  c.only_unless_null("architectures", {architecture});
  const int head_dim = family.head_elements > 0
                           ? c.integer("head_dim", family.head_elements)  // Qwen 3: may not be null
                           : c.integer_unless_null("head_dim", family.head_elements);
  const bool follows = out.heads > 0 && out.width % out.heads == 0 && out.width / out.heads == head_dim;
  if (!follows) out.head_elements = head_dim;
  return out;
}
inline llama_config llama_of(config_object& c, const llama_config& family, const char* architecture) {
  llama_config out = still_llama_of(c, family, architecture);
  c.only("hidden_act", "silu");
  c.only_unless_null("partial_rotary_factor", 1.0);
  read_any_rotary(c, out, read_rotary);
  return out;
}

// With `output_router_logits` the loss has a term for the balance of experts.
inline void without_balance(config_object& c) {
  c.only("output_router_logits", false);
  if (const nlohmann::json* const unused = c.find("router_aux_loss_coef"); unused != nullptr && !unused->is_number())
    c.fail("router_aux_loss_coef", "a number");
}

inline llama_config plain_llama_of(config_object& c) {
  c.only("attention_bias", false);
  c.only("mlp_bias", false);
  return llama_of(c, {.context = 2048, .epsilon = 1e-6}, "LlamaForCausalLM");
}
// Qwen may have windows in some layers; these are refused.
inline llama_config qwen_of(config_object& c, const llama_config& family, const char* architecture) {
  const llama_config out = llama_of(c, family, architecture);
  c.only("use_sliding_window", false);
  for (const char* unused : {"sliding_window", "max_window_layers"}) static_cast<void>(c.find(unused));
  if (const nlohmann::json* const types = c.find_unless_null("layer_types"); types != nullptr) {
    const auto windowed = [](const nlohmann::json& type) { return type != "full_attention"; };
    if (!types->is_array() || types->size() != static_cast<std::size_t>(out.layers) ||
        std::any_of(types->begin(), types->end(), windowed))
      c.fail("layer_types", "\"full_attention\" for each of " + std::to_string(out.layers) + " layers");
  }
  return out;
}

inline smollm3_config smollm3_of(config_object& c) {
  c.only("attention_bias", false);
  c.only("mlp_bias", false);
  smollm3_config out = qwen_of(c,
                               {.layers = 36,
                                .heads = 16,
                                .width = 2048,
                                .ffn = 11008,
                                .context = 32768,
                                .vocabulary = 128256,
                                .theta = 2000000,
                                .epsilon = 1e-6},
                               "SmolLM3ForCausalLM");
  if (c.find("num_key_value_heads") == nullptr) out.kv_heads = 4;
  out.still_every = c.integer("no_rope_layer_interval", 4);
  if (out.still_every < 1) c.fail("no_rope_layer_interval", "a whole number of 1 or more");
  // The list says the same, layer by layer: 0 where nothing rotates.
  if (const nlohmann::json* const list = c.find_unless_null("no_rope_layers"); list != nullptr) {
    bool same = list->is_array() && list->size() >= static_cast<std::size_t>(out.layers);
    for (int layer = 0; same && layer < out.layers; ++layer)
      same = (*list)[static_cast<std::size_t>(layer)] == ((layer + 1) % out.still_every == 0 ? 0 : 1);
    if (!same)
      c.fail("no_rope_layers", "1 for each of " + std::to_string(out.layers) + " layers, and 0 for each " +
                                   std::to_string(out.still_every) + "-th, as no_rope_layer_interval says");
  }
  return out;
}
inline granite_config granite_of(config_object& c) {
  c.only("attention_bias", false);
  c.only("mlp_bias", false);
  const llama_config shape = llama_of(c, {.context = 2048, .epsilon = 1e-6}, "GraniteForCausalLM");
  return {shape, c.number("embedding_multiplier", 1), c.number("attention_multiplier", 1),
          c.number("residual_multiplier", 1), c.number("logits_scaling", 1)};
}
inline olmo2_config olmo2_of(config_object& c) {
  c.only("attention_bias", false);
  return llama_of(c, {.context = 2048, .vocabulary = 50304}, "Olmo2ForCausalLM");
}
// What Gemma-2 and Gemma-3 have in common but rotary settings and which layers are global.
inline gemma3_config gemma_of(config_object& c, const llama_config& family, const char* architecture) {
  c.only("attention_bias", false);
  c.only("hidden_activation", "gelu_pytorch_tanh");
  c.only_unless_null("use_bidirectional_attention", false);
  gemma3_config out = still_llama_of(c, family, architecture);
  if (c.find("num_key_value_heads") == nullptr) out.kv_heads = 4;
  out.window = c.integer("sliding_window", 4096);
  out.query_scalar = c.number("query_pre_attn_scalar", 256);
  return out;
}
// Each how many-th layer sees all tokens, of the list that says the kinds of all.
inline int global_every_of(config_object& c, int layers, int otherwise) {
  const nlohmann::json* const types = c.find_unless_null("layer_types");
  if (types == nullptr) return otherwise;
  int every = 1;
  while (types->is_array() && every <= layers && static_cast<std::size_t>(every) <= types->size() &&
         (*types)[static_cast<std::size_t>(every - 1)] != "full_attention")
    ++every;
  bool fits = types->is_array() && types->size() == static_cast<std::size_t>(layers);
  for (int l = 0; fits && l < layers; ++l)
    fits = (*types)[static_cast<std::size_t>(l)] == ((l + 1) % every == 0 ? "full_attention" : "sliding_attention");
  if (!fits)
    c.fail("layer_types",
           "\"sliding_attention\" or, after as many of these each time, \"full_attention\" for each of " +
               std::to_string(layers) + " layers");
  return every;
}
// Gemma-3 of texts: rotary settings are those of either kind of layer, or, in older configurations, of global ones and a base of the others.
inline gemma3_config gemma3_of(config_object& c) {
  c.only_unless_null("attn_logit_softcapping", nullptr);
  c.only_unless_null("final_logit_softcapping", nullptr);
  gemma3_config out = gemma_of(c,
                               {.layers = 26,
                                .heads = 8,
                                .width = 2304,
                                .ffn = 9216,
                                .context = 131072,
                                .vocabulary = 262208,
                                .theta = 1000000,
                                .epsilon = 1e-6,
                                .head_elements = 256},
                               "Gemma3ForCausalLM");
  out.local_theta = c.number("rope_local_base_freq", 10000);
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"})
    out.global_every = c.integer_unless_null(key, out.global_every);
  out.global_every = global_every_of(c, out.layers, out.global_every);
  const nlohmann::json* const parameters = c.find_unless_null("rope_parameters");
  if (parameters != nullptr && parameters->is_object() && parameters->contains("full_attention")) {
    config_object both = c.inside("rope_parameters");
    llama_config near{.theta = out.local_theta};
    both.find("full_attention");
    read_rotary(out, both.inside("full_attention"));
    if (both.find_unless_null("sliding_attention") != nullptr) read_rotary(near, both.inside("sliding_attention"));
    if (near.scaling.factor != 1 || near.yarn.factor != 1)
      both.fail("sliding_attention", "rotary positions without scaling");
    out.local_theta = near.theta;
    both.no_others();
    if (c.find_unless_null("rope_scaling") != nullptr) c.fail("rope_scaling", "nothing beside rope_parameters");
  } else {
    read_any_rotary(c, out, read_rotary);
  }
  return out;
}
// Gemma-2: one rotary setting for all layers. A null for a cap is a model without it, which is not there.
inline gemma2_config gemma2_of(config_object& c) {
  gemma3_config shape = gemma_of(c,
                                 {.layers = 26,
                                  .heads = 8,
                                  .width = 2304,
                                  .ffn = 9216,
                                  .context = 8192,
                                  .vocabulary = 256000,
                                  .epsilon = 1e-6,
                                  .head_elements = 256},
                                 "Gemma2ForCausalLM");
  c.only_unless_null("hidden_act", "gelu_pytorch_tanh");  // the older name
  read_any_rotary(c, shape, read_rotary);
  return {shape,
          shape.window,
          global_every_of(c, shape.layers, 2),
          shape.query_scalar,
          c.number("attn_logit_softcapping", 50),
          c.number("final_logit_softcapping", 30)};
}
inline llama_config dense_qwen_of(config_object& c, int head_elements, const char* architecture) {
  return qwen_of(
      c, {.ffn = 22016, .context = 32768, .vocabulary = 151936, .epsilon = 1e-6, .head_elements = head_elements},
      architecture);
}
// All blocks have experts: `intermediate_size` is of those that have none.
inline qwen3_moe_config qwen3_moe_of(config_object& c) {
  c.only("attention_bias", false);
  mixtral_config shape =
      qwen_of(c, {.layers = 24, .width = 2048, .ffn = 6144, .context = 32768, .vocabulary = 151936, .epsilon = 1e-6},
              "Qwen3MoeForCausalLM");
  if (c.find("num_key_value_heads") == nullptr) shape.kv_heads = 4;
  c.only("decoder_sparse_step", 1);
  c.only_unless_null("mlp_only_layers", nlohmann::json::array());
  shape.ffn = c.integer("moe_intermediate_size", 768);
  shape.chosen = c.integer("num_experts_per_tok", 8);
  // Either of two names; transformers writes the second.
  shape.experts = c.integer("num_experts", 128);
  if (c.find("num_local_experts") != nullptr) {
    const int experts = c.integer("num_local_experts");
    c.only("num_experts", experts);
    shape.experts = experts;
  }
  without_balance(c);
  return {shape, c.flag("norm_topk_prob", false)};
}

// GPT-OSS: all products have biases; frequencies that no key scales are by YaRN.
inline gpt_oss_config gpt_oss_of(config_object& c) {
  const gpt_oss_config family = gpt_oss_120b();
  c.only("attention_bias", true);
  mixtral_config shape = still_llama_of(c, family, "GptOssForCausalLM");
  if (c.find("num_key_value_heads") == nullptr) shape.kv_heads = family.kv_heads;
  c.only("hidden_act", "silu");
  c.only("swiglu_alpha", 1.702);
  c.only("swiglu_limit", 7.0);
  read_any_rotary(c, shape, read_rotary);
  if (c.find_unless_null("rope_parameters") == nullptr && c.find_unless_null("rope_scaling") == nullptr)
    shape.yarn = family.yarn;
  without_balance(c);
  shape.experts = c.integer("num_local_experts", family.experts);
  shape.chosen = c.integer("num_experts_per_tok", family.chosen);
  c.only("experts_per_token", shape.chosen);  // the older name, which published files have beside the other
  if (c.find("initial_context_length") != nullptr) c.number("initial_context_length");  // that of yarn, again
  return {shape, c.integer("sliding_window", family.window), global_every_of(c, shape.layers, family.global_every)};
}

// How many of a head's elements rotate, of the key that says which part of them does.
inline int rotating_of(config_object& c, int head_dim) {
  constexpr const char* key = "partial_rotary_factor";
  const double part = c.number(key);
  if (!(part <= 1)) c.fail(key, "a number above 0 and up to 1");
  const int rotating = static_cast<int>(part * head_dim);
  if (rotating < 2)
    c.fail(key, "a part of a head's " + std::to_string(head_dim) + " elements that is at least 2 of them");
  return rotating;
}
// LongRoPE as Phi-3 has it, whose older configurations call it "su" or "yarn".
inline void read_phi3_rotary(phi3_config& out, config_object c) {
  const char* const kind = c.find("type") != nullptr ? "type" : "rope_type";
  const std::string type = c.text(kind, "default", {"default", "longrope", "su", "yarn"});
  if (kind == std::string_view("type") && c.find("rope_type") != nullptr)
    c.text("rope_type", type, {"longrope", type.c_str()});
  out.theta = c.number("rope_theta", out.theta);
  if (c.find("partial_rotary_factor") != nullptr) out.rotating = rotating_of(c, out.head_dim());
  if (type != "default") {
    compute::long_rotary_scaling& to = out.longrope;
    to.count = out.rotary_pairs();
    const auto factors = [&](const char* key, auto& into) {
      const nlohmann::json* const list = c.find(key);
      const bool fits = list != nullptr && list->is_array() && list->size() == static_cast<std::size_t>(to.count) &&
                        list->size() <= to.most && std::all_of(list->begin(), list->end(), [](const nlohmann::json& f) {
                          return f.is_number() && f.get<double>() > 0;
                        });
      if (!fits) c.fail(key, std::to_string(to.count) + " positive numbers, at most " + std::to_string(to.most));
      for (std::size_t i = 0; i < list->size(); ++i) into[i] = (*list)[i].get<double>();
    };
    factors("short_factor", to.brief);
    factors("long_factor", to.extended);
    to.original = c.number("original_max_position_embeddings", to.original);
    const double factor = c.find_unless_null("factor") != nullptr ? c.number("factor") : out.context / to.original;
    to.table_factor = c.find_unless_null("attention_factor") != nullptr ? c.number("attention_factor")
                      : factor <= 1                                     ? 1
                                    : std::sqrt(1 + std::log(factor) / std::log(to.original));
  } else {
    for (const char* unused : {"original_max_position_embeddings", "factor"}) static_cast<void>(c.find(unused));
  }
  c.no_others();
}
inline phi3_config phi3_of(config_object& c) {
  c.only("attention_bias", false);
  c.only("mlp_bias", false);
  c.only("lm_head_bias", false);
  for (const char* one : {"full_attn_mod", "interpolate_factor"}) c.only(one, 1);  // of the code beside the weights
  phi3_config out = still_llama_of(
      c, {.width = 3072, .ffn = 8192, .context = 4096, .vocabulary = 32064, .epsilon = 1e-5}, "Phi3ForCausalLM");
  c.only("hidden_act", "silu");
  out.window = c.integer_unless_null("sliding_window", 0);
  if (c.find_unless_null("partial_rotary_factor") != nullptr) out.rotating = rotating_of(c, out.head_dim());
  out.longrope.original = c.integer_unless_null("original_max_position_embeddings", 4096);
  read_any_rotary(c, out, read_phi3_rotary);
  if (out.rotating == out.head_dim()) out.rotating = 0;
  return out;
}

// Versions without a window are Llamas.
inline void mistral_of(config_object& c, hugging_face_model& out) {
  c.only("attention_bias", false);
  llama_config shape =
      llama_of(c, {.ffn = 14336, .context = 131072, .vocabulary = 32000, .epsilon = 1e-6}, "MistralForCausalLM");
  if (c.find("num_key_value_heads") == nullptr) shape.kv_heads = 8;
  const nlohmann::json* const window = c.find("sliding_window");
  if (window != nullptr && window->is_null())
    out.config = shape;
  else
    out.config = mistral_config(shape, c.integer("sliding_window", 4096));
}

inline mixtral_config mixtral_of(config_object& c) {
  llama_config shape =
      llama_of(c, {.ffn = 14336, .context = 131072, .vocabulary = 32000, .theta = 1000000}, "MixtralForCausalLM");
  if (c.find("num_key_value_heads") == nullptr) shape.kv_heads = 8;
  if (c.find_unless_null("sliding_window") != nullptr) c.fail("sliding_window", "null");
  without_balance(c);
  c.only("router_jitter_noise", 0.0);
  return {shape, c.integer("num_local_experts", 8), c.integer("num_experts_per_tok", 2)};
}

inline void read_deepseek_rotary(deepseek_config& out, config_object c) {
  const char* const kind = c.find("type") != nullptr ? "type" : "rope_type";
  if (const nlohmann::json* const type = c.find(kind); type == nullptr || *type != "yarn") {
    llama_config rotary{.theta = out.theta};
    read_rotary(rotary, std::move(c));
    out.theta = rotary.theta;
    out.scaling = rotary.scaling;
    return;
  }
  c.only("rope_type", "yarn");
  out.theta = c.number("rope_theta", out.theta);
  c.only("partial_rotary_factor", 1.0);
  out.yarn = yarn_of(c);
  c.no_others();
}

// What a DeepSeek-V2 and a V3 have alike; the family's own sizes are those that keys leave out.
inline deepseek_config deepseek_of(config_object& c, const deepseek_config& family, const char* architecture) {
  const auto whole = [&](const char* key, int otherwise) { return c.integer(key, otherwise); };
  deepseek_config out = family;
  out.layers = whole("num_hidden_layers", family.layers);
  out.heads = whole("num_attention_heads", family.heads);
  out.width = whole("hidden_size", family.width);
  out.ffn = whole("moe_intermediate_size", family.ffn);
  out.context = whole("max_position_embeddings", family.context);
  out.vocabulary = whole("vocab_size", family.vocabulary);
  out.key_latent = whole("kv_lora_rank", 512);
  out.still = whole("qk_nope_head_dim", 128);
  out.rotating = whole("qk_rope_head_dim", 64);
  out.value = whole("v_head_dim", 128);
  out.experts = whole("n_routed_experts", family.experts);
  out.shared = whole("n_shared_experts", family.shared);
  out.dense = (std::min)(whole("first_k_dense_replace", family.dense), out.layers);  // beyond the last: all are dense
  out.dense_ffn = whole("intermediate_size", family.dense_ffn);
  out.factor = c.number("routed_scaling_factor", family.factor);
  out.theta = c.number("rope_theta", 10000);
  out.epsilon = c.number("rms_norm_eps", 1e-6);
  out.initial_deviation = c.number("initializer_range", 0.02);
  c.only_unless_null("architectures", {architecture});
  c.only_unless_null("num_key_value_heads", out.heads);
  // Null: queries have no latent vector. A missing key is transformers' own size.
  const nlohmann::json* const rank = c.find("q_lora_rank");
  out.query_latent = 0;
  if (rank == nullptr || !rank->is_null()) {
    out.query_latent = whole("q_lora_rank", 1536);
    if (out.query_latent < 1) c.fail("q_lora_rank", "null or a whole number of 1 or more");
  }
  // Nothing is computed from these: sizes that follow from others, and what training balanced experts with.
  c.only_unless_null("qk_head_dim", std::int64_t{out.still} + out.rotating);
  c.only_unless_null("head_dim", out.rotating);
  for (const char* unused : {"ep_size", "aux_loss_alpha", "seq_aux"}) static_cast<void>(c.find(unused));
  c.only("moe_layer_freq", 1);
  c.only("attention_bias", false);
  c.only("hidden_act", "silu");
  c.only("output_router_logits", false);
  c.only("tie_word_embeddings", false);
  read_any_rotary(c, out, read_deepseek_rotary);
  return out;
}

inline deepseek_config deepseek_v3_of(config_object& c, int& more_blocks) {
  deepseek_config out = deepseek_of(c, {}, "DeepseekV3ForCausalLM");
  out.chosen = c.integer("num_experts_per_tok", 8);
  out.groups = c.integer("n_group", 8);
  out.kept_groups = c.integer("topk_group", 4);
  out.normed = c.flag("norm_topk_prob", true);
  out.neighbours = c.flag("rope_interleave", true);
  for (const char* key : {"num_nextn_predict_layers", "num_mtp_layers"})  // modules that predict more tokens
    more_blocks = (std::max)(more_blocks, c.integer(key, 0));
  c.only("scoring_func", "sigmoid");
  c.only("topk_method", "noaux_tc");
  return out;
}

// Weights of choices are never divided by their sum: transformers does not, whatever norm_topk_prob says, and no published model asks for it.
inline deepseek_config deepseek_v2_of(config_object& c) {
  deepseek_config out = deepseek_of(c,
                                    {.layers = 32,
                                     .heads = 32,
                                     .width = 4096,
                                     .ffn = 1407,
                                     .context = 2048,
                                     .vocabulary = 102400,
                                     .experts = 64,
                                     .shared = 2,
                                     .dense = 0,
                                     .dense_ffn = 11008,
                                     .normed = false,
                                     .factor = 1,
                                     .softmax = true},
                                    "DeepseekV2ForCausalLM");
  out.chosen = c.integer("num_experts_per_tok");
  c.only_unless_null("norm_topk_prob", false);
  c.only("scoring_func", "softmax");
  c.only("mlp_bias", false);
  out.groups = out.kept_groups = 1;
  if (c.text("topk_method", "greedy", {"greedy", "group_limited_greedy"}) == "group_limited_greedy") {
    out.groups = c.integer("n_group");
    out.kept_groups = c.integer("topk_group");
  } else {
    for (const char* unused : {"n_group", "topk_group"}) static_cast<void>(c.find(unused));
  }
  return out;
}

}  // namespace detail

/// The model that a config.json describes: GPT-2, Llama 2 and 3 with rotary scaling `linear`, `llama3`, `yarn` or `dynamic`, Qwen 2 and 3, also with experts, Mistral, Mixtral, SmolLM3, Granite, Phi-3 and Phi-4, OLMo-2, Gemma-2, Gemma-3 of texts, GPT-OSS,
/// DeepSeek-V2 and V3, with or without leading blocks without experts and latent vectors of queries.
/// `quantization_config` may be that of `fp8`, `fbgemm_fp8`, `gptq`, `awq` (version gemm) or `compressed-tensors` in 4 and 8 bits, MXFP4 among them.
/// What a key leaves out is what transformers takes; null is the same for keys that transformers lets be null, and
/// refused for the others. `what` names the file in errors.
/// Errors: `config_error` naming key, expected and got: another family, a value that these models do not have, a key
/// that is not known, as it may change what the model computes; sizes that do not fit (`validate`).
/// Source: Hugging Face transformers 5.23, `GPT2Config`, `LlamaConfig`, `Qwen2Config`, `Qwen3Config`, `Qwen3MoeConfig`, `SmolLM3Config`, `GraniteConfig`, `MistralConfig`, `MixtralConfig`, `Phi3Config`, `Olmo2Config`, `Gemma2Config`, `Gemma3TextConfig`, `GptOssConfig`, `DeepseekV3Config`,
/// `DeepseekV2Config`.
/// A key that is not known passes where it is false, null or empty, where it has no effect on a forward pass (names of tokens, how answers are
/// drawn, rates of dropout, marks of programs: `model/hugging_face/config_keys.hpp`), or where `ignored_keys` has it; one in `rope_parameters` is
/// "rope_parameters.NAME" there.
inline hugging_face_model from_config(const nlohmann::json& config, const std::string& what = "config.json",
                                      std::span<const std::string> ignored_keys = {}) {
  detail::config_object c(config, what, ignored_keys);
  const std::string family =
      c.text("model_type", "",
             {"gpt2", "llama", "qwen2", "qwen3", "mistral", "mixtral", "deepseek_v3", "deepseek_v2", "qwen3_moe",
              "smollm3", "granite", "phi3", "olmo2", "gemma3_text", "gemma2", "gpt_oss"});
  hugging_face_model out;
  if (c.find_unless_null("quantization") != nullptr)
    throw config_error("heddle: " + what +
                       ", key 'quantization': a model of MLX, which packs matrices in its own way: take "
                       "the model that it was made from, or write it in full by `mlx_lm.convert --hf-path FOLDER "
                       "--mlx-path NEW --dequantize`");
  if (c.find_unless_null("quantization_config") != nullptr) {
    out.scales = detail::read_quantization(c.inside("quantization_config"));
    if (family == "gpt2" && out.scales->how != quantized_weights::form::scaled)
      throw config_error("heddle: " + what +
                         ", quantization_config: packed matrices are [out, in], those of a gpt2 [in, "
                         "out]: they are not read; write the model in full, by dequantize() and save_pretrained() of "
                         "transformers");
  }
  c.only("is_causal", true);  // else a token attends to those behind it, too
  if (family == "gpt2") {
    out.config = detail::gpt2_of(c);
    out.tied = c.flag("tie_word_embeddings", true);
  } else {
    out.tied = c.flag("tie_word_embeddings", family == "smollm3" || family == "gemma3_text" || family == "gemma2");
    if (family == "llama") {
      out.config = detail::plain_llama_of(c);
    } else if (family == "qwen2") {
      out.config = qwen2_config(detail::dense_qwen_of(c, 0, "Qwen2ForCausalLM"));
    } else if (family == "mistral") {
      detail::mistral_of(c, out);
    } else if (family == "mixtral") {
      out.config = detail::mixtral_of(c);
    } else if (family == "qwen3_moe") {
      out.config = detail::qwen3_moe_of(c);
    } else if (family == "smollm3") {
      out.config = detail::smollm3_of(c);
    } else if (family == "granite") {
      out.config = detail::granite_of(c);
    } else if (family == "gemma3_text") {
      out.config = detail::gemma3_of(c);
    } else if (family == "gemma2") {
      out.config = detail::gemma2_of(c);
    } else if (family == "gpt_oss") {
      out.config = detail::gpt_oss_of(c);
    } else if (family == "olmo2") {
      out.config = detail::olmo2_of(c);
    } else if (family == "phi3") {
      out.config = detail::phi3_of(c);
    } else if (family == "deepseek_v3") {
      out.config = detail::deepseek_v3_of(c, out.more_blocks);
    } else if (family == "deepseek_v2") {
      out.config = detail::deepseek_v2_of(c);
    } else {
      c.only("attention_bias", false);
      out.config = qwen3_config(detail::dense_qwen_of(c, 128, "Qwen3ForCausalLM"));
    }
  }
  c.no_others();
  std::visit([](const auto& of) { of.validate(); }, out.config);
  return out;
}

}  // namespace heddle::inline v0::model
