// Bodies of /v1/completions and /v1/chat/completions: what is accepted is within the ranges that the engine takes, reads the same from printed JSON, and what
// is refused has a body with a message. The first byte says which of the two it is.
#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include <heddle/infer/serve/openai/call.hpp>

#include "fuzz.hpp"

#include <string>
#include <string_view>
#include <vector>

HEDDLE_FUZZ_TARGET(serve_call) {
  namespace inf = heddle::infer;
  fuzz::bytes in(data, size);
  const bool chat = in.byte() % 2 == 1;
  const std::string_view body = in.rest();
  try {
    const inf::completion_call c = inf::parse_call(body, chat);
    fuzz::require(c.chat == chat, "it is the call that was asked for");
    fuzz::require(chat ? !c.messages.empty() && c.prompts.empty() : !c.prompts.empty() && c.messages.empty(),
                  "there is something to continue");
    fuzz::require(c.stop.size() <= 4, "there are at most four stop strings");
    for (const std::string& s : c.stop) fuzz::require(!s.empty(), "no stop string is empty");
    const std::string printed = heddle::io::parse_json(body, "x").dump();
    inf::completion_call again = inf::parse_call(printed, chat), first = c;
    for (inf::completion_call* one : {&again, &first}) {  // printed members are in another order
      if (one->json_schema) one->json_schema = nlohmann::json::parse(*one->json_schema).dump();
      one->conversation = nlohmann::ordered_json::parse(nlohmann::json::parse(one->conversation.dump()).dump());
    }
    fuzz::require(again == first, "what is printed reads the same");
    if (c.json_schema) {  // which is cut out of the body
      const auto whole = nlohmann::ordered_json::parse(body);
      bool found = false;
      for (const char* at : {"/response_format/json_schema/schema", "/response_format/schema", "/guided_json",
                             "/json_schema", "/structured_outputs/json"})
        if (const nlohmann::ordered_json::json_pointer to(at); whole.contains(to))
          found = found ||
                  nlohmann::ordered_json::parse(*c.json_schema) ==
                      (whole[to].is_string() ? nlohmann::ordered_json::parse(whole[to].get_ref<const std::string&>())
                                             : whole[to]);
      fuzz::require(found, "a schema is that of the body, in its order");
    }
    fuzz::require(c.constraint.empty() == !(c.json_object || c.json_schema || c.regex), "a constraint has a name");
    const std::vector<inf::request> all = inf::to_requests(c, {{1, 2}}, 100);
    fuzz::require(all.size() == static_cast<std::size_t>(c.n), "there are n requests for a prompt");
    for (inf::request r : all) {
      r.stop_tokens.clear();  // the vocabulary is not known here
      inf::require_request(r, 1000, 100);
      std::vector<double> logits(8);
      if (r.mask) r.mask({}, logits);
    }
  } catch (const inf::api_error& e) {
    fuzz::require(e.status() == 400, "a refused call has status 400");
    const nlohmann::json error = e.body().at("error");
    fuzz::require(error.at("message").is_string() && error.size() == 4, "it says why");
    fuzz::require(!inf::json_text(error).empty(), "it can be printed");
  }
}
#endif
