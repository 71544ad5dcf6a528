// heddle/train/json/hugging_face_folder.hpp: writes the weights of a model's stages as a folder of Hugging Face.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/json/safetensors_parts.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/model/json/hugging_face.hpp>
#include <heddle/model/write_parameters.hpp>
#include <heddle/train/nonfinite.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
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

/// The files of a model of Hugging Face: each of these parameters under the name that `names` has for it, in the order of transformers'
/// state dict, with elements of type `dtype`. Files hold at most `most_bytes` of data.
/// Errors: `io_error` for an unknown type.
inline io::safetensors_plan hugging_face_plan(std::vector<model::parameter_outline> parameters,
                                              const model::hugging_face_names& names, const std::string& dtype,
                                              std::int64_t most_bytes = 5000000000) {
  std::vector<io::safetensors_outline> tensors;
  for (model::parameter_outline& p : model::hugging_face_order(std::move(parameters)))
    tensors.push_back({names(p.name).name, dtype, std::move(p.shape)});
  return io::safetensors_plan(std::move(tensors), most_bytes);
}
/// The same for all parameters of a described model.
template <class Description>
  requires requires(const Description& d) { d.block_name; }
io::safetensors_plan hugging_face_plan(const Description& described, const model::hugging_face_names& names,
                                       const std::string& dtype, std::int64_t most_bytes = 5000000000) {
  return hugging_face_plan(model::parameter_outlines(described), names, dtype, most_bytes);
}

/// Copies what a folder of Hugging Face has beside the weights: config.json, and the files of tokenizer and generation that are there. A
/// `quantization_config` is left out: the weights that are written with it are numbers, not in 8 bits. `own_head`: the weights have a head
/// although the config.json ties it to the token embedding (`model::with_own_head`), and the copy says that they have.
/// Errors: `io_error` if a file cannot be copied, and for a config.json that is no JSON.
inline void copy_model_files(const std::filesystem::path& from, const std::filesystem::path& to,
                             bool own_head = false) {
  io::detail::make_folder(to);
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja"}) {
    std::error_code ec;
    if (!std::filesystem::exists(from / name, ec) || std::filesystem::equivalent(from / name, to / name, ec)) continue;
    std::filesystem::copy_file(from / name, to / name, std::filesystem::copy_options::overwrite_existing, ec);
    if (ec)
      throw io_error("heddle: cannot copy '" + (from / name).string() + "' to '" + (to / name).string() +
                     "': " + ec.message());
    if (std::string_view(name) != "config.json") continue;
    if (nlohmann::json config = io::read_json(from / name);
        config.is_object() && (config.erase("quantization_config") > 0 || own_head)) {
      if (own_head) config["tie_word_embeddings"] = false;
      io::durable_file file(to / name);
      file.write(config.dump(2) + "\n");
      file.close();
    }
  }
}

/// Does `work` on all ranks of `world` together: an `io_error` of one is thrown on all.
template <class World, class Work>
void io_together(World& world, Work&& work) {
  std::string fault;
  try {
    work();
  } catch (const io_error& e) {
    fault = e.what();
  }
  detail::throw_together<io_error>(world.control(), fault);
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
