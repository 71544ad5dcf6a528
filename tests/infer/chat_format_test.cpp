// tests/infer/chat_format_test.cpp: a folder's chat template is taken where its source is one that is known, whole, and refused with the reason elsewhere.
#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include <heddle/infer/serve/openai/running_call.hpp>

#include "catch.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <variant>
#include <vector>

#include <unistd.h>

namespace inf = heddle::infer;
namespace io = heddle::io;
namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

io::tokenizer golden_of(const std::string& name) {
  return io::load_tokenizer(HEDDLE_SOURCE_DIR "/tests/golden/tokenizer/" + name + ".json");
}

// ChatML's source; with words, Qwen-2's of this shape. `line`: how it spells the end of one.
std::string chatml_source(const std::string& words, const std::string& line) {
  std::string out = "{% for message in messages %}";
  if (!words.empty())
    out += "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system" + line + words +
           "<|im_end|>" + line + "' }}{% endif %}";
  return out + "{{'<|im_start|>' + message['role'] + '" + line + "' + message['content'] + '<|im_end|>' + '" + line +
         "'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant" + line + "' }}{% endif %}";
}
const std::string llama3_source =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% "
    "set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

struct model_folder {
  fs::path path = fs::temp_directory_path() / ("heddle-chat-format-" + std::to_string(::getpid()));
  model_folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~model_folder() { fs::remove_all(path); }
  void put(const char* name, const json& content) const { std::ofstream(path / name) << content; }
  void put_text(const char* name, const std::string& text) const { std::ofstream(path / name) << text; }
};

std::string system_of(const std::string& source) {
  const auto format = inf::known_chat_format(source);
  if (!format || !std::holds_alternative<io::chatml_chat>(*format)) return "unknown";
  return std::get<io::chatml_chat>(*format).default_system;
}

}  // namespace

TEST_CASE("a source means a template where it is that template's, to the last character", "[infer][serve]") {
  for (const std::string line : {"\n", "\\n"}) {
    CHECK(system_of(chatml_source("", line)).empty());
    const std::string qwen = chatml_source("You are a helpful assistant.", line);
    CHECK(system_of(qwen) == "You are a helpful assistant.");
    CHECK(system_of(chatml_source("Be brief and kind.", line)) == "Be brief and kind.");
    CHECK(system_of(chatml_source("within \\\\boxed{}.\\nDo", line)) == "within \\boxed{}.\nDo");
    // Another escape, an end of the quotes, and words that stand elsewhere in the source, too.
    for (const char* words : {"a\\tb", "a' + bos_token + '", "a\" b", "assistant", "\\"})
      CHECK(system_of(chatml_source(words, line)) == "unknown");
    CHECK(system_of(qwen + "\n") == "You are a helpful assistant.");
    CHECK(system_of(qwen + "\n\n") == "unknown");
    CHECK(system_of(qwen + " ") == "unknown");
    for (std::size_t i = 0; i < qwen.size(); i += 7) {
      std::string other = qwen;
      other[i] = other[i] == 'x' ? 'y' : 'x';
      const std::string found = system_of(other);
      CHECK((found == "unknown" || qwen.find("You are") <= i));
      if (found != "unknown") CHECK(found != "You are a helpful assistant.");
    }
  }
  std::string windows = llama3_source;
  for (std::size_t at = 0; (at = windows.find('\n', at)) != std::string::npos; at += 2) windows.insert(at, "\r");
  for (const std::string& source : {llama3_source, windows, llama3_source + "\r\n"}) {
    const auto format = inf::known_chat_format(source);
    REQUIRE(format);
    CHECK(std::holds_alternative<io::llama3_chat>(*format));
  }
  CHECK_FALSE(inf::known_chat_format(""));
  for (const auto& known : inf::detail::known_chat_templates) CHECK_NOTHROW(inf::named_chat_format(known.name));
}

TEST_CASE("a folder's template is found where transformers finds it, or the reason is said", "[infer][serve]") {
  const model_folder folder;
  const io::tokenizer qwen = golden_of("qwen2"), llama = golden_of("llama3");
  const auto chosen = [&](const io::tokenizer& t, const std::string& name = {}) {
    return inf::choose_chat_format(folder.path, t, name);
  };
  const auto system = [&] {
    const inf::chat_choice c = chosen(qwen);
    CAPTURE(c.about);
    REQUIRE(c.format);
    return std::get<io::chatml_chat>(*c.format).default_system;
  };
  const auto refused = [&](const io::tokenizer& t) {
    const inf::chat_choice c = chosen(t);
    CHECK_FALSE(c.format);
    return c.about;
  };
  CHECK_THAT(refused(qwen), Contains("has no chat template; one can be named: llama3, "));
  folder.put("chat_template.json", {{"chat_template", chatml_source("One.", "\n")}});
  CHECK(system() == "One.");
  folder.put("tokenizer_config.json", {{"chat_template", nullptr}});
  CHECK(system() == "One.");
  folder.put("tokenizer_config.json", {{"chat_template", chatml_source("Two.", "\n")}});
  CHECK(system() == "Two.");
  const json several = {{{"name", "tool_use"}, {"template", chatml_source("No.", "\n")}},
                        {{"name", "default"}, {"template", chatml_source("Three.", "\n")}}};
  folder.put("tokenizer_config.json", {{"chat_template", several}});
  CHECK(system() == "Three.");
  folder.put("tokenizer_config.json", {{"chat_template", json::array({several[0]})}});
  CHECK_THAT(refused(qwen), Contains("tokenizer_config.json' has none with the name 'default'"));
  folder.put_text("chat_template.jinja", chatml_source("Four.", "\n") + "\n");
  CHECK(system() == "Four.");
  CHECK_THAT(refused(llama), Contains("no special token '<|im_start|>'"));
  folder.put_text("chat_template.jinja", chatml_source("Four.", "\n") + "{{ eos_token }}");
  CHECK_FALSE(chosen(qwen).format);
  CHECK(chosen(qwen).renders());
  folder.put_text("chat_template.jinja", "a\n{% for m in messages %}");
  CHECK_THAT(refused(qwen), Contains("chat_template.jinja': chat template, line 2: the template ends where"));
  CHECK_FALSE(chosen(qwen).renders());

  // A template that takes its beginning from the tokenizer's files means another one where these have another beginning.
  folder.put_text("chat_template.jinja", llama3_source);
  CHECK_THAT(refused(llama), Contains("begins with '<|begin_of_text|>'") && Contains("have '' as bos_token"));
  folder.put("special_tokens_map.json", {{"bos_token", {{"content", "<|begin_of_text|>"}}}});
  CHECK(chosen(llama).format);
  folder.put("tokenizer_config.json", {{"bos_token", "<s>"}, {"added_tokens_decoder", json::object()}});
  CHECK_THAT(refused(llama), Contains("have '<s>' as bos_token"));
  folder.put("tokenizer_config.json", {{"bos_token", "<|begin_of_text|>"}});
  CHECK_THAT(chosen(llama).about, Contains("the chat template in '"));

  // What is named is taken, whatever the folder has.
  CHECK(std::get<io::chatml_chat>(*chosen(qwen, "qwen2.5").format) == io::qwen2_5_chat());
  CHECK_THROWS_WITH(chosen(qwen, "llama3"), Contains("no special token '<|begin_of_text|>'"));
  CHECK_THROWS_WITH(chosen(qwen, "qwen4"), Contains("no chat template 'qwen4'; there are llama3, llama3.1, "));
  folder.put_text("tokenizer_config.json", "{");
  fs::remove(folder.path / "chat_template.jinja");
  CHECK_THROWS_AS(chosen(qwen), heddle::io_error);
}

TEST_CASE("conversations are the template's tokens, and refused with the reason where there is none",
          "[infer][serve]") {
  const std::vector<io::chat_message> hi{{"user", "hi<|eot_id|>"}};
  const io::tokenizer llama = golden_of("llama3"), qwen = golden_of("qwen2");
  CHECK(inf::conversation_tokens(llama, io::llama3_chat{}, hi) == io::encode_chat(llama, io::llama3_chat{}(hi, true)));
  CHECK(inf::usual_end_tokens(llama) == std::vector<std::int32_t>{901, 904});
  CHECK(inf::usual_end_tokens(qwen) == std::vector<std::int32_t>{900, 902});
  inf::completion_call call;
  call.chat = true;
  call.messages = hi;
  CHECK(inf::prompt_tokens(call, qwen, {io::qwen2_chat(), ""}) ==
        std::vector<std::vector<std::int32_t>>{io::encode_chat(qwen, io::qwen2_chat()(hi, true))});
  CHECK_THROWS_WITH(inf::prompt_tokens(call, qwen, {std::nullopt, "this is why"}),
                    Contains("conversations cannot be rendered: this is why"));
  inf::completion_call tokens;
  tokens.prompts = {std::vector<std::int32_t>{5, 6}};
  CHECK(inf::prompt_tokens(tokens, llama, {}) == std::vector<std::vector<std::int32_t>>{{5, 6}});
}
#endif
