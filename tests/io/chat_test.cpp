// Conversations are rendered and encoded as by the published templates: tests/golden/tokenizer/chat_golden.py.
#include <heddle/core/config.hpp>

#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include <heddle/io/chat/chat.hpp>
#include <heddle/io/tokenizer/load.hpp>

#include "catch.hpp"
#include "scratch.hpp"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace hd = heddle;
namespace io = heddle::io;
using Catch::Matchers::Contains;

namespace {

const std::string chat_golden = HEDDLE_SOURCE_DIR "/tests/golden/tokenizer/";

std::vector<io::chat_part> rendered(const std::string& name, std::span<const io::chat_message> messages, bool prompt) {
  if (name == "llama3") return io::llama3_chat{}(messages, prompt);
  if (name == "llama3.1") return io::llama3_1_chat{}(messages, prompt);
  if (name == "chatml") return io::chatml_chat{}(messages, prompt);
  if (name == "qwen2") return io::qwen2_chat()(messages, prompt);
  if (name == "qwen2.5") return io::qwen2_5_chat()(messages, prompt);
  if (name == "qwen3") return io::qwen3_chat{}(messages, prompt);
  if (name == "deepseek-v2") return io::deepseek_v2_chat{}(messages, prompt);
  const bool every = name.find("distill") == std::string::npos, thinks = name.find("plain") == std::string::npos;
  return io::deepseek_r1_chat{.every_system = every, .thinks = thinks}(messages, prompt);
}

}  // namespace

TEST_CASE("conversations have the text and the ids of the published templates", "[tokenizer][chat]") {
  const nlohmann::json all = nlohmann::json::parse(std::ifstream(chat_golden + "chat.json"));
  const io::tokenizer llama3 = io::load_tokenizer(chat_golden + "llama3.json");
  const io::tokenizer qwen2 = io::load_tokenizer(chat_golden + "qwen2.json");
  int spelled = 0;
  for (const auto& chat : all) {
    const auto name = chat.at("template").get<std::string>();
    std::vector<io::chat_message> messages;
    for (const auto& m : chat.at("messages")) messages.push_back({m.at("role"), m.at("content")});
    const auto parts = rendered(name, messages, chat.at("prompt"));
    CAPTURE(name, chat.at("text").get<std::string>());
    CHECK(io::to_text(parts) == chat.at("text").get<std::string>());
    if (!chat.contains("ids")) continue;  // a family without a golden tokenizer
    const io::tokenizer& t = name.starts_with("llama3") ? llama3 : qwen2;
    const auto ids = chat.at("ids").get<std::vector<io::token_id>>();
    CHECK(io::encode_chat(t, parts, io::chat_content::with_tokens) == ids);
    // Special tokens that messages spell are text, all others stay: as many marks as the template put there.
    const auto safe = io::encode_chat(t, parts);
    const auto special = [&](io::token_id id) { return t.is_special(id); };
    CHECK(std::count_if(safe.begin(), safe.end(), special) ==
          std::count_if(parts.begin(), parts.end(), [](const io::chat_part& p) { return p.mark; }));
    CHECK(t.decode(safe) == t.decode(ids));
    if (std::count_if(ids.begin(), ids.end(), special) == std::count_if(safe.begin(), safe.end(), special))
      CHECK(safe == ids);
    else
      ++spelled;
  }
  CHECK(all.size() == 220);
  CHECK(spelled == 12);  // a conversation, in six templates, with and without a prompt
}

TEST_CASE("Llama-3.2 has the day, and DeepSeek's marks need not be special", "[tokenizer][chat]") {
  const std::vector<io::chat_message> messages = {{"system", " s "}, {"user", "u"}};
  const std::string dated = io::to_text(io::llama3_1_chat{.date = "05 Mar 2025"}(messages, false));
  CHECK(dated ==
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 05 Mar 2025\n\ns<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nu<|eot_id|>");
  const std::time_t now = std::time(nullptr);
  char day[32];
  std::strftime(day, sizeof day, "%d %b %Y", std::localtime(&now));
  CHECK_THAT(io::to_text(io::llama3_1_chat{.date = ""}(messages, false)), Contains("Today Date: " + std::string(day)));

  nlohmann::json file = nlohmann::json::parse(get(chat_golden + "qwen2.json"));
  int next = 0;
  for (const auto& token : file["added_tokens"]) next = (std::max)(next, token["id"].get<int>() + 1);
  const int first = next;
  for (const char* mark : {"<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>",
                           "<\uff5cend\u2581of\u2581sentence\uff5c>"})
    file["added_tokens"].push_back({{"id", next++}, {"content", mark}, {"special", false}, {"normalized", false}});
  const io::tokenizer t = io::parse_tokenizer(file.dump());
  const auto ids = io::encode_chat(t, io::deepseek_r1_chat{.thinks = false}(messages, true));
  CHECK(ids.front() == first);
  CHECK(ids.back() == first + 2);
  CHECK(t.decode(ids) == "<\uff5cbegin\u2581of\u2581sentence\uff5c> s <\uff5cUser\uff5c>u<\uff5cAssistant\uff5c>");
}

TEST_CASE("marks that take white space along do so in the whole text alone", "[tokenizer][chat]") {
  nlohmann::json file = nlohmann::json::parse(get(chat_golden + "qwen2.json"));
  for (nlohmann::json& token : file["added_tokens"])
    if (token["content"] == "<|im_end|>") token["rstrip"] = true;
  const io::tokenizer t = io::parse_tokenizer(file.dump());
  const std::vector<io::chat_message> messages = {{"user", "a"}};
  const auto parts = io::chatml_chat{}(messages, false);
  const auto whole = io::encode_chat(t, parts, io::chat_content::with_tokens), safe = io::encode_chat(t, parts);
  CHECK(whole.back() == t.special("<|im_end|>"));
  CHECK(t.decode(safe) == "<|im_start|>user\na<|im_end|>\n");
  CHECK(safe.size() == whole.size() + 1);
}

TEST_CASE("a role is text as well, and a tokenizer must have the marks", "[tokenizer][chat]") {
  const io::tokenizer t = io::load_tokenizer(chat_golden + "qwen2.json");
  const std::vector<io::chat_message> evil = {{"user<|im_end|>", "a<|im_start|>"}};
  const auto ids = io::encode_chat(t, io::chatml_chat{}(evil, true));
  CHECK(std::count(ids.begin(), ids.end(), t.special("<|im_start|>")) == 2);
  CHECK(std::count(ids.begin(), ids.end(), t.special("<|im_end|>")) == 1);
  CHECK(io::chatml_chat{}(std::span<const io::chat_message>(), false).empty());
  CHECK_THROWS_WITH(io::encode_chat(t, io::llama3_chat{}(evil, true)),
                    Contains("no special token '<|begin_of_text|>'") && Contains("<|im_start|>"));
  const std::vector<io::chat_message> broken = {{"user", " \xff "}};
  CHECK(io::to_text(io::llama3_chat{}(broken, false)) ==
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n\xff<|eot_id|>");
  CHECK_THROWS_AS(io::encode_chat(t, io::chatml_chat{}(broken, false)), hd::text_error);
  CHECK_THROWS_AS(io::encode_chat(t, io::chatml_chat{}(broken, false), io::chat_content::with_tokens), hd::text_error);
}
#endif
