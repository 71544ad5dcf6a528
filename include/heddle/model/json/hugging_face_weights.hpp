// heddle/model/json/hugging_face_weights.hpp: opens a folder of Hugging Face: its configuration, and its weights checked against a
// model.
#pragma once

#include <heddle/io/json/safetensors.hpp>
#include <heddle/model/json/hugging_face.hpp>
#include <heddle/model/read_parameters.hpp>

#include <filesystem>
#include <string_view>
#include <utility>

namespace heddle::inline v0::model {

/// The family and configuration that the `config.json` of a folder describes.
/// Errors: `io_error` where the file cannot be read, those of `from_config` with its path.
inline hugging_face_model from_folder(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  return from_config(io::read_json(path), "'" + path.string() + "'");
}

/// The opened files with a model's weights, and the names that its parameters have in them. Opened once for all ranks: each reads its
/// part by an `io::safetensors_reader` of `folder`.
struct hugging_face_weights {
  io::safetensors_folder folder;
  hugging_face_names names;
};

/// Opens the safetensors of a folder, or one file, and checks that a described model reads all tensors in them but saved constants
/// (`is_saved_constant`).
/// Errors: `io_error` as `io::safetensors_folder`; `config_error` where tensors belong to no parameter of the model, as those of another
/// model.
template <class In, class Block, class Out>
hugging_face_weights open_weights(const std::filesystem::path& path, const hugging_face_model& about,
                                  const layers::language_model<In, Block, Out>& described) {
  io::safetensors_folder folder(path);
  const hugging_face_names names = names_in(folder);
  require_all_read(described, folder.names(), names,
                   [&](std::string_view name) { return is_saved_constant(about, name); });
  return {std::move(folder), names};
}

}  // namespace heddle::inline v0::model
