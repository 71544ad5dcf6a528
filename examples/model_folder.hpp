// examples/model_folder.hpp: what the tools read of a model's folder: config.json, whether the files have a head of their own, and the weights. JSON is read in
// model_folder.cpp, which is compiled once for all tools.
#pragma once

#include <heddle/mesh/mesh.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/any_config.hpp>
#include <heddle/model/any_stage.hpp>
#include <heddle/model/hugging_face_model.hpp>

#include "tool.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace heddle::inline v0::io {
class safetensors_folder;
}

/// The ranks of a tool: experts are split over ep, and heads and vocabulary of models with experts over ep and tp.
using tool_mesh = heddle::mesh<heddle::axis<heddle::dp>, heddle::axis<heddle::pp>, heddle::axis<heddle::ep>,
                               heddle::axis<heddle::tp>>;

/// The mesh of this text for a model. Errors: those of `parse_mesh` and of `require_expert_ranks`.
template <class Mesh = tool_mesh>
Mesh mesh_for(const std::string& text, const heddle::model::any_config& config) {
  const auto mesh = heddle::parse_mesh<Mesh>(text);
  heddle::model::require_expert_ranks(config, mesh.template extent<heddle::ep>());
  return mesh;
}
/// In words, without an ep of one rank.
template <class Mesh>
std::string words_of(const Mesh& mesh) {
  std::string words = heddle::to_string(mesh);
  if (mesh.template extent<heddle::ep>() == 1) words.erase(words.find(" x ep=1"), 7);
  return words;
}
/// Whether this rank has the first copy of what ranks along ep and tp share.
template <class World>
bool is_first_copy(const World& world) {
  return world.template coordinate<heddle::ep>() == 0 && world.template coordinate<heddle::tp>() == 0;
}

struct model_folder {
  std::shared_ptr<const nlohmann::json> config;
  heddle::model::hugging_face_model about;
  bool own_head = false;  ///< although config.json ties it to the token embedding
};

/// Reads config.json of `path`. Where it ties the head and the files have another one the head is used, as in transformers, and a line on
/// stderr says so. Another says how many bytes of quantised matrices become how many.
/// `blocks`: those that the model is to have, as in "0-3,8-11"; empty: all.
/// Errors: those of `from_config`, where `ignored_keys` go, and of `with_blocks`; `config_error` for an adapter; those of reading.
model_folder read_model_folder(const std::filesystem::path& path, const std::vector<std::string>& ignored_keys,
                               const std::string& blocks = {});

/// `--ignore-key` of a tool.
void add_ignored_keys(tool::command_line& app, std::vector<std::string>& ignored_keys);

/// `--blocks` of a tool.
void add_blocks(tool::command_line& app, std::string& blocks);

/// The opened files of a model with these parameters, of which each rank reads its part. Errors: as `model::open_weights`.
class model_weights {
 public:
  model_weights(const std::filesystem::path& path, const heddle::model::hugging_face_model& about,
                const std::vector<heddle::model::parameter_outline>& outlines);
  const heddle::io::safetensors_folder& folder() const noexcept { return *folder_; }
  const heddle::model::hugging_face_names& names() const noexcept { return names_; }
  /// Fills the weights of a stage, each of which is progress where `counts`, and returns the bytes read. For T of float and bf16 on the host.
  template <class T, class Space>
  std::int64_t read(heddle::model::any_weights<T, Space>& stage, tool::progress& shown, bool counts,
                    heddle::model::which_parameters which = heddle::model::which_parameters::all) const;

 private:
  std::shared_ptr<const heddle::io::safetensors_folder> folder_;
  heddle::model::hugging_face_names names_;
};

/// A line of JSON with these values; numbers that are none are null.
using json_value =
    std::variant<std::string, std::int64_t, double, std::vector<std::int64_t>, std::vector<std::vector<double>>>;
std::string json_line(const std::vector<std::pair<std::string, json_value>>& values);

#if defined(HEDDLE_EXAMPLE_ONE_UNIT)  // a program that is compiled as one file
#include "model_folder.cpp"
#endif
