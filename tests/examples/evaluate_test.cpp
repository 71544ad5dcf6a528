// tests/examples/evaluate_test.cpp: models that transformers wrote give transformers' losses and logits on every mesh.
#include "catch.hpp"
#include "run_program.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <unistd.h>

using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const fs::path models = HEDDLE_SOURCE_DIR "/tests/golden/models";

using examples_test::answer;
answer run(const std::string& arguments, const std::string& before = "") {
  return examples_test::shell(before + HEDDLE_EXAMPLES_DIR "/evaluate " + arguments + " 2>&1");
}
json read(const fs::path& path) {
  std::ifstream in(path);
  return json::parse(in);
}
std::string tokens_of(const json& samples) {
  std::string text;
  for (const json& sample : samples) {
    text += " --tokens ";
    for (std::size_t i = 0; i < sample.size(); ++i) text += (i > 0 ? "," : "") + sample[i].dump();
  }
  return text;
}
double worst(const json& got, const json& expected) {
  double most = got.size() == expected.size() ? 0 : 1e300, greatest = 0;
  for (std::size_t i = 0; most < 1e300 && i < got.size(); ++i) {
    const double error = std::abs(got[i].get<double>() - expected[i].get<double>());
    if (!(error <= most)) most = error;  // a NaN stays
    greatest = (std::max)(greatest, std::abs(expected[i].get<double>()));
  }
  return most / greatest;
}

// A folder that is gone afterwards, with a copy of a model.
struct copied_model {
  fs::path path = fs::temp_directory_path() / ("heddle-evaluate-" + std::to_string(::getpid()));
  explicit copied_model(const std::string& name) {
    fs::remove_all(path);
    fs::copy(models / name, path);
  }
  copied_model(const copied_model&) = delete;
  copied_model& operator=(const copied_model&) = delete;
  ~copied_model() { fs::remove_all(path); }
  void change(const std::string& key, const json& value) const {
    json config = read(path / "config.json");
    config[key] = value;
    std::ofstream(path / "config.json") << config;
  }
};

}  // namespace

TEST_CASE("losses and logits of transformers' models on every mesh", "[examples][evaluate]") {
  for (const char* model : {"gpt2",
                            "gpt2_untied",
                            "llama3",
                            "llama_tied",
                            "qwen2",
                            "qwen3",
                            "mixtral",
                            "qwen3_moe",
                            "qwen3_moe_plain",
                            "smollm3",
                            "granite",
                            "granite_tied",
                            "phi3",
                            "phi3_window",
                            "llama_yarn",
                            "qwen2_yarn",
                            "qwen3_dynamic",
                            "olmo2",
                            "gemma2",
                            "gemma3",
                            "gpt_oss",
                            "deepseek",
                            "deepseek_dense",
                            "deepseek_plain",
                            "deepseek_fp8",
                            "deepseek_v2",
                            "deepseek_v2_lite",
                            "qwen3_fp8",
                            "bytes",
                            "phi3_gptq",
                            "llama_gptq3",
                            "qwen2_awq",
                            "llama_int4",
                            "qwen3_int8",
                            "llama_fp8_tensor",
                            "qwen2_fp8_channel",
                            "qwen3_mxfp4",
                            "gpt_oss_mxfp4"}) {
    const json expected = read(models / model / "expected.json");
    const std::string what = "--model " + (models / model).string() + tokens_of(expected["samples"]) + " --json";
    std::int64_t all_bytes = 0;
    for (const char* mesh : {"dp=1", "tp=2", "tp=3", "pp=2", "pp=3", "dp=2,tp=2", "dp=2,pp=2,tp=2"}) {
      {
        CAPTURE(model, mesh);
        const answer a = run(what + " --mesh " + mesh);
        CAPTURE(a.text);
        REQUIRE(a.status == 0);
        const json got = json::parse(a.text.substr(a.text.find('{')));  // behind the line of a quantised model
        const double loss = expected["loss_f32"].get<double>();
        CHECK(std::abs(got["loss"].get<double>() - loss) < 1e-5 * loss);
        CHECK(got["perplexity"].get<double>() == Approx(std::exp(loss)).epsilon(1e-4));
        REQUIRE(got["last_logits"].size() == expected["last_logits"].size());
        // LongRoPE multiplies phi3's scores by 4: transformers' own float32 is 1e-5 from its float64, as sums in another order are here.
        const double near = model == std::string("phi3") ? 3e-5 : 1e-5;
        for (std::size_t i = 0; i < got["last_logits"].size(); ++i)
          CHECK(worst(got["last_logits"][i], expected["last_logits"][i]) < near);
        // One rank reads everything once; with parts of it each rank less.
        std::int64_t most = 0;
        for (const json& bytes : got["bytes_read"]) most = (std::max)(most, bytes.get<std::int64_t>());
        if (mesh == std::string("dp=1")) all_bytes = most;
        // Latent projections and routers are whole on both ranks: more of a DeepSeek than of the others.
        // Of three heads one rank has two; the one key-value head of granite_tied is on one rank, with its queries.
        const std::string name = model;
        const bool uneven = name == "deepseek_v2_lite" || name == "qwen3_moe_plain" || name == "gpt2_untied";
        // Words, zero points and the order of groups are shared by elements of both.
        const bool packed =
            name.find("_gptq") != name.npos || name == "qwen2_awq" || name == "llama_int4" || name.ends_with("_mxfp4");
        const std::int64_t twentieths = packed                                           ? 14
                                        : name == "granite_tied" || name == "qwen2_yarn" ? 16
                                        : uneven                                         ? 13
                                        : name.rfind("deepseek", 0) == 0                 ? 12
                                                                                         : 11;
        if (mesh == std::string("tp=2")) CHECK(most < all_bytes * twentieths / 20);
      }
    }
  }
}

TEST_CASE("what quantised matrices become is said, and what is not read is refused with what to do",
          "[examples][evaluate]") {
  const copied_model m("qwen3_int8");
  const std::string of = "--model " + m.path.string() + " --tokens 1";
  // Of three layers: 24 x 20, twice 12 x 20, 20 x 24, three times 17 x 20, and a bf16 for each row.
  CHECK_THAT(run(of).text,
             Contains("21 matrices in fewer bits, 8112 bytes, are widened as they are read: 7380 elements, "
                      "14760 bytes in bf16, 29520 in f32"));
  m.change("quantization_config", {{"quant_method", "hqq"}});
  CHECK_THAT(run(of).text, Contains("quantization_config, key 'quant_method': expected \"fp8\" or \"fbgemm_fp8\" or "
                                    "\"gptq\" or \"awq\" or \"compressed-tensors\" or \"mxfp4\", got \"hqq\""));
  m.change("quantization", {{"bits", 4}, {"group_size", 64}});
  CHECK_THAT(run(of).text, Contains("key 'quantization': a model of MLX") && Contains("mlx_lm.convert"));
  fs::remove(m.path / "config.json");
  std::ofstream(m.path / "model-q4_k_m.gguf") << "GGUF";
  fs::remove(m.path / "model.safetensors");
  for (const std::string& path : {m.path.string(), (m.path / "model-q4_k_m.gguf").string()})
    CHECK_THAT(run("--model " + path + " --tokens 1").text,
               Contains("give the folder that holds") &&
                   Contains("; it has 'model-q4_k_m.gguf', which is not read: take the safetensors") &&
                   Contains("from_pretrained(FOLDER, gguf_file=NAME)"));
}

TEST_CASE("some blocks of transformers' models on every mesh", "[examples][evaluate][blocks]") {
  for (const json& expected : read(models / "blocks.json")) {
    const std::string model = expected["model"], blocks = expected["blocks"];
    const std::string what = "--model " + (models / model).string() +
                             tokens_of(read(models / model / "expected.json")["samples"]) + " --json --blocks " +
                             blocks;
    std::vector<std::string> meshes = {"pp=2,tp=2"};
    if (model == "gpt2" || model == "llama3" || model == "qwen2") meshes = {"dp=1", "tp=2", "pp=2", "pp=2,tp=2"};
    for (const std::string& mesh : meshes) {
      CAPTURE(model, blocks, mesh);
      const answer a = run(what + " --mesh " + mesh);
      CAPTURE(a.text);
      REQUIRE(a.status == 0);
      const json got = json::parse(a.text);
      const double loss = expected["loss"].get<double>();
      CHECK(std::abs(got["loss"].get<double>() - loss) < 1e-5 * loss);
      for (std::size_t i = 0; i < expected["last_logits"].size(); ++i)
        CHECK(worst(got["last_logits"][i], expected["last_logits"][i]) < 1e-5);
    }
  }
  const std::string gpt2 = "--model " + (models / "gpt2").string();
  CHECK_THAT(run(gpt2 + " --tokens 1,2 --blocks 0,2").text, Contains("gpt2  2 layers of width 20"));
  CHECK(run(gpt2 + " --tokens 1,2 --blocks 0-2").text == run(gpt2 + " --tokens 1,2").text);
  const auto refused = [&](const std::string& blocks) {
    const answer a = run(gpt2 + " --tokens 1,2 --mesh pp=2 --blocks " + blocks);
    CHECK(a.status == 1);
    return a.text;
  };
  CHECK_THAT(refused("0-3"), Contains("blocks '0-3': block 3 is beyond the model, whose 3 blocks are 0 to 2"));
  CHECK_THAT(refused("0,0-1"), Contains("block 0 is named twice"));
  CHECK_THAT(refused("2,0"), Contains("block 0 is named behind block 2; blocks keep their order"));
}

TEST_CASE("in words, and with one token", "[examples][evaluate]") {
  const std::string model = "--model " + (models / "gpt2").string();
  const answer words = run(model + " --tokens 1,2,3 --mesh pp=2");
  CHECK(words.status == 0);
  CHECK_THAT(words.text, Contains("gpt2  3 layers of width 20, f32 on dp=1 x pp=2 x tp=1") &&
                             Contains("mean over 2 targets") && Contains("sample 0  likeliest next tokens:"));
  const answer one = run(model + " --tokens 5 --json");
  CHECK(one.status == 0);
  const json got = json::parse(one.text);
  CHECK(got["loss"].is_null());
  CHECK(got["targets"] == 0);
  CHECK(got["last_logits"][0].size() == 53);
}

TEST_CASE("a text is evaluated in samples of the model's context", "[examples][evaluate]") {
  const copied_model folder("bytes");  // without a tokenizer: its tokens are bytes
  folder.change("max_position_embeddings", 7);
  const fs::path text = folder.path / "text.txt";
  std::ofstream(text) << "heddle says it";  // 14 bytes: 7, and 7 and 2 with the byte before them
  const std::string model = "--json --model " + folder.path.string();
  const answer of_text = run(model + " --bytes --mesh dp=2 --text " + text.string());
  REQUIRE(of_text.status == 0);
  const answer of_tokens =
      run(model + " --tokens 104,101,100,100,108,101,32 --tokens 32,115,97,121,115,32,105 --tokens 105,116");
  REQUIRE(of_tokens.status == 0);
  const auto got = nlohmann::json::parse(of_text.text), expected = nlohmann::json::parse(of_tokens.text);
  CHECK(got["targets"] == 13);
  CHECK(got["loss"].get<double>() == Approx(expected["loss"].get<double>()).epsilon(1e-12));
  CHECK(got["last_logits"] == expected["last_logits"]);
  std::ofstream(text) << "x";
  CHECK_THAT(run(model + " --bytes --text " + text.string()).text, Contains("has fewer than two tokens"));
  CHECK_THAT(run(model + " --bytes --text /nowhere").text, Contains("/nowhere"));
}

TEST_CASE("a text is taken as bytes where that is said, and nowhere else", "[examples][evaluate]") {
  const copied_model folder("bytes");
  const fs::path text = folder.path / "text.md";
  std::ofstream(text) << "heddle says it, and says it again";
  const auto loss = [&](const std::string& more) {
    const answer a = run("--model " + folder.path.string() + " --text " + text.string() + more);
    CAPTURE(a.text);
    REQUIRE(a.status == 0);
    return a.text.substr(a.text.find("loss"));
  };
  const auto refused = [&] {
    const answer a = run("--model " + folder.path.string() + " --text " + text.string());
    CHECK(a.status == 1);
    return a.text;
  };
  const std::string by_bytes = loss(" --bytes");
  CHECK_THAT(refused(), Contains("has no tokenizer: heddle reads tokenizer.json") && Contains("--bytes says so"));
  for (const char* file :
       {"tokenizer.model", "spiece.model", "vocab.txt", "tekken.json", "qwen.tiktoken", "vocab.json"}) {
    std::ofstream(folder.path / file) << "{}";
    const std::string what = file == std::string("tokenizer.model") ? " of no class" : ", which cannot be read";
    CHECK_THAT(refused(), Contains("has " + std::string(file) + what));
    CHECK(loss(" --bytes") == by_bytes);
    fs::remove(folder.path / file);
  }
  // With GPT-2's files it is the same text as with the tokenizer.json of the same tokens.
  const fs::path golden = HEDDLE_SOURCE_DIR "/tests/golden/tokenizer";
  folder.change("vocab_size", 256);
  fs::copy_file(golden / "gpt2_merges.txt", folder.path / "merges.txt");
  CHECK_THAT(refused(), Contains("has merges.txt, which cannot be read"));
  fs::copy_file(golden / "gpt2_vocab.json", folder.path / "vocab.json");
  CHECK_THAT(refused(), Contains("has vocab.json and merges.txt of no class, not of GPT2Tokenizer"));
  std::ofstream(folder.path / "tokenizer_config.json") << R"({"tokenizer_class": "GPT2Tokenizer"})";
  CHECK_THAT(refused(), Contains("has the token ") && Contains("the model a vocabulary of 256"));
}

TEST_CASE("what cannot be evaluated is an error that says why", "[examples][evaluate]") {
  const std::string gpt2 = "--model " + (models / "gpt2").string();
  const auto says = [](const std::string& arguments) {
    const answer a = run(arguments);
    CHECK(a.status != 0);
    return a.text;
  };
  CHECK_THAT(says("--tokens 1"), Contains("--model is required"));
  CHECK_THAT(says(gpt2), Contains("--tokens is required"));
  for (const char* ids : {"1,,2", "1,x", "\"\"", "-3", "1,2,", "99999999999"})
    CHECK_THAT(says(gpt2 + " --tokens=" + ids), Contains("--tokens"));
  CHECK_THAT(says(gpt2 + " --tokens 1,53"), Contains("hold the id 53, outside the vocabulary of 53"));
  CHECK_THAT(says(gpt2 + " --tokens 1 --dtype f16"), Contains("f16"));
  CHECK_THAT(says(gpt2 + " --tokens 1 --mesh ep=2"), Contains("heddle: "));
  CHECK_THAT(says(gpt2 + " --tokens 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"),
             Contains("a sample of 18 tokens, the model's context is 17"));
  CHECK_THAT(says("--model /nowhere --tokens 1"), Contains("/nowhere': there is no such folder"));
  {
    const copied_model m("gpt2");
    m.change("activation_function", "gelu");
    CHECK_THAT(says("--model " + m.path.string() + " --tokens 1"),
               Contains("config.json', key 'activation_function': expected \"gelu_new\", got \"gelu\""));
  }
  {
    const copied_model m("gpt2");
    m.change("n_layer", 2);
    CHECK_THAT(says("--model " + m.path.string() + " --tokens 1 --mesh tp=2"),
               Contains("12 of 40 tensors belong to no parameter of the model, such as 'transformer.h.2."));
  }
  {
    const copied_model m("deepseek_fp8");
    json blocks = read(m.path / "config.json").at("quantization_config");
    blocks["weight_block_size"] = {7, 6};
    m.change("quantization_config", blocks);
    CHECK_THAT(says("--model " + m.path.string() + " --tokens 1 --mesh tp=2"),
               Contains("down_proj.weight_scale_inv': the scales of blocks of 7 x 6 elements of a matrix of shape "
                        "[22,17] should have the shape [4,3], they have [4,4]"));
    m.change("quantization_config", nullptr);
    CHECK_THAT(
        says("--model " + m.path.string() + " --tokens 1"),
        Contains(
            "tensors belong to no parameter of the model, such as 'model.layers.0.mlp.down_proj.weight_scale_inv'"));
  }
  {
    const copied_model m("llama3");
    m.change("intermediate_size", 30);
    CHECK_THAT(says("--model " + m.path.string() + " --tokens 1 --mesh pp=2"),
               Contains("has the shape [30,36], the tensor [29,36]"));
    fs::resize_file(m.path / "model-00002-of-00004.safetensors", 1000);
    CHECK_THAT(says("--model " + m.path.string() + " --tokens 1 --mesh dp=2,tp=2"),
               Contains("model-00002-of-00004.safetensors'") && Contains("the file is cut off"));
  }
}

TEST_CASE("a head in the files is used although the configuration ties it, and a line says so",
          "[examples][evaluate]") {
  const json expected = read(models / "llama3" / "expected.json");
  const copied_model m("llama3");
  m.change("tie_word_embeddings", true);
  const std::string of = "--model " + m.path.string(), what = of + tokens_of(expected["samples"]) + " --json";
  for (const char* mesh : {"tp=2", "pp=2"}) {
    const answer a = run(what + " --mesh " + mesh);
    REQUIRE(a.status == 0);
    const json got = json::parse(a.text.substr(a.text.find('{')));  // behind the line
    for (std::size_t i = 0; i < got["last_logits"].size(); ++i)
      CHECK(worst(got["last_logits"][i], expected["last_logits"][i]) < 1e-5);
  }
  CHECK_THAT(run(of + " --tokens 1").text, Contains("config.json' ties the head to the token embedding, and the files "
                                                    "have another lm_head.weight: the head of the files is used"));
}

TEST_CASE("a key that is not known is refused until it is ignored by name", "[examples][evaluate]") {
  const copied_model m("qwen2");
  m.change("use_mrope", true);
  const std::string of = "--model " + m.path.string() + " --tokens 1 ";
  const answer refused = run(of);
  CHECK(refused.status != 0);
  CHECK_THAT(refused.text, Contains("config.json': unknown key 'use_mrope', which is true") &&
                               Contains("give --ignore-key use_mrope"));
  CHECK(run(of + "--ignore-key use_mrope --json").text ==
        run("--model " + (models / "qwen2").string() + " --tokens 1 --json").text);
  CHECK(run(of + "--ignore-key other --ignore-key use_mrope").status == 0);
  const answer known = run(of + "--ignore-key use_mrope --ignore-key hidden_act");
  CHECK(known.status != 0);
  CHECK_THAT(known.text, Contains("the key 'hidden_act' is known, and has its effect"));
}

TEST_CASE("an adapter beside a model, or in its place, is refused with what to do", "[examples][evaluate]") {
  const copied_model m("llama3");
  std::ofstream(m.path / "adapter_config.json") << "{}";
  const std::string of = "--model " + m.path.string() + " --tokens 1";
  const answer beside = run(of);
  CHECK(beside.status != 0);
  CHECK_THAT(beside.text,
             Contains("has an adapter_config.json beside its config.json, an adapter that changes the model") &&
                 Contains("merge_and_unload()") && Contains("take the adapter's files away"));
  fs::remove(m.path / "config.json");
  const answer alone = run(of);
  CHECK(alone.status != 0);
  CHECK_THAT(alone.text,
             Contains("and no config.json: it is an adapter, not a model") && Contains("merge_and_unload()"));
}

TEST_CASE("a DeepSeek whose leading blocks are more than all has no other blocks", "[examples][evaluate]") {
  const copied_model m("deepseek_dense");
  json config = read(m.path / "config.json");
  const json layers = config["first_k_dense_replace"];  // the leading blocks alone: the files' others are left over
  m.change("num_hidden_layers", layers);
  m.change("first_k_dense_replace", 7);
  m.change("num_nextn_predict_layers", 8);  // tensors of blocks behind the last are left aside
  const std::string of = "--model " + m.path.string() + " --tokens 1,2,3 --json";
  const answer more = run(of);
  CAPTURE(more.text);
  REQUIRE(more.status == 0);
  m.change("first_k_dense_replace", layers);
  CHECK(run(of).text == more.text);
}

TEST_CASE("ranks share the files of a model: descriptors do not grow with the mesh", "[examples]") {
  // Four files and 16 ranks: 64 descriptors if each rank opened the folder by itself.
  const answer a = run("--model " + (models / "llama3").string() + " --tokens 1,2,3 --mesh dp=16", "ulimit -n 20; ");
  CAPTURE(a.text);
  CHECK(a.status == 0);
}

TEST_CASE("questions are asked and counted as by lm-evaluation-harness", "[examples][evaluate]") {
  const fs::path golden = HEDDLE_SOURCE_DIR "/tests/golden/words";
  const json expected = read(golden / "expected.json")["tasks"];
  const copied_model folder("../words");
  fs::copy_file(golden / "../tokenizer/llama3.json", folder.path / "tokenizer.json");
  const std::string what = "--model " + folder.path.string() + " --json --tasks ";
  for (const char* mesh : {"pp=2", "dp=2,tp=3"}) {
    const answer a = run(what + (golden / "questions.jsonl").string() + " --mesh " + mesh);
    CAPTURE(mesh, a.text.substr(0, 300));
    REQUIRE(a.status == 0);
    const json got = json::parse(a.text);
    CHECK(got["tasks"] == 200);
    for (const char* name : {"acc", "acc_norm", "acc_bytes"})
      CHECK(got[name].get<double>() == expected[name].get<double>());
    CHECK(got["acc_stderr"].get<double>() == Approx(expected["acc_stderr"].get<double>()).epsilon(1e-12));
    REQUIRE(got["log_likelihoods"].size() == expected["log_likelihoods"].size());
    double most = 0;
    for (std::size_t i = 0; i < got["log_likelihoods"].size(); ++i)
      most = (std::max)(most, worst(got["log_likelihoods"][i], expected["log_likelihoods"][i]));
    CHECK(most < 1e-5);
  }
  const auto says = [&](const std::string& line, const std::string& more = "") {
    std::ofstream(folder.path / "tasks.jsonl") << line;
    const answer a = run(what + (folder.path / "tasks.jsonl").string() + more);
    CHECK(a.status != 0);
    return a.text;
  };
  const std::string good = R"({"context": "a loom", "choices": ["x", "y"], "answer": "y"})"
                           "\n";
  CHECK_THAT(says(good + R"({"choices": ["x"], "answer": 0})"),
             Contains("tasks.jsonl' line 2: 'context' should be a text"));
  CHECK_THAT(says(R"({"context": "", "choices": [], "answer": 0})"), Contains("'choices' should be a list of texts"));
  CHECK_THAT(says(R"({"context": "", "choices": ["x", ""], "answer": 0})"), Contains("none of them empty"));
  for (const char* wrong : {"2", "-1", "\"z\"", "0.5", "null"})
    CHECK_THAT(says(R"({"context": "a", "choices": ["x", "y"], "answer": )" + std::string(wrong) + "}"),
               Contains("line 1: 'answer' should be the number of the right choice, from 0 to 1, or its text"));
  CHECK_THAT(says("\n"), Contains("tasks.jsonl' has no questions"));
  CHECK_THAT(says(good + R"({"context": " ", "choices": ["x"], "answer": 0})"),
             Contains("question 2: a question's context is of spaces only"));
  CHECK_THAT(says(R"({"context": "", "choices": ["x"], "answer": 0})", " --bytes"),
             Contains("question 1: a question without a context needs a token before its choices"));
  CHECK_THAT(says(good, " --tokens 1"), Contains("--tasks"));
  std::ofstream(folder.path / "tasks.jsonl") << good;
  const answer words = run("--model " + folder.path.string() + " --tasks " + (folder.path / "tasks.jsonl").string());
  CHECK(words.status == 0);
  CHECK_THAT(words.text, Contains("questions  1 with 2 choices") && Contains("acc_norm "));
}
