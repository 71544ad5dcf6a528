// tests/examples/convert_test.cpp: models that transformers wrote come back with every byte the same, on every mesh and through a save.
#include "catch.hpp"
#include "run_program.hpp"

#include <heddle/core/half_precision.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/io/safetensors/writer.hpp>
#include <heddle/io/torch/folder.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

using Catch::Matchers::Contains;
namespace fs = std::filesystem;
namespace hd = heddle;
namespace io = heddle::io;

namespace {

const fs::path models = HEDDLE_SOURCE_DIR "/tests/golden/models";

using examples_test::answer, examples_test::run;
answer convert(const std::string& arguments) {
  return run("convert " + arguments);
}
// What the lines of ranks say, in the order of ranks: "rank 0 (...)  read 1234 bytes".
std::map<int, std::int64_t> byte_counts(const std::string& text, const std::string& what) {
  std::map<int, std::int64_t> of_ranks;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (const auto at = line.find(")  " + what); at != std::string::npos && line.starts_with("rank "))
      of_ranks[std::stoi(line.substr(5))] = std::stoll(line.substr(at + 3 + what.size()));
  return of_ranks;
}
std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
// Files of the model that the other folder lacks or has with other bytes, and files that only the other has.
std::string differences(const fs::path& model, const fs::path& other) {
  std::string found;
  for (const auto& file : fs::directory_iterator(model)) {
    const auto name = file.path().filename();
    if (name == "expected.json" || name == "beams.json") continue;  // what transformers computes with it
    if (!fs::exists(other / name))
      found += " no " + name.string();
    else if (bytes_of(file.path()) != bytes_of(other / name))
      found += " another " + name.string();
  }
  for (const auto& file : fs::directory_iterator(other))
    if (!fs::exists(model / file.path().filename())) found += " more: " + file.path().filename().string();
  return found;
}

// Whether two tensors of F32 or BF16 have the same type, shape and elements.
bool same_tensor(const io::torch_tensor& a, const io::torch_tensor& b) {
  if (a.dtype() != b.dtype() || !std::ranges::equal(a.shape(), b.shape())) return false;
  std::int64_t n = 1;
  for (const std::int64_t e : a.shape()) n *= e;
  std::vector<float> of_a(static_cast<std::size_t>(n)), of_b(of_a.size());
  a.read(0, std::span<float>(of_a));
  b.read(0, std::span<float>(of_b));
  return of_a == of_b;
}

struct scratch {
  fs::path path = fs::temp_directory_path() / ("heddle-convert-" + std::to_string(::getpid()));
  scratch() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~scratch() { fs::remove_all(path); }
};

}  // namespace

TEST_CASE("a model of transformers is written byte by byte as it was, on every mesh", "[examples][convert]") {
  const scratch folder;
  for (const std::string name :
       {"gpt2",       "gpt2_untied",    "llama3",         "llama_tied",      "qwen2",
        "qwen3",      "mixtral",        "qwen3_moe",      "qwen3_moe_plain", "smollm3",
        "granite",    "granite_tied",   "phi3",           "phi3_window",     "llama_yarn",
        "qwen2_yarn", "qwen3_dynamic",  "olmo2",          "gemma2",          "gemma3",
        "deepseek",   "deepseek_dense", "deepseek_plain", "deepseek_v2",     "deepseek_v2_lite",
        "gpt_oss",    "bytes"})
    for (const std::string mesh : {"dp=1", "tp=2", "pp=2", "dp=2,tp=2", "dp=3,pp=2"}) {
      CAPTURE(name, mesh);
      const std::string files = name == "llama3" ? " --max-file-bytes 30000" : "";
      const fs::path at = folder.path / (name + mesh);
      const std::string model = (models / name).string(), direct = (at / "direct").string();
      const std::string save = (at / "save").string(), back = (at / "back").string();
      const answer a = convert("--from " + model + " --to " + direct + " --mesh " + mesh + files);
      INFO(a.text);
      REQUIRE(a.status == 0);
      CHECK(differences(model, direct).empty());
      const answer b = convert("--from " + model + " --to " + save + " --format heddle --mesh " + mesh);
      INFO(b.text);
      REQUIRE(b.status == 0);
      const answer c = convert("--from " + save + " --to " + back + " --mesh tp=2" + files);
      INFO(c.text);
      REQUIRE(c.status == 0);
      CHECK(differences(model, back).empty());
      fs::remove_all(at);
    }
}

TEST_CASE("some blocks of a model are a folder of their own", "[examples][convert][blocks]") {
  const scratch folder;
  std::ifstream cases(models / "blocks.json");
  for (const nlohmann::json& expected : nlohmann::json::parse(cases)) {
    const std::string name = expected["model"], blocks = expected["blocks"], to = (folder.path / "to").string();
    CAPTURE(name, blocks);
    const answer a = convert("--from " + (models / name).string() + " --to " + to + " --mesh pp=2 --blocks " + blocks);
    INFO(a.text);
    REQUIRE(a.status == 0);
    std::string tokens;
    std::ifstream beside(models / name / "expected.json");
    const nlohmann::json of_model = nlohmann::json::parse(beside);
    for (const nlohmann::json& sample : of_model["samples"]) {
      tokens += " --tokens ";
      for (std::size_t i = 0; i < sample.size(); ++i) tokens += (i > 0 ? "," : "") + sample[i].dump();
    }
    const answer loss = run("evaluate --json --model " + to + tokens);
    INFO(loss.text);
    REQUIRE(loss.status == 0);
    CHECK(nlohmann::json::parse(loss.text)["loss"].get<double>() == Approx(expected["loss"].get<double>()));
    fs::remove_all(to);
  }
  // Each tensor has the bytes of the block it was.
  const std::string to = (folder.path / "llama").string();
  REQUIRE(convert("--from " + (models / "llama3").string() + " --to " + to + " --blocks 0,2").status == 0);
  std::ifstream config(fs::path(to) / "config.json");
  CHECK(nlohmann::json::parse(config)["num_hidden_layers"] == 2);
  const io::safetensors_folder before(models / "llama3"), after(to);
  CHECK(after.names().size() == before.names().size() * 7 / 10);  // nine of each of three blocks, and three
  for (const std::string& name : after.names()) {
    std::string of_source = name;
    if (const auto at = of_source.find("layers.1."); at != std::string::npos) of_source.replace(at, 9, "layers.2.");
    const auto one = after.tensor(name), other = before.tensor(of_source);
    std::int64_t count = 1;
    for (const std::int64_t extent : one.shape()) count *= extent;
    std::vector<float> a(static_cast<std::size_t>(count)), b(a.size());
    one.read(0, std::span<float>(a));
    other.read(0, std::span<float>(b));
    CHECK(a == b);
  }
  // A folder of PyTorch too; a save of heddle not.
  const std::string torch = (folder.path / "torch").string(), save = (folder.path / "save").string();
  REQUIRE(convert("--from " + (models / "gpt2").string() + " --to " + torch + " --format torch --blocks 0,2").status ==
          0);
  REQUIRE(convert("--from " + torch + " --to " + torch + "-1 --blocks 1").status == 0);
  REQUIRE(convert("--from " + (models / "gpt2").string() + " --to " + torch + "-2 --blocks 2").status == 0);
  CHECK(bytes_of(torch + "-1/model.safetensors") == bytes_of(torch + "-2/model.safetensors"));
  REQUIRE(convert("--from " + (models / "gpt2").string() + " --to " + save + " --format heddle").status == 0);
  const answer refused = convert("--from " + save + " --to " + save + "-1 --blocks 1");
  CHECK(refused.status == 1);
  CHECK_THAT(refused.text, Contains("--blocks takes weights of Hugging Face or PyTorch"));
}

TEST_CASE("a model goes to a folder of PyTorch and comes back byte by byte", "[examples][convert][torch]") {
  const scratch folder;
  for (const std::string name : {"gpt2", "gpt2_untied", "llama3", "mixtral"}) {
    CAPTURE(name);
    const std::string model = (models / name).string(), torch = (folder.path / (name + "-torch")).string();
    const std::string back = (folder.path / (name + "-back")).string();
    const answer a = convert("--from " + model + " --to " + torch + " --mesh tp=2 --format torch");
    INFO(a.text);
    REQUIRE(a.status == 0);
    const io::torch_folder written(torch);
    for (const std::string& tensor : written.names()) CHECK(tensor.starts_with("model."));
    const answer b = convert("--from " + torch + " --to " + back + " --mesh pp=2" +
                             (name == "llama3" ? " --max-file-bytes 30000" : ""));
    INFO(b.text);
    REQUIRE(b.status == 0);
    CHECK(differences(model, back).empty());
    // Files of each rank with its boxes: of two copies each has a half, in several boxes; many small files.
    for (const std::string arguments : {"--mesh dp=2,tp=2", "--mesh dp=3 --max-file-bytes 3000"}) {
      CAPTURE(arguments);
      const answer c = convert("--from " + model + " --to " + torch + "-s --format torch-sharded " + arguments);
      INFO(c.text);
      REQUIRE(c.status == 0);
      CHECK(fs::exists(torch + "-s/model.safetensors") == false);
      const io::torch_folder shards(torch + "-s");
      CHECK(shards.names() == written.names());
      for (const std::string& tensor : written.names())
        CHECK(same_tensor(shards.tensor(tensor), written.tensor(tensor)));
      fs::remove_all(torch + "-s");
    }
  }
}

TEST_CASE("a save of a GPT-2 with a head of its own keeps the head without a config.json", "[examples][convert]") {
  const scratch folder;
  const std::string model = (models / "gpt2_untied").string(), save = (folder.path / "save").string(),
                    back = (folder.path / "back").string();
  REQUIRE(convert("--from " + model + " --to " + save + " --format heddle").status == 0);
  REQUIRE(fs::remove(save + "/config.json"));
  const answer a = convert("--from " + save + " --to " + back);
  INFO(a.text);
  REQUIRE(a.status == 0);
  CHECK(bytes_of(back + "/model.safetensors") == bytes_of(model + "/model.safetensors"));
  CHECK_THAT(bytes_of(back + "/config.json"), Contains("\"tie_word_embeddings\": false"));
}

// A save of a model in `folder`/weights, and the same in `folder`/trained with moments that are its weights, once in their place and once
// backwards. How many parameters it has.
static std::size_t save_with_moments(const fs::path& folder, const char* model) {
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const answer saved = convert("--from " + (models / model).string() + " --to " + path("weights") + " --format heddle");
  INFO(saved.text);
  REQUIRE(saved.status == 0);
  const io::search_result found = io::latest(path("weights"));
  REQUIRE(found.save);
  io::manifest m = found.save->manifest;
  const io::checkpoint_reader reader(found.save->path);
  io::checkpoint_writer writer(path("trained"), 7, 0);
  const auto entries = reader.tensors(0);
  for (const io::tensor_entry& e : entries) {
    std::vector<float> values(static_cast<std::size_t>(e.region.count()));
    reader.read(0, e.name, std::span<float>(values), e.region);
    const std::string parameter = e.name.substr(std::string("weight/").size());
    writer.add(e.name, std::span<const float>(values), e.region);
    writer.add("first_moment/" + parameter, std::span<const float>(values), e.region);
    std::reverse(values.begin(), values.end());
    writer.add("second_moment/" + parameter, std::span<const float>(values), e.region);
  }
  m.step = 7;
  m.files = {writer.finish()};
  io::commit(path("trained"), m);
  return entries.size();
}

TEST_CASE("the moments of experts that files have in one tensor go to a folder of PyTorch",
          "[examples][convert][torch]") {
  const scratch folder;
  const auto path = [&](const char* name) { return (folder.path / name).string(); };
  save_with_moments(folder.path, "gpt_oss");
  const answer a = convert("--from " + path("trained") + " --config " + path("weights") + " --to " + path("torch") +
                           " --mesh ep=2 --format torch --with-moments");
  INFO(a.text);
  REQUIRE(a.status == 0);
  const io::torch_folder torch(path("torch"));
  const std::string one = "model.layers.1.mlp.experts.gate_up_proj";
  CHECK(same_tensor(torch.tensor("optim.state." + one + ".exp_avg"), torch.tensor("model." + one)));
}

TEST_CASE("the moments of a save go to a folder of PyTorch", "[examples][convert][torch]") {
  const scratch folder;
  const auto path = [&](const char* name) { return (folder.path / name).string(); };
  const std::size_t parameters = save_with_moments(folder.path, "llama3");
  const answer a = convert("--from " + path("trained") + " --config " + path("weights") + " --to " + path("torch") +
                           " --mesh tp=2,pp=2 --format torch --with-moments");
  INFO(a.text);
  REQUIRE(a.status == 0);
  const io::torch_folder torch(path("torch"));
  CHECK(torch.names().size() == 4 * parameters);  // a weight, two moments and a number of steps
  const std::string one = "model.layers.0.self_attn.q_proj.weight";
  const auto all = [&](const std::string& name) {
    const auto tensor = torch.tensor(name);
    std::int64_t n = 1;
    for (const std::int64_t e : tensor.shape()) n *= e;
    std::vector<float> values(static_cast<std::size_t>(n));
    tensor.read(0, std::span<float>(values));
    return values;
  };
  auto weight = all("model." + one);
  CHECK(weight == all("optim.state." + one + ".exp_avg"));
  std::reverse(weight.begin(), weight.end());
  CHECK(weight == all("optim.state." + one + ".exp_avg_sq"));
  CHECK(all("optim.state." + one + ".step") == std::vector<float>{7});
  const answer in_shards = convert("--from " + path("trained") + " --config " + path("weights") + " --to " +
                                   path("shards") + " --mesh dp=2,tp=2 --format torch-sharded --with-moments");
  INFO(in_shards.text);
  REQUIRE(in_shards.status == 0);
  const io::torch_folder shards(path("shards"));
  CHECK(shards.names() == torch.names());
  for (const std::string& name : torch.names()) CHECK(same_tensor(shards.tensor(name), torch.tensor(name)));
  const answer none = convert("--from " + path("weights") + " --to " + path("none") + " --format torch --with-moments");
  CHECK(none.status != 0);
  CHECK_THAT(none.text, Contains("has no moments of"));
}

TEST_CASE("a dry run prints the plan and writes nothing", "[examples][convert]") {
  const scratch folder;
  const fs::path to = folder.path / "none";
  const answer a = convert("--from " + (models / "llama3").string() + " --to " + to.string() +
                           " --mesh pp=2,tp=2 --max-file-bytes 30000 --dry-run");
  CAPTURE(a.text);
  CHECK(a.status == 0);
  CHECK_THAT(a.text, Contains("model-00002-of-00004.safetensors  9 tensors, 27576 bytes"));
  CHECK_THAT(a.text, Contains("model.layers.1.mlp.down_proj.weight  F32, 1044 elements"));
  CHECK_THAT(a.text, Contains("rank 3 (dp 0, pp 1, tp 1)  would read 16992 bytes of 11 tensors"));
  CHECK_FALSE(fs::exists(to));
}

TEST_CASE("files are cut where transformers cuts them", "[examples][convert]") {
  for (const auto& cut : nlohmann::json::parse(bytes_of(models / "cuts.json"))) {
    const auto name = cut.at("model").get<std::string>(), bytes = std::to_string(cut.at("bytes").get<int>());
    CAPTURE(name, bytes);
    const answer a = convert("--from " + (models / name).string() + " --to none --dry-run --max-file-bytes " + bytes);
    REQUIRE(a.status == 0);
    std::vector<std::vector<std::string>> files;
    std::istringstream lines(a.text);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("    "))
        files.back().push_back(line.substr(4, line.find("  ", 4) - 4));
      else if (line.starts_with("  model-"))
        files.emplace_back();
    for (auto& file : files) std::sort(file.begin(), file.end());
    CHECK(files == cut.at("files").get<std::vector<std::vector<std::string>>>());
  }
}

TEST_CASE("each tensor keeps its type and its name", "[examples][convert]") {
  const scratch folder;
  const std::string model = (folder.path / "mixed").string(), back = (folder.path / "back").string();
  fs::create_directories(model);
  const auto half = [](std::vector<float> values) {
    std::vector<hd::bf16> out;
    for (const float v : values) out.push_back(hd::bf16(v));
    return out;
  };
  // A GPT-2 without "transformer." before its names; norms in F32, matrices in BF16.
  const std::vector<std::pair<std::string, std::vector<std::int64_t>>> shapes{{"wte.weight", {5, 2}},
                                                                              {"wpe.weight", {3, 2}},
                                                                              {"h.0.ln_1.weight", {2}},
                                                                              {"h.0.ln_1.bias", {2}},
                                                                              {"h.0.attn.c_attn.weight", {2, 6}},
                                                                              {"h.0.attn.c_attn.bias", {6}},
                                                                              {"h.0.attn.c_proj.weight", {2, 2}},
                                                                              {"h.0.attn.c_proj.bias", {2}},
                                                                              {"h.0.ln_2.weight", {2}},
                                                                              {"h.0.ln_2.bias", {2}},
                                                                              {"h.0.mlp.c_fc.weight", {2, 8}},
                                                                              {"h.0.mlp.c_fc.bias", {8}},
                                                                              {"h.0.mlp.c_proj.weight", {8, 2}},
                                                                              {"h.0.mlp.c_proj.bias", {2}},
                                                                              {"ln_f.weight", {2}},
                                                                              {"ln_f.bias", {2}}};
  std::vector<std::vector<float>> wide(shapes.size());
  std::vector<std::vector<hd::bf16>> narrow(shapes.size());
  std::vector<io::safetensors_output> tensors;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto& [name, shape] = shapes[i];
    for (std::int64_t k = 0; k < shape[0] * (shape.size() == 2 ? shape[1] : 1); ++k)
      wide[i].push_back(1.0f / static_cast<float>(3 + k + static_cast<std::int64_t>(i)));
    narrow[i] = half(wide[i]);
    tensors.push_back(shape.size() == 2 ? io::safetensors_of(name, shape, std::span<const hd::bf16>(narrow[i]))
                                        : io::safetensors_of(name, shape, std::span<const float>(wide[i])));
  }
  io::write_safetensors_folder(model, tensors, 1 << 20, {{{"format", "pt"}}});
  std::ofstream(model + "/config.json")
      << R"({"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 2, "n_positions": 3, "vocab_size": 5})";
  std::ofstream(model + "/tokenizer.model") << "sentences";
  std::ofstream(model + "/LICENSE") << "terms";
  const answer a = convert("--from " + model + " --to " + back + " --mesh dp=2");
  CAPTURE(a.text);
  REQUIRE(a.status == 0);
  CHECK(differences(model, back).empty());
  // Through a save, too.
  const std::string save = (folder.path / "save").string(), again = (folder.path / "again").string();
  const answer to = convert("--from " + model + " --to " + save + " --format heddle --mesh tp=2");
  CAPTURE(to.text);
  REQUIRE(to.status == 0);
  const answer from = convert("--from " + save + " --to " + again);
  CAPTURE(from.text);
  REQUIRE(from.status == 0);
  CHECK(differences(model, again).empty());

  fs::remove_all(model + "/model.safetensors");
  const std::vector<double> precise{1.0 / 3, 2.0 / 3};
  tensors.back() = io::safetensors_of("ln_f.bias", {2}, std::span<const double>(precise));
  io::write_safetensors_folder(model, tensors, 1 << 20, {{{"format", "pt"}}});
  const answer b = convert("--from " + model + " --to " + back + "2");
  CAPTURE(b.text);
  CHECK(b.status == 1);
  CHECK_THAT(b.text,
             Contains("mixed/model.safetensors'") && Contains("'ln_f.bias'") && Contains("elements of type F64"));
  CHECK_FALSE(fs::exists(back + "2"));
}

TEST_CASE("matrices in 8 bits become numbers of the model's type, with or without a save between",
          "[examples][convert]") {
  const scratch folder;
  const auto path = [&](const char* name) { return (folder.path / name).string(); };
  const std::string model = (models / "deepseek_fp8").string();
  for (const std::string& arguments : {"--from " + model + " --to " + path("direct") + " --mesh tp=2",
                                       "--from " + model + " --to " + path("save") + " --format heddle --mesh pp=2",
                                       "--from " + path("save") + " --to " + path("back")}) {
    const answer a = convert(arguments);
    CAPTURE(a.text);
    REQUIRE(a.status == 0);
  }
  CHECK(differences(path("direct"), path("back")).empty());
  // A dry run has the bytes that are read, scales too.
  for (const char* mesh : {"dp=1", "tp=2", "pp=2,tp=2"}) {
    const std::string arguments = "--from " + model + " --to " + path(mesh) + " --mesh " + mesh;
    const auto planned = byte_counts(convert(arguments + " --dry-run").text, "would read ");
    const auto read = byte_counts(convert(arguments).text, "read ");
    CAPTURE(mesh);
    CHECK(planned.size() == (mesh == std::string("dp=1") ? 1 : mesh == std::string("tp=2") ? 2 : 4));
    CHECK(planned == read);
  }
  CHECK(bytes_of(path("direct") + "/config.json").find("quantization_config") == std::string::npos);
  const io::safetensors_folder stored(model, hd::scale_blocks{7, 5}), direct(path("direct"));
  std::size_t scales = 0;
  for (const std::string& name : stored.names()) {
    if (stored.is_scales(name)) {
      ++scales;
      continue;
    }
    std::vector<float> expected(static_cast<std::size_t>(stored.tensor(name).entry().count())), got(expected.size());
    stored.tensor(name).read(0, std::span<float>(expected));
    direct.tensor(name).read(0, std::span<float>(got));
    CAPTURE(name);
    CHECK(direct.tensor(name).dtype() == "F32");
    CHECK(got == expected);
  }
  CHECK(scales > 0);
  CHECK(direct.names().size() + scales == stored.names().size());
}

TEST_CASE("a head in the files that config.json ties travels, and the copy says that it is no copy",
          "[examples][convert]") {
  const scratch folder;
  const auto path = [&](const char* name) { return (folder.path / name).string(); };
  fs::copy(models / "llama3", path("model"));
  std::string config = bytes_of(path("model") + "/config.json");
  const std::string_view untied = "\"tie_word_embeddings\": false";
  REQUIRE(config.find(untied) != std::string::npos);
  config.replace(config.find(untied), untied.size(), "\"tie_word_embeddings\": true");
  std::ofstream(path("model") + "/config.json") << config;
  for (const std::string& arguments :
       {"--from " + path("model") + " --to " + path("direct"),
        "--from " + path("model") + " --to " + path("save") + " --format heddle --mesh tp=2",
        "--from " + path("save") + " --to " + path("back")}) {
    const answer a = convert(arguments);
    CAPTURE(a.text);
    REQUIRE(a.status == 0);
  }
  CHECK(differences(path("direct"), path("back")).empty());
  const io::safetensors_folder stored(path("model")), direct(path("direct"));
  CHECK(stored.names() == direct.names());
  CHECK(stored.tensor("lm_head.weight").bytes() == direct.tensor("lm_head.weight").bytes());
  CHECK(bytes_of(path("direct") + "/config.json").find(untied) != std::string::npos);
}

TEST_CASE("what cannot be converted is said with file and tensor", "[examples][convert]") {
  const scratch folder;
  const auto model = [&](const char* name) {
    fs::copy(models / "gpt2", folder.path / name);
    return (folder.path / name).string();
  };
  const std::string there = model("there"), cut = model("cut"), other = model("other");
  const std::string out = " --to " + (folder.path / "out").string() + " --mesh tp=2";

  const answer twice = convert("--from " + there + " --to " + there);
  CAPTURE(twice.text);
  CHECK(twice.status == 1);
  CHECK_THAT(twice.text, Contains("model.safetensors' is there already"));
  CHECK(differences(models / "gpt2", there).empty());
  for (const char* format : {"huggingface", "heddle"}) {
    const answer onto = convert("--from " + (models / "llama3").string() + " --to " + there + "/ --format " + format);
    CAPTURE(onto.text);
    CHECK(onto.status == 1);
    CHECK_THAT(onto.text, Contains("model.safetensors' is there already") && !Contains("layers of width"));
    CHECK(differences(models / "gpt2", there).empty());
  }

  fs::resize_file(cut + "/model.safetensors", 60000);
  const answer a = convert("--from " + cut + out);
  CAPTURE(a.text);
  CHECK(a.status == 1);
  CHECK_THAT(a.text, Contains("cut/model.safetensors'") && Contains("tensor '") && Contains("cut off"));

  std::string bytes = bytes_of(other + "/model.safetensors");
  const std::string name = "transformer.h.1.mlp.c_fc.bias";
  bytes.replace(bytes.find(name), name.size(), "transformer.h.1.mlp.c_xx.bias");
  std::ofstream(other + "/model.safetensors", std::ios::binary) << bytes;
  const answer b = convert("--from " + other + out);
  CAPTURE(b.text);
  CHECK(b.status == 1);
  CHECK_THAT(b.text, Contains("transformer.h.1.mlp.c_xx.bias"));
  CHECK_FALSE(fs::exists(folder.path / "out"));
  CHECK_FALSE(fs::exists(folder.path / "out.partial"));

  const answer none = convert("--from " + folder.path.string() + out);
  CAPTURE(none.text);
  CHECK(none.status == 1);
  CHECK_THAT(none.text, Contains("has no config.json"));
}

TEST_CASE("generate continues some blocks as the folder of them, and a draft of some blocks changes no token",
          "[examples][convert][blocks]") {
  if (!fs::exists(fs::path(HEDDLE_EXAMPLES_DIR) / "generate")) {
    WARN("generate was not built: nothing is tested here");
    return;
  }
  const scratch folder;
  const std::string model = (models / "llama3").string(), to = (folder.path / "to").string();
  REQUIRE(convert("--from " + model + " --to " + to + " --blocks 0,2").status == 0);
  const auto made = [](const std::string& arguments) {
    const answer a = run("generate --tokens 1,2,3,4 --max-tokens 12 --temperature 0 --model " + arguments);
    CAPTURE(a.text);
    CHECK(a.status == 0);
    REQUIRE(a.text.find("prompt 0: ") != std::string::npos);
    return a.text.substr(a.text.find("prompt 0: "));
  };
  const std::string whole = made(model), two = made(to);
  CHECK(whole != two);
  CHECK(made(model + " --blocks 0,2") == two);
  CHECK(made(model + " --blocks 0,2 --mesh tp=2") == two);
  for (const std::string mesh : {"tp=2", "pp=2"})
    CHECK(made(model + " --mesh " + mesh + " --speculate draft --draft " + model + " --draft-blocks 0-1") == whole);
  CHECK_THAT(run("generate --tokens 1 --model " + model + " --draft-blocks 0").text,
             Contains("--draft-blocks 0 are blocks of a draft: give --speculate draft --draft FOLDER, too"));
}

TEST_CASE("a save of gpt2_train becomes a model that the other programs continue", "[examples][convert]") {
  const fs::path programs = HEDDLE_EXAMPLES_DIR;
  if (!fs::exists(programs / "generate") || !fs::exists(programs / "evaluate")) {
    WARN("programs were not built: nothing is tested here");
    return;
  }
  const scratch folder;
  const auto path = [&](const std::string& name) { return (folder.path / name).string(); };
  const std::string text = path("text");
  for (std::ofstream out(text); out.tellp() < 40000;) out << "it is what it is, and that was that\n";
  for (const std::string dtype : {"f32", "f64"}) {
    CAPTURE(dtype);
    const answer trained =
        run("gpt2_train --mesh dp=1,pp=2,tp=1 --microbatches 2 --layers 2 --width 32 --heads 2 --context 32 --batch 8 "
            "--steps 60 --lr 0.01 --validate-every 0 --save-every 40 --sample 12 --temperature 0 --trace= --timeline= "
            "--prompt 'it is ' --dtype " +
            dtype + " --data " + text + " --save " + path("saves" + dtype));
    CAPTURE(trained.text);
    if (dtype == "f64" && trained.text.find("compiled for --dtype f32 only") != std::string::npos) continue;
    REQUIRE(trained.status == 0);
    const std::string sample = "sample       ";
    REQUIRE(trained.text.find(sample) != std::string::npos);
    const std::string expected = trained.text.substr(trained.text.find(sample) + sample.size());
    CHECK(expected.substr(0, 10) == "it is what");
    // The folder of the saves has the newest one; a save may be named itself.
    for (const std::string& from : {path("saves" + dtype), path("saves" + dtype + "/step-00000060")}) {
      const std::string model = path("model");
      const answer converted = convert("--from " + from + " --to " + model + " --mesh tp=2");
      CAPTURE(converted.text);
      REQUIRE(converted.status == 0);
      const answer made = run("generate --model " + model + " --prompt 'it is ' --max-tokens 12 --temperature 0");
      CAPTURE(made.text);
      CHECK(made.status == 0);
      CHECK("it is " + made.text.substr(0, 12) == expected.substr(0, 18));
      const answer evaluated = run("evaluate --model " + model + " --text " + text);
      CAPTURE(evaluated.text);
      CHECK(evaluated.status == 0);
      fs::remove_all(model);
    }
    const answer dry = convert("--from " + path("saves" + dtype) + " --to " + path("dry") + " --dry-run");
    CHECK(dry.status == 0);
    CHECK_FALSE(fs::exists(path("dry")));
  }
}
