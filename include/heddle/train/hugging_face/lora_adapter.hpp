// heddle/train/hugging_face/lora_adapter.hpp: writes adapters as PEFT's files.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/write_parameters.hpp>
#include <heddle/train/hugging_face/folder.hpp>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {
inline constexpr std::string_view before_adapters = "base_model.model.";
// The last name of the layer that an adapter's matrix, such as "h.0.attn.c_attn.lora_A.weight", is of; empty for other parameters.
inline std::string adapted_layer(const std::string& parameter) {
  const std::size_t end = parameter.rfind(".lora_");
  if (end == std::string::npos) return {};
  const std::size_t dot = parameter.rfind('.', end - 1);
  return parameter.substr(dot == std::string::npos ? 0 : dot + 1, end - (dot == std::string::npos ? 0 : dot + 1));
}
}  // namespace detail

/// Writes adapter_model.safetensors and adapter_config.json of a model with adapters, whose parameters these are, on all ranks of `world` together: each
/// rank its own bytes. `config` is the model's configuration, `base` what the base model is called, `names` those of its tensors,
/// `inputs_first` whether its matrices lie [in, out], as GPT-2's;
/// `write(sink, names)` writes this rank's adapters, as `model::write_parameters` does with `which_parameters::trained`. Returns the bytes
/// of elements that this rank wrote.
/// Errors: `io_error` on all ranks, as those of `write_together`; `config_error` where files have several products in one tensor (`names.fused`), which
/// PEFT adapts together.
/// Source: Hugging Face PEFT 0.21, `LoraConfig`.
template <class World, class Config, class Write>
std::int64_t write_adapter(World& world, const std::filesystem::path& folder,
                           const std::vector<model::parameter_outline>& parameters, const Config& config,
                           const std::string& base, const model::hugging_face_names& names, bool inputs_first,
                           Write&& write) {
  if (names.fused)
    throw config_error(
        "heddle: write_adapter: files of this family have queries, keys and values in one tensor, of which PEFT has "
        "one "
        "adapter and the model three; merge them and write the model");
  std::vector<io::safetensors_outline> tensors;
  std::set<std::string> layers;
  const model::hugging_face_names adapter_names{std::string(detail::before_adapters) + names.prefix};
  for (const model::parameter_outline& p : parameters) {
    const std::string layer = detail::adapted_layer(p.name);
    if (layer.empty()) continue;
    layers.insert(layer);
    tensors.push_back({adapter_names(p.name).name, "F32", p.shape});
  }
  const io::safetensors_plan plan(std::move(tensors), std::int64_t{1} << 62, {{{"format", "pt"}}}, "adapter_model");
  const std::int64_t written = write_together(world, folder, plan, [&](auto& sink) { write(sink, adapter_names); });
  io_together(world, [&] {
    const nlohmann::json about{{"base_model_name_or_path", base},
                               {"bias", "none"},
                               {"fan_in_fan_out", inputs_first},
                               {"inference_mode", true},
                               {"lora_alpha", config.adapter_alpha},
                               {"lora_dropout", 0.0},
                               {"peft_type", "LORA"},
                               {"r", config.adapter_rank},
                               {"target_modules", layers},
                               {"task_type", "CAUSAL_LM"}};
    if (world.rank() == 0)
      io::detail::write_whole_file(folder / "adapter_config.json",
                                   [&](io::durable_file& file) { file.write(about.dump(2) + "\n"); });
  });
  return written;
}
/// The same for all parameters of a described model.
template <class World, class Description, class Config, class Write>
  requires requires(const Description& d) { d.block_name; }
std::int64_t write_adapter(World& world, const std::filesystem::path& folder, const Description& described,
                           const Config& config, const std::string& base, const model::hugging_face_names& names,
                           bool inputs_first, Write&& write) {
  return write_adapter(world, folder, model::parameter_outlines(described), config, base, names, inputs_first, write);
}

}  // namespace heddle::inline v0::train
