// Chat templates render as transformers does: tests/golden/tokenizer/chat_template_golden.py.
#include <heddle/core/config.hpp>

#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include <heddle/io/checksum.hpp>
#include <heddle/io/tokenizer/chat_template.hpp>

#include "catch.hpp"

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>

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
#endif
