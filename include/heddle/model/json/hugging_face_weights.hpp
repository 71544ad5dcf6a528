// heddle/model/json/hugging_face_weights.hpp: opens the weights of a Hugging Face folder and checks that a model reads
// all of them.
#pragma once

#include <heddle/model/json/hugging_face.hpp>
#include <heddle/model/read_parameters.hpp>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace heddle::inline v0::model {

/// The opened files with a model's weights, and the names that its parameters have in them. Opened once for all ranks: each reads its
/// part by an `io::safetensors_reader` of `folder`.
template <class Folder>
struct hugging_face_weights {
  Folder folder;
  hugging_face_names names;
};

/// Opens a folder's weights as `Folder`, which is `io::safetensors_folder`, and checks that a described model reads all tensors in them but
/// saved constants (`is_saved_constant`) and scales. Matrices in 8 bits read as their numbers times the scales of their blocks (`about.scales`).
/// Errors: those of opening; `config_error` where tensors belong to no parameter of the model, as those of another model; `io_error` where a
/// matrix in 8 bits has no scales, or others than its blocks need.
template <class Folder, class In, class Block, class Out, class Other>
hugging_face_weights<Folder> open_weights(const std::filesystem::path& path, const hugging_face_model& about,
                                          const layers::language_model<In, Block, Out, Other>& described) {
  Folder folder(path, about.scales);
  const hugging_face_names names = names_in(folder);
  require_all_read(described, folder.names(), names,
                   [&](std::string_view name) { return is_saved_constant(about, name) || folder.is_scales(name); });
  if (about.scales)  // before a rank begins to read
    for (const std::string& parameter : parameter_names(described))
      if (const std::string name = names(parameter).name; folder.contains(name)) static_cast<void>(folder.tensor(name));
  return {std::move(folder), names};
}

}  // namespace heddle::inline v0::model
