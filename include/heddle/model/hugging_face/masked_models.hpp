// heddle/model/hugging_face/masked_models.hpp: config.json and names of LLaDA, Dream and SDAR.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/hugging_face/config.hpp>
#include <heddle/model/llama_config.hpp>
#include <heddle/model/qwen_config.hpp>
#include <heddle/model/read_parameters.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace heddle::inline v0::model {

/// A masked model as its config.json describes it: `llama_config` for `llada`, `qwen2_config` for `dream`,
/// `qwen3_config` for `sdar`, whose tokens see blocks of `block` tokens.
struct masked_model {
  std::variant<llama_config, qwen2_config, qwen3_config> config{};
  std::int32_t mask_token = 0;
  std::int64_t block = 0;  ///< of SDAR; 0: tokens see everything

  /// "llada", "dream" or "sdar".
  std::string_view family() const noexcept {
    constexpr std::string_view names[] = {"llada", "dream", "sdar"};
    return names[config.index()];
  }
};

namespace detail {
inline llama_config llada_of(config_object& c) {
  llama_config out{.layers = c.integer("n_layers"),
                   .heads = c.integer("n_heads"),
                   .kv_heads = 0,
                   .width = c.integer("d_model"),
                   .ffn = c.integer("mlp_hidden_size"),
                   .context = c.integer("max_sequence_length"),
                   .vocabulary = c.integer("vocab_size"),
                   .theta = c.number("rope_theta", 10000.0),
                   .epsilon = c.number("rms_norm_eps", 1e-5),
                   .initial_deviation = c.number("init_std", 0.02)};
  out.kv_heads = c.integer_unless_null("n_kv_heads", out.heads);
  c.only_unless_null("embedding_size",
                     out.vocabulary);  // more rows than tokens: a head that is wider than the vocabulary
  c.only_unless_null("architectures", {"LLaDAModelLM"});
  for (const char* no : {"alibi", "attention_layer_norm", "bias_for_layer_norm", "include_bias", "include_qkv_bias",
                         "input_emb_norm", "scale_logits", "weight_tying"})
    c.only_unless_null(no, false);
  for (const char* yes : {"layer_norm_with_affine", "rope"}) c.only_unless_null(yes, true);
  c.only("activation_type", "silu");
  c.only("block_type", "llama");
  c.only("layer_norm_type", "rms");
  c.only_unless_null("multi_query_attention", false);
  // Nothing is computed from these: sizes that others give, how training began, and how the same is computed.
  for (const char* unused :
       {"alibi_bias_max", "attention_layer_norm_with_affine", "block_group_size", "flash_attention",
        "init_cutoff_factor", "init_device", "init_fn", "mlp_ratio", "precision", "rope_full_precision"})
    static_cast<void>(c.find(unused));
  return out;
}
}  // namespace detail

/// LLaDA (`model_type` "llada"), Dream ("Dream") or SDAR ("sdar") from a config.json. `what` names the file in errors;
/// `ignored_keys` as for `from_config`.
/// Errors: `config_error` naming key, expected and got: another family, values that these models do not have, a mask
/// outside the vocabulary, unknown keys.
/// Source: the config.json of GSAI-ML/LLaDA-8B-Base, Dream-org/Dream-v0-Base-7B and JetLM/SDAR-1.7B-Chat.
inline masked_model masked_from_config(const nlohmann::json& config, const std::string& what = "config.json",
                                       std::span<const std::string> ignored_keys = {}) {
  detail::config_object c(config, what, ignored_keys);
  const std::string family = c.text("model_type", "", {"llada", "Dream", "sdar"});
  masked_model out;
  int vocabulary = 0;
  const auto take = [&](auto of) {
    of.validate();
    vocabulary = of.vocabulary;
    out.config = of;
  };
  if (family == "llada") {
    take(detail::llada_of(c));
  } else {
    c.only("tie_word_embeddings", false);
    if (family == "Dream") {
      take(qwen2_config(detail::dense_qwen_of(c, 0, "DreamModel")));
    } else {
      c.only("attention_bias", false);
      take(qwen3_config(detail::dense_qwen_of(c, 128, "SDARForCausalLM")));
      out.block = c.integer("block_size", 4);
      if (out.block < 1) c.fail("block_size", "a whole number of 1 or more");
    }
  }
  out.mask_token = c.integer("mask_token_id");
  if (out.mask_token >= vocabulary)
    c.fail("mask_token_id", "a token of the vocabulary of " + std::to_string(vocabulary));
  c.no_others();
  return out;
}

/// Whether a config.json is one of these families.
inline bool is_masked_model(const nlohmann::json& config) {
  const auto at = config.find("model_type");
  return at != config.end() && (*at == "llada" || *at == "Dream" || *at == "sdar");
}

/// The name in files of LLaDA of a parameter of a Llama: for `read_parameters`. Those of Dream and SDAR are
/// `same_names`.
struct llada_names {
  source_name operator()(std::string_view parameter) const {
    constexpr std::pair<std::string_view, std::string_view> whole[] = {
        {"model.embed_tokens.weight", "model.transformer.wte.weight"},
        {"model.norm.weight", "model.transformer.ln_f.weight"},
        {"lm_head.weight", "model.transformer.ff_out.weight"}};
    constexpr std::pair<std::string_view, std::string_view> of_block[] = {
        {"self_attn.q_proj.weight", "q_proj.weight"},
        {"self_attn.k_proj.weight", "k_proj.weight"},
        {"self_attn.v_proj.weight", "v_proj.weight"},
        {"self_attn.o_proj.weight", "attn_out.weight"},
        {"mlp.gate_proj.weight", "ff_proj.weight"},
        {"mlp.up_proj.weight", "up_proj.weight"},
        {"mlp.down_proj.weight", "ff_out.weight"},
        {"input_layernorm.weight", "attn_norm.weight"},
        {"post_attention_layernorm.weight", "ff_norm.weight"}};
    for (const auto& [ours, theirs] : whole)
      if (parameter == ours) return {std::string(theirs)};
    constexpr std::string_view begin = "model.layers.";
    if (parameter.substr(0, begin.size()) == begin) {
      const std::string_view rest = parameter.substr(begin.size());
      const std::size_t dot = rest.find('.');
      for (const auto& [ours, theirs] : of_block)
        if (dot != std::string_view::npos && rest.substr(dot + 1) == ours)
          return {"model.transformer.blocks." + std::string(rest.substr(0, dot + 1)) + std::string(theirs)};
    }
    throw config_error("heddle: llada_names: a Llama has no parameter '" + std::string(parameter) + "'");
  }
};

}  // namespace heddle::inline v0::model
