// heddle/model/hugging_face/config_keys.hpp: config.json keys without effect.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error "heddle/model/hugging_face/config_keys.hpp needs nlohmann/json.hpp: link heddle::json (Debian: apt install nlohmann-json3-dev)"
#endif

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace heddle::inline v0::model::detail {

// Whatever their values are. Keys of rates of dropout and of how attention is computed are known by their ends (`is_without_effect`).
inline constexpr std::string_view config_keys_without_effect[] = {
    // tokens, and what programs do with them
    "bos_token_id", "cls_token_id", "decoder_start_token_id", "eos_token_id", "mask_token_id", "max_sequence_length",
    "model_max_length", "pad_token_id", "prefix", "processor_class", "sep_token_id", "tokenizer_class",
    "tokenizer_model_max_length", "tokenizer_padding_side", "unk_token_id",
    // how an answer is drawn, where there was no generation_config.json
    "_from_model_config", "bad_words_ids", "begin_suppress_tokens", "cache_implementation", "diversity_penalty",
    "do_sample", "early_stopping", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff",
    "eta_cutoff", "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "length_penalty",
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "min_p", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "output_logits", "output_scores", "penalty_alpha", "remove_invalid_values",
    "repetition_penalty", "return_dict_in_generate", "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
    "use_cache",
    // heads that classify, and what else is not built of these architectures
    "_num_labels", "finetuning_task", "id2label", "label2id", "num_labels", "predict_special_tokens", "problem_type",
    "summary_activation", "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
    // training, types and memory of other programs; an implementation that computes the same
    "attn_implementation", "chunk_size_feed_forward", "dtype", "experts_implementation", "gradient_checkpointing",
    "is_decoder", "is_encoder_decoder", "neftune_noise_alpha", "output_attentions", "output_hidden_states",
    "output_past", "pretraining_tp", "reorder_and_upcast_attn", "return_dict", "tf_legacy_loss", "tie_encoder_decoder",
    "torch_dtype", "torchscript", "use_bfloat16",
    // where the file comes from; code beside the weights
    "_commit_hash", "_name_or_path", "auto_map", "is_llama_config", "model_type", "name_or_path", "peft_version",
    "transformers.js_config", "transformers_version", "unsloth_fixed", "unsloth_version"};

// Null, false, and a text, array or object without anything in it.
inline bool says_nothing(const nlohmann::json& value) {
  return value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
}

// Whether a key of `all` changes nothing.
inline bool is_without_effect(std::string_view key, const nlohmann::json& all) {
  for (const std::string_view one : config_keys_without_effect)
    if (one == key) return true;
  const auto begins = [&](std::string_view with) { return key.substr(0, with.size()) == with; };
  const auto ends = [&](std::string_view with) {
    return key.size() >= with.size() && key.substr(key.size() - with.size()) == with;
  };
  for (const std::string_view way : {"_attn_implementation", "_experts_implementation", "_flash_attn_2"})
    if (begins(way)) return true;
  for (const std::string_view rate : {"dropout", "dropout_prob", "dropout_rate", "layerdrop", "pdrop"})
    if (ends(rate)) return true;
  // The marks of a tool that went over the file: NAME_fixed beside NAME_version.
  const auto beside = [&](std::string_view end, std::string_view other) {
    return ends(end) && all.contains(std::string(key.substr(0, key.size() - end.size())) + std::string(other));
  };
  return beside("_fixed", "_version") || beside("_version", "_fixed");
}

}  // namespace heddle::inline v0::model::detail
