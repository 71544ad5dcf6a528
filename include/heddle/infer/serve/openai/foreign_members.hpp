// heddle/infer/serve/openai/foreign_members.hpp: members that are refused by name.
#pragma once

#include <heddle/infer/serve/openai/api_error.hpp>
#include <heddle/io/json/strict.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace heddle::inline v0::infer::detail {

// A member that restricts or changes answers elsewhere. `neutral`: the JSON text of the value with which it changes nothing; empty: false, "", "none", [] and {}.
struct foreign_member {
  std::string_view name{}, neutral{}, instead{};
};

// Of OpenAI, vLLM, SGLang, TGI, llama.cpp, Ollama, TensorRT-LLM and transformers. A call that asks for one of them would be answered without what it asks for.
inline constexpr foreign_member foreign_members[] = {
    // grammars
    {"guided_grammar"},
    {"guided_decoding"},
    {"guided_whitespace_pattern"},
    {"grammar", "", "response_format"},
    {"grammar_lazy"},
    {"grammar_triggers"},
    {"ebnf"},
    {"structural_tag"},
    {"format", "", "response_format"},
    {"logits_processors"},
    {"custom_logit_processor"},
    // tokens
    {"bad_words", "", "logit_bias"},
    {"bad_words_ids", "", "logit_bias"},
    {"bad_token_ids", "", "logit_bias"},
    {"bad", "", "logit_bias"},
    {"suppress_tokens", "", "logit_bias"},
    {"begin_suppress_tokens"},
    {"sequence_bias"},
    {"force_words_ids"},
    {"forced_bos_token_id"},
    {"forced_eos_token_id"},
    {"forced_decoder_ids"},
    {"no_repeat_ngram_size", "0"},
    {"encoder_no_repeat_ngram_size", "0"},
    {"exponential_decay_length_penalty"},
    // lengths and ends
    {"max_new_tokens", "", "max_tokens"},
    {"max_output_tokens", "", "max_tokens"},
    {"max_tokens_to_sample", "", "max_tokens"},
    {"max_gen_tokens", "", "max_tokens"},
    {"max_length", "", "max_tokens"},
    {"n_predict", "-1", "max_tokens"},
    {"num_predict", "-1", "max_tokens"},
    {"min_new_tokens", "0", "min_tokens"},
    {"min_length", "0", "min_tokens"},
    {"thinking_token_budget"},
    {"reasoning_budget", "-1"},
    {"max_time"},
    {"t_max_predict_ms", "0"},
    {"n_indent", "0"},
    {"stop_sequences", "", "stop"},
    {"stop_strings", "", "stop"},
    {"stop_words", "", "stop"},
    {"stop_regex"},
    {"eos_token_id", "", "stop_token_ids"},
    {"end_id", "", "stop_token_ids"},
    {"include_stop_str_in_output"},
    {"no_stop_trim"},
    // how tokens are drawn
    {"use_beam_search"},
    {"num_beams", "1"},
    {"beam_width", "1"},
    {"penalty_alpha", "0"},
    {"do_sample", "true", "temperature"},
    {"random_seed", "", "seed"},
    {"typical_p", "1"},
    {"typical", "1"},
    {"tfs_z", "1"},
    {"top_a", "0"},
    {"top_n_sigma", "-1"},
    {"epsilon_cutoff", "0"},
    {"eta_cutoff", "0"},
    {"xtc_probability", "0"},
    {"dry_multiplier", "0"},
    {"mirostat", "0"},
    {"mirostat_mode", "0"},
    {"dynatemp_range", "0"},
    {"smoothing_factor", "0"},
    {"min_keep", "0"},
    {"samplers"},
    {"repeat_penalty", "1", "repetition_penalty"},
    {"encoder_repetition_penalty", "1"},
    {"guidance_scale", "1"},
    {"cfg_scale", "1"},
    {"negative_prompt"},
    {"watermark"},
    // the prompt
    {"chat_template"},
    {"chat_template_kwargs"},
    {"enable_thinking", "null"},
    {"think", "null"},
    {"continue_final_message"},
    {"add_generation_prompt", "true"},
    {"documents"},
    {"system", "", "messages"},
    {"system_prompt", "", "messages"},
    {"tool_prompt"},
    {"guideline"},
    {"safe_prompt"},
    {"truncate", "null"},
    {"truncate_prompt", "null"},
    {"truncate_prompt_tokens", "null"},
    {"prompt_truncate_len", "null"},
    {"prompt_embeds"},
    {"input_prefix"},
    {"input_suffix"},
    {"input_extra"},
    {"images"},
    {"mm_processor_kwargs"},
    {"lora"},
    {"lora_path"},
    {"adapter_id"},
    // tools and other kinds of answers
    {"tools"},
    {"tool_choice", R"("auto")"},
    {"functions"},
    {"function_call", R"("auto")"},
    {"modalities", R"(["text"])"},
    {"audio"},
    {"web_search_options", "null"},
    {"data_sources"},
    {"echo"},
    {"suffix"},
    {"prompt_logprobs", "null"},
    {"n_probs", "0", "logprobs"},
    {"skip_special_tokens", "true"},
    {"detokenize", "true"},
    {"return_full_text"},
    {"return_token_ids"},
    {"return_tokens_as_token_ids"},
    // further members, one level below
    {"extra_body"},
    {"extra_args"},
    {"vllm_xargs"},
    {"nvext"},
    {"parameters"},
    {"options"},
    {"sampling_params"},
    {"custom_params"},
    {"generation_config"},
};

[[noreturn]] inline void refuse_foreign_member(const foreign_member& m) {
  throw invalid_param(std::string(m.name),
                      m.instead.empty() ? "is not supported by this server"
                                        : "is not supported by this server; use '" + std::string(m.instead) + "'",
                      "unsupported_parameter");
}

// Refuses a call that asks for what is not there. "none" chooses no tool.
inline void refuse_foreign_members(const nlohmann::json& body, bool chat) {
  const auto changes_nothing = [](const foreign_member& m, const nlohmann::json& v) {
    if (v.is_null() || (!m.neutral.empty() && v == nlohmann::json::parse(m.neutral))) return true;
    if (!m.neutral.empty() && !m.neutral.starts_with('"')) return false;
    return v == false || v == "" || v == "none" || (v.is_structured() && v.empty());
  };
  const auto of_chats = [](std::string_view name) {  // which are read where they have a meaning
    return name == "tools" || name == "tool_choice" || name == "documents" || name == "chat_template_kwargs";
  };
  for (const foreign_member& m : foreign_members)
    if (chat && of_chats(m.name))
      continue;
    else if (const auto at = body.find(m.name); at != body.end() && !changes_nothing(m, *at))
      refuse_foreign_member(m);
  for (const foreign_member& m : {foreign_member{"add_special_tokens", "false"},  // the template has them
                                  foreign_member{"best_of", "1", "n"}})
    if (const auto at = body.find(m.name); chat && at != body.end() && !changes_nothing(m, *at))
      refuse_foreign_member(m);
  if (const auto at = body.find("max_completion_tokens"); !chat && at != body.end() && !at->is_null())
    refuse_foreign_member({"max_completion_tokens", "", "max_tokens"});
  constexpr std::string_view known[] = {
      "guided_json",   "guided_regex", "guided_choice", "guided_json_object", "guided_decoding_backend",
      "guided_grammar"};
  for (const auto& [name, value] : body.items())  // of versions to come
    if (name.starts_with("guided_") && std::ranges::count(known, name) == 0 && !changes_nothing({}, value))
      refuse_foreign_member({name});
}

}  // namespace heddle::inline v0::infer::detail
