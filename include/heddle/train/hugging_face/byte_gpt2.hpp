// heddle/train/hugging_face/byte_gpt2.hpp: files beside the weights of a byte GPT-2.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/io/manifest.hpp>
#include <heddle/model/gpt2_config.hpp>

#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace heddle::inline v0::train {

/// A GPT-2 as the manifest of a save describes it: its sizes, and the type of its weights, "f32" or "f64".
struct saved_gpt2 {
  model::gpt2_config config;
  std::string dtype;
};

/// Reads `manifest::config` back, which is `to_string` of a `gpt2_config` and the type of its weights. Nothing for another model, or another
/// text. Errors: `config_error` for sizes that do not fit.
inline std::optional<saved_gpt2> gpt2_of(const io::manifest& m) {
  std::string_view rest = m.config;
  const auto word = [&] {
    const std::string_view next = rest.substr(0, rest.find(' '));
    rest.remove_prefix(next.size() < rest.size() ? next.size() + 1 : rest.size());
    return next;
  };
  if (word() != "gpt2") return std::nullopt;
  saved_gpt2 out;
  const auto number = [&](std::string_view of, std::string_view name, auto& value) {
    if (!of.starts_with(name) || of.substr(name.size(), 1) != "=") return false;
    const char* const end = of.data() + of.size();
    const auto [last, fault] = std::from_chars(of.data() + name.size() + 1, end, value);
    return fault == std::errc{} && last == end;
  };
  if (!number(word(), "layers", out.config.layers) || !number(word(), "heads", out.config.heads) ||
      !number(word(), "width", out.config.width) || !number(word(), "context", out.config.context) ||
      !number(word(), "vocabulary", out.config.vocabulary))
    return std::nullopt;
  std::string_view type = word();
  if (number(type, "epsilon", out.config.epsilon)) type = word();
  if (type != "f32" && type != "f64") return std::nullopt;
  out.config.validate();
  out.dtype = type;
  return out;
}

/// The config.json of a GPT-2 with weights of this type of safetensors, "F32" or "F64". Not `tied`: it has a head of its own.
inline std::string gpt2_config_json(const model::gpt2_config& c, std::string_view dtype, bool tied = true) {
  nlohmann::json config{{"architectures", {"GPT2LMHeadModel"}},
                        {"model_type", "gpt2"},
                        {"activation_function", "gelu_new"},
                        {"n_layer", c.layers},
                        {"n_head", c.heads},
                        {"n_embd", c.width},
                        {"n_positions", c.context},
                        {"vocab_size", c.vocabulary},
                        {"layer_norm_epsilon", c.epsilon},
                        {"initializer_range", c.initial_deviation},
                        {"bos_token_id", nullptr},
                        {"eos_token_id", nullptr},
                        {"dtype", dtype == "F64" ? "float64" : "float32"}};
  if (!tied) config["tie_word_embeddings"] = false;
  return config.dump(2) + "\n";
}

/// A tokenizer.json whose tokens are bytes: the token 65 is "A", and every text has as many tokens as bytes.
/// Source: Radford et al. 2019, `bytes_to_unicode` of the published code, for how the file spells bytes.
inline std::string byte_tokenizer_json() {
  nlohmann::json vocabulary = nlohmann::json::object();
  unsigned next = 256;
  for (unsigned b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    const unsigned c = printable ? b : next++;
    std::string spelled;  // UTF-8 of a code point below 0x800
    if (c >= 0x80) spelled += static_cast<char>(0xc0 | (c >> 6));
    spelled += static_cast<char>(c < 0x80 ? c : 0x80 | (c & 0x3f));
    vocabulary[spelled] = b;
  }
  const nlohmann::json bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return nlohmann::json{{"version", "1.0"},
                        {"truncation", nullptr},
                        {"padding", nullptr},
                        {"added_tokens", nlohmann::json::array()},
                        {"normalizer", nullptr},
                        {"pre_tokenizer", bytes},
                        {"post_processor", nullptr},
                        {"decoder", bytes},
                        {"model",
                         {{"type", "BPE"},
                          {"dropout", nullptr},
                          {"unk_token", nullptr},
                          {"continuing_subword_prefix", nullptr},
                          {"end_of_word_suffix", nullptr},
                          {"fuse_unk", false},
                          {"byte_fallback", false},
                          {"ignore_merges", false},
                          {"vocab", vocabulary},
                          {"merges", nlohmann::json::array()}}}}
             .dump(1) +
         "\n";
}

/// The tokenizer_config.json beside it, for transformers.
inline std::string byte_tokenizer_config_json(const model::gpt2_config& c) {
  return nlohmann::json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"clean_up_tokenization_spaces", false},
                        {"model_max_length", c.context}}
             .dump(2) +
         "\n";
}

}  // namespace heddle::inline v0::train
