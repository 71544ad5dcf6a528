// heddle/io/chat/folder.hpp: a folder's chat template, and the tokens it is given.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/io/tokenizer/load.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace heddle::inline v0::io {

/// A chat template as a folder has it.
struct chat_template_source {
  std::string text{};  ///< jinja
  std::string file{};  ///< that it was read from
  friend bool operator==(const chat_template_source&, const chat_template_source&) = default;
};

namespace detail {
// A member of tokenizer_config.json that is a token: its text.
inline std::string token_text(const nlohmann::json& config, const char* name) {
  const auto at = config.find(name);
  if (at == config.end()) return {};
  if (at->is_object()) return token_text(*at, "content");
  return at->is_string() ? at->get<std::string>() : std::string();
}

}  // namespace detail

/// The chat template of a folder as transformers finds it: chat_template.jinja, else that of tokenizer_config.json (of several the one named
/// "default"), else that of chat_template.json; none if there is none. Errors: `io_error` for files that cannot be read.
inline std::optional<chat_template_source> read_chat_template(const std::filesystem::path& folder) {
  if (const auto file = folder / "chat_template.jinja"; std::filesystem::exists(file))
    return chat_template_source{detail::whole_file(file), file.string()};
  for (const char* name : {"tokenizer_config.json", "chat_template.json"}) {
    const auto file = folder / name;
    const nlohmann::json config = read_json_object(file);
    const auto at = config.find("chat_template");
    if (at == config.end() || at->is_null()) continue;
    if (at->is_string()) return chat_template_source{at->get<std::string>(), file.string()};
    if (const auto one = at->find("default"); at->is_object() && one != at->end() && one->is_string())
      return chat_template_source{one->get<std::string>(), file.string()};
    for (const nlohmann::json& one : *at)
      if (one.is_object() && one.value("name", nlohmann::json()) == "default" && one.contains("template") &&
          one["template"].is_string())
        return chat_template_source{one["template"].get<std::string>(), file.string()};
    return chat_template_source{{}, file.string()};
  }
  return std::nullopt;
}

/// What a template takes of the files of a folder's tokenizer: the texts of `bos_token`, `eos_token` and the like, those that there are.
/// Errors: `io_error` for files that cannot be read.
inline nlohmann::ordered_json template_tokens(const std::filesystem::path& folder) {
  nlohmann::json tokens = read_json_object(folder / "tokenizer_config.json");
  if (!tokens.contains("added_tokens_decoder")) tokens.update(read_json_object(folder / "special_tokens_map.json"));
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
    if (std::string text = detail::token_text(tokens, name); !text.empty()) out[name] = std::move(text);
  return out;
}

}  // namespace heddle::inline v0::io
