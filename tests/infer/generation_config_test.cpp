// tests/infer/generation_config_test.cpp: end tokens and defaults of sampling are those that transformers' generate takes from a folder.
#if __has_include(<nlohmann/json.hpp>)
#include <heddle/infer/generation_config.hpp>

#include "catch.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

namespace inf = heddle::infer;
namespace fs = std::filesystem;
using Catch::Matchers::Contains;

namespace {

struct settings_folder {
  fs::path path = fs::temp_directory_path() / ("heddle-generation-" + std::to_string(::getpid()));
  settings_folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~settings_folder() { fs::remove_all(path); }
  inf::end_token_list ends(const std::string& config, const std::string& generation) const {
    put("config.json", config);
    put("generation_config.json", generation);
    return inf::read_end_tokens(path);
  }
  inf::sampling_defaults sampling(const std::string& generation) const {
    put("generation_config.json", generation);
    return inf::read_sampling_defaults(path);
  }

 private:
  void put(const char* name, const std::string& text) const {
    fs::remove(path / name);
    if (!text.empty()) std::ofstream(path / name) << text;
  }
};

}  // namespace

TEST_CASE("end tokens are those of generation_config.json alone where it names some", "[infer]") {
  const settings_folder folder;
  using list = inf::end_token_list;
  CHECK(folder.ends("", "") == list{});
  CHECK(folder.ends(R"({"eos_token_id": 2})", "") == list{{2}, "config.json"});
  CHECK(folder.ends(R"({"eos_token_id": [2, 3]})", R"({"temperature": 1})") == list{{2, 3}, "config.json"});
  CHECK(folder.ends(R"({"eos_token_id": 2})", R"({"eos_token_id": null})") == list{{2}, "config.json"});
  CHECK(folder.ends(R"({"eos_token_id": 2})", R"({"eos_token_id": []})") == list{{2}, "config.json"});
  CHECK(folder.ends(R"({"eos_token_id": 2})", R"({"eos_token_id": 7})") == list{{7}, "generation_config.json"});
  CHECK(folder.ends(R"({"eos_token_id": 2})", R"({"eos_token_id": [7, 0]})") == list{{7, 0}, "generation_config.json"});
  CHECK(folder.ends(R"({"eos_token_id": null})", "") == list{});
  for (const char* wrong : {"-1", "2.5", "\"</s>\"", "[1, null]", "4294967296", "{}"})
    CHECK_THROWS_WITH(folder.ends("{}", R"({"eos_token_id": )" + std::string(wrong) + "}"),
                      Contains("generation_config.json', key 'eos_token_id': expected ids of tokens"));
  CHECK_THROWS_AS(folder.ends("{}", "[]"), heddle::io_error);
}

TEST_CASE("sampling is by default what generation_config.json says", "[infer]") {
  const settings_folder folder;
  CHECK(folder.sampling("") == inf::sampling_defaults{});
  CHECK(folder.sampling(R"({"eos_token_id": 3, "temperature": null})") == inf::sampling_defaults{});
  const auto qwen = folder.sampling(
      R"({"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05})");
  CHECK(qwen.options ==
        inf::sampling_options{.temperature = 0.7, .top_k = 20, .top_p = 0.8, .repetition_penalty = 1.05});
  CHECK(qwen.about == "temperature 0.7, top_k 20, top_p 0.8, repetition_penalty 1.05");
  CHECK(folder.sampling(R"({"min_p": 0.1, "temperature": 0.5})").options ==
        inf::sampling_options{.temperature = 0.5, .min_p = 0.1});
  // Greedy leaves the temperature out; the penalty counts there, too.
  const auto greedy = folder.sampling(R"({"do_sample": false, "temperature": 0.6, "repetition_penalty": 1.1})");
  CHECK(greedy.options == inf::sampling_options{.temperature = 0, .repetition_penalty = 1.1});
  CHECK(greedy.about == "greedy (do_sample false), repetition_penalty 1.1");
  CHECK_THROWS_WITH(folder.sampling(R"({"top_p": "0.8"})"),
                    Contains("generation_config.json', key 'top_p': expected a number, got \"0.8\""));
  CHECK_THROWS_WITH(folder.sampling(R"({"top_p": 1.5})"), Contains("generation_config.json': ") && Contains("top_p"));
  CHECK_THROWS_WITH(folder.sampling(R"({"temperature": -1})"), Contains("temperature"));
}
#endif
