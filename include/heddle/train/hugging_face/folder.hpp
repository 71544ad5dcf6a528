// heddle/train/hugging_face/folder.hpp: writes stages' weights for Hugging Face.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/io/output_folder.hpp>
#include <heddle/io/safetensors/parts.hpp>
#include <heddle/model/hugging_face/config.hpp>
#include <heddle/model/write_parameters.hpp>
#include <heddle/train/nonfinite.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

namespace heddle::inline v0::train {

/// The element type of a model's files, as safetensors call it, from the `dtype` (or `torch_dtype`) of its config.json; "F32" without.
/// Errors: `config_error` for a type that is not written.
inline std::string dtype_in_config(const nlohmann::json& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto at = config.find(key);
    if (at == config.end() || at->is_null()) continue;
    if (*at == "float32") return "F32";
    if (*at == "float64") return "F64";
    if (*at == "bfloat16") return "BF16";
    if (*at == "float16") return "F16";
    throw config_error("heddle: config.json, key '" + std::string(key) +
                       "': expected \"float32\", \"bfloat16\", \"float16\" or \"float64\", got " + at->dump());
  }
  return "F32";
}

namespace detail {

// In which order a mixture of experts is cut into files, and what is not cut apart. transformers 5 has the experts of a block joined, in two
// tensors; it sorts names, with numbers by value, before it takes them apart, and what it has taken from one tensor, w1 of all experts say,
// stays together.
struct cut_key {
  std::vector<std::string> words;  // numbers begin with their length, so that they compare by value
  std::string unit{};

  explicit cut_key(const std::string& name) {
    std::string rest = name;
    if (const auto at = rest.find(".block_sparse_moe."); at != rest.npos) rest.replace(at, 18, ".mlp.");
    for (std::size_t at = 0; at <= rest.size();) {
      const std::size_t end = (std::min)(rest.find('.', at), rest.size());
      std::string word = rest.substr(at, end - at);
      if (!word.empty() && word.find_first_not_of("0123456789") == word.npos)
        word.insert(0, 1, static_cast<char>(word.size()));
      words.push_back(std::move(word));
      at = end + 1;
    }
    const auto experts = std::find(words.begin(), words.end(), "experts");
    if (words.end() - experts < 3) return;
    const std::string expert = experts[1], part = experts[2];
    words.erase(experts + 1, words.end());
    if (part == "w2" || part == "down_proj")
      words.push_back("down_proj");
    else
      words.insert(words.end(), {"gate_up_proj", part == "w1" || part == "gate_proj" ? "0" : "1"});
    for (const std::string& word : words) unit += word + ".";
    words.push_back(expert);
  }
};

inline std::vector<io::safetensors_outline> in_order_of_cuts(std::vector<io::safetensors_outline> tensors) {
  const auto is_of_expert = [](const auto& t) {
    const std::size_t at = t.name.find(".experts.");
    return at != std::string::npos && t.name.substr(at + 9, 1).find_first_of("0123456789") == 0;
  };
  if (std::none_of(tensors.begin(), tensors.end(), is_of_expert)) return tensors;
  std::vector<std::pair<cut_key, io::safetensors_outline>> keyed;
  for (io::safetensors_outline& t : tensors) {
    cut_key key(t.name);
    t.unit = key.unit;
    keyed.emplace_back(std::move(key), std::move(t));
  }
  std::sort(keyed.begin(), keyed.end(), [](const auto& a, const auto& b) { return a.first.words < b.first.words; });
  tensors.clear();
  for (auto& [key, tensor] : keyed) tensors.push_back(std::move(tensor));
  return tensors;
}

}  // namespace detail

/// The files of a model of Hugging Face: each of these parameters under the name that `names.written()` has for it, in the order of transformers'
/// state dict (of mixtures, the one in which it cuts them), with elements of type `dtype`. Files hold at most `most_bytes` of data.
/// Errors: `io_error` for an unknown type.
inline io::safetensors_plan hugging_face_plan(std::vector<model::parameter_outline> parameters,
                                              const model::hugging_face_names& names, const std::string& dtype,
                                              std::int64_t most_bytes = 5000000000) {
  std::vector<io::safetensors_outline> tensors;
  std::map<std::string, std::size_t> stacks;
  const model::hugging_face_names written = names.written();
  for (model::parameter_outline& p : model::hugging_face_order(std::move(parameters))) {
    const model::source_name to = written(p.name);
    if (to.is_piece()) {
      const auto [at, is_first] = stacks.try_emplace(to.name, tensors.size());
      if (is_first) tensors.push_back({to.name, dtype, {}});
      model::detail::extend_shape(tensors[at->second].shape, std::move(p.shape), to);
      continue;
    }
    const bool goes_on = to.rows != model::rows_in_tensor::all && to.rows != model::rows_in_tensor::first;
    if (goes_on && !tensors.empty() && tensors.back().name == to.name)
      tensors.back().shape[0] += p.shape[0];
    else
      tensors.push_back({to.name, dtype, std::move(p.shape)});
  }
  if (names.fused)  // the products of heads and of outputs are the other way round there
    for (std::size_t i = 1; i < tensors.size(); ++i)
      if (tensors[i].name.ends_with(".o_proj.weight")) std::swap(tensors[i - 1], tensors[i]);
  return io::safetensors_plan(detail::in_order_of_cuts(std::move(tensors)), most_bytes);
}
/// The same for all parameters of a described model.
template <class Description>
  requires requires(const Description& d) { d.block_name; }
io::safetensors_plan hugging_face_plan(const Description& described, const model::hugging_face_names& names,
                                       const std::string& dtype, std::int64_t most_bytes = 5000000000) {
  return hugging_face_plan(model::parameter_outlines(described), names, dtype, most_bytes);
}

namespace detail {
inline std::string text_of_file(const std::filesystem::path& path) {
  std::error_code ec;
  const auto size = std::filesystem::file_size(path, ec);
  if (ec) throw io_error("heddle: cannot read '" + path.string() + "': " + ec.message());
  const auto bytes = io::read_bytes(path, 0, static_cast<std::int64_t>(size));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
}  // namespace detail

namespace detail {
// Says in a config.json that the model has its kept blocks alone, and of which kinds they are.
inline void say_blocks(nlohmann::json& config, const model::hugging_face_model& about) {
  config[about.family() == "gpt2" ? "n_layer" : "num_hidden_layers"] = about.kept.numbers.size();
  for (const char* key : {"layer_types", "no_rope_layers", "mlp_layer_types"}) {
    const auto list = config.find(key);
    if (list == config.end() || !list->is_array() || list->size() < static_cast<std::size_t>(about.kept.all)) continue;
    nlohmann::json of_kept = nlohmann::json::array();
    for (const int block : about.kept.numbers) of_kept.push_back((*list)[static_cast<std::size_t>(block)]);
    *list = std::move(of_kept);
  }
  std::visit(
      [&](const auto& c) {
        if constexpr (requires { c.still_every; }) config["no_rope_layer_interval"] = c.still_every;
        if constexpr (requires { c.dense_ffn; }) config["first_k_dense_replace"] = c.dense;
        if constexpr (requires { c.score_cap; } || requires { c.global_every, c.experts; }) {  // said by the list alone
          nlohmann::json& types = config["layer_types"] = nlohmann::json::array();
          for (int layer = 1; layer <= c.layers; ++layer)
            types.push_back(layer % c.global_every == 0 ? "full_attention" : "sliding_attention");
        } else if constexpr (requires { c.global_every; }) {
          config.erase("_sliding_window_pattern");
          config["sliding_window_pattern"] = c.global_every;
        }
      },
      about.config);
}
}  // namespace detail

/// The text of a folder's config.json for weights that are written again. A `quantization_config` is left out: they are numbers, not in 8
/// bits. `own_head`: the weights have a head although the config.json ties it to the token embedding (`model::with_own_head`), and the text
/// says that they have. `about`: the model that is written where it has not all blocks (`model::with_blocks`); the text says which it has.
/// Errors: `io_error` if it cannot be read, or is no JSON.
inline std::string written_config(const std::filesystem::path& from, bool own_head = false,
                                  const model::hugging_face_model& about = {}) {
  nlohmann::json config = io::read_json(from / "config.json");
  const bool fewer = !about.kept.numbers.empty();
  if (config.is_object() && (config.erase("quantization_config") > 0 || own_head || fewer)) {
    if (fewer) detail::say_blocks(config, about);
    if (own_head) config["tie_word_embeddings"] = false;
    return config.dump(2) + "\n";
  }
  return detail::text_of_file(from / "config.json");
}

/// Writes a small file of a model's folder: it is there whole or not at all. Errors: `io_error`.
inline void write_model_file(const std::filesystem::path& path, std::string_view text) {
  io::detail::write_whole_file(path, [&](io::durable_file& file) { file.write(text); });
}

/// Copies the files of tokenizer and generation, licenses and notices (`io::is_beside_weights`). Errors: `io_error` if one cannot be copied.
inline void copy_side_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  io::detail::make_folder(to);
  std::error_code ec;
  for (std::filesystem::directory_iterator at(from, ec), end; !ec && at != end; at.increment(ec)) {
    const std::filesystem::path& path = at->path();
    std::error_code other;
    if (!io::is_beside_weights(path.filename().string()) || !std::filesystem::is_regular_file(path, other) ||
        std::filesystem::equivalent(path, to / path.filename(), other))
      continue;
    write_model_file(to / path.filename(), detail::text_of_file(path));
  }
  if (ec) throw io_error("heddle: cannot read the folder '" + from.string() + "': " + ec.message());
}

/// Copies what a folder of Hugging Face has beside the weights: `copy_side_files`, then `written_config`. Where the folder is to be whole or not
/// there, write them by these, config.json last, into an `io::output_folder`.
/// Errors: `io_error` if a file cannot be copied, and for a config.json that is no JSON.
inline void copy_model_files(const std::filesystem::path& from, const std::filesystem::path& to,
                             bool own_head = false) {
  copy_side_files(from, to);
  std::error_code ec;
  if (!std::filesystem::equivalent(from / "config.json", to / "config.json", ec))
    write_model_file(to / "config.json", written_config(from, own_head));
}

/// The plan with the types that tensors have in `folder`, an `io::safetensors_folder`, where these are F32, BF16 or F16. `most_bytes` as for the
/// plan, `kept` the blocks of the folder that it has. Errors: as those of `hugging_face_plan`.
template <class Folder>
io::safetensors_plan with_types_of(const Folder& folder, const io::safetensors_plan& plan, std::int64_t most_bytes,
                                   const model::kept_blocks& kept = {}) {
  auto tensors = plan.tensors();
  for (io::safetensors_outline& t : tensors)
    if (const auto type = folder.tensor(model::name_in_files(kept, t.name)).dtype();
        type == "F32" || type == "BF16" || type == "F16")
      t.dtype = type;
  return io::safetensors_plan(std::move(tensors), most_bytes);
}

/// Writes a folder of Hugging Face from the stages of all ranks: `write(sink)` writes what this rank has, as `model::write_parameters` does.
/// Called on all ranks of `world` together. Each rank writes its own bytes into the shared files, nothing is gathered; the files get their
/// names when all have written, the index last. The folder must be one that all ranks see. Returns the bytes of elements that this rank
/// wrote.
/// Errors: `io_error` on all ranks: the folder has a model, elements were left out or written twice, or the disk refuses.
template <class World, class Write>
std::int64_t write_together(World& world, const std::filesystem::path& folder, const io::safetensors_plan& plan,
                            Write&& write) {
  auto& all = world.control();
  std::int64_t written = 0;
  io_together(world, [&] {
    if (all.rank() == 0) io::begin_safetensors(folder, plan);
  });
  io_together(world, [&] {
    io::safetensors_part_writer sink(folder, plan);
    write(sink);
    sink.finish();
    written = sink.bytes_written();
  });
  std::int64_t sum = written;
  all.all_reduce(std::span(&sum, 1), plus{});
  io_together(world, [&] {
    if (all.rank() == 0) io::commit_safetensors(folder, plan, sum);
  });
  return written;
}

}  // namespace heddle::inline v0::train
