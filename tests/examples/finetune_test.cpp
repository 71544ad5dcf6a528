// tests/examples/finetune_test.cpp: models learn a text, whole or by adapters, and the folders that are written are the trained models.
#include "catch.hpp"
#include "run_program.hpp"

#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/io/safetensors/writer.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/write_parameters.hpp>

#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <thread>
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
const std::string text = std::string(" --text ") + HEDDLE_SOURCE_DIR "/LICENSE";  // a text that does not change

// The example needs packages of the tokenizer, which need not be there.
bool is_built() {
  if (fs::exists(program)) return true;
  WARN("examples/finetune was not built: nothing is tested here");
  return false;
}

struct answer : examples_test::answer {
  double loss(const char* when) const {
    const std::string name = std::string(when) + "validation loss ";
    const std::size_t at = text.find(name);
    return at == std::string::npos ? std::nan("") : std::strtod(text.c_str() + at + name.size(), nullptr);
  }
  double before() const { return loss("before  "); }
  double after() const { return loss("after   "); }
};
answer finetune(const std::string& arguments) {
  return {examples_test::run("finetune " + arguments)};
}
// Starts it in the background, with what it prints in `printed`, and waits for its first step.
pid_t started(const std::string& arguments, const fs::path& printed) {
  fs::remove(printed);
  const std::string command = "exec " + program.string() + " " + arguments + " > " + printed.string() + " 2>&1";
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);  // whatever started the tests ignores
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (std::chrono::steady_clock::now() < until) {
    std::ifstream in(printed);
    if (std::string(std::istreambuf_iterator<char>(in), {}).find("step ") != std::string::npos) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return child;
}
int status_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}
std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Every file below a folder, with its bytes.
std::map<std::string, std::string> files_below(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) all[fs::relative(entry.path(), folder).string()] = bytes_of(entry.path());
  return all;
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
    const answer a = finetune(model + text + " --bytes --out '" + out + "' --mesh " + r.mesh + r.how +
                              " --steps 40 --lr 0.02 --context 32");
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
  CHECK(worst <= 1e-4);
}

TEST_CASE("a strategy from a file tunes what the same options do", "[examples][finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const std::string common =
      "--model " + (golden / "models" / "bytes").string() + text + " --bytes --steps 3 --lr 0.02 --context 32";
  std::ofstream(folder / "plan.txt") << "version 1\nmesh pp=2,tp=2\nmicrobatches 2\n";
  const answer by_file = finetune(common + " --plan " + (folder / "plan.txt") + " --out " + (folder / "file"));
  const answer by_hand = finetune(common + " --mesh pp=2,tp=2 --microbatches 2 --out " + (folder / "hand"));
  INFO(by_file.text << by_hand.text);
  REQUIRE(by_file.status == 0);
  REQUIRE(by_hand.status == 0);
  CHECK(by_file.after() == by_hand.after());
  CHECK(bytes_of(folder / "file/model.safetensors") == bytes_of(folder / "hand/model.safetensors"));
  std::ofstream(folder / "plan.txt") << "version 1\nmesh dp=2\nrecompute full\n";
  const answer other = finetune(common + " --plan " + (folder / "plan.txt") + " --out " + (folder / "other"));
  CHECK(other.status == 1);
  CHECK_THAT(other.text, Contains("asks for recompute \"full\"; this program was compiled for a strategy without"));
}

TEST_CASE("activations that wait on a drive tune the same model", "[examples][finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const std::string common = "--model " + (golden / "models" / "bytes").string() + text +
                             " --bytes --steps 4 --lr 0.02 --context 32 --batch 64 --lora-rank 3 --out ";
  const answer kept = finetune(common + (folder / "kept"));
  const answer away = finetune(common + (folder / "away") + " --offload " + folder.path.string());
  INFO(kept.text << away.text);
  REQUIRE(kept.status == 0);
  REQUIRE(away.status == 0);
  CHECK(bytes_of(folder / "kept/model.safetensors") == bytes_of(folder / "away/model.safetensors"));
  CHECK_THAT(away.text, Contains("MB of activations written to " + folder.path.string()));
  CHECK_THAT(away.text, !Contains("offload      0.0 MB"));
  const answer refused = finetune(common + (folder / "none") + " --offload /dev/null/none");
  CHECK(refused.status == 1);
  CHECK_THAT(refused.text, Contains("making a file for activations in /dev/null/none failed"));
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
  const answer a =
      finetune("--model " + (golden / "models" / "gpt2").string() + text + " --bytes --out " + (folder / "out"));
  CAPTURE(a.text);
  CHECK(a.status == 1);
  CHECK_THAT(a.text, Contains("LICENSE' has the token") && Contains("the model a vocabulary of 53"));
  const answer b =
      finetune("--model " + (golden / "models" / "qwen2").string() + text + " --bytes --out " + (folder / "out"));
  CAPTURE(b.text);
  CHECK(b.status == 1);
  CHECK_THAT(b.text, Contains("LICENSE' has the token") && Contains("the model a vocabulary of 41"));
}

TEST_CASE("a folder that has a model is refused before anything is trained, and stays as it is",
          "[examples][finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const std::string model = "--model " + (golden / "models" / "bytes").string() + text + " --bytes";
  const std::string other = folder / "other", file = folder / "file", link = folder / "link";
  fs::copy(golden / "models" / "llama_tied", other);
  std::ofstream(file) << "a file";
  fs::create_directory(folder / "empty");
  fs::create_symlink(folder / "empty", link);
  const auto before = files_below(folder.path);
  for (const std::string& how : {std::string(), std::string(" --lora-rank 2")})
    for (const auto& [out, why] : {std::pair<std::string, const char*>{other, "'model.safetensors' is there already"},
                                   {file, "is there and is no folder"},
                                   {file + "/out", "cannot"},
                                   {link, "is a link to"}}) {
      const answer a = finetune(model + " --out " + out + how + " --steps 3 --context 32");
      CAPTURE(a.text);
      CHECK(a.status == 1);
      CHECK_THAT(a.text, Contains(why) && !Contains("validation loss"));
    }
  CHECK(files_below(folder.path) == before);
  // What the model's folder has beside its weights travels, and each tensor keeps its type.
  const std::string mixed = folder / "mixed", out = folder / "parents/are/made/";
  fs::copy(golden / "models" / "bytes", mixed);
  {
    const io::safetensors_folder was(golden / "models" / "bytes");
    std::vector<std::vector<float>> wide;
    std::vector<std::vector<hd::bf16>> narrow;
    std::vector<io::safetensors_output> tensors;
    for (const std::string& name : was.names()) {
      const auto shape = was.tensor(name).shape();
      wide.push_back(values_of<float>(was, name));
      auto& values = narrow.emplace_back();
      for (const float v : wide.back()) values.push_back(hd::bf16(v));
      const std::vector<std::int64_t> extents(shape.begin(), shape.end());
      tensors.push_back(extents.size() == 2 ? io::safetensors_of(name, extents, std::span<const hd::bf16>(values))
                                            : io::safetensors_of(name, extents, std::span<const float>(wide.back())));
    }
    fs::remove(mixed + "/model.safetensors");
    io::write_safetensors_folder(mixed, tensors, 1 << 20, {{{"format", "pt"}}});
  }
  std::ofstream(mixed + "/tokenizer.model") << "sentences";
  std::ofstream(mixed + "/LICENSE") << "terms";
  const answer a = finetune("--model " + mixed + text + " --bytes --out " + out + " --steps 1 --context 32");
  CAPTURE(a.text);
  CHECK(a.status == 0);
  const io::safetensors_folder is(out);
  for (const std::string& name : is.names()) {
    CAPTURE(name);
    CHECK(is.tensor(name).dtype() == (is.tensor(name).shape().size() == 2 ? "BF16" : "F32"));
  }
  CHECK(bytes_of(out + "tokenizer.model") == "sentences");
  CHECK(bytes_of(out + "LICENSE") == "terms");
  CHECK_FALSE(fs::exists(folder / "parents/are/made.partial"));
  CHECK_FALSE(fs::exists(folder / "parents/are/made.saves"));
}

TEST_CASE("a signal saves the training, and it goes on to the same bytes", "[examples][finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const std::string all =
      "--model " + (golden / "models" / "bytes").string() + text + " --bytes --steps 60 --context 32 --lr 0.01";
  const fs::path printed = folder / "printed";
  for (const std::string& how : {std::string(" --mesh dp=2"), std::string(" --mesh tp=2 --lora-rank 3")}) {
    CAPTURE(how);
    const std::string whole = folder / "whole", out = folder / "out";
    const answer uninterrupted = finetune(all + how + " --out " + whole);
    CAPTURE(uninterrupted.text);
    REQUIRE(uninterrupted.status == 0);
    // The first signal: a save and a line; nothing of the folder.
    const pid_t child = started(all + how + " --out " + out, printed);
    ::kill(child, SIGINT);
    const int status = status_of(child);
    const std::string said = bytes_of(printed);
    CAPTURE(said);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 128 + SIGINT);
    CHECK_THAT(said, Contains("stopped      SIGINT: after step ") &&
                         Contains(" of 60, saved in '" + out + ".saves': --resume goes on"));
    CHECK_FALSE(fs::exists(out));
    CHECK_FALSE(fs::exists(out + ".partial"));
    const answer over = finetune(all + how + " --out " + out);
    CAPTURE(over.text);
    CHECK(over.status == 1);
    CHECK_THAT(over.text, Contains("holds a save of step ") && Contains("; give --resume to go on from it"));
    const answer another = finetune(all + how + " --seed 2 --resume --out " + out);
    CAPTURE(another.text);
    CHECK(another.status == 1);
    CHECK_THAT(another.text, Contains("drew its samples by seed 1"));
    const answer resumed = finetune(all + how + " --resume --out " + out);
    CAPTURE(resumed.text);
    REQUIRE(resumed.status == 0);
    CHECK_THAT(resumed.text, Contains("resume       after step "));
    CHECK(resumed.after() == uninterrupted.after());
    CHECK((files_below(out) == files_below(whole)));
    for (const std::string& path : {whole, out, out + ".saves"}) fs::remove_all(path);
  }
}

TEST_CASE("a killed training goes on from its last save, over what it had begun to write", "[examples][finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const std::string out = folder / "out", saves = folder / "saves", whole = folder / "whole";
  const std::string all = "--model " + (golden / "models" / "bytes").string() + text + " --bytes" +
                          " --steps 40 --context 32 --lr 0.01 --save-every 1 --save " + saves + " --out " + out;
  const fs::path printed = folder / "printed";
  const pid_t child = started(all, printed);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!fs::exists(saves + "/step-00000002") && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const answer second = finetune(all + " --resume");
  CAPTURE(second.text);
  CHECK(second.status == 1);
  CHECK_THAT(second.text, Contains("out.partial': another run is saving here (process " + std::to_string(child)));
  ::kill(child, SIGKILL);
  REQUIRE(WIFSIGNALED(status_of(child)));
  REQUIRE(fs::exists(out + ".partial/.lock"));
  std::ofstream(out + ".partial/model.safetensors.partial") << "half";
  // At the end the weights cannot be written: the training is not lost.
  const pid_t unlucky = started(all + " --resume", printed);
  fs::create_directories(out + ".partial/model.safetensors.partial/mine");
  const int status = status_of(unlucky);
  const std::string said = bytes_of(printed);
  CAPTURE(said);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 1));
  CHECK_THAT(said, Contains("model.safetensors.partial'") &&
                       Contains("; the training is saved in '" + saves + "': with --resume it is written again"));
  CHECK_FALSE(fs::exists(out));
  const answer stranger = finetune(all + " --resume");
  CHECK(stranger.status == 1);
  CHECK_THAT(stranger.text, Contains("has 'model.safetensors.partial', which no run has left there"));
  CHECK(fs::exists(out + ".partial/model.safetensors.partial/mine"));
  fs::remove_all(out + ".partial/model.safetensors.partial");
  const answer resumed = finetune(all + " --resume");
  CAPTURE(resumed.text);
  REQUIRE(resumed.status == 0);
  CHECK_THAT(resumed.text, Contains("resume       after step 40"));
  const answer uninterrupted = finetune("--model " + (golden / "models" / "bytes").string() + text + " --bytes" +
                                        " --steps 40 --context 32 --lr 0.01 --out " + whole);
  REQUIRE(uninterrupted.status == 0);
  CHECK((files_below(out) == files_below(whole)));
}

TEST_CASE("of conversations the assistant's turns are learned, with transformers' losses", "[examples][finetune]") {
  if (!is_built()) return;
  const scratch folder;
  const std::string model = folder / "words", out = folder / "out";
  fs::copy(golden / "words", model);
  fs::copy_file(golden / "tokenizer" / "llama3.json", model + "/tokenizer.json");
  std::ifstream in(golden / "words" / "expected.json");
  const auto expected = nlohmann::json::parse(in)["step"];
  const std::string chats = (golden / "words" / "chats.jsonl").string();
  for (const char* mesh : {"dp=1", "tp=3", "dp=2,pp=2 --microbatches 2"}) {
    const answer a = finetune("--model " + model + " --chat " + chats + " --out " + out +
                              " --batch 8 --context 96 --steps 1 --mesh " + mesh);
    CAPTURE(a.text);
    REQUIRE(a.status == 0);
    CHECK(std::abs(a.before() - expected["held_out"].get<double>()) < 1e-5 * a.before());
    const std::size_t at = a.text.find("loss ", a.text.find("step "));
    REQUIRE(at != std::string::npos);
    CHECK(std::strtod(a.text.c_str() + at + 5, nullptr) == Approx(expected["train"].get<double>()).margin(6e-5));
    CHECK_THAT(a.text, Contains("9 conversations, 9 samples of 96 tokens, " + expected["learned"].dump() +
                                " of the assistant's are learned, as the template marks them; " +
                                expected["cut"].dump() + " are longer and are cut"));
    fs::remove_all(out);
  }
  // Without marks the turns are what each adds, which here is the same.
  std::string source = bytes_of(model + "/chat_template.jinja");
  for (const char* mark : {"{%- generation %}", "{%- endgeneration %}"})
    source.erase(source.find(mark), std::string(mark).size());
  std::ofstream(model + "/chat_template.jinja") << source;
  const answer plain =
      finetune("--model " + model + " --chat " + chats + " --out " + out + " --batch 8 --context 96 --steps 0");
  CAPTURE(plain.text);
  CHECK(plain.status == 0);
  CHECK_THAT(plain.text,
             Contains(expected["learned"].dump() + " of the assistant's are learned, by what each turn adds"));
  CHECK(std::abs(plain.before() - expected["held_out"].get<double>()) < 1e-5 * plain.before());
  fs::remove_all(out);

  const auto says = [&](const std::string& arguments, int status) {
    const answer a = finetune("--out " + out + " " + arguments);
    CAPTURE(a.text);
    CHECK(a.status == status);
    CHECK_FALSE(fs::exists(out));
    return a.text;
  };
  CHECK_THAT(says("--model " + model, 2), Contains("--text is required, or --chat"));
  CHECK_THAT(says("--model " + model + text + " --chat " + chats, 2), Contains("--chat"));
  std::ofstream(folder / "one.jsonl") << R"({"messages": [{"role": "user", "content": "a"}]})";
  CHECK_THAT(says("--model " + model + " --chat " + (folder / "one.jsonl"), 1),
             Contains("none has a turn of the assistant's within 96 tokens"));
  fs::remove(model + "/chat_template.jinja");
  CHECK_THAT(says("--model " + model + " --chat " + chats, 1), Contains("has no chat template, which --chat needs"));
}
