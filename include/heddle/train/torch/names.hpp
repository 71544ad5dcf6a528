// heddle/train/torch/names.hpp: names that PyTorch has for the tensors of a training.
#pragma once

#include <heddle/io/safetensors/parts.hpp>
#include <heddle/model/read_parameters.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace heddle::inline v0::train {

/// What PyTorch calls the tensors of a training. With the defaults they are those of a state dict
/// `{"model": model.state_dict(), "optim": {"state": {name: {"exp_avg": ...}}}}` as torch.distributed.checkpoint
/// flattens it.
struct torch_names {
  std::string weights = "model.";  ///< before the name of a parameter
  std::string optimizer =
      "optim.state.";          ///< before it for its moments; what they are called comes behind it and a dot
  std::string steps = "step";  ///< a number that torch.optim keeps for each parameter; empty: none is written
  std::function<model::source_name(std::string_view)> of_parameter = model::same_names{};  ///< of transposed ones, too

  /// What torch.optim calls a moment that heddle's saves call `slot`.
  static std::string moment(std::string_view slot) {
    if (slot == "first_moment") return "exp_avg";
    if (slot == "second_moment") return "exp_avg_sq";
    if (slot == "momentum") return "momentum_buffer";
    return std::string(slot);
  }
  /// The tensor for what saves call `kind`/`parameter`: "weight", "master" or a moment.
  model::source_name operator()(std::string_view kind, std::string_view parameter) const {
    model::source_name to = of_parameter(parameter);
    to.name = kind == "weight" || kind == "master" ? weights + to.name : optimizer + to.name + "." + moment(kind);
    return to;
  }
};

/// Writes the numbers of steps that a plan has for each parameter. Called on one rank.
template <class Sink>
void write_steps(Sink& sink, const io::safetensors_plan& plan, const torch_names& names, std::int64_t step) {
  if (names.steps.empty()) return;
  const std::string end = "." + names.steps;
  const auto value = static_cast<float>(step);
  for (const io::safetensors_outline& t : plan.tensors())
    if (t.name.starts_with(names.optimizer) && t.name.ends_with(end) && t.shape.empty())
      sink.tensor(t.name).write(0, std::span<const float>(&value, 1));
}

}  // namespace heddle::inline v0::train
