// examples/model_folder.hpp: what the tools read of a model's folder before its weights: config.json, and whether the files have a head of their own.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/json/safetensors.hpp>
#include <heddle/model/json/hugging_face.hpp>
#include <heddle/model/json/hugging_face_weights.hpp>

#include "tool.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

struct model_folder {
  nlohmann::json config;
  heddle::model::hugging_face_model about;
  bool own_head = false;  ///< although config.json ties it to the token embedding
};

/// Reads config.json of `path`. Where it ties the head and the files have another one the head is used, as in transformers, and a line on
/// stderr says so.
/// Errors: those of `from_config`, where `ignored_keys` go; `config_error` for an adapter; those of reading.
inline model_folder read_model_folder(const std::filesystem::path& path, const std::vector<std::string>& ignored_keys) {
  namespace md = heddle::model;
  md::require_no_adapter(path);
  const auto file = path / "config.json";
  model_folder found{.config = heddle::io::read_json(file), .about = {}};
  found.about = md::from_config(found.config, "'" + file.string() + "'", ignored_keys);
  std::error_code none;
  const auto there = [&](const char* name) { return std::filesystem::exists(path / name, none); };
  if (!found.about.tied || !(there("model.safetensors") || there("model.safetensors.index.json"))) return found;
  found.about = md::with_own_head(found.about, heddle::io::safetensors_folder(path, found.about.scales));
  found.own_head = !found.about.tied;
  if (found.own_head)
    std::fprintf(stderr,
                 "'%s' ties the head to the token embedding, and the files have another lm_head.weight: the head of "
                 "the files is used\n",
                 file.c_str());
  return found;
}

/// `--ignore-key` of a tool.
inline void add_ignored_keys(tool::command_line& app, std::vector<std::string>& ignored_keys) {
  app.add_option("--ignore-key", ignored_keys,
                 "a key of config.json that is not known and changes nothing in the model")
      ->take_all();
}
