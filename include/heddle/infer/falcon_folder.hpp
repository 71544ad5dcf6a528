// heddle/infer/falcon_folder.hpp: a drafter of Falcon and its tree in a folder of files.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/token_tree.hpp>
#include <heddle/infer/token_tree_json.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/io/safetensors/writer.hpp>
#include <heddle/model/falcon_drafter.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// What `falcon_drafter.json` of a folder says: the sizes of the drafter by their names (`model::falcon_shape`), and `"tree": [[0], [1], [0, 0], ...]`, a path of ranks for each node (`token_tree`).
struct falcon_folder_settings {
  model::falcon_shape shape{};
  token_tree tree{};
};

namespace detail {
// Calls f(name, values, shape) for each tensor of a drafter; norms and biases are vectors.
template <class Drafter, class F>
void each_falcon_tensor(Drafter& drafter, F&& f) {
  for (std::size_t p = 0; p < Drafter::parts; ++p) {
    const auto [rows, columns] = drafter.extent(p);
    f(std::string(Drafter::names[p]), drafter.weights(p),
      Drafter::is_vector(p) ? std::vector<std::int64_t>{columns} : std::vector<std::int64_t>{rows, columns});
  }
}
inline std::string shown_shape(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t e : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(e);
  return text + "]";
}
}  // namespace detail

/// Writes `falcon_drafter.safetensors` with all that is trained of a drafter, by `falcon_drafter::names`, then
/// `falcon_drafter.json` (`falcon_folder_settings`). Embedding, head and final norm are the
/// model's and are not written. Errors: `io_error`.
template <class T, class Backend>
void write_falcon_weights(const std::filesystem::path& folder, model::falcon_drafter<T, Backend>& drafter,
                          const token_tree& tree) {
  io::detail::make_folder(folder);
  std::vector<io::safetensors_output> tensors;
  detail::each_falcon_tensor(
      drafter, [&](const std::string& name, std::span<T> values, std::vector<std::int64_t> shape) {
        tensors.push_back(io::safetensors_of(name, std::move(shape), std::span<const T>(values)));
      });
  io::write_safetensors(folder / "falcon_drafter.safetensors", tensors);
  const model::falcon_shape& s = drafter.shape();
  detail::write_settings(folder / "falcon_drafter.json", {{"width", s.width},
                                                          {"heads", s.heads},
                                                          {"ffn", s.ffn},
                                                          {"vocabulary", s.vocabulary},
                                                          {"block", s.block},
                                                          {"context", s.context},
                                                          {"epsilon", s.epsilon},
                                                          {"theta", s.theta},
                                                          {"tree", detail::paths_of(tree)}});
}

/// Reads `falcon_drafter.json`. Errors: `io_error` for what is no JSON; `config_error` that names the file and
/// the member for members that are not these, for other values, for sizes that no drafter has,
/// and for a tree that is none, or deeper than 64 or the context.
inline falcon_folder_settings read_falcon_settings(const std::filesystem::path& folder) {
  const detail::strict_settings from(folder / "falcon_drafter.json", {"width", "heads", "ffn", "vocabulary", "block",
                                                                      "context", "epsilon", "theta", "tree"});
  constexpr std::int64_t most_width = 65536, most = std::int64_t{1} << 24, most_context = std::int64_t{1} << 20,
                         most_block = 64, deepest = 64;
  falcon_folder_settings out;
  model::falcon_shape& s = out.shape;
  s.width = from.whole("width", 1, most_width);
  s.heads = from.whole("heads", 1, most_width);
  s.ffn = from.whole("ffn", 1, most);
  s.vocabulary = from.whole("vocabulary", 1, most);
  s.block = from.whole("block", 1, most_block);
  s.context = from.whole("context", 1, most_context);
  s.epsilon = from.positive("epsilon");
  s.theta = from.positive("theta");
  if (s.width % (2 * s.heads) != 0)
    throw from.wrong("'width' should be an even number for each of 'heads', got " + std::to_string(s.width) + " and " +
                     std::to_string(s.heads));
  out.tree = from.tree((std::min)(deepest, s.context));
  return out;
}

/// Refuses a drafter that is not for a model of this width, vocabulary and epsilon of its final norm, or has other tensors than its settings say.
/// Looks at no weights, so that a drafter is made only of settings that the file of its weights bears out. Errors:
/// `config_error` that names file, member, what was expected and got; `io_error` for a damaged file.
inline void require_falcon_fits(const std::filesystem::path& folder, const model::falcon_shape& s, std::int64_t width,
                                std::int64_t vocabulary, double epsilon) {
  const auto wrong = [&](const char* member, const std::string& expected, const std::string& got) {
    return config_error("heddle: '" + (folder / "falcon_drafter.json").string() + "': '" + member + "' should be " +
                        expected + " as the model's, got " + got);
  };
  if (s.width != width) throw wrong("width", std::to_string(width), std::to_string(s.width));
  if (s.vocabulary != vocabulary) throw wrong("vocabulary", std::to_string(vocabulary), std::to_string(s.vocabulary));
  if (s.epsilon != epsilon) throw wrong("epsilon", nlohmann::json(epsilon).dump(), nlohmann::json(s.epsilon).dump());
  const std::filesystem::path weights = folder / "falcon_drafter.safetensors";
  const io::safetensors_file file(weights);
  if (constexpr const char* down = "mlp.down_proj.weight"; file.contains(down)) {
    const auto shape = file.tensor(down).shape();
    if (!std::ranges::equal(shape, std::array{s.width, s.ffn}))
      throw config_error("heddle: '" + (folder / "falcon_drafter.json").string() +
                         "': 'ffn' should be the columns of '" + down + "' of '" + weights.string() + "', " +
                         detail::shown_shape(shape) + ", got " + std::to_string(s.ffn));
  }
}

/// Fills a drafter from `falcon_drafter.safetensors` of a folder. Errors: `config_error` that names the file and
/// the tensor for one that is not there, one of another shape than this drafter has, and one
/// that no drafter has; `io_error` for a damaged file.
template <class T, class Backend>
void read_falcon_weights(const std::filesystem::path& folder, model::falcon_drafter<T, Backend>& drafter) {
  const std::filesystem::path from = folder / "falcon_drafter.safetensors";
  const io::safetensors_file file(from);
  const auto wrong = [&](std::string_view tensor, const std::string& what) {
    return config_error("heddle: '" + from.string() + "', tensor '" + shown_name(tensor) + "': " + what);
  };
  std::set<std::string, std::less<>> known;
  // All is looked at before anything is read, so that a drafter that throws is as it was.
  detail::each_falcon_tensor(
      drafter, [&](const std::string& name, std::span<T>, const std::vector<std::int64_t>& shape) {
        known.insert(name);
        if (!file.contains(name))
          throw wrong(name, "should be there with the shape " + detail::shown_shape(shape) + ", the file has " +
                                std::to_string(file.tensors().size()) + " others");
        const io::safetensors_tensor tensor = file.tensor(name);
        if (!std::ranges::equal(tensor.shape(), shape))
          throw wrong(name, "should have the shape " + detail::shown_shape(shape) + ", got " +
                                detail::shown_shape(tensor.shape()));
      });
  for (const io::safetensors_entry& e : file.tensors())
    if (!known.contains(e.name))
      throw wrong(e.name, "a drafter has none of this name, but " + std::to_string(known.size()) + " others");
  detail::each_falcon_tensor(drafter, [&](const std::string& name, std::span<T> to, const std::vector<std::int64_t>&) {
    file.tensor(name).read(0, to);
  });
}

}  // namespace heddle::inline v0::infer
