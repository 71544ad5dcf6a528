// tests/examples/finetune_test.cpp: models learn a text, whole or by adapters, and the folders that are written are the trained models.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/io/json/safetensors.hpp>
#include <heddle/io/json/safetensors_writer.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/write_parameters.hpp>

#include <nlohmann/json.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

using Catch::Matchers::Contains;
namespace fs = std::filesystem;
namespace hd = heddle;
namespace io = heddle::io;
namespace md = heddle::model;

namespace {

const fs::path golden = HEDDLE_SOURCE_DIR "/tests/golden";
const fs::path program = HEDDLE_EXAMPLES_DIR "/finetune";
const std::string text = std::string(" --text ") + HEDDLE_SOURCE_DIR "/README.md";

// The example needs packages of the tokenizer, which need not be there.
bool is_built() {
  if (fs::exists(program)) return true;
  WARN("examples/finetune was not built: nothing is tested here");
  return false;
}

struct answer {
  int status = -1;
  std::string text;  // what the program printed, errors too

  double loss(const char* when) const {
    const std::string name = std::string(when) + "validation loss ";
    const std::size_t at = text.find(name);
    return at == std::string::npos ? std::nan("") : std::strtod(text.c_str() + at + name.size(), nullptr);
  }
  double before() const { return loss("before  "); }
  double after() const { return loss("after   "); }
};
answer finetune(const std::string& arguments) {
  answer a;
  std::FILE* const out = ::popen((program.string() + " " + arguments + " 2>&1").c_str(), "r");
  if (out == nullptr) return a;
  std::array<char, 4096> piece{};
  while (const std::size_t n = std::fread(piece.data(), 1, piece.size(), out)) a.text.append(piece.data(), n);
  const int status = ::pclose(out);
  a.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return a;
}
std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class T>
std::vector<T> values_of(const io::safetensors_folder& folder, const std::string& name) {
  const auto tensor = folder.tensor(name);
  std::size_t n = 1;
  for (const std::int64_t e : tensor.shape()) n *= static_cast<std::size_t>(e);
  std::vector<T> values(n);
  tensor.read(0, std::span(values));
  return values;
}

struct scratch {
  fs::path path = fs::temp_directory_path() / ("heddle-finetune-" + std::to_string(::getpid()));
  scratch() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~scratch() { fs::remove_all(path); }
  std::string operator/(const char* name) const { return (path / name).string(); }
};

}  // namespace

TEST_CASE("a model learns a text, and what is written is the trained model", "[examples][finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const std::string model = "--model " + (golden / "models" / "bytes").string();
  struct run {
    const char* name;
    const char* mesh;
    const char* how;
    double falls;  // at least so much
  };
  for (const run& r :
       {run{"whole", "pp=2,tp=2", " --microbatches 2", 1.5}, run{"lora", "dp=2,tp=2", " --lora-rank 4", 0.5},
        run{"lora on one rank", "dp=1", " --lora-rank 4", 0.5}}) {
    CAPTURE(r.name);
    const std::string out = folder / r.name, again = folder / "again";
    const answer a =
        finetune(model + text + " --bytes --out '" + out + "' --mesh " + r.mesh + r.how + " --steps 40 --lr 0.02 --context 32");
    CAPTURE(a.text);
    REQUIRE(a.status == 0);
    CHECK(a.before() > 5.9);
    CHECK(a.after() < a.before() - r.falls);
    // Read back, it is as good, and written back it is the same.
    const answer b =
        finetune("--model '" + out + "'" + text + " --bytes --out '" + again + "' --mesh tp=2 --steps 0 --context 32");
    CAPTURE(b.text);
    REQUIRE(b.status == 0);
    CHECK(std::abs(b.before() - a.after()) <= 2e-5);
    CHECK(bytes_of(out + "/model.safetensors") == bytes_of(again + "/model.safetensors"));
    CHECK(bytes_of(out + "/config.json") == bytes_of(golden / "models" / "bytes" / "config.json"));
    fs::remove_all(again);
  }
  // The mesh does not matter, up to rounding in float.
  const io::safetensors_folder one(folder / "lora on one rank"), four(folder / "lora");
  double worst = 0;
  for (const std::string& name : one.names()) {
    const auto a = values_of<double>(one, name), b = values_of<double>(four, name);
    for (std::size_t i = 0; i < a.size(); ++i) worst = (std::max)(worst, std::abs(a[i] - b[i]));
  }
  CHECK(worst <= 1e-3);
}

TEST_CASE("adapters are written as PEFT names them", "[examples][finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const std::string out = folder / "out";
  const answer a = finetune("--model " + (golden / "models" / "bytes").string() + text + " --bytes --out " + out +
                            " --mesh tp=2 --steps 3 --lora-rank 3 --lora-alpha 5 --context 32");
  CAPTURE(a.text);
  REQUIRE(a.status == 0);
  std::ifstream in(out + "/adapter/adapter_config.json");
  const auto about = nlohmann::json::parse(in);
  CHECK(about["r"] == 3);
  CHECK(about["lora_alpha"] == 5.0);
  CHECK(about["peft_type"] == "LORA");
  CHECK(about["fan_in_fan_out"] == false);
  CHECK(about["target_modules"] ==
        nlohmann::json({"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"}));
  const io::safetensors_folder adapter(out + "/adapter/adapter_model.safetensors");
  CHECK(adapter.names().size() == 2 * 7 * 2);
  const auto shape_of = [&](const std::string& name) {
    const auto shape = adapter.tensor("base_model.model.model.layers.1." + name).shape();
    return std::vector<std::int64_t>(shape.begin(), shape.end());
  };
  CHECK(shape_of("self_attn.q_proj.lora_A.weight") == std::vector<std::int64_t>{3, 12});
  CHECK(shape_of("self_attn.q_proj.lora_B.weight") == std::vector<std::int64_t>{16, 3});
  CHECK(shape_of("mlp.down_proj.lora_A.weight") == std::vector<std::int64_t>{3, 17});
}

TEST_CASE("a GPT-2 with a tokenizer of its own learns by adapters", "[examples][finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const std::string model = folder / "model", out = folder / "out";
  fs::create_directories(model);
  const md::gpt2_config config{.layers = 2, .heads = 2, .width = 12, .context = 16, .vocabulary = 1000};
  std::vector<std::vector<float>> values;
  std::vector<io::safetensors_output> tensors;
  const auto outlines = md::parameter_outlines(md::describe_gpt2(config));
  values.reserve(outlines.size());
  for (const auto& p : outlines) {
    std::int64_t n = 1;
    for (const std::int64_t e : p.shape) n *= e;
    const hd::counter_random random(9, values.size());
    auto& of = values.emplace_back();
    for (std::int64_t i = 0; i < n; ++i)
      of.push_back(static_cast<float>(0.3 * random.normal(static_cast<std::uint64_t>(i))));
    tensors.push_back(io::safetensors_of("transformer." + p.name, p.shape, std::span<const float>(of)));
  }
  io::write_safetensors_folder(model, tensors, 1 << 20, {{{"format", "pt"}}});
  std::ofstream(model + "/config.json") << nlohmann::json{
      {"model_type", "gpt2"}, {"n_layer", 2}, {"n_head", 2}, {"n_embd", 12}, {"n_positions", 16}, {"vocab_size", 1000}};
  fs::copy_file(golden / "tokenizer" / "gpt2.json", model + "/tokenizer.json");
  const answer a =
      finetune("--model " + model + text + " --out " + out + " --mesh dp=2,tp=2 --steps 30 --lr 0.02 --lora-rank 4");
  CAPTURE(a.text);
  REQUIRE(a.status == 0);
  CHECK(a.after() < a.before() - 0.05);  // adapters of two small blocks cannot do more to a random model
  CHECK(bytes_of(out + "/tokenizer.json") == bytes_of(model + "/tokenizer.json"));
  const answer b = finetune("--model " + out + text + " --out " + (folder / "again") + " --steps 0");
  CAPTURE(b.text);
  REQUIRE(b.status == 0);
  CHECK(std::abs(b.before() - a.after()) <= 2e-5);
  // Only what adapters are around has changed.
  const io::safetensors_folder was(model), is(out);
  for (const std::string& name : was.names()) {
    const auto x = values_of<float>(was, name), y = values_of<float>(is, name);
    CAPTURE(name);
    CHECK((x != y) == (name.find(".c_") != std::string::npos && name.find(".weight") != std::string::npos));
  }
}

TEST_CASE("a text that the model has no tokens for is refused", "[examples][finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const answer a = finetune("--model " + (golden / "models" / "gpt2").string() + text + " --bytes --out " + (folder / "out"));
  CAPTURE(a.text);
  CHECK(a.status == 1);
  CHECK_THAT(a.text, Contains("README.md' has the token") && Contains("the model a vocabulary of 53"));
  const answer b = finetune("--model " + (golden / "models" / "qwen2").string() + text + " --bytes --out " + (folder / "out"));
  CAPTURE(b.text);
  CHECK(b.status == 1);
  CHECK_THAT(b.text, Contains("compiled for gpt2 and llama, the model is qwen2"));
}
