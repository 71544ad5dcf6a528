// Chat templates: whatever the source, it renders a text in bounded steps and memory, or says the line and the reason.
//
// An input is a source. The conversation it is given has all kinds of values.
#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include <heddle/io/chat/template.hpp>

#include "fuzz.hpp"

#include <string>
#include <string_view>

HEDDLE_FUZZ_TARGET(chat_template) {
  namespace io = heddle::io;
  fuzz::bytes in(data, size);
  const std::string_view source = in.rest();
  static const nlohmann::ordered_json chat = nlohmann::ordered_json::parse(
      R"({"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "Grüße 世界"},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, true]}}}]}],
          "tools": [{"type": "function"}], "add_generation_prompt": true, "bos_token": "<s>", "s": "text", "l": [3, 1, 2], "d": {"b": 1}})");
  fuzz::accepted([&] {
    const io::chat_template made(source);
    const auto text = [&]() -> std::string {
      try {
        return made.render(chat, 0, {.steps = 20000, .bytes = 1 << 22});
      } catch (const io::template_error& e) {
        fuzz::require(e.line() >= 1, "lines count from 1");
        return e.what();
      }
    };
    fuzz::require(text() == text(), "the same twice");
  });
}
#endif
