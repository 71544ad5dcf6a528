// Chat templates render as transformers does: tests/golden/tokenizer/chat_template_golden.py.
#include <heddle/core/config.hpp>

#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include <heddle/io/chat/samples.hpp>
#include <heddle/io/checksum.hpp>
#include <heddle/io/tokenizer/load.hpp>

#include "catch.hpp"

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <unistd.h>

namespace hd = heddle;
namespace io = heddle::io;
using Catch::Matchers::Contains;

namespace {

nlohmann::ordered_json template_golden() {
  return nlohmann::ordered_json::parse(std::ifstream(HEDDLE_SOURCE_DIR "/tests/golden/tokenizer/chat_templates.json"));
}
// The clock of the golden data is in UTC.
void template_zone() {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
}
std::optional<std::string> template_text(const std::string& source, const nlohmann::ordered_json& data,
                                         std::time_t now) {
  try {
    return io::chat_template(source).render(data, now);
  } catch (const io::template_error&) {
    return std::nullopt;
  }
}
std::string template_hash(const std::string& text) {
  const std::uint64_t sum = io::checksum(std::as_bytes(std::span(text)));
  std::string out;
  for (int i = 60; i >= 0; i -= 4) out += "0123456789abcdef"[(sum >> i) & 15];
  return out;
}
std::string template_fault(const std::string& source, const io::chat_template_limits& limits = {},
                           const nlohmann::ordered_json& data = nlohmann::ordered_json::object()) {
  try {
    return "renders " + io::chat_template(source).render(data, 0, limits).substr(0, 100);
  } catch (const io::template_error& e) {
    return e.what();
  }
}
int compare_with_hashes(const nlohmann::ordered_json& golden, const std::string& source,
                        const nlohmann::ordered_json& hashes) {
  int wrong = 0;
  for (std::size_t i = 0; i < golden["chats"].size(); ++i) {
    nlohmann::ordered_json data = golden["chats"][i];
    data.update(golden["tokens"]);
    const auto text = template_text(source, data, golden["now"].get<std::time_t>());
    const nlohmann::ordered_json hash = text ? nlohmann::ordered_json(template_hash(*text)) : nlohmann::ordered_json();
    CAPTURE(i, text.value_or("refused"));
    CHECK(hash == hashes[i]);
    wrong += hash == hashes[i] ? 0 : 1;
  }
  return wrong;
}

}  // namespace

TEST_CASE("each part of a chat template renders as by transformers", "[tokenizer][template]") {
  template_zone();
  const nlohmann::ordered_json golden = template_golden();
  REQUIRE(golden["features"].size() > 80);
  for (const auto& one : golden["features"]) {
    const auto source = one[0].get<std::string>();
    const auto text = template_text(source, golden["data"], golden["now"].get<std::time_t>());
    CAPTURE(source);
    if (one[1].is_null())
      CHECK(text.value_or("refused") == "refused");
    else
      CHECK(text.value_or(template_fault(source, {}, golden["data"])) == one[1].get<std::string>());
  }
}

TEST_CASE("chat templates in the style of published ones render as by transformers", "[tokenizer][template]") {
  template_zone();
  const nlohmann::ordered_json golden = template_golden();
  REQUIRE(golden["templates"].size() == 10);
  for (const auto& one : golden["templates"]) {
    const auto source = one["source"].get<std::string>();
    CAPTURE(one["name"].get<std::string>());
    compare_with_hashes(golden, source, one["hashes"]);
    if (one["text"].is_null()) continue;
    nlohmann::ordered_json data = golden["chats"][8];
    data.update(golden["tokens"]);
    CHECK(io::chat_template(source).render(data, golden["now"].get<std::time_t>()) == one["text"].get<std::string>());
  }
}

// By hand: compiled with -DHEDDLE_CHAT_TEMPLATES='"FOLDER"', a folder of published templates as the script describes.
#if defined(HEDDLE_CHAT_TEMPLATES)
TEST_CASE("published chat templates render as by transformers", "[published]") {
  template_zone();
  const nlohmann::ordered_json golden = template_golden();
  REQUIRE(golden["published"].size() >= 40);
  for (const auto& one : golden["published"]) {
    const auto name = one["name"].get<std::string>();
    CAPTURE(name);
    std::ifstream file(std::string(HEDDLE_CHAT_TEMPLATES) + "/" + name);
    const std::string source{std::istreambuf_iterator<char>(file), {}};
    compare_with_hashes(golden, source, one["hashes"]);
  }
}
#endif

TEST_CASE("a chat template that fails says the line and the reason", "[tokenizer][template]") {
  const nlohmann::ordered_json data{{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  const auto fault = [&](const std::string& source) { return template_fault(source, {}, data); };
  CHECK(fault("a\n\n{{ raise_exception('no system') }}") ==
        "heddle: chat template, line 3: the template refuses: no system");
  CHECK_THAT(fault("a\n{% for x in y %}"), Contains("line 2: the template ends where 'endfor' is expected"));
  CHECK_THAT(fault("{{ messages[0]['text'] + 'x' }}"), Contains("line 1: 'dict object' has no attribute 'text'"));
  CHECK_THAT(fault("\n{% set x = nothing.at %}"), Contains("line 2: 'nothing' is undefined"));
  CHECK_THAT(fault("{{ 1 | frob }}"), Contains("line 1: there is no filter 'frob'"));
  CHECK_THAT(fault("{{ 1 is frob }}"), Contains("line 1: there is no test 'frob'"));
  CHECK_THAT(fault("{% import 'os' as os %}"),
             Contains("line 1: there is no statement 'import'; there are if, for, set"));
  CHECK_THAT(fault("{{ open('/etc/passwd') }}"), Contains("'open' is undefined"));
  CHECK_THAT(fault("{% for x in messages recursive %}{% endfor %}"), Contains("recursive loops are not supported"));
  CHECK_THAT(fault("{{ 9223372036854775807 + 1 }}"), Contains("beyond 64 bits"));
  try {
    static_cast<void>(io::chat_template("\n\n{{ 'a"));
    FAIL("a string without an end is no template");
  } catch (const io::template_error& e) {
    CHECK(e.line() == 3);
  }
  CHECK_THAT(template_fault("a\n\xff"), Contains("line 2: byte 2 is no UTF-8"));
  CHECK_THAT(template_fault("{{ a }}", {}, {{"a", "\xc3"}}), Contains("a text that is no UTF-8"));
  CHECK_THROWS_AS(io::chat_template("x").render(nlohmann::ordered_json::array()), hd::config_error);
  CHECK_THAT(template_fault(std::string((1 << 20) + 1, 'x')), Contains("at most 1048576 bytes, got 1048577"));
}

TEST_CASE("a chat template takes bounded steps and memory", "[tokenizer][template]") {
  const std::string many = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  CHECK_THAT(template_fault(many), Contains("it takes more than 1000000 steps"));
  CHECK_THAT(template_fault("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), Contains("in more than 600 levels"));
  CHECK_THAT(
      template_fault(
          "{% set ns = namespace(x='0123456789') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"),
      Contains("it makes more than 268435456 bytes") || Contains("steps"));
  CHECK_THAT(template_fault("{{ 'x' * 99999999999 }}"), Contains("it makes too much by '*'"));
  CHECK_THAT(
      template_fault(
          "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"),
      Contains("a value of more than"));
  CHECK_THAT(
      template_fault("{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}"),
      Contains("in more than 100 levels"));
  CHECK_THAT(template_fault("{{ " + std::string(500, '(') + "1" + std::string(500, ')') + " }}"),
             Contains("nested in more than 120 levels"));
  std::string chain = "{{ 1";
  for (int i = 0; i < 5000; ++i) chain += " + 1";
  CHECK_THAT(template_fault(chain + " }}"), Contains("nested in more than 120 levels"));
  CHECK_THAT(template_fault("{{ ('a' * 100000).count('a' * 50000 + 'b') }}", {.steps = 1000}),
             Contains("more than 1000 steps"));
  // What holds itself is let go.
  CHECK(template_fault("{% set ns = namespace() %}{% set ns.me = ns %}{% macro m() %}{{ m }}{% endmacro %}x") ==
        "renders x");
  // A long conversation is none of these.
  nlohmann::ordered_json data{{"messages", nlohmann::ordered_json::array()}, {"add_generation_prompt", true}};
  for (int i = 0; i < 1000; ++i)
    data["messages"].push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(1000, 'a')}});
  const nlohmann::ordered_json golden = template_golden();
  CHECK(template_text(golden["templates"][0]["source"].get<std::string>(), data, 0).value_or("").size() > 1000000);
}

namespace {

std::string words_hash(const std::vector<std::int32_t>& ids) {
  return template_hash(std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(std::int32_t)));
}
io::tokenizer words_tokenizer(const std::string& name) {
  return io::load_tokenizer(HEDDLE_SOURCE_DIR "/tests/golden/tokenizer/" + name + ".json");
}
// What reading conversations of these lines makes of them, by a template in the manner of ChatML.
io::chat_samples read_lines(const std::string& lines, std::int64_t context, const char* turn = "{{ m.content }}") {
  const auto path = std::filesystem::temp_directory_path() / ("heddle-chats-" + std::to_string(::getpid()));
  std::ofstream(path) << lines;
  const io::chat_template chat(std::string("{% for m in messages %}<|im_start|>{{ m.role }}:") + turn +
                               "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}");
  try {
    io::chat_samples out =
        io::read_chat_samples(path, words_tokenizer("qwen2"), chat, nlohmann::ordered_json::object(), context);
    std::filesystem::remove(path);
    return out;
  } catch (...) {
    std::filesystem::remove(path);
    throw;
  }
}

}  // namespace

TEST_CASE("what the assistant wrote is what transformers' masks and trl's completions are", "[tokenizer][template]") {
  template_zone();
  const auto golden =
      nlohmann::ordered_json::parse(std::ifstream(HEDDLE_SOURCE_DIR "/tests/golden/words/expected.json"));
  const auto now = template_golden()["now"].get<std::time_t>();
  int compared = 0, apart = 0;
  for (const auto& one : golden["masks"]) {
    const io::tokenizer tokenizer = words_tokenizer(one["tokenizer"].get<std::string>());
    const io::chat_template chat(one["source"].get<std::string>());
    CHECK(chat.marks_generated() == (one["source"].get<std::string>().find("endgeneration") != std::string::npos));
    for (std::size_t i = 0; i < golden["chats"].size(); ++i) {
      CAPTURE(one["name"].get<std::string>(), i);
      // As the script gives them: messages and tools.
      nlohmann::ordered_json data = {{"messages", golden["chats"][i]["messages"]},
                                     {"tools", golden["chats"][i]["tools"]}};
      data.update(one["tokens"]);
      if (one["samples"][i].is_null()) {
        CHECK_THROWS_AS(io::learned_samples(tokenizer, chat, data, now), io::template_error);
        continue;
      }
      const auto found = io::learned_samples(tokenizer, chat, data, now);
      REQUIRE(found.size() == one["samples"][i].size());
      apart += found.size() > 1 ? 1 : 0;
      for (std::size_t k = 0; k < found.size(); ++k) {
        const auto& expected = one["samples"][i][k];
        std::vector<bool> learned(expected["tokens"].get<std::size_t>());
        for (const auto& range : expected["learned"])
          for (auto at = range[0].get<std::size_t>(); at < range[1].get<std::size_t>(); ++at) learned[at] = true;
        CHECK(words_hash(found[k].ids) == expected["hash"].get<std::string>());
        CHECK(found[k].learned == learned);
        ++compared;
      }
    }
  }
  CHECK(compared > 80);
  CHECK(apart > 0);
}

TEST_CASE("conversations become samples of one length, and lines that are none say what is expected",
          "[tokenizer][template]") {
  const std::string two =
      R"({"messages": [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d"}]})"
      "\n\n"
      R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y z"}]})";
  const io::chat_samples all = read_lines(two, 40);
  CHECK(all.conversations == 2);
  CHECK(all.samples == 2);
  CHECK(all.cut == 0);
  REQUIRE(all.rows.tokens.size() == 80);
  REQUIRE(all.rows.targets.size() == 80);
  const io::tokenizer qwen = words_tokenizer("qwen2");
  std::vector<std::int32_t> learned;
  for (const std::int32_t id : all.rows.targets)
    if (id >= 0) learned.push_back(id);
  CHECK(qwen.decode(learned) == "d<|im_end|>y z<|im_end|>");
  CHECK(static_cast<std::int64_t>(learned.size()) == all.learned);
  // A target is the token behind; the last one of a text is only that.
  for (std::size_t i = 0; i + 1 < 40; ++i)
    if (all.rows.targets[i] >= 0 && all.rows.targets[i + 1] >= 0) CHECK(all.rows.targets[i] == all.rows.tokens[i + 1]);
  const auto longest = static_cast<std::int64_t>(
      qwen.encode("<|im_start|>user:x<|im_end|><|im_start|>assistant:y", {.add_special_tokens = false}).size());
  const io::chat_samples cut = read_lines(two, longest);
  CHECK(cut.cut >= 1);
  CHECK(cut.samples + cut.empty == 2);

  const auto fault = [](const std::string& lines, const char* turn = "{{ m.content }}") -> std::string {
    try {
      read_lines(lines, 40, turn);
    } catch (const hd::error& e) {
      return e.what();
    }
    return "is read";
  };
  CHECK_THAT(fault("{\"messages\": []}"), Contains("line 1 should have 'messages', a list of objects with a 'role'"));
  CHECK_THAT(fault("{}\n"), Contains("line 1 should have 'messages'"));
  CHECK_THAT(fault("\n[1]"), Contains("line 2 should be an object, got array"));
  CHECK_THAT(fault("{\"messages\": "), Contains("line 1, offset") && Contains("is no JSON"));
  CHECK_THAT(fault(R"({"messages": [{"role": "user", "content": "a"}]})"),
             Contains("has 1 conversations, and none has a turn of the assistant's within 40 tokens"));
  CHECK_THAT(fault(two, "{{ raise_exception('no') }}"),
             Contains("line 1: chat template, line 1: the template refuses: no"));
  CHECK_THAT(fault(two, "{% macro a() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ a() }}"),
             Contains("what 'generation' makes within a macro"));
  CHECK_THROWS_AS(io::read_chat_samples("/nowhere", qwen, io::chat_template("x"), nlohmann::ordered_json::object(), 8),
                  hd::io_error);
}
#endif
