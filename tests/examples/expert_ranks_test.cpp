// tests/examples/expert_ranks_test.cpp: tools on meshes with an ep axis give what transformers and one rank give, and refuse ep where it does not fit.
#include "catch.hpp"
#include "run_program.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <unistd.h>

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

using examples_test::answer, examples_test::run;

const fs::path expert_models = HEDDLE_SOURCE_DIR "/tests/golden/models";

std::string bytes_of_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
nlohmann::json expected_of(const std::string& model) {
  return nlohmann::json::parse(bytes_of_file(expert_models / model / "expected.json"));
}
std::string tokens_options(const nlohmann::json& samples) {
  std::string text;
  for (const auto& sample : samples) {
    text += " --tokens ";
    for (std::size_t i = 0; i < sample.size(); ++i) text += (i > 0 ? "," : "") + sample[i].dump();
  }
  return text;
}
struct expert_folder {
  fs::path path = fs::temp_directory_path() / ("heddle-expert-ranks-" + std::to_string(::getpid()));
  expert_folder() { fs::create_directories(path); }
  expert_folder(const expert_folder&) = delete;
  expert_folder& operator=(const expert_folder&) = delete;
  ~expert_folder() { fs::remove_all(path); }
};

}  // namespace

TEST_CASE("evaluate on meshes with ep has transformers' losses and logits", "[examples][evaluate][experts]") {
  for (const std::string model :
       {"mixtral_four", "qwen3_moe_plain", "gpt_oss", "deepseek", "deepseek_dense", "deepseek_plain"}) {
    const auto expected = expected_of(model);
    for (const std::string mesh : {"ep=2", "ep=2,tp=2", "dp=2,pp=2,ep=2"}) {
      CAPTURE(model, mesh);
      const answer a = run("evaluate --model " + (expert_models / model).string() +
                                     tokens_options(expected["samples"]) + " --json --mesh " + mesh);
      CAPTURE(a.text);
      REQUIRE(a.status == 0);
      const auto got = nlohmann::json::parse(a.text);
      const double loss = expected["loss_f32"].get<double>();
      CHECK(std::abs(got["loss"].get<double>() - loss) < 1e-5 * loss);
      for (std::size_t i = 0; i < expected["last_logits"].size(); ++i) {
        const auto here = got["last_logits"][i].get<std::vector<double>>();
        const auto there = expected["last_logits"][i].get<std::vector<double>>();
        REQUIRE(here.size() == there.size());
        double worst = 0, greatest = 0;
        for (std::size_t k = 0; k < here.size(); ++k) {
          worst = (std::max)(worst, std::abs(here[k] - there[k]));
          greatest = (std::max)(greatest, std::abs(there[k]));
        }
        CHECK(worst < 1e-5 * greatest);
      }
    }
  }
}

TEST_CASE("generate on meshes with ep has transformers' tokens", "[examples][generate][experts]") {
  for (const std::string model : {"mixtral_four", "qwen3_moe_plain"}) {
    const auto expected = expected_of(model);
    for (const std::string mesh : {"ep=2", "ep=2,tp=2"}) {
      CAPTURE(model, mesh);
      // As many as the context has room for.
      const answer a =
          run("generate --model " + (expert_models / model).string() + tokens_options(expected["samples"]) +
                   " --temperature 0 --max-tokens 20 --speculate ngram --mesh " + mesh);
      CAPTURE(a.text);
      REQUIRE(a.status == 0);
      for (std::size_t i = 0; i < expected["samples"].size(); ++i) {
        std::string line = "prompt " + std::to_string(i) + ":";
        for (std::size_t k = 0; k < 20; ++k) line += " " + expected["generated"][i][k].dump();
        CHECK_THAT(a.text, Contains(line));
      }
    }
  }
}

TEST_CASE("convert on meshes with ep gives the bytes that were read", "[examples][convert][experts]") {
  const expert_folder folder;
  for (const std::string model : {"mixtral_four", "qwen3_moe_plain", "deepseek"})
    for (const std::string format : {"huggingface", "heddle"}) {
      CAPTURE(model, format);
      const std::string from = (expert_models / model).string(), first = (folder.path / "first").string(),
                        second = (folder.path / "second").string();
      REQUIRE(
          run("convert --from " + from + " --to " + first + " --format " + format + " --mesh ep=2,tp=2").status ==
          0);
      REQUIRE(run("convert --from " + first + " --to " + second + " --mesh pp=2,ep=2").status == 0);
      CHECK(bytes_of_file(fs::path(second) / "model.safetensors") ==
            bytes_of_file(expert_models / model / "model.safetensors"));
      fs::remove_all(first);
      fs::remove_all(second);
    }
}

TEST_CASE("finetune on meshes with ep learns what one rank learns", "[examples][finetune][experts]") {
  if (!fs::exists(fs::path(HEDDLE_EXAMPLES_DIR) / "finetune")) return;
  const expert_folder folder;
  std::ofstream(folder.path / "text.txt")
      << std::string(40, 'a') + "the experts of a mixture learn a few words" + std::string(400, 'b');
  const auto losses = [&](const std::string& mesh, const std::string& how) {
    const std::string out = (folder.path / "out").string();
    fs::remove_all(out);
    const answer a = run("finetune --model " + (expert_models / "mixtral_four").string() +
                                   " --bytes --text " + (folder.path / "text.txt").string() + " --out " + out +
                                   " --steps 6 --lr 0.01 --batch 4 --context 16 --mesh " + mesh + how);
    CAPTURE(a.text);
    REQUIRE(a.status == 0);
    std::array<double, 2> found{};
    for (std::size_t i = 0; i < 2; ++i) {
      const std::string before = i == 0 ? "before  validation loss " : "after   validation loss ";
      REQUIRE(a.text.find(before) != std::string::npos);
      found[i] = std::stod(a.text.substr(a.text.find(before) + before.size()));
    }
    return found;
  };
  for (const std::string how : {"", " --lora-rank 3"}) {
    const auto one = losses("dp=1", how);
    CHECK(one[1] < one[0] - 0.01);
    for (const std::string mesh : {"ep=2", "dp=2,ep=2,tp=2"}) {
      CAPTURE(mesh, how);
      const auto many = losses(mesh, how);
      CHECK(many[0] == Approx(one[0]).epsilon(1e-5));
      CHECK(many[1] == Approx(one[1]).epsilon(1e-4));
    }
  }
}

TEST_CASE("tools refuse ep for a family without experts, and one that does not divide them", "[examples][experts]") {
  const expert_folder folder;
  const std::string out = (folder.path / "out").string();
  const auto model = [](const std::string& name) { return (expert_models / name).string(); };
  for (const std::string& tool : {std::string("evaluate --tokens 1,2 --model "),
                                  std::string("generate --tokens 1,2 --model "), "convert --to " + out + " --from "}) {
    CAPTURE(tool);
    CHECK_THAT(run(tool + model("llama3") + " --mesh ep=2").text,
               Contains("ep=2 splits experts, and a llama has none: take tp or dp"));
    CHECK_THAT(run(tool + model("mixtral") + " --mesh ep=2").text,
               Contains("ep=2 does not divide the 5 experts of this mixtral"));
  }
}

TEST_CASE(
    "train_heads trains a drafter for models with experts, on one rank and with ep alike, and says what it does not",
    "[examples][falcon][experts]") {
  const expert_folder out;
  {
    std::ofstream text(out.path / "text", std::ios::binary);
    for (int i = 0; i < 600; ++i) text.put(static_cast<char>(9 + i * i % 23));  // words of a small vocabulary
  }
  const auto train = [&](const std::string& model, const std::string& more) {
    return run("train_heads --model " + (expert_models / model).string() + " --text " + (out.path / "text").string() +
               " --bytes --out " + (out.path / ("drafter-" + model)).string() +
               " --steps 10 --lr 0.01 --prompts 4 --answer 20 --context 12 --nodes 6 --passes 2 " + more);
  };
  const auto lines = [](const answer& a) { return a.text.substr(a.text.find("drafter: loss")); };
  const answer one = train("mixtral_four", "--falcon");
  CAPTURE(one.text);
  REQUIRE(one.status == 0);
  CHECK_THAT(one.text, Contains("drafter: loss") && Contains("wrote a drafter and a tree of 6 nodes"));
  fs::remove_all(out.path / "drafter-mixtral_four");
  const answer many = train("mixtral_four", "--falcon --mesh ep=2,tp=2");
  CAPTURE(many.text);
  REQUIRE(many.status == 0);
  CHECK(lines(many) == lines(one));
  CHECK(train("smollm3", "--falcon --mesh tp=2").status == 0);
  for (const std::string other : {"gemma2", "granite"})
    CHECK_THAT(train(other, "--falcon").text, Contains("that of a " + other + " is another"));
  CHECK_THAT(train("smollm3", "").text, Contains("heads are trained for llama") && Contains("the model is smollm3"));
}
