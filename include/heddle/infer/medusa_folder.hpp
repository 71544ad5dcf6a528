// heddle/infer/medusa_folder.hpp: heads of Medusa and their tree in a folder of files.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/medusa_heads.hpp>
#include <heddle/infer/token_tree.hpp>
#include <heddle/infer/token_tree_json.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/io/safetensors/writer.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

namespace detail {
// Calls f(name, values, shape) for each tensor of each head.
template <class Heads, class F>
void each_medusa_tensor(Heads& heads, F&& f) {
  for (std::int64_t k = 0; k < heads.heads(); ++k) {
    const std::string head = "medusa_head." + std::to_string(k);
    f(head + ".norm.weight", heads.norm(k), std::vector<std::int64_t>{heads.width()});
    f(head + ".0.linear.weight", heads.square(k), std::vector<std::int64_t>{heads.width(), heads.width()});
    f(head + ".1.weight", heads.words(k), std::vector<std::int64_t>{heads.vocabulary(), heads.width()});
  }
}
}  // namespace detail

/// Writes `medusa_heads.safetensors` with the tensors `medusa_head.K.norm.weight` [width],
/// `medusa_head.K.0.linear.weight` [width, width] and `medusa_head.K.1.weight` [vocabulary, width] of each head K
/// from 0 on (`medusa_heads`), then `medusa_heads.json` (`medusa_folder_settings`). Errors: `io_error`.
template <class T, class Backend>
void write_medusa_folder(const std::filesystem::path& folder, medusa_heads<T, Backend>& heads, const token_tree& tree) {
  io::detail::make_folder(folder);
  std::vector<io::safetensors_output> tensors;
  detail::each_medusa_tensor(heads, [&](const std::string& name, std::span<T> values, std::vector<std::int64_t> shape) {
    tensors.push_back(io::safetensors_of(name, std::move(shape), std::span<const T>(values)));
  });
  io::write_safetensors(folder / "medusa_heads.safetensors", tensors);
  detail::write_settings(folder / "medusa_heads.json", {{"heads", heads.heads()}, {"tree", detail::paths_of(tree)}});
}

/// What `medusa_heads.json` of a folder says: `{"heads": K, "tree": [[0], [1], [0, 0], ...]}`, a path of ranks for each node (`token_tree`).
struct medusa_folder_settings {
  std::int64_t heads = 0;
  token_tree tree{};
};

/// Reads `medusa_heads.json`. Errors: `io_error` for what is no JSON; `config_error` that names the file and
/// the member for members that are not these, for other values, and for a tree that is none or
/// deeper than the heads.
inline medusa_folder_settings read_medusa_settings(const std::filesystem::path& folder) {
  const detail::strict_settings from(folder / "medusa_heads.json", {"heads", "tree"});
  medusa_folder_settings out{.heads = from.whole("heads", 1, 64)};
  out.tree = from.tree(out.heads);
  return out;
}

/// Fills heads from `medusa_heads.safetensors` of a folder. Errors: `config_error` for a tensor of another shape than these heads have, `io_error` for one that is not there.
template <class T, class Backend>
void read_medusa_heads(const std::filesystem::path& folder, medusa_heads<T, Backend>& heads) {
  const std::filesystem::path from = folder / "medusa_heads.safetensors";
  const io::safetensors_file file(from);
  detail::each_medusa_tensor(
      heads, [&](const std::string& name, std::span<T> to, const std::vector<std::int64_t>& shape) {
        const io::safetensors_tensor tensor = file.tensor(name);
        if (!std::ranges::equal(tensor.shape(), shape))
          throw config_error("heddle: " + tensor.where() + " should have " + std::to_string(std::ssize(to)) +
                             " elements for a model of width " + std::to_string(heads.width()) + " and " +
                             std::to_string(heads.vocabulary()) + " tokens, it has " +
                             std::to_string(tensor.entry().count()));
        tensor.read(0, to);
      });
}

}  // namespace heddle::inline v0::infer
