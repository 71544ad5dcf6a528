// tests/examples/plan_test.cpp: a strategy is found for a model and a cluster, explained, written, and trained as it is.
#include "catch.hpp"
#include "run_program.hpp"

#include <heddle/train/strategy_choice.hpp>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <unistd.h>

namespace {
namespace plan_test {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;
namespace tr = heddle::train;

using examples_test::answer, examples_test::run;
std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The model that `gpt2_train` trains with these options, and a machine of four devices.
struct planned_folder {
  fs::path path = fs::temp_directory_path() / ("heddle-plan-" + std::to_string(::getpid()));
  planned_folder() {
    fs::remove_all(path);
    fs::create_directories(path);
    std::ofstream(path / "config.json") << R"({"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2,)"
                                           R"( "n_positions": 32, "vocab_size": 256})";
  }
  planned_folder(const planned_folder&) = delete;
  planned_folder& operator=(const planned_folder&) = delete;
  ~planned_folder() { fs::remove_all(path); }
  std::string operator/(const char* name) const { return (path / name).string(); }
  std::string cluster(const char* memory) const {
    std::ofstream(path / "cluster.json") << R"({"devices": 4, "flops": 1e13, "bytes_per_second": 1e11, "memory": )"
                                         << memory << R"(, "levels": [{"name": "machine", "bytes_per_second": 1e10}]})";
    return "plan --model " + path.string() + " --cluster " + (*this / "cluster.json") + " --batch 8 ";
  }
};
// The words of the line that begins with this one.
std::vector<std::string> words_of_line(const std::string& text, const std::string& first) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
    if (!words.empty() && words.front() == first) return words;
  }
  return {};
}

TEST_CASE("plan finds a strategy that gpt2_train runs", "[examples][plan]") {
  const planned_folder f;
  const std::string plan = f.cluster("60e6");
  const answer found =
      run(plan + "--zero 1 --top 3 --cpp --write " + (f / "strategy.txt") + " --html " + (f / "plan.html"));
  INFO(found.text);
  REQUIRE(found.status == 0);
  CHECK_THAT(found.text, Contains("vocabulary=256, 4 devices\n") && Contains("tokens/s") && Contains("MFU") &&
                             Contains("refused: divides ") && Contains("wrote " + (f / "plan.html")));
  const tr::strategy_choice choice = tr::read_strategy_file(f / "strategy.txt");
  const auto best = words_of_line(found.text, "1");
  REQUIRE(best.size() == 15);  // rank mesh schedule m x samples zero recompute GB seconds bubble % tokens/s MFU %
  CHECK(best[1] == choice.mesh);
  CHECK(best[2] == choice.schedule);
  CHECK(best[3] == std::to_string(choice.microbatches));
  CHECK(words_of_line(found.text, "3").size() == 15);
  CHECK(words_of_line(found.text, "4").empty());
  CHECK_THAT(found.text, Contains(to_cpp(choice)));
  const std::string page = text_of(f / "plan.html");
  CHECK_THAT(page, Contains("<h2>Search</h2>") && Contains("<svg") && Contains(choice.mesh) && Contains("</html>"));
  CHECK(page.find("http://") == std::string::npos);
  CHECK(page.find("https://") == std::string::npos);

  // The same strategy explained: the same MFU, and tokens a second to the digits that are shown.
  const answer one = run(plan + "--strategy " + (f / "strategy.txt"));
  INFO(one.text);
  CHECK(one.status == 0);
  CHECK_THAT(one.text, Contains("MFU " + best[13] + " %") && Contains("bubble " + best[10] + " %"));

  const answer trained =
      run("gpt2_train --plan " + (f / "strategy.txt") +
          " --layers 2 --width 32 --heads 2 --context 32 --batch 8 --steps 2 --sample 0"
          " --validation-samples 8 --trace \"\" --timeline \"\" --data " HEDDLE_SOURCE_DIR "/include/heddle/train");
  INFO(trained.text);
  CHECK(trained.status == 0);
  CHECK_THAT(trained.text, Contains("2/2 "));
}

TEST_CASE("plan says why nothing fits, and what it was given wrong", "[examples][plan]") {
  const planned_folder f;
  const answer none = run(f.cluster("20e3") + "--html " + (f / "plan.html"));
  INFO(none.text);
  CHECK(none.status == 1);
  CHECK_THAT(none.text, Contains("no strategy fits") && Contains("nearest: ") && Contains(" GB of 0.0000200, ") &&
                            Contains(" GB too many"));
  CHECK_THAT(text_of(f / "plan.html"), Contains("no strategy fits") && Contains("Does not fit: rank "));
  const std::string plan = f.cluster("60e6");
  const auto refused = [&](const std::string& more, const std::string& says) {
    const answer a = run(plan + more);
    INFO(a.text);
    CHECK(a.status != 0);
    CHECK_THAT(a.text, Contains(says));
  };
  refused("--write " + (f / "none/strategy.txt"), "cannot write '" + (f / "none/strategy.txt") + "'");
  refused("--strategy \"mesh dp=2; zeor 1\"", "there is no key \"zeor\"");
  refused("--strategy \"mesh dp=8\"", "the mesh dp=8 x pp=1 x tp=1 needs 8 devices, the cluster has 4");
  refused("--strategy \"mesh dp=2,cp=2\"", "asks for a mesh with the axis cp");
  refused("--strategy \"mesh dp=2; dtype f64\"", "asks for dtype f64");
  refused("--here " + (f / "here.json"), "--cluster excludes --here");
  refused("--zero 4", "must be a whole number from 0 to 3, got 4");
  refused("--model " HEDDLE_SOURCE_DIR "/tests/golden/models/deepseek",
          "plan knows gpt2, llama, qwen2, qwen3, mixtral and gla_swa (SpikingBrain); ");
  refused("--dtype bf16 --model " HEDDLE_SOURCE_DIR "/tests/golden/models/qwen2", "in bf16");
}

TEST_CASE("plan measures this machine, and plans with what it measured", "[examples][plan]") {
  const planned_folder f;
  const answer here = run("plan --model " + f.path.string() + " --here " + (f / "here.json") + " --batch 2");
  INFO(here.text);
  REQUIRE(here.status == 0);
  CHECK_THAT(here.text, Contains("kernels of gpt2") && Contains("wrote " + (f / "here.json")));
  const std::string with = "plan --model " + f.path.string() + " --cluster " + (f / "here.json") + " --batch 8 ";
  const answer one = run(with + "--strategy \"mesh dp=1; microbatches 4\"");
  INFO(one.text);
  CHECK(one.status == 0);
  CHECK_THAT(one.text, Contains(" +- "));
  CHECK(one.text.find("extrapolated") == std::string::npos);
  const answer large = run(with + "--strategy \"mesh dp=1; microbatches 1\"");  // 8 samples; 2 were measured
  CHECK_THAT(large.text, Contains("extrapolated"));
}

TEST_CASE("plan measures and plans a hybrid of linear attention and windows", "[examples][plan]") {
  const planned_folder f;
  const std::string model = f / "spiking_brain.json";
  std::ofstream(model) << R"({"model_type": "gla_swa", "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "hidden_size": 32, "intermediate_size": 36, "max_position_embeddings": 16,
    "vocab_size": 64, "sliding_window": 5, "gate_low_rank_dim": 3})";
  const answer here = run("plan --model " + model + " --here " + (f / "here.json") + " --batch 2");
  INFO(here.text);
  REQUIRE(here.status == 0);
  CHECK_THAT(text_of(f / "here.json"), Contains("decay_forward") && Contains("decay_backward_keys"));
  const answer best = run("plan --model " + model + " --cluster " + (f / "here.json") + " --batch 8 --top 1 --zero 1");
  INFO(best.text);
  CHECK(best.status == 0);
  CHECK_THAT(best.text, Contains("spiking_brain layers=4 ") && Contains(" +- "));
}

TEST_CASE("plan explains products in bf16 and mixtures of experts", "[examples][plan]") {
  const planned_folder f;
  const std::string plan = f.cluster("60e6");
  const answer rounded = run(plan + "--dtype bf16 --zero 1 --top 1 --write " + (f / "strategy.txt"));
  INFO(rounded.text);
  CHECK(rounded.status == 0);
  CHECK(tr::read_strategy_file(f / "strategy.txt").dtype == "bf16");
  CHECK(run(plan + "--strategy " + (f / "strategy.txt")).status == 0);
  const answer experts =
      run(plan + "--context 8 --strategy \"mesh dp=2,ep=2; microbatches 2\" --model " HEDDLE_SOURCE_DIR
                 "/tests/golden/models/mixtral");
  INFO(experts.text);
  CHECK(experts.status == 0);
  CHECK_THAT(experts.text, Contains("dp=2 x ep=2 x pp=1 x tp=1: 4 of 4 devices") && Contains("experts=5 chosen=2"));
}

}  // namespace plan_test
}  // namespace
