// tests/examples/published_configs_test.cpp: evaluate loads models with published configurations made small, or says which key it refuses.
#include "catch.hpp"
#include "run_program.hpp"

#include <heddle/core/random.hpp>
#include <heddle/io/safetensors/writer.hpp>
#include <heddle/model/families.hpp>
#include <heddle/model/hugging_face/config.hpp>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

namespace fs = std::filesystem;
namespace md = heddle::model;
using nlohmann::json;

namespace {

examples_test::answer evaluated(const fs::path& model) {
  return examples_test::run("evaluate --json --tokens 3,9,27,14,60,2 --model " + model.string());
}
void write_weights(const fs::path& folder, const md::hugging_face_model& about) {
  const auto outlines = md::outlines_of<float>(md::any_config(about));
  const heddle::counter_random random(7, 0);
  std::vector<std::vector<float>> values;
  std::vector<heddle::io::safetensors_output> tensors;
  values.reserve(outlines.size());
  std::uint64_t drawn = 0;
  for (const auto& p : outlines) {
    std::int64_t count = 1;
    for (const std::int64_t e : p.shape) count *= e;
    values.emplace_back();
    for (std::int64_t i = 0; i < count; ++i) values.back().push_back(static_cast<float>(random.uniform(drawn++) - 0.5));
    tensors.push_back(heddle::io::safetensors_of(p.name, p.shape, std::span<const float>(values.back())));
  }
  heddle::io::write_safetensors_folder(folder, tensors);
}

}  // namespace

TEST_CASE("models with published configurations load", "[examples][evaluate]") {
  const fs::path folder = fs::temp_directory_path() / ("heddle-published-" + std::to_string(::getpid()));
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/published_configs.json");
  const json published = json::parse(in);
  const auto put = [&](const json& config) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    std::ofstream(folder / "config.json") << config;
  };
  for (const auto& [name, config] : published.at("loaded").items()) {
    put(config);
    write_weights(folder, md::from_config(config));
    const auto [status, text] = evaluated(folder);
    CAPTURE(name, text);
    REQUIRE(status == 0);
    const json got = json::parse(text);
    // A Mistral without a window is a Llama.
    const bool sees_all = config["model_type"] == "mistral" && config.value("sliding_window", json()).is_null();
    CHECK(got["family"] == (sees_all ? json("llama") : config["model_type"]));
    CHECK(got["last_logits"][0].size() == 64);
    CHECK(std::isfinite(got["loss"].get<double>()));
  }
  for (const auto& [name, one] : published.at("refused").items()) {
    put(one.at("config"));
    const auto [status, text] = evaluated(folder);
    CAPTURE(name);
    CHECK(status == 1);
    CHECK_THAT(text, Catch::Contains(one.at("says").get<std::string>()));
  }
  fs::remove_all(folder);
}
