// heddle/infer/json/medusa_folder.hpp: heads of Medusa and their tree in a folder: safetensors, and JSON.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/medusa_heads.hpp>
#include <heddle/infer/token_tree.hpp>
#include <heddle/io/json/safetensors.hpp>
#include <heddle/io/json/safetensors_writer.hpp>
#include <heddle/io/json/strict.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// What `medusa_heads.json` of a folder says: `{"heads": K, "tree": [[0], [1], [0, 0], ...]}`, a path of ranks for each node (`token_tree`).
struct medusa_folder_settings {
  std::int64_t heads = 0;
  token_tree tree{};
};

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

/// Writes `medusa_heads.safetensors` with the tensors `medusa_head.K.norm.weight` [width], `medusa_head.K.0.linear.weight` [width, width] and `medusa_head.K.1.weight` [vocabulary, width] of each head K
/// from 0 on (`medusa_heads`), then `medusa_heads.json` (`medusa_folder_settings`). Errors: `io_error`.
template <class T, class Backend>
void write_medusa_folder(const std::filesystem::path& folder, medusa_heads<T, Backend>& heads, const token_tree& tree) {
  std::filesystem::create_directories(folder);
  std::vector<io::safetensors_output> tensors;
  detail::each_medusa_tensor(heads, [&](const std::string& name, std::span<T> values, std::vector<std::int64_t> shape) {
    tensors.push_back(io::safetensors_of(name, std::move(shape), std::span<const T>(values)));
  });
  io::write_safetensors(folder / "medusa_heads.safetensors", tensors);
  nlohmann::json paths = nlohmann::json::array();
  for (const token_tree::node& n : tree.nodes()) {
    nlohmann::json path = n.parent < 0 ? nlohmann::json::array() : paths[static_cast<std::size_t>(n.parent)];
    path.push_back(n.rank);
    paths.push_back(std::move(path));
  }
  const std::filesystem::path to = folder / "medusa_heads.json";
  std::ofstream file(to);
  file << nlohmann::json{{"heads", heads.heads()}, {"tree", std::move(paths)}}.dump() << "\n";
  if (!file.flush()) throw io_error("heddle: '" + to.string() + "' cannot be written");
}

/// Reads `medusa_heads.json`. Errors: `io_error` for what is no JSON, `config_error` for other members and for a tree that is none or deeper than the heads.
inline medusa_folder_settings read_medusa_settings(const std::filesystem::path& folder) {
  const std::filesystem::path from = folder / "medusa_heads.json";
  const nlohmann::json v = io::read_json(from);
  const auto wrong = [&](const std::string& what) { return config_error("heddle: '" + from.string() + "': " + what); };
  constexpr std::int64_t most_heads = 64, most_nodes = 4096, most_rank = 1'000'000'000;
  const auto whole = [&](const nlohmann::json& x, std::int64_t low, std::int64_t high) {
    return x.is_number_integer() && x >= low && x <= high;
  };
  if (!v.is_object() || !v.contains("heads") || !whole(v["heads"], 1, most_heads))
    throw wrong("'heads' should be a whole number from 1 to " + std::to_string(most_heads));
  if (!v.contains("tree") || !v["tree"].is_array() || v["tree"].empty() || std::ssize(v["tree"]) > most_nodes)
    throw wrong("'tree' should be an array of 1 to " + std::to_string(most_nodes) + " paths");
  medusa_folder_settings out{.heads = v["heads"].get<std::int64_t>()};
  std::vector<std::vector<std::int64_t>> paths;
  for (const nlohmann::json& p : v["tree"]) {
    if (!p.is_array() || std::ssize(p) > out.heads ||
        !std::all_of(p.begin(), p.end(), [&](const nlohmann::json& r) { return whole(r, 0, most_rank); }))
      throw wrong("a path of 'tree' should be an array of at most " + std::to_string(out.heads) + " ranks");
    paths.push_back(p.get<std::vector<std::int64_t>>());
  }
  out.tree = token_tree(std::move(paths));
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
