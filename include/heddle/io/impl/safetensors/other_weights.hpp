// heddle/io/impl/safetensors/other_weights.hpp: bodies of heddle/io/safetensors/other_weights.hpp.
#pragma once

#include <heddle/io/safetensors/other_weights.hpp>
#include <heddle/core/shown_name.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace heddle::inline v0::io::detail {

HEDDLE_INLINE std::string other_weights(const std::filesystem::path& folder) {
  // The kinds of files, those first that say most of the folder: how a name begins and ends, and what to do.
  constexpr const char* save_again =
      ", which is not read: save the model as safetensors, by from_pretrained() and save_pretrained() of transformers";
  constexpr const char* merge =
      " of an adapter, which is no model: merge it into its model, by merge_and_unload() and save_pretrained() of "
      "peft's model";
  struct kind {
    const char *begin, *end, *advice;
  };
  constexpr kind kinds[] = {
      {"adapter_config", ".json", merge},
      {"adapter_model", "", merge},
      {"pytorch_model", ".bin", save_again},
      {"pytorch_model", ".bin.index.json", save_again},
      {"tf_model", ".h5", save_again},
      {"flax_model", ".msgpack", save_again},
      {"", ".safetensors.index.json", ": an index is read under the name model.safetensors.index.json"},
      {"", ".safetensors", ": one file is read under the name model.safetensors, several by their index"},
      {"", ".gguf",
       ", which is not read: take the safetensors that it was made from, or save them by from_pretrained(FOLDER, "
       "gguf_file=NAME) and save_pretrained() of transformers"},
      {"", ".pth", ", which is not read: convert it to a folder of transformers, with safetensors"},
  };
  std::vector<std::string> names;
  std::error_code ec;
  for (std::filesystem::directory_iterator at(folder, ec), end; !ec && at != end; at.increment(ec))
    names.push_back(at->path().filename().string());
  std::sort(names.begin(), names.end());
  for (const kind& k : kinds)
    for (const std::string& name : names) {
      const std::string begin = k.begin, end = k.end;
      if (name.size() >= begin.size() + end.size() && name.compare(0, begin.size(), begin) == 0 &&
          name.compare(name.size() - end.size(), end.size(), end) == 0)
        return "; it has '" + shown_name(name) + "'" + k.advice;
    }
  return {};
}

}  // namespace heddle::inline v0::io::detail
