// examples/trained_folder.hpp: a model's folder that is trained, whole or by adapters.
#pragma once

#include <heddle/io/safetensors/reader.hpp>
#include <heddle/model/hugging_face/weights.hpp>
#include <heddle/model/hugging_face_model.hpp>
#include <heddle/model/read_parameters.hpp>
#include <heddle/model/write_parameters.hpp>
#include <heddle/train/hugging_face/lora_adapter.hpp>

#include "model_folder.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

class trained_folder {
 public:
  /// `described`: all parameters, those of adapters, too. Errors: those of reading; `config_error` for weights that are
  /// not the model's.
  trained_folder(std::string model, const model_folder& of, std::vector<heddle::model::parameter_outline> described,
                 std::int64_t most_bytes)
      : model_(std::move(model)),
        described_(std::move(described)),
        opened_(heddle::model::open_weights<heddle::io::safetensors_folder>(model_, of.about, described_)),
        inputs_first_(of.about.family() == "gpt2"),
        config_text_(heddle::train::written_config(model_, of.own_head)),
        outlines_(without_adapters()),
        plan_(heddle::train::with_types_of(
            opened_.folder,
            heddle::train::hugging_face_plan(outlines_, opened_.names, heddle::train::dtype_in_config(*of.config),
                                             most_bytes),
            most_bytes)) {}

  std::int64_t parameters() const noexcept { return of_model_ + of_adapters_; }
  std::int64_t trained() const noexcept { return adapts_ ? of_adapters_ : of_model_; }
  std::int64_t tensors() const noexcept { return std::ssize(outlines_); }
  std::int64_t bytes_to_write() const { return plan_.data_bytes() + 4 * of_adapters_; }
  const heddle::model::hugging_face_names& names() const noexcept { return opened_.names; }
  /// PEFT has adapters of the products that files have: not where queries, keys and values are rows of one tensor, as Phi-3's.
  bool writes_adapter() const noexcept { return adapts_ && !names().fused; }
  /// Of the model itself: all its parameters, or those that adapters leave as they are.
  heddle::model::which_parameters own() const noexcept {
    return adapts_ ? heddle::model::which_parameters::frozen : heddle::model::which_parameters::all;
  }

  /// Fills the weights of the model itself in a stage. `names`: those of the folder, perhaps counted.
  template <class Stage, class Names>
  void read(Stage& stage, Names&& names) const {
    heddle::model::read_parameters(stage, heddle::io::safetensors_reader(opened_.folder), names, own());
  }
  /// Writes the model to `out`, which has its other files; adapters merged, and beside it (`writes_adapter`). On all ranks of the trainer
  /// together. Errors: `io_error` on all of them.
  template <class Trainer, class Config>
  void write(Trainer& trainer, const std::filesystem::path& out, const Config& config) const {
    auto& world = trainer.ranks();
    const auto stages = [&](auto& sink, const auto& named, heddle::model::which_parameters which) {
      for (int k = 0; k < trainer.stages(); ++k)
        heddle::model::write_parameters(trainer.stage(k), world, sink, named, which);
    };
    if constexpr (requires { config.adapter_alpha; })
      if (adapts_) {
        if (writes_adapter())
          heddle::train::write_adapter(
              world, out / "adapter", described_, config, model_, names(), inputs_first_,
              [&](auto& sink, const auto& named) { stages(sink, named, heddle::model::which_parameters::trained); });
        for (int k = 0; k < trainer.stages(); ++k) trainer.stage(k).merge_adapters();
      }
    heddle::train::write_together(world, out, plan_, [&](auto& sink) { stages(sink, names().written(), own()); });
    heddle::train::io_together(world, [&] {
      if (world.rank() == 0) heddle::train::write_model_file(out / "config.json", config_text_);
    });
  }

 private:
  // Counts all of them.
  std::vector<heddle::model::parameter_outline> without_adapters() {
    std::vector<heddle::model::parameter_outline> own;
    for (const heddle::model::parameter_outline& p : described_) {
      const bool adapter = p.name.find(".lora_") != std::string::npos;
      adapts_ = adapts_ || adapter;
      std::int64_t n = 1;
      for (const std::int64_t e : p.shape) n *= e;
      (adapter ? of_adapters_ : of_model_) += n;
      if (!adapter) own.push_back(p);
    }
    return own;
  }

  std::string model_;
  std::vector<heddle::model::parameter_outline> described_;
  heddle::model::hugging_face_weights<heddle::io::safetensors_folder> opened_;
  bool inputs_first_, adapts_ = false;
  std::string config_text_;
  std::int64_t of_model_ = 0, of_adapters_ = 0;
  std::vector<heddle::model::parameter_outline> outlines_;  // of the model itself
  heddle::io::safetensors_plan plan_;
};
