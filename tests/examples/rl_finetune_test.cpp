// tests/examples/rl_finetune_test.cpp: models learn from a judge's rewards, whole or by adapters; the folders that are
// written are the trained models; wrong files and judges are refused by name.
#include "catch.hpp"
#include "run_program.hpp"

#include <heddle/io/safetensors/reader.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

using Catch::Matchers::Contains;
namespace fs = std::filesystem;
namespace io = heddle::io;

namespace {

const fs::path models = HEDDLE_SOURCE_DIR "/tests/golden/models";
const fs::path program = HEDDLE_EXAMPLES_DIR "/rl_finetune";

// The example needs packages of the tokenizer, which need not be there.
bool is_built() {
  if (fs::exists(program)) return true;
  WARN("examples/rl_finetune was not built: nothing is tested here");
  return false;
}

struct scratch {
  fs::path path = fs::temp_directory_path() / ("heddle-rl-finetune-" + std::to_string(::getpid()));
  scratch() {
    fs::remove_all(path);
    fs::create_directories(path);
    // What the line's length says, which differs from answer to answer; a shell begins fast.
    std::ofstream(path / "judge.sh") << "read -r line\necho \"{\\\"reward\\\": 0.${#line}}\"\n";
    std::ofstream sums(path / "sums.jsonl");
    for (int a = 1; a < 6; ++a)
      for (int b = 1; b < 4; ++b)
        sums << nlohmann::json{{"prompt", std::to_string(a) + "+" + std::to_string(b) + "="}, {"sum", a + b}} << "\n\n";
  }
  ~scratch() { fs::remove_all(path); }
  std::string operator/(const char* name) const { return (path / name).string(); }
};

struct answer : examples_test::answer {
  int steps() const {
    int n = 0;
    for (std::size_t at = text.find("step "); at != std::string::npos; at = text.find("step ", at + 1)) ++n;
    return n;
  }
};
// The last of options that are given twice counts.
answer tuned(const scratch& folder, const std::string& arguments) {
  return {examples_test::run("rl_finetune --model " + (models / "bytes").string() + " --bytes --prompts " +
                             (folder / "sums.jsonl") + " --reward 'sh " + (folder / "judge.sh") +
                             "' --batch-prompts 2 --answers 4 --max-tokens 3 --lr 0.01 " + arguments)};
}

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
std::vector<std::int64_t> shape_of(const io::safetensors_folder& folder, const std::string& name) {
  const auto tensor = folder.tensor(name);
  return {tensor.shape().begin(), tensor.shape().end()};
}
std::vector<float> values_of(const io::safetensors_folder& folder, const std::string& name) {
  std::size_t n = 1;
  for (const std::int64_t e : shape_of(folder, name)) n *= static_cast<std::size_t>(e);
  std::vector<float> values(n);
  folder.tensor(name).read(0, std::span(values));
  return values;
}

}  // namespace

TEST_CASE("a model of Hugging Face goes through each pipeline, and what is written is the trained model",
          "[examples][rl_finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const std::string first = bytes_of(models / "bytes/model.safetensors");
  const answer none = tuned(folder, "--steps 0 --train tp=2 --generate dp=2 --out " + (folder / "none"));
  CAPTURE(none.text);
  REQUIRE(none.status == 0);
  CHECK(bytes_of(folder / "none/model.safetensors") == first);  // it went through the ranks
  struct run {
    const char *system, *train, *generate;
  };
  for (const run& r :
       {run{"hybridflow", "dp=2,tp=2", "pp=2,tp=2"}, run{"llamarl", "pp=2", "dp=2"}, run{"asyncflow", "tp=2", "dp=2"},
        run{"april", "dp=2", "tp=2"}, run{"pipelinerl", "dp=2", "tp=2"}}) {
    const std::string out = folder / r.system;
    const answer a = tuned(folder, std::string("--system ") + r.system + " --train " + r.train + " --generate " +
                                       r.generate + " --steps 3 --kl 0.1 --out " + out);
    CAPTURE(a.text);
    REQUIRE(a.status == 0);
    CHECK(a.steps() == 3);
    CHECK_THAT(a.text, Contains(std::string(r.system) + ": ") && Contains("5508 of 5508 parameters are trained") &&
                           Contains("kl 0.00000") && Contains("wrote '" + out + "'"));
    CHECK(bytes_of(out + "/config.json") == bytes_of(models / "bytes/config.json"));
    const io::safetensors_folder was(models / "bytes"), is(out);
    REQUIRE(is.names() == was.names());
    for (const std::string& name : was.names()) {
      CAPTURE(name);
      REQUIRE(shape_of(is, name) == shape_of(was, name));
      CHECK(values_of(is, name) != values_of(was, name));
    }
    // Read back, it is the begin of the next run: nothing lies between the two.
    const answer b = tuned(folder, "--model " + out + " --steps 1 --kl 0.1 --out " + (folder / "next"));
    CAPTURE(b.text);
    CHECK(b.status == 0);
    CHECK_THAT(b.text, Contains("kl 0.00000"));
    fs::remove_all(folder / "next");
  }
}

TEST_CASE("adapters learn from a judge, and are written beside the model that they are merged into",
          "[examples][rl_finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const std::string out = folder / "out";
  const answer a =
      tuned(folder, "--lora 3 --lora-alpha 5 --system april --train dp=2 --generate tp=2 --steps 4 --kl 0.1 --save " +
                        (folder / "saves") + " --out " + out);
  CAPTURE(a.text);
  REQUIRE(a.status == 0);
  CHECK_THAT(a.text, Contains("adapters of rank 3: ") && Contains("kl 0.00000") && Contains("merged into '" + out));
  const io::safetensors_folder was(models / "bytes"), is(out), adapter(out + "/adapter/adapter_model.safetensors");
  CHECK(adapter.names().size() == 2 * 7 * 2);
  double moved = 0;
  for (const std::string& name : was.names()) {
    CAPTURE(name);
    const auto before = values_of(was, name), after = values_of(is, name);
    const std::string layer = name.substr(0, name.size() - std::string_view(".weight").size());
    const std::string a_name = "base_model.model." + layer + ".lora_A.weight";
    if (!adapter.contains(a_name)) {
      CHECK(before == after);
      continue;
    }
    const auto low = values_of(adapter, a_name),
               high = values_of(adapter, "base_model.model." + layer + ".lora_B.weight");
    const std::size_t columns = low.size() / 3;
    for (std::size_t i = 0; i < before.size(); ++i) {
      double sum = 0;
      for (std::size_t k = 0; k < 3; ++k) sum += double{high[i / columns * 3 + k]} * low[k * columns + i % columns];
      CHECK(std::abs(after[i] - (before[i] + 5.0 / 3 * sum)) <= 1e-6);
      moved = (std::max)(moved, std::abs(sum));
    }
  }
  CHECK(moved > 1e-4);
  // Merging is behind the last save: who goes on has the adapters.
  const answer more =
      tuned(folder, "--lora 3 --lora-alpha 5 --system april --train dp=2 --generate tp=2 --steps 4 --kl 0.1 --save " +
                        (folder / "saves") + " --resume --out " + (folder / "again"));
  CAPTURE(more.text);
  REQUIRE(more.status == 0);
  CHECK_THAT(more.text, Contains("after 4 batches"));
  CHECK(bytes_of(folder / "again/model.safetensors") == bytes_of(out + "/model.safetensors"));
}

TEST_CASE("a Qwen learns from a judge, whole and by adapters", "[examples][rl_finetune]") {
  if (!is_built()) return;
  const scratch folder;
  // Their vocabularies are smaller than that of bytes: prompts are those that it has.
  std::ofstream(folder / "prompts.jsonl") << "{\"prompt\": \"\\u0003\\u0009\"}\n{\"prompt\": \"  !\"}\n";
  for (const char* family : {"qwen2", "qwen3"})
    for (const std::string& how : {std::string(), std::string(" --lora 2")}) {
      const fs::path model = models / family;
      const std::string out = folder / "out";
      const answer a = tuned(folder, "--model " + model.string() + " --prompts " + (folder / "prompts.jsonl") +
                                         " --train tp=2 --generate dp=2 --steps 2 --kl 0.1" + how + " --out " + out);
      CAPTURE(family, how, a.text);
      REQUIRE(a.status == 0);
      CHECK_THAT(a.text, Contains(std::string(family) + "  3 layers of width ") && Contains("kl 0.00000"));
      const io::safetensors_folder was(model), is(out);
      REQUIRE(is.names() == was.names());
      const std::string changed = "model.layers.1.self_attn.q_proj.weight", base = "model.norm.weight";
      CHECK(values_of(is, changed) != values_of(was, changed));
      CHECK((values_of(is, base) == values_of(was, base)) == !how.empty());
      fs::remove_all(out);
    }
}

TEST_CASE("a run of a model that goes on writes the bytes of an undisturbed one", "[examples][rl_finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const std::string how = "--train dp=2 --generate dp=2 --kl 0.1 --save " + (folder / "saves");
  const answer whole = tuned(folder, "--train dp=2 --generate dp=2 --kl 0.1 --steps 5 --out " + (folder / "whole"));
  const answer part = tuned(folder, how + " --steps 2 --out " + (folder / "part"));
  const answer resumed = tuned(folder, how + " --steps 5 --resume --out " + (folder / "resumed"));
  CAPTURE(whole.text, part.text, resumed.text);
  REQUIRE((whole.status == 0 && part.status == 0 && resumed.status == 0));
  CHECK(resumed.steps() == 3);
  CHECK(bytes_of(folder / "resumed/model.safetensors") == bytes_of(folder / "whole/model.safetensors"));
}

TEST_CASE("a signal ends a run behind its batch, and it goes on to the bytes of an undisturbed one",
          "[examples][rl_finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const std::string how = "--train dp=2 --generate dp=2 --kl 0.1 --steps 12 ";
  const answer whole = tuned(folder, how + "--out " + (folder / "whole"));
  CAPTURE(whole.text);
  REQUIRE(whole.status == 0);
  // A judge of the third batch sends the signal to the program that started it: one of those that run side by side, once.
  std::ofstream(folder.path / "killer.sh") << "read -r line\necho x >> " << (folder / "count")
                                           << "\nif [ $(wc -l < " << (folder / "count")
                                           << ") -ge 17 ] && mkdir " << (folder / "sent")
                                           << " 2> /dev/null; then kill -TERM $PPID; fi\n"
                                           << "echo \"{\\\"reward\\\": 0.${#line}}\"\n";
  const answer stopped = tuned(folder, how + "--reward 'exec sh " + (folder / "killer.sh") + "' --judges 1 --save " +
                                           (folder / "saves") + " --out " + (folder / "out"));
  CAPTURE(stopped.text);
  CHECK(stopped.status == 128 + SIGTERM);
  CHECK_THAT(stopped.text, Contains("stopped      SIGTERM: after step ") && Contains(": --resume goes on"));
  CHECK(stopped.steps() < 12);
  CHECK_FALSE(fs::exists(folder / "out"));
  const auto again = [&](const std::string& more, const char* out) {
    return tuned(folder, how + more + " --save " + (folder / "saves") + " --resume --out " + (folder / out));
  };
  const answer other = again("--objective aipo", "other");
  CHECK(other.status == 1);
  CHECK_THAT(other.text, Contains("is a save of a run with objective ppo"));
  std::ofstream(folder.path / "others.jsonl") << "{\"prompt\": \"1+1=\"}\n";
  const answer prompts = again("--prompts " + (folder / "others.jsonl"), "other");
  CHECK(prompts.status == 1);
  CHECK_THAT(prompts.text, Contains("is a save of a run with prompts "));
  const answer rest = again("", "rest");
  CAPTURE(rest.text);
  REQUIRE(rest.status == 0);
  CHECK(bytes_of(folder / "rest/model.safetensors") == bytes_of(folder / "whole/model.safetensors"));
}

TEST_CASE("files, judges and names that do not fit are refused, and nothing is written", "[examples][rl_finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const auto refused = [&](const std::string& arguments, int status, const std::string& why) {
    const answer a = tuned(folder, "--steps 2 --out " + (folder / "out") + " " + arguments);
    CAPTURE(arguments, a.text);
    CHECK(a.status == status);
    CHECK_THAT(a.text, Contains(why));
    CHECK_FALSE(fs::exists(folder / "out"));
    CHECK_FALSE(fs::exists(folder / "out.partial"));
  };
  const auto lines = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return "--prompts " + (folder / name);
  };
  const std::string good = "{\"prompt\": \"1+1=\"}\n";
  refused("--system rlhf", 2, "hybridflow, llamarl, asyncflow, april or pipelinerl, got rlhf");
  refused("--prompts " + (folder / "none.jsonl"), 1, "none.jsonl' cannot be read");
  refused(lines("torn.jsonl", good + "\n{\"prompt\": \"1+"), 1, "torn.jsonl' line 3");
  refused(lines("other.jsonl", good + "{\"question\": \"1+1=\"}"), 1,
          "other.jsonl' line 2 should be an object with a text \"prompt\"");
  refused(lines("nothing.jsonl", "{\"prompt\": \"\"}"), 1, "nothing.jsonl' line 1 has a prompt of no tokens");
  refused(lines("empty.jsonl", "\n"), 1, "empty.jsonl' has no prompts");
  refused("--max-tokens 61", 1,
          "a prompt of 4 tokens and an answer of 61 (--max-tokens) are more than the model's context of 64");
  refused("--reward /nonexistent/judge", 1, "rewards of all 8 answers of batch 1 are missing");
  refused("--reward 'echo 1'", 1, "an object with a number \"reward\"");
  refused("--model " + (folder / "none"), 1, "none");
  refused("--model " + (models / "gpt2").string(), 1,
          "is a gpt2; rl_finetune trains models of the families llama, qwen2 and qwen3, in float");
  refused("--model " + (models / "llama_tied").string(), 1, "the model a vocabulary of 47");
  refused("--train dp=2 --generate tp=4", 1, "meshes of 2 ranks that train and 4 that generate");
  refused("--resume", 2, "--save");
}
