// examples/model_folder.cpp: reads folders of models for all tools.
#include "model_folder.hpp"

#include <heddle/core/half_precision.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/model/hugging_face/config.hpp>
#include <heddle/model/hugging_face/weights.hpp>
#include <heddle/model/kept_blocks.hpp>
#include <heddle/model/read_parameters.hpp>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <system_error>

namespace md = heddle::model;

model_folder read_model_folder(const std::filesystem::path& path, const std::vector<std::string>& ignored_keys,
                               const std::string& blocks) {
  md::require_no_adapter(path);
  const auto file = path / "config.json";
  model_folder found{.config = std::make_shared<const nlohmann::json>(heddle::io::read_json(file)), .about = {}};
  found.about = md::with_blocks(md::from_config(*found.config, "'" + file.string() + "'", ignored_keys), blocks);
  std::error_code none;
  const auto there = [&](const char* name) { return std::filesystem::exists(path / name, none); };
  if (!(found.about.tied || found.about.scales) ||
      !(there("model.safetensors") || there("model.safetensors.index.json")))
    return found;
  const heddle::io::safetensors_folder files(path, found.about.scales);
  if (const auto q = files.quantized(); q.matrices > 0)
    std::fprintf(stderr,
                 "'%s': %lld matrices in fewer bits, %lld bytes, are widened as they are read: %lld elements, %lld "
                 "bytes in bf16, %lld in f32\n",
                 path.c_str(), static_cast<long long>(q.matrices), static_cast<long long>(q.stored_bytes),
                 static_cast<long long>(q.elements), static_cast<long long>(2 * q.elements),
                 static_cast<long long>(4 * q.elements));
  if (!found.about.tied) return found;
  found.about = md::with_own_head(found.about, files);
  found.own_head = !found.about.tied;
  if (found.own_head)
    std::fprintf(stderr,
                 "'%s' ties the head to the token embedding, and the files have another lm_head.weight: the head of "
                 "the files is used\n",
                 file.c_str());
  return found;
}

void add_ignored_keys(tool::command_line& app, std::vector<std::string>& ignored_keys) {
  app.add_option("--ignore-key", ignored_keys,
                 "a key of config.json that is not known and changes nothing in the model")
      ->take_all();
}

void add_blocks(tool::command_line& app, std::string& blocks) {
  app.add_option("--blocks", blocks, "blocks of the model, as in 0-3,8-11, without the others")->otherwise("all");
}

model_weights::model_weights(const std::filesystem::path& path, const md::hugging_face_model& about,
                             const std::vector<md::parameter_outline>& outlines) {
  auto opened = md::open_weights<heddle::io::safetensors_folder>(path, about, outlines);
  folder_ = std::make_shared<const heddle::io::safetensors_folder>(std::move(opened.folder));
  names_ = std::move(opened.names);
}
template <class T, class Space>
std::int64_t model_weights::read(md::any_weights<T, Space>& stage, tool::progress& shown, bool counts,
                                 md::which_parameters which) const {
  const heddle::io::safetensors_reader reader(*folder_);
  md::read_parameters(stage, reader, tool::counted(names_, shown, counts), which);
  return reader.bytes_read();
}
#if !defined(HEDDLE_EXAMPLE_ONE_UNIT)
template std::int64_t model_weights::read(md::any_weights<float>&, tool::progress&, bool, md::which_parameters) const;
#endif

std::string json_line(const std::vector<std::pair<std::string, json_value>>& values) {
  nlohmann::json line;
  for (const auto& [name, value] : values) std::visit([&, &to = line[name]](const auto& v) { to = v; }, value);
  return line.dump();
}
