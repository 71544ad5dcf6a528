// Indexes of safetensors folders: what is accepted names files of the same folder, and no tensor twice.
#if __has_include(<nlohmann/json.hpp>)
#include <heddle/io/safetensors/reader.hpp>

#include "fuzz.hpp"

#include <filesystem>
#include <string_view>

HEDDLE_FUZZ_TARGET(safetensors_index) {
  namespace io = heddle::io;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::accepted([&] {
    const nlohmann::json index = io::parse_json(text, "x");
    const auto files = io::parse_safetensors_index(index, "x");
    fuzz::require(files.size() == index["weight_map"].size(), "every tensor has one file");
    for (const auto& [tensor, file] : files) {
      const std::filesystem::path path(file);
      fuzz::require(!path.has_parent_path() && path.has_filename() && file.find('\0') == std::string::npos,
                    "a file lies in the folder");
    }
  });
}
#endif
