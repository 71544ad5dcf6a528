// heddle/io/tokenizer/folder.hpp: the tokenizer of a model's folder; bytes as tokens.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/io/tokenizer/load.hpp>
#include <heddle/io/tokenizer/sentencepiece.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// The names of the files of a folder that hold a tokenizer, readable or not, in order.
inline std::vector<std::string> tokenizer_files(const std::filesystem::path& folder) {
  constexpr std::string_view names[] = {"tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "tekken.json"};
  std::vector<std::string> out;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (std::ranges::count(names, name) > 0 || name.ends_with(".tiktoken") || name.ends_with(".model") ||
        name.ends_with(".spm"))
      out.push_back(name);
  }
  std::ranges::sort(out);
  return out;
}

/// A tokenizer whose tokens are bytes: id = byte. Texts to encode must be UTF-8.
inline tokenizer byte_tokenizer() {
  nlohmann::json vocabulary;
  for (std::size_t b = 0; b < 256; ++b) {
    std::string spelled;
    detail::append_code_point(spelled, detail::byte_characters()[b]);
    vocabulary[spelled] = b;
  }
  return parse_gpt2_tokenizer(vocabulary.dump(), "", {.special_tokens = {}}, "the vocabulary of bytes", "");
}

namespace detail {

[[noreturn]] inline void unreadable_tokenizer(const std::filesystem::path& folder, const std::string& what) {
  throw io_error(
      "heddle: '" + folder.string() + "' " + what +
      ": heddle reads tokenizer.json, SentencePiece's tokenizer.model, and vocab.json with merges.txt of GPT-2 and "
      "Qwen2. "
      "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes a tokenizer.json; "
      "where the model's tokens are the bytes of a text, --bytes says so");
}

// Source: pattern of Qwen2Tokenizer in transformers.
inline constexpr std::string_view qwen2_pattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// Tokenizer of vocab.json and merges.txt as transformers' GPT2Tokenizer and Qwen2Tokenizer read them, with the added tokens that its
// other files name.
inline tokenizer gpt2_folder(const std::filesystem::path& folder) {
  const auto object = [&](const char* name) { return read_json_object(folder / name); };
  const auto refuse = [&](const std::string& what) {
    unreadable_tokenizer(folder, "has vocab.json and merges.txt " + what);
  };
  json config = object("tokenizer_config.json");
  const json by_config = config.value("tokenizer_class", json());
  std::string kind = by_config.is_string() ? by_config.get<std::string>() : std::string();
  if (kind.empty()) kind = object("config.json").value("model_type", json()) == "gpt2" ? "GPT2Tokenizer" : "no class";
  const bool qwen = kind == "Qwen2Tokenizer" || kind == "Qwen2TokenizerFast";
  if (!qwen && kind != "GPT2Tokenizer" && kind != "GPT2TokenizerFast")
    refuse("of " + kind.substr(0, 60) + ", not of GPT2Tokenizer or Qwen2Tokenizer");
  if (config.value("add_bos_token", json()) == true || config.value("add_eos_token", json()) == true)
    refuse("with a token that is added to each text (add_bos_token)");

  gpt2_tokenizer_options options{.add_prefix_space = config.value("add_prefix_space", json()) == true,
                                 .special_tokens = {}};
  if (qwen) options.nfc = true, options.pattern = qwen2_pattern;
  std::map<std::int64_t, std::string> numbered;  // tokens whose ids the files name
  const auto special = [&](const json& token) {
    const json content = token.is_object() ? token.value("content", json()) : token;
    if (!content.is_string()) refuse("with an added token that is no text");
    for (const char* flag : {"lstrip", "rstrip", "single_word"})
      if (token.is_object() && token.value(flag, json()) == true)
        refuse("with an added token that has '" + std::string(flag) + "'");
    if (std::ranges::count(options.special_tokens, content.get<std::string>()) == 0)
      options.special_tokens.push_back(content.get<std::string>());
    return content.get<std::string>();
  };
  if (const json added = config.value("added_tokens_decoder", json()); added.is_object()) {
    std::map<std::int64_t, json> by_id;
    for (const auto& [id, token] : added.items()) {
      if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos ||
          !token.is_object() ||
          (token.value("special", json()) != true && !(qwen && token.value("normalized", json()) == false)))
        refuse("with an added token '" + id.substr(0, 60) + "' that is not special" + (qwen ? ", but normalized" : ""));
      by_id[std::stoll(id)] = token;
    }
    for (const auto& [id, token] : by_id) {
      numbered[id] = special(token);
      if (token.value("special", json()) != true) options.not_special.push_back(numbered[id]);
    }
  } else {
    config.update(object("special_tokens_map.json"));
  }
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const bool by_default = std::string_view("bos_token eos_token unk_token").find(key) != std::string_view::npos;
    const json token = config.contains(key) ? config[key] : by_default ? json("<|endoftext|>") : json();
    if (!token.is_null()) special(token);
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
    if (config.contains(key))
      for (const json& token : config[key]) special(token);
  const json added = object("added_tokens.json");
  for (const auto& [content, id] : added.items()) {
    if (!id.is_number_integer() || std::ranges::count(options.special_tokens, content) == 0)
      refuse("and added_tokens.json with '" + content.substr(0, 60) + "', which no other file says is special");
    numbered[id.get<std::int64_t>()] = content;
  }
  std::vector<std::string> in_order;  // by their ids, as transformers adds them, then the others
  for (const auto& [id, content] : numbered) in_order.push_back(content);
  for (const std::string& content : options.special_tokens)
    if (std::ranges::count(in_order, content) == 0) in_order.push_back(content);
  options.special_tokens = std::move(in_order);
  tokenizer t = load_gpt2_tokenizer(folder / "vocab.json", folder / "merges.txt", options);
  for (const auto& [id, content] : numbered)
    if (t.find(content) != id)
      refuse("that give '" + content.substr(0, 60) + "' the id " + std::to_string(t.find(content).value_or(-1)) +
             " where the added tokens have " + std::to_string(id));
  return t;
}

// Tokenizer of tokenizer.model with what tokenizer_config.json and added_tokens.json say beside it.
inline tokenizer sentencepiece_folder(const std::filesystem::path& folder) {
  const auto refuse = [&](const std::string& what) { unreadable_tokenizer(folder, "has tokenizer.model " + what); };
  const json config = read_json_object(folder / "tokenizer_config.json");
  const json by_config = config.value("tokenizer_class", json());
  const std::string kind = by_config.is_string() ? by_config.get<std::string>() : "no class";
  constexpr std::string_view read[] = {"LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast"};
  if (std::ranges::count(read, kind) == 0)
    refuse("of " + kind.substr(0, 60) + ", not of LlamaTokenizer or GemmaTokenizer");
  sentencepiece_options options;
  options.add_bos = config.value("add_bos_token", json()) != false;  // these classes have it unless the file says no
  options.add_eos = config.value("add_eos_token", json()) == true;
  options.prefix_first_only = config.value("legacy", json()) == false;
  if (const json added = config.value("added_tokens_decoder", json()); added.is_object()) {
    for (const auto& [id, token] : added.items()) {
      const json content = token.is_object() ? token.value("content", json()) : json();
      if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos ||
          !content.is_string())
        refuse("with an added token '" + id.substr(0, 60) + "' that is no id with a content");
      const auto flag = [&](const char* name) { return token.value(name, json()) == true; };
      options.added.push_back({static_cast<token_id>(std::stol(id)), content.get<std::string>(), flag("single_word"),
                               flag("lstrip"), flag("rstrip"), false, flag("special")});
    }
  }
  const json more = read_json_object(folder / "added_tokens.json");
  for (const auto& [content, id] : more.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > 0x7fffffe)
      refuse("and added_tokens.json with '" + content.substr(0, 60) + "', which has no id");
    const auto same = [&](const added_token& t) { return t.content == content; };
    if (std::ranges::none_of(options.added, same))
      options.added.push_back({id.get<token_id>(), content, false, false, false, false, true});
  }
  return load_sentencepiece(folder / "tokenizer.model", options);
}

}  // namespace detail

/// The tokenizer of a model: of the file `path`, or of a folder with tokenizer.json, else with tokenizer.model of Llama's or Gemma's,
/// else with vocab.json and merges.txt that are GPT-2's or Qwen2's. Errors: as of `load_tokenizer` and `load_sentencepiece`;
/// `io_error` that names what else is there (spiece.model, vocab.txt, ...), or that there is nothing.
inline tokenizer load_model_tokenizer(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::is_directory(path, none) && path.extension() == ".model") return load_sentencepiece(path);
  if (!std::filesystem::is_directory(path, none) || std::filesystem::exists(path / "tokenizer.json"))
    return load_tokenizer(path);
  const std::vector<std::string> files = tokenizer_files(path);
  if (files.empty()) detail::unreadable_tokenizer(path, "has no tokenizer");
  if (std::ranges::count(files, "tokenizer.model") > 0) return detail::sentencepiece_folder(path);
  if (std::ranges::count(files, "vocab.json") > 0 && std::ranges::count(files, "merges.txt") > 0)
    return detail::gpt2_folder(path);
  std::string names;
  for (const std::string& file : files) names += (names.empty() ? "" : ", ") + file;
  detail::unreadable_tokenizer(path, "has " + names + ", which cannot be read");
}

}  // namespace heddle::inline v0::io
