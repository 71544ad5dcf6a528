// Masked models have transformers' loss and gradient with another mask, also LLaDA's weighted loss.
#include "catch.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/hugging_face/masked_models.hpp>
#include <heddle/model/masked.hpp>
#include <heddle/rl/objective.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/testing/on_ranks.hpp>
#include <heddle/train.hpp>
#include <heddle/train/trainer_weights.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace {
namespace hd = heddle;
namespace md = heddle::model;
namespace rl = heddle::rl;
using nlohmann::json;

using masked_training_mesh = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::tp>>;

struct masked_likelihood {
  rl::term operator()(double log_probability, const rl::token&) const { return {-log_probability, -1}; }
  friend std::string to_string(const masked_likelihood&) { return "likelihood"; }
};

// The samples of expected.json, with targets and weights where the model has them.
struct masked_training_samples {
  std::vector<std::vector<std::int32_t>> tokens, targets, whole;
  std::vector<std::vector<float>> weights;
  int numbers = 1;

  std::int64_t context() const { return std::ssize(tokens[0]); }
  static std::int64_t validation_samples() { return 0; }
  void fill_train(hd::io::sample_block block, std::span<std::int32_t> in, std::span<std::int32_t> out) const {
    const std::size_t n = tokens[0].size(), of_sample = n * static_cast<std::size_t>(numbers);
    for (std::size_t s = 0; s < static_cast<std::size_t>(block.count); ++s) {
      const std::size_t from = (static_cast<std::size_t>(block.first) + s) % tokens.size();
      for (std::size_t i = 0; i < n; ++i) {
        in[s * n + i] = tokens[from][i];
        out[s * of_sample + i] = numbers == 1 ? targets[from][i] : whole[from][i];
        for (std::size_t c = 1; c < static_cast<std::size_t>(numbers); ++c)
          out[s * of_sample + c * n + i] =
              c + 1 == static_cast<std::size_t>(numbers) ? std::bit_cast<std::int32_t>(weights[from][i]) : 0;
      }
    }
  }
  static void fill_validation(hd::io::sample_block, std::span<std::int32_t>, std::span<std::int32_t>) {}
};

// Loss and gradient norm of a step.
template <class Model, class Names>
void check_masked_training(const std::string& name, const std::string& kind, int numbers) {
  const std::string folder = HEDDLE_SOURCE_DIR "/tests/golden/models/" + name;
  const md::masked_model about = md::masked_from_config(hd::io::read_json(folder + "/config.json"));
  const json expected = hd::io::read_json(folder + "/expected.json").at("training");
  masked_training_samples data{expected.at("tokens"), expected.at("targets"), expected.at("whole"),
                               expected.at("weights"), numbers};
  hd::train::options<typename Model::config> options{.batch = 3, .steps = 1};
  using shape = std::variant_alternative_t<std::is_base_of_v<md::qwen3_config, typename Model::config> ? 2 : 0,
                                           decltype(about.config)>;
  static_cast<shape&>(options.model) = std::get<shape>(about.config);
  options.model.context = static_cast<int>(data.context());
  options.threads_per_rank = 1;
  const hd::io::safetensors_folder files(folder);
  for (const auto& [dp, tp] : {std::pair(1, 1), std::pair(3, 1), std::pair(2, 2)}) {
    const auto ranks = hd::testing::on_ranks(masked_training_mesh{dp, tp}, [&](auto& world) {
      auto trainer = hd::train::make_trainer<hd::strategy<masked_training_mesh, hd::zero<1>>>(Model{}, world, options);
      const hd::io::safetensors_reader weights(files);
      hd::train::fill_weights(trainer, [&](auto& stage) { md::read_parameters(stage, weights, Names{}); });
      const auto report = trainer.step(data);
      return std::pair(report.loss, report.gradient_norm);
    });
    if (!ranks.ok()) FAIL(ranks.error);
    const auto [loss, norm] = ranks[0];
    CAPTURE(name, dp, tp);
    const double wanted = expected.at(kind + "_loss"), wanted_norm = expected.at(kind + "_gradient_norm");
    CHECK(std::abs(loss - wanted) <= 1e-10 * wanted);
    CHECK(std::abs(norm - wanted_norm) <= 1e-10 * wanted_norm);
  }
}

}  // namespace

TEST_CASE("a model whose tokens see blocks has the loss and gradient of transformers' Qwen 3 with a block mask",
          "[rl][golden][ranks]") {
  check_masked_training<md::sdar<double, 8>, md::same_names>("sdar", "mean", 1);
}
TEST_CASE("a model whose tokens see everything has LLaDA's weighted loss and its gradient", "[rl][golden][ranks]") {
  check_masked_training<rl::policy<md::llada<double>, masked_likelihood>, md::llada_names>("llada", "weighted",
                                                                                           rl::numbers_of_row);
}

#endif
