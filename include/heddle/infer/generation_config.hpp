// heddle/infer/generation_config.hpp: end tokens and sampling defaults of a folder.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/io/json/strict.hpp>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace heddle::inline v0::infer {

/// The tokens that end answers, and the file that names them; both empty where none does.
struct end_token_list {
  std::vector<std::int32_t> ids{};
  std::string file{};  ///< its name in the folder
  friend bool operator==(const end_token_list&, const end_token_list&) = default;
};

/// Defaults of sampling, and what they come from in words; empty words where the folder has none.
struct sampling_defaults {
  sampling_options options{};
  std::string about{};
  friend bool operator==(const sampling_defaults&, const sampling_defaults&) = default;
};

/// The end tokens of a folder as transformers' `generate` takes them: `eos_token_id` of generation_config.json alone where it names some,
/// else of config.json (where `generate` has none if generation_config.json is there without any). Errors: `io_error` for files that cannot be read; `config_error` for ids that are none.
inline end_token_list read_end_tokens(const std::filesystem::path& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const nlohmann::json file = io::read_json_object(folder / name);
    const nlohmann::json of = file.value("eos_token_id", nlohmann::json());
    if (of.is_null()) continue;
    end_token_list out{{}, name};
    for (const nlohmann::json& id : of.is_array() ? of : nlohmann::json::array({of})) {
      if (!id.is_number_integer() || id.get<std::int64_t>() < 0 ||
          id.get<std::int64_t>() > (std::numeric_limits<std::int32_t>::max)())
        throw config_error("heddle: '" + (folder / name).string() +
                           "', key 'eos_token_id': expected ids of tokens, got " + of.dump().substr(0, 60));
      out.ids.push_back(id.get<std::int32_t>());
    }
    if (!out.ids.empty()) return out;
  }
  return {};
}

/// The defaults of sampling that generation_config.json of a folder names: temperature, top_k, top_p, min_p and repetition_penalty; greedy
/// where it says `"do_sample": false`. Errors: `io_error` for a file that cannot be read; `config_error` for numbers out of their range.
inline sampling_defaults read_sampling_defaults(const std::filesystem::path& folder) {
  const auto path = folder / "generation_config.json";
  const nlohmann::json file = io::read_json_object(path);
  sampling_defaults out;
  sampling_options& o = out.options;
  std::ostringstream about;
  const auto number = [&](const char* key) -> const nlohmann::json* {
    const auto at = file.find(key);
    if (at == file.end() || at->is_null()) return nullptr;
    if (!at->is_number())
      throw config_error("heddle: '" + path.string() + "', key '" + key + "': expected a number, got " +
                         at->dump().substr(0, 60));
    about << (about.tellp() > 0 ? ", " : "") << key << ' ' << at->get<double>();
    return &*at;
  };
  if (file.value("do_sample", nlohmann::json()) == false) {
    about << "greedy (do_sample false)";
    o.temperature = 0;
  } else if (const auto* t = number("temperature")) {
    o.temperature = t->get<double>();
  }
  if (const auto* k = number("top_k")) o.top_k = k->get<std::int64_t>() < 0 ? 0 : k->get<std::int64_t>();
  if (const auto* p = number("top_p")) o.top_p = p->get<double>();
  if (const auto* p = number("min_p")) o.min_p = p->get<double>();
  if (const auto* p = number("repetition_penalty")) o.repetition_penalty = p->get<double>();
  try {
    require_request({.prompt = {0}, .sampling = o}, 1, 2);
  } catch (const request_error& e) {
    throw config_error("heddle: '" + path.string() + "': " + std::string(without_prefix(e.what())));
  }
  out.about = about.str();
  return out;
}

}  // namespace heddle::inline v0::infer
