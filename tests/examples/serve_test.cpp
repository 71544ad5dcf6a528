// tests/examples/serve_test.cpp: the example serves a model that transformers wrote, with transformers' tokens, until it is told to stop.
#if __has_include( \
    <httplib.h>) && __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include <heddle/io/chat/chat.hpp>
#include <heddle/io/tokenizer/load.hpp>

#include "catch.hpp"

#include <httplib.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

using json = nlohmann::json;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const std::string golden = HEDDLE_SOURCE_DIR "/tests/golden/";

// The program, or another example, and what it prints.
class program {
 public:
  explicit program(std::vector<std::string> arguments, const std::string& name = "serve") {
    arguments.insert(arguments.begin(), HEDDLE_EXAMPLES_DIR "/" + name);
    std::vector<char*> pointers;
    for (std::string& a : arguments) pointers.push_back(a.data());
    pointers.push_back(nullptr);
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    id_ = ::fork();
    if (id_ == 0) {
      ::dup2(ends[1], 1);
      ::dup2(ends[1], 2);
      ::close(ends[0]);
      ::close(ends[1]);
      ::execv(pointers[0], pointers.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    out_ = ::fdopen(ends[0], "r");
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;
  ~program() {
    if (id_ > 0) {
      ::kill(id_, SIGKILL);
      ::waitpid(id_, nullptr, 0);
    }
    std::fclose(out_);
  }
  // What it prints up to a line with a text, or its end.
  std::string lines_to(const std::string& text) {
    std::string all;
    char line[512];
    while (all.find(text) == std::string::npos && std::fgets(line, sizeof line, out_) != nullptr) all += line;
    return all;
  }
  int end(int signal) {
    if (signal != 0) ::kill(id_, signal);
    int status = 0;
    ::waitpid(id_, &status, 0);
    id_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  ::pid_t id_ = -1;
  std::FILE* out_ = nullptr;
};

}  // namespace

TEST_CASE("a served model gives the tokens of transformers on any mesh, and ends when told", "[examples][serve]") {
  std::ifstream file(golden + "models/llama3/expected.json");
  const json expected = json::parse(file);
  const heddle::io::tokenizer t = heddle::io::load_tokenizer(golden + "tokenizer/llama3.json");
  const fs::path keys = fs::temp_directory_path() / ("heddle-serve-keys-" + std::to_string(::getpid()));
  std::ofstream(keys) << "a key\n";
  // The second one proposes tokens, which leaves answers the same; the third has pools of prompts and of answers.
  for (const std::string mesh : {"tp=1", "pp=2,tp=2", "pools"}) {
    CAPTURE(mesh);
    std::vector<std::string> on{"--mesh", mesh, "--speculate", mesh == "tp=1" ? "none" : "ngram"};
    if (mesh == "pools") on = {"--prefill", "tp=1", "--decode", "tp=2"};
    on.insert(on.end(), {"--model", golden + "models/llama3", "--tokenizer", golden + "tokenizer/llama3.json", "--port",
                         "0", "--cache-mib", "1", "--api-key-file", keys.string()});
    program p(on);
    const std::string head = p.lines_to("context");  // the model is loaded
    CAPTURE(head);
    const std::size_t at = head.find("http://127.0.0.1:");
    REQUIRE(at != std::string::npos);
    httplib::Client client("127.0.0.1", std::stoi(head.substr(at + 17)));
    client.set_read_timeout(60, 0);
    for (int i = 0; i < 100 && client.Get("/health")->status != 200; ++i) ::usleep(10000);
    for (std::size_t i = 0; i < 2; ++i) {
      const json call{{"model", "llama3"},
                      {"prompt", expected["samples"][i]},
                      {"max_tokens", 64},
                      {"temperature", 0},
                      {"ignore_eos", true}};
      CHECK(client.Post("/v1/completions", call.dump(), "application/json")->status == 401);
      const httplib::Result r =
          client.Post("/v1/completions", {{"Authorization", "Bearer a key"}}, call.dump(), "application/json");
      REQUIRE(r);
      REQUIRE(r->status == 200);
      const auto ids = expected["generated"][i].get<std::vector<heddle::io::token_id>>();
      CHECK(json::parse(r->body)["choices"][0]["text"] == t.decode(ids, {.skip_special_tokens = true}));
    }
    CHECK(p.end(SIGTERM) == 0);
    CHECK_THAT(p.lines_to("stopped"), Contains("stopped"));
  }
  fs::remove(keys);
}

TEST_CASE(
    "a drafter that train_heads wrote leaves what generate says as it is, on any mesh, and one of another model is "
    "refused",
    "[examples][falcon]") {
  const fs::path drafter = fs::temp_directory_path() / ("heddle-falcon-" + std::to_string(::getpid()));
  const std::string bytes = golden + "models/bytes";
  program train({"--falcon",
                 "--model",
                 bytes,
                 "--text",
                 HEDDLE_SOURCE_DIR "/README.md",
                 "--bytes",
                 "--out",
                 drafter.string(),
                 "--mesh",
                 "pp=2,tp=2",
                 "--steps",
                 "20",
                 "--lr",
                 "0.01",
                 "--prompts",
                 "8",
                 "--answer",
                 "32",
                 "--context",
                 "24",
                 "--nodes",
                 "6",
                 "--passes",
                 "2"},
                "train_heads");
  CHECK_THAT(train.lines_to("wrote"), Contains("drafter: loss") && Contains("wrote a drafter and a tree of 6 nodes"));
  REQUIRE(train.end(0) == 0);
  const auto said = [&](const std::string& model, std::vector<std::string> more, int status) {
    more.insert(more.begin(),
                {"--model", model, "--tokens", "6,39,11,47,18", "--temperature", "0", "--max-tokens", "16"});
    program p(more, "generate");
    const std::string all = p.lines_to("heddle: ");
    CHECK(p.end(0) == status);
    return all;
  };
  const std::string plain = said(bytes, {}, 0);
  const std::size_t at = plain.find("prompt 0: ");
  REQUIRE(at != std::string::npos);
  const std::string answer = plain.substr(at, plain.find('\n', at) - at);
  for (const std::string mesh : {"pp=1", "pp=2,tp=2"}) {
    const std::string fewer = said(bytes, {"--mesh", mesh, "--speculate", "falcon", "--heads", drafter.string()}, 0);
    CHECK_THAT(fewer, Contains(answer) && Contains("proposed tokens were right") && !Contains("of 0 proposed"));
  }
  CHECK_THAT(said(golden + "models/llama3", {"--speculate", "falcon", "--heads", drafter.string()}, 1),
             Contains("falcon_drafter.json': 'width' should be"));
  fs::remove_all(drafter);
}

TEST_CASE("generate ends an answer at the tokens that the model's files name", "[examples][serve]") {
  const fs::path folder = fs::temp_directory_path() / ("heddle-ends-" + std::to_string(::getpid()));
  fs::copy(golden + "models/llama3", folder);
  const auto answer = [&] {
    program p({"--model", folder.string(), "--tokens", "17,48,41,22,23", "--temperature", "0", "--max-tokens", "16"},
              "generate");
    const std::string said = p.lines_to("prompt 0: ");
    CHECK(p.end(0) == 0);
    return said;
  };
  CHECK_THAT(answer(), Contains("prompt 0: 5 5 5 17 45 29 23 41 19 17 45 1 18 17 2  (stop)"));  // 2 by config.json
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": [1, 50]})";
  CHECK_THAT(answer(), Contains("prompt 0: 5 5 5 17 45 29 23 41 19 17 45 1  (stop)"));
  // Where that file names some, those of config.json do not end an answer.
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": 50})";
  CHECK_THAT(answer(), Contains("prompt 0: 5 5 5 17 45 29 23 41 19 17 45 1 18 17 2 ") && Contains("(length)"));
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": null})";
  CHECK_THAT(answer(), Contains("17 45 1 18 17 2  (stop)"));
  fs::remove_all(folder);
}

TEST_CASE("generate decodes a LLaDA by diffusion as the published loop does", "[examples][serve]") {
  std::ifstream in(golden + "models/llada/expected.json");
  const auto expected = nlohmann::json::parse(in);
  const auto words = [](const nlohmann::json& ids, const char* between) {
    std::string text;
    for (const auto& id : ids) text += (text.empty() ? "" : between) + std::to_string(id.get<int>());
    return text;
  };
  for (const auto& loop : expected.at("loops")) {
    if (loop.value("cache", "") != "dual" || loop.value("rule", "") != "threshold") continue;
    for (const std::string mesh : {"pp=1", "pp=2,tp=2"}) {
      program p(
          {"--model", golden + "models/llada", "--tokens", words(expected["prompts"][0], ","), "--mesh", mesh,
           "--temperature", "0", "--max-tokens", "64", "--decode", "diffusion", "--block", "16", "--threshold", "0.55"},
          "generate");
      CHECK_THAT(p.lines_to("prompt 0: "), Contains("prompt 0: " + words(loop["answers"][0], " ")));
      CHECK(p.end(0) == 0);
    }
  }
  for (const auto& [option, value, says] : {std::tuple("--block", "17", "should be 8, 16, 32 or 64, got 17"),
                                            std::tuple("--threshold", "0", "tau must be above 0 and at most 1, got 0"),
                                            std::tuple("--decode", "tree", "should be tokens or diffusion, got 'tree'"),
                                            std::tuple("--speculate", "ngram", "leave --speculate ngram out")}) {
    std::vector<std::string> all = {"--model", golden + "models/llada", "--tokens", "1,2"};
    if (std::string(option) != "--decode") all.insert(all.end(), {"--decode", "diffusion"});
    all.insert(all.end(), {option, value});
    program p(all, "generate");
    CHECK_THAT(p.lines_to("nothing prints this"), Contains(says));
    CHECK(p.end(0) == 1);
  }
}

TEST_CASE("generate takes a text as bytes where that is said", "[examples][serve]") {
  const auto said = [](std::vector<std::string> more, int status) {
    more.insert(more.begin(), {"--model", golden + "models/bytes", "--temperature", "0", "--max-tokens", "6"});
    program p(more, "generate");
    std::string all = p.lines_to("nothing prints this");
    CHECK(p.end(0) == status);
    if (const std::size_t at = all.find("3 tokens of prompts"); at != std::string::npos)  // has the time that it took
      all.erase(at, all.find('\n', at) + 1 - at);
    return all;
  };
  CHECK_THAT(said({"--prompt", "abc"}, 1), Contains("has no tokenizer: heddle reads tokenizer.json"));
  const std::string text = said({"--prompt", "abc", "--bytes"}, 0);
  CHECK(text == said({"--tokens", "97,98,99", "--bytes"}, 0));
  CHECK_THAT(said({"--tokens", "97,98,99"}, 0), Contains("prompt 0: ") && Contains("(length)"));
}

TEST_CASE("serve renders by the folder's template where it knows it, and samples as generation_config.json says",
          "[examples][serve]") {
  const fs::path folder = fs::temp_directory_path() / ("heddle-template-" + std::to_string(::getpid()));
  fs::copy(golden + "models/bytes", folder);
  std::ofstream(folder / "generation_config.json")
      << R"({"eos_token_id": [3], "do_sample": true, "temperature": 0.25, "top_k": 2, "top_p": 0.9, "min_p": null})";
  const std::string template_source =
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe "
      "kind.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
      "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  // What it prints, and the error that a conversation gets: where it is rendered it is too long, with the number of its tokens.
  const auto served = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"--model", folder.string(), "--port", "0", "--cache-mib", "1", "--context", "8"};
    words.insert(words.end(), more.begin(), more.end());
    program p(words);
    const std::string head = p.lines_to("context");
    CAPTURE(head);
    const std::size_t at = head.find("http://127.0.0.1:");
    REQUIRE(at != std::string::npos);
    httplib::Client client("127.0.0.1", std::stoi(head.substr(at + 17)));
    client.set_read_timeout(60, 0);
    for (int i = 0; i < 100 && client.Get("/health")->status != 200; ++i) ::usleep(10000);
    const json call{{"messages", json::array({{{"role", "user"}, {"content", "hi"}}})}, {"max_tokens", 1}};
    const auto r = client.Post("/v1/chat/completions", call.dump(), "application/json");
    REQUIRE(r);
    CHECK(r->status == 400);
    CHECK(p.end(SIGTERM) == 0);
    return std::pair(head, json::parse(r->body)["error"]);
  };
  const auto says = [](const json& error) { return error["message"].get<std::string>(); };
  // Bytes have no marks, and the folder no template.
  const auto [head, no_template] = served({"--bytes"});
  CHECK_THAT(head, Contains("answers end at tokens 3 (generation_config.json)") &&
                       Contains("sampling by default: temperature 0.25, top_k 2, top_p 0.9 (generation_config.json)") &&
                       Contains("/v1/chat/completions answers 400: "));
  CHECK_THAT(says(no_template), Contains("has no chat template; one can be named: llama3, "));
  CHECK(no_template["code"] == "no_chat_template");
  const auto ends = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"--model", folder.string(), "--port", "0"};
    words.insert(words.end(), more.begin(), more.end());
    program p(words);
    const std::string said = p.lines_to("heddle: ");
    CHECK(p.end(0) == 1);
    return said;
  };
  CHECK_THAT(ends({"--bytes", "--chat-template", "chatml"}), Contains("no special token '<|im_start|>'"));
  CHECK_THAT(ends({"--bytes", "--chat-template", "qwen9"}), Contains("no chat template 'qwen9'; there are llama3, "));
  CHECK_THAT(ends({}), Contains("has no tokenizer: heddle reads tokenizer.json"));

  fs::copy_file(golden + "tokenizer/qwen2.json", folder / "tokenizer.json");
  CHECK_THAT(says(served({}).second), Contains("has no chat template"));
  std::ofstream(folder / "chat_template.jinja") << template_source << "{# and more";
  CHECK_THAT(says(served({}).second), Contains("a comment has no end #}; one can be named"));
  std::ofstream(folder / "chat_template.jinja") << template_source << "{# and more #}{{ raise_exception('not so') }}";
  CHECK_THAT(says(served({}).second), Contains("the template refuses: not so"));
  std::ofstream(folder / "generation_config.json") << R"({"do_sample": false, "temperature": 0.7})";
  std::ofstream(folder / "chat_template.jinja") << template_source << "\n";
  const heddle::io::tokenizer t = heddle::io::load_tokenizer(folder);
  const std::vector<heddle::io::chat_message> messages{{"user", "hi"}};
  const auto tokens_of = [&](const heddle::io::chatml_chat& f) {
    return heddle::io::encode_chat(t, f(messages, true)).size();
  };
  CHECK(tokens_of({"Be kind."}) > tokens_of({}) + 4);
  const auto [rendering, rendered] = served({});
  CHECK(rendered["n_prompt_tokens"] == tokens_of({"Be kind."}));
  CHECK_THAT(rendering,
             Contains("answers end at tokens 2 (config.json)") &&
                 Contains("sampling by default: greedy (do_sample false) (generation_config.json)") &&
                 Contains("renders by: the chat template in '" + (folder / "chat_template.jinja").string() + "'"));
  CHECK(served({"--chat-template", "chatml"}).second["n_prompt_tokens"] == tokens_of({}));
  fs::remove_all(folder);
}

TEST_CASE("a served model that cannot be loaded is an error that says why", "[examples][serve]") {
  program p({"--model", golden + "models/llama3", "--tokenizer", golden + "tokenizer/llama3.json", "--port", "0",
             "--cache-mib", "0"});
  CHECK_THAT(p.lines_to("heddle: "), Contains("at least 1 block"));
  CHECK(p.end(0) == 1);
  program none({"--model", golden + "models/nothing"});
  CHECK_THAT(none.lines_to("heddle: "), Contains("models/nothing"));
  CHECK(none.end(0) == 1);
  for (const char* port : {"-1", "65536", "99999", "http"}) {
    CAPTURE(port);
    program beyond({"--model", golden + "models/nothing", "--port", port});
    CHECK_THAT(beyond.lines_to("--port"), Contains("--port"));
    CHECK(beyond.end(0) != 0);
  }
  // Words of speculation are looked at before a folder is.
  const auto refused = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"--model", golden + "models/nothing", "--speculate"});
    program q(words);
    const std::string said = q.lines_to("heddle: ");
    CHECK(q.end(0) == 1);
    return said;
  };
  CHECK_THAT(refused({"words"}), Contains("--speculate should be ngram, draft, medusa, falcon or none, got 'words'"));
  CHECK_THAT(refused({"none", "--dtype", "bf16"}), Contains("--dtype should be f32 in this program, got 'bf16'"));
  CHECK_THAT(refused({"draft"}), Contains("needs a model: --draft FOLDER"));
  CHECK_THAT(refused({"medusa"}), Contains("needs heads: --heads FOLDER"));
  CHECK_THAT(refused({"falcon"}), Contains("needs a drafter: --heads FOLDER"));
  // A family that drafters are not for is refused before its weights are read.
  program gpt2({"--model", golden + "models/gpt2", "--tokenizer", golden + "tokenizer/llama3.json", "--port", "0",
                "--speculate", "falcon", "--heads", golden});
  CHECK_THAT(gpt2.lines_to("heddle: "),
             Contains("drafters of Falcon are for models whose final norm is an RMS norm, not for gpt2"));
  CHECK(gpt2.end(0) == 1);
}
#endif
