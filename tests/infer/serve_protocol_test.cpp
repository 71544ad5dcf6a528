#include <heddle/core/config.hpp>

#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include <heddle/infer/serve/openai/openapi.hpp>
#include <heddle/infer/serve/openai/running_call.hpp>
#include <heddle/io/tokenizer/load.hpp>

#include "catch.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <regex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace inf = heddle::infer;
namespace io = heddle::io;
using json = nlohmann::json;
using Catch::Matchers::Contains;

namespace {

io::tokenizer golden(const std::string& name) {
  return io::load_tokenizer(HEDDLE_SOURCE_DIR "/tests/golden/tokenizer/" + name + ".json");
}

inf::completion_call completion(json more = json::object()) {
  json body{{"model", "m"}, {"prompt", "x"}};
  body.update(more);
  return inf::parse_completion(body);
}
inf::completion_call chat(json more = json::object()) {
  json body{{"messages", json::array({{{"role", "user"}, {"content", "hi"}}})}};
  body.update(more);
  return inf::parse_chat(body);
}
// The error that a call gets, or 200.
template <class Parse>
json refusal(Parse&& parse, const json& more) {
  try {
    parse(more);
  } catch (const inf::api_error& e) {
    CHECK(e.status() == 400);
    json body = e.body();
    CHECK(body.size() == 1);
    CHECK(body["error"].size() == 4);
    CHECK(body["error"]["type"] == "invalid_request_error");
    CHECK(body["error"]["message"].get<std::string>().find("heddle: ") == std::string::npos);
    return body["error"];
  }
  return {{"param", "accepted"}, {"message", ""}};
}
json refused(const json& more) {
  return refusal(completion, more)["param"];
}
json chat_refused(const json& more) {
  return refusal(chat, more)["param"];
}

inf::event token(std::int32_t t, double log_probability = -1, inf::finish_reason end = inf::finish_reason::none) {
  return {.id = 1, .token = t, .log_probability = log_probability, .finish = end};
}
inf::event end(inf::finish_reason r) {
  return {.id = 1, .finish = r};
}

}  // namespace

TEST_CASE("a completion call has OpenAI's defaults, and null counts as absent", "[infer][serve]") {
  const inf::completion_call c = completion();
  CHECK(c.model == "m");
  CHECK(c.prompts == std::vector<inf::call_prompt>{"x"});
  CHECK(c.n == 1);
  CHECK(c.max_tokens == 16);
  CHECK(c.sampling == inf::sampling_options{});
  CHECK_FALSE(c.stream);
  CHECK_FALSE(c.log_probabilities);
  json nulls;
  for (const char* name : {"n",
                           "max_tokens",
                           "temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "seed",
                           "stop",
                           "stream",
                           "stream_options",
                           "logprobs",
                           "logit_bias",
                           "repetition_penalty",
                           "frequency_penalty",
                           "presence_penalty",
                           "echo",
                           "suffix",
                           "best_of",
                           "ignore_eos",
                           "stop_token_ids"})
    nulls[name] = nullptr;
  CHECK(completion(nulls) == c);
  CHECK(completion({{"user", "somebody"}, {"no_such_member", {1, 2}}, {"echo", false}, {"best_of", 1}}) == c);
}

TEST_CASE("every member of a completion call is read", "[infer][serve]") {
  const inf::completion_call c = completion({{"n", 3},
                                             {"max_tokens", 7},
                                             {"temperature", 0.5},
                                             {"top_p", 0.25},
                                             {"top_k", 5},
                                             {"min_p", 0.125},
                                             {"repetition_penalty", 1.5},
                                             {"frequency_penalty", -1},
                                             {"presence_penalty", 2},
                                             {"seed", -1},
                                             {"stop", {"a", "bc"}},
                                             {"stop_token_ids", {4, 5}},
                                             {"ignore_eos", true},
                                             {"logit_bias", {{"7", -100}, {"8", 1.5}}},
                                             {"logprobs", 4},
                                             {"stream", true},
                                             {"stream_options", {{"include_usage", true}}}});
  CHECK(c.n == 3);
  CHECK(c.max_tokens == 7);
  CHECK(c.sampling == inf::sampling_options{.temperature = 0.5,
                                            .top_k = 5,
                                            .top_p = 0.25,
                                            .min_p = 0.125,
                                            .repetition_penalty = 1.5,
                                            .frequency_penalty = -1,
                                            .presence_penalty = 2,
                                            .seed = std::numeric_limits<std::uint64_t>::max()});
  CHECK(c.stop == std::vector<std::string>{"a", "bc"});
  CHECK(c.stop_tokens == std::vector<std::int32_t>{4, 5});
  CHECK(c.ignore_end_tokens);
  CHECK(c.logit_bias == std::map<std::int32_t, double>{{7, -100}, {8, 1.5}});
  CHECK(c.log_probabilities == 4);
  CHECK(c.stream);
  CHECK(c.include_usage);
  CHECK(completion({{"stop", "a"}}).stop == std::vector<std::string>{"a"});
  CHECK(completion({{"n", 3.0}}).n == 3);  // whole to JSON Schema
  CHECK(completion({{"top_k", -1}}).sampling.top_k == 0);
  using prompts = std::vector<inf::call_prompt>;
  using ids = std::vector<std::int32_t>;
  CHECK(completion({{"prompt", {1, 2}}}).prompts == prompts{ids{1, 2}});
  CHECK(completion({{"prompt", json::array({"a", "b"})}}).prompts == prompts{"a", "b"});
  CHECK(completion({{"prompt", json::array({json::array({1}), json::array({2, 3})})}}).prompts ==
        prompts{ids{1}, ids{2, 3}});
}

TEST_CASE("members of a wrong type or out of range are refused by name", "[infer][serve]") {
  const std::vector<std::pair<const char*, std::vector<json>>> wrong{
      {"model", {1, json::array()}},
      {"n", {0, 129, 1.25, "1", true, -1}},
      {"max_tokens", {0, -1, 1.5, "5", 1e30, std::uint64_t{1} << 63}},
      {"temperature", {-0.1, 2.1, "1", true, json::object()}},
      {"top_p", {0, 1.1, "x"}},
      {"top_k", {-2, 0.5}},
      {"min_p", {-1, 2}},
      {"repetition_penalty", {0, -1, "x"}},
      {"frequency_penalty", {-2.5, 3}},
      {"presence_penalty", {-2.5, json::array()}},
      {"seed", {1.5, "1", std::uint64_t{1} << 63}},
      {"stop", {1, "", json::array({"a", ""}), json::array({1}), json::array({"1", "2", "3", "4", "5"})}},
      {"stop_token_ids", {1, json::array({-1}), json::array({"a"})}},
      {"ignore_eos", {1}},
      {"logit_bias", {json::array(), {{"a", 1}}, {{"1", 101}}, {{"", 1}}, {{"9999999999", 1}}}},
      {"stream", {1, "true"}},
      {"prompt",
       {1, json::object(), json::array(), json::array({1, "a"}), json::array({"a", 1}), json::array({-1}),
        json::array({1.5}), json::array({true}), json::array({json::array({"a"})}), nullptr}},
      {"logprobs", {-1, 21, true}},
      {"best_of", {2, 0}},
      {"echo", {true}},
      {"suffix", {"x"}}};
  for (const auto& [name, values] : wrong)
    for (const json& v : values) {
      CAPTURE(name, v.dump());
      CHECK(refused({{name, v}}) == name);
    }
  CHECK(completion({{"n", 64}, {"prompt", json::array({"a", "b"})}}).prompts.size() == 2);
  CHECK(refused({{"n", 65}, {"prompt", json::array({"a", "b"})}}) == "prompt");
  CHECK(refused({{"prompt", std::vector<std::string>(129, "a")}}) == "prompt");
  CHECK(refused({{"stream_options", json::object()}}) == "stream_options");
  CHECK(refused({{"stream", true}, {"stream_options", 1}}) == "stream_options");
  CHECK(refused({{"stream", true}, {"stream_options", {{"include_usage", 1}}}}) == "stream_options.include_usage");
  CHECK_THAT(refusal(completion, {{"temperature", 3}})["message"].get<std::string>(), Contains("from 0 to 2, got 3"));
  for (const json& body : {json(1), json::array(), json("x"), json()})
    CHECK_THROWS_WITH(inf::parse_completion(body), Contains("should be a JSON object"));
  CHECK_THROWS_WITH(inf::parse_completion(json::object()), Contains("'prompt' is missing"));
}

TEST_CASE("calls of tools and what they gave need the folder's own template, and are not left out of a conversation",
          "[infer][serve]") {
  const auto with = [](const json& m) {
    json messages = json::array({{{"role", "user"}, {"content", "hi"}}});
    messages.push_back(m);
    return json{{"messages", messages}};
  };
  const auto needs = [&](const json& m) { return chat(with(m)).needs_template; };
  const auto message = [&](const json& m) {
    return refusal([](const json& more) { chat(more); }, with(m))["param"].get<std::string>();
  };
  const json calls = json::parse(R"([{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}])");
  CHECK(needs({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", calls}}) == "messages[1].tool_calls");
  CHECK(needs({{"role", "assistant"}, {"content", "a"}, {"reasoning_content", "t"}}) == "messages[1].reasoning_content");
  CHECK(needs({{"role", "tool"}, {"tool_call_id", "1"}, {"content", "3"}}) == "messages[1].tool_call_id");
  CHECK(needs({{"role", "tool"}, {"content", "3"}}) == "messages[1].role");
  CHECK(needs({{"role", "assistant"}, {"content", "a"}, {"tool_calls", json::array()}, {"function_call", nullptr}}).empty());
  CHECK(message({{"role", "assistant"}, {"function_call", {{"name", "f"}, {"arguments", "{}"}}}}) ==
        "messages[1].function_call");
  CHECK(message({{"role", "function"}, {"name", "f"}, {"content", "3"}}) == "messages[1].role");
  json wrong = calls;
  wrong[0]["function"]["arguments"] = "[1";
  CHECK(message({{"role", "assistant"}, {"tool_calls", wrong}}) == "messages[1].tool_calls[0].function.arguments");
  wrong[0].erase("function");
  CHECK(message({{"role", "assistant"}, {"tool_calls", wrong}}) == "messages[1].tool_calls[0].function");
  CHECK(message({{"role", "assistant"}, {"tool_calls", "x"}}) == "messages[1].tool_calls");
  // Arguments come as text, and templates take values, in the order that the client wrote.
  const inf::completion_call c = inf::parse_call(
      R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}}]}],
          "tools": [{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "y": 2}}}]})",
      true);
  CHECK(c.calls_tools);
  CHECK(c.conversation["tools"].dump() == R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"y":2}}}])");
  CHECK(c.conversation["messages"][0]["tool_calls"][0]["function"]["arguments"].dump() == R"({"b":1,"a":2})");
}

TEST_CASE("what a call does not say of sampling is as the server has it", "[infer][serve]") {
  const inf::sampling_options defaults{.temperature = 0.7, .top_k = 20, .top_p = 0.8, .repetition_penalty = 1.05};
  for (const bool chat : {false, true}) {
    json body{{"prompt", "x"}, {"messages", json::array({{{"role", "user"}, {"content", "hi"}}})}};
    CHECK(inf::parse_call(body.dump(), chat, defaults).sampling == defaults);
    CHECK(inf::parse_call(body.dump(), chat).sampling == inf::sampling_options{});
    body.update({{"temperature", 0}, {"top_k", -1}, {"seed", 3}, {"top_p", nullptr}});
    inf::sampling_options expected = defaults;
    expected.temperature = 0;
    expected.top_k = 0;
    expected.seed = 3;
    CHECK(inf::parse_call(body.dump(), chat, defaults).sampling == expected);
  }
}

TEST_CASE("a conversation has messages with text, or is refused by name", "[infer][serve]") {
  const inf::completion_call c = chat({{"max_completion_tokens", 5}, {"max_tokens", 6}, {"logprobs", true}});
  CHECK(c.chat);
  CHECK(c.messages == std::vector<io::chat_message>{{"user", "hi"}});
  CHECK(c.max_tokens == 5);
  CHECK(c.log_probabilities == 0);
  CHECK_FALSE(chat().max_tokens);
  CHECK(chat({{"logprobs", true}, {"top_logprobs", 3}}).log_probabilities == 3);
  CHECK_FALSE(chat({{"logprobs", false}, {"top_logprobs", 0}}).log_probabilities);
  const json parts = json::array({{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}});
  const auto messages = [](json all) { return json{{"messages", std::move(all)}}; };
  CHECK(chat(messages(json::array({{{"role", "developer"}, {"content", parts}},
                                   {{"role", "assistant"}, {"content", nullptr}},
                                   {{"role", "assistant"}}})))
            .messages == std::vector<io::chat_message>{{"system", "ab"}, {"assistant", ""}, {"assistant", ""}});
  CHECK(chat({{"tools", json::array()}, {"response_format", {{"type", "text"}}}}).messages.size() == 1);
  CHECK(chat_refused(messages(nullptr)) == "messages");
  CHECK(chat_refused(messages("hi")) == "messages");
  CHECK(chat_refused(messages(json::array())) == "messages");
  const auto message = [&](json m) { return chat_refused(messages(json::array({std::move(m)}))); };
  CHECK(message("hi") == "messages[0]");
  CHECK(message({{"content", "a"}}) == "messages[0].role");
  CHECK(message({{"role", 1}, {"content", "a"}}) == "messages[0].role");
  CHECK(message({{"role", "user\n"}, {"content", "a"}}) == "messages[0].role");
  CHECK(message({{"role", "user"}}) == "messages[0].content");
  CHECK(message({{"role", "user"}, {"content", nullptr}}) == "messages[0].content");
  CHECK(message({{"role", "user"}, {"content", 1}}) == "messages[0].content");
  CHECK(message({{"role", "user"}, {"content", json::array({1})}}) == "messages[0].content");
  CHECK(message({{"role", "user"}, {"content", json::array({{{"type", "image_url"}}})}}) == "messages[0].content");
  CHECK(message({{"role", "user"}, {"content", json::array({{{"type", "text"}, {"text", 1}}})}}) ==
        "messages[0].content");
  CHECK(chat_refused({{"top_logprobs", 2}}) == "top_logprobs");
  CHECK(chat_refused({{"logprobs", 1}}) == "logprobs");
  CHECK(chat_refused({{"logprobs", true}, {"top_logprobs", 21}}) == "top_logprobs");
  CHECK(chat_refused({{"tools", json::array({json::object()})}}) == "tools");
  const json object{{"type", "json_object"}};
  CHECK(chat({{"response_format", object}}).json_object);
  CHECK_FALSE(chat().json_object);
  CHECK(chat_refused({{"response_format", {{"type", "json_schema"}}}}) == "response_format.json_schema");
  CHECK(chat_refused({{"response_format", {{"type", "regex"}}}}) == "response_format.regex");
  CHECK(chat_refused({{"response_format", {{"type", "grammar"}}}}) == "response_format");
  CHECK(chat({{"response_format", {{"type", "regex"}, {"regex", "a+"}}}}).regex == "a+");
  const std::string_view ordered = R"({"prompt": "x", "response_format": {"type": "json_schema", "json_schema":
      {"name": "n", "schema": {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}}}}})";
  CHECK(inf::parse_call(ordered, false).json_schema ==
        R"({"type":"object","properties":{"b":{"type":"null"},"a":{"type":"null"}}})");
  CHECK(chat_refused({{"response_format", json::object()}}) == "response_format");
  CHECK(chat_refused({{"response_format", object}, {"stop", "a"}}) == "response_format");
  CHECK(chat_refused({{"response_format", 1}}) == "response_format");
}

TEST_CASE("what restricts answers elsewhere is refused by name, unless its value changes nothing", "[infer][serve]") {
  const auto of_both = [](const char* name, const json& value) {
    const json more{{name, value}};
    const json one = refused(more);
    CHECK(one == chat_refused(more));
    return one;
  };
  for (const char* name : {"guided_grammar",
                           "grammar",
                           "ebnf",
                           "structural_tag",
                           "guided_whitespace_pattern",
                           "guided_something_new",
                           "bad_words",
                           "suppress_tokens",
                           "force_words_ids",
                           "stop_sequences",
                           "stop_regex",
                           "logits_processors",
                           "chat_template",
                           "chat_template_kwargs",
                           "continue_final_message",
                           "documents",
                           "tools",
                           "tool_choice",
                           "functions",
                           "audio",
                           "modalities",
                           "extra_body",
                           "vllm_xargs",
                           "parameters",
                           "prompt_embeds",
                           "samplers"}) {
    CAPTURE(name);
    for (const json& value : {json("x"), json::array({"x"}), json{{"x", true}}, json(true)})
      CHECK(of_both(name, value) == name);
    CHECK(of_both(name, nullptr) == "accepted");
  }
  for (const char* name :
       {"max_new_tokens", "max_length", "n_predict", "min_length", "no_repeat_ngram_size", "num_beams", "typical_p",
        "top_n_sigma", "mirostat", "repeat_penalty", "prompt_logprobs", "n_probs"}) {
    CAPTURE(name);
    CHECK(of_both(name, 7) == name);
  }
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, json>>{{"bad_words", json::array()},
                                                           {"chat_template_kwargs", json::object()},
                                                           {"continue_final_message", false},
                                                           {"add_generation_prompt", true},
                                                           {"skip_special_tokens", true},
                                                           {"do_sample", true},
                                                           {"tool_choice", "none"},
                                                           {"tool_choice", "auto"},
                                                           {"modalities", {"text"}},
                                                           {"typical_p", 1.0},
                                                           {"num_beams", 1},
                                                           {"n_predict", -1},
                                                           {"use_beam_search", false},
                                                           {"guided_decoding_backend", "xgrammar"},
                                                           {"user", "somebody"},
                                                           {"metadata", {{"a", "b"}}}}) {
    CAPTURE(name);
    CHECK(of_both(name, value) == "accepted");
  }
  for (const char* name :
       {"add_generation_prompt", "skip_special_tokens", "detokenize", "do_sample", "enable_thinking"})
    CHECK(of_both(name, false) == name);
  CHECK_THAT(refusal(completion, {{"max_new_tokens", 5}})["message"].get<std::string>(), Contains("use 'max_tokens'"));
  CHECK(refused({{"max_completion_tokens", 5}}) == "max_completion_tokens");
  CHECK(chat_refused({{"echo", true}}) == "echo");
  CHECK(chat_refused({{"best_of", 2}}) == "best_of");
  CHECK(chat_refused({{"add_special_tokens", true}}) == "add_special_tokens");
  CHECK(chat_refused({{"add_special_tokens", false}}) == "accepted");
  CHECK(completion().add_special_tokens);
  CHECK_FALSE(completion({{"add_special_tokens", false}}).add_special_tokens);
  const io::tokenizer llama = golden("llama3");
  CHECK(inf::prompt_tokens(completion({{"add_special_tokens", false}}), llama, inf::chat_choice{})[0] ==
        llama.encode("x", {.add_special_tokens = false}));
  CHECK(inf::prompt_tokens(completion(), llama, inf::chat_choice{})[0] == llama.encode("x"));
}

TEST_CASE("an answer is constrained by one member of a call, under whatever name", "[infer][serve]") {
  const json schema{{"type", "integer"}};
  CHECK(completion({{"guided_json", schema}}).json_schema == schema.dump());
  CHECK(completion({{"guided_json", schema}}).constraint == "guided_json");
  CHECK(completion({{"guided_json", "{ \"type\": \"integer\" }"}}).json_schema == schema.dump());
  CHECK(completion({{"structured_outputs", {{"json", schema}, {"disable_any_whitespace", true}}}}).json_schema ==
        schema.dump());
  CHECK(chat({{"json_schema", schema}}).json_schema == schema.dump());
  CHECK(chat({{"response_format", {{"type", "json_object"}, {"schema", schema}}}}).json_schema == schema.dump());
  CHECK_FALSE(chat({{"response_format", {{"type", "json_object"}, {"schema", schema}}}}).json_object);
  CHECK(chat({{"response_format", {{"type", "json_object"}, {"schema", nullptr}}}}).json_object);
  CHECK(completion({{"guided_regex", "a+"}}).regex == "a+");
  CHECK(completion({{"guided_choice", {"a+b", "[c]"}}}).regex == "a\\+b|\\[c\\]");
  CHECK(completion({{"structured_outputs", {{"json_object", true}}}}).json_object);
  CHECK(completion({{"structured_outputs", json::object()}}) == completion());
  CHECK(completion({{"guided_json", nullptr}, {"guided_regex", nullptr}, {"structured_outputs", nullptr}}) ==
        completion());
  // Members in the order of the text.
  const std::string ordered = R"({"type":"object","properties":{"b":{},"a":{}}})";
  for (const std::string& member :
       {R"("guided_json": )" + ordered, R"("structured_outputs": {"json": )" + ordered + "}",
        R"("response_format": {"type": "json_object", "schema": )" + ordered + "}",
        "\"guided_json\": " + json(ordered).dump()}) {
    CAPTURE(member);
    CHECK(inf::parse_call(R"({"prompt": "x", )" + member + "}", false).json_schema == ordered);
  }
  CHECK(refused({{"guided_json", 1}}) == "guided_json");
  CHECK(refused({{"guided_json", "{"}}) == "guided_json");
  CHECK(refused({{"guided_json", "[]"}}) == "guided_json");
  CHECK(refused({{"guided_json", {{"title", std::string(70000, 'x')}}}}) == "guided_json");
  CHECK(refused({{"guided_regex", 1}}) == "guided_regex");
  CHECK(refused({{"guided_choice", json::array()}}) == "guided_choice");
  CHECK(refused({{"guided_choice", {1}}}) == "guided_choice");
  CHECK(refused({{"structured_outputs", "a"}}) == "structured_outputs");
  CHECK(refused({{"structured_outputs", {{"grammar", "root ::= x"}}}}) == "structured_outputs.grammar");
  CHECK(refused({{"structured_outputs", {{"choice", {"a"}}, {"regex", "a"}}}}) == "structured_outputs.choice");
  CHECK(refused({{"guided_json", schema}, {"guided_regex", "a"}}) == "guided_regex");
  CHECK(refused({{"response_format", {{"type", "json_object"}}}, {"guided_json", schema}}) == "guided_json");
  for (const json& format :
       {json{{"type", "text"}, {"schema", schema}}, json{{"type", "json_object"}, {"value", schema}},
        json{{"type", "regex"}, {"regex", "a"}, {"value", "b"}}}) {
    const std::string param = refused({{"response_format", format}});
    CHECK_THAT(param, Contains("response_format."));
  }
  for (const json& more : {json{{"stop", "a"}}, json{{"stop_token_ids", {1}}}, json{{"ignore_eos", true}},
                           json{{"min_tokens", 2}}, json{{"allowed_token_ids", {1}}}}) {
    json call{{"guided_regex", "a"}};
    call.update(more);
    CAPTURE(call.dump());
    CHECK(refused(call) == "guided_regex");
  }
}

TEST_CASE("min_tokens and allowed_token_ids are masks of the logits", "[infer][serve]") {
  const double never = -std::numeric_limits<double>::infinity();
  const inf::completion_call c = completion(
      {{"min_tokens", 2}, {"allowed_token_ids", {4, 1, 3, 4}}, {"stop_token_ids", {3}}, {"logit_bias", {{"1", 2}}}});
  CHECK(c.allowed_tokens == std::vector<std::int32_t>{1, 3, 4, 4});
  const inf::logits_mask mask = inf::call_mask(c, {}, {4, 99});
  const std::vector<std::int32_t> answer{1, 1};
  std::vector<double> early(6, 0.5), late = early;
  mask(std::span(answer).first(1), early);
  CHECK(early == std::vector<double>{never, 2.5, never, never, never, never});
  mask(answer, late);
  CHECK(late == std::vector<double>{never, 2.5, never, 0.5, 0.5, never});
  CHECK_FALSE(inf::call_mask(completion()));
  CHECK(refused({{"min_tokens", -1}}) == "min_tokens");
  CHECK(refused({{"min_tokens", 17}}) == "min_tokens");  // of 16
  CHECK(completion({{"min_tokens", 16}}).min_tokens == 16);
  CHECK(chat({{"min_tokens", 17}}).min_tokens == 17);
  CHECK(chat_refused({{"min_tokens", 7}, {"max_completion_tokens", 6}}) == "min_tokens");
  CHECK(refused({{"min_tokens", 2}, {"stop", "a"}}) == "min_tokens");
  for (const json& wrong : {json(1), json::array(), json::array({-1}), json::array({"a"})})
    CHECK(refused({{"allowed_token_ids", wrong}}) == "allowed_token_ids");
}

namespace {

// The text of a random value: spaces anywhere, names with escapes, names twice, and names that are looked for in places where they mean nothing.
std::string random_text(std::mt19937& random, int levels) {
  const auto pick = [&](std::initializer_list<const char*> of) {
    return std::string(of.begin()[random() % of.size()]);
  };
  const auto space = [&] { return pick({"", "", "", " ", "\n\t", "\r  "}); };
  const auto list = [&](char open, char close, auto item) {
    std::string out(1, open);
    for (auto n = random() % 5, i = n * 0; i < n; ++i) out += (i > 0 ? "," : "") + space() + item() + space();
    return out + space() + close;
  };
  switch (random() % (levels > 0 ? 8 : 4)) {
    case 0:
      return pick({"0", "-1.50e+3", "12", "true", "false", "null"});
    case 1:
      return pick({R"("")", R"("\"")", R"("\\")", R"("\\\"{")", R"("}],: ")", R"("\u0022]")"});
    case 2:
      return pick({R"("{\"schema\": 1}")", R"("schema")", R"("a\\\\")", "\"\xC3\xA9\xE2\x82\xAC\""});
    case 3:
      return pick({"{}", "[]", "[ ]", "{\n}"});
    case 4:
      return list('[', ']', [&] { return random_text(random, levels - 1); });
    default:
      return list('{', '}', [&] {
        return pick({R"("schema")", R"("sch\u0065ma")", R"("\u0073chema")", R"("Schema")", R"("schema ")",
                     R"("schema\\")", R"("sch\"ema")", R"("schem\u00e4")", R"("json_schema")", R"("")",
                     R"("\u0000")"}) +
               space() + ":" + space() + random_text(random, levels - 1);
      });
  }
}

}  // namespace

TEST_CASE("the text of a member is that of the value which a parser finds, by looking at each byte once",
          "[infer][serve]") {
  const std::uint32_t seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  int found = 0, missing = 0, others = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string text = (i % 3 == 0 ? "\xEF\xBB\xBF" : "") + std::string(random() % 3, '\n') +
                             random_text(random, 4) + std::string(random() % 3, ' ');
    const auto whole = nlohmann::ordered_json::parse(text, nullptr, false);
    if (whole.is_discarded()) FAIL("no JSON: " << text);
    for (const char* name : {"schema", "json_schema", "schema\\", "schem\xC3\xA4", ""}) {
      std::int64_t looked_at = 0;
      const auto cut = io::member_text(text, name, &looked_at);
      const bool is = whole.is_object() && whole.contains(name);
      bool right = cut.has_value() == is && looked_at <= 2 * std::ssize(text);
      if (right && is)
        right = !cut->empty() && cut->find_first_of(" \n\t\r") != 0 &&
                cut->find_last_of(" \n\t\r") != cut->size() - 1 && nlohmann::ordered_json::parse(*cut) == whole[name] &&
                nlohmann::ordered_json::parse(io::without_spaces(*cut)) == whole[name];
      (is ? found : whole.is_object() ? missing : others) += 1;
      if (!right) FAIL_CHECK("member '" << name << "' of " << text << " is not " << (cut ? *cut : "missing"));
    }
    // What is cut off is no JSON, and is not read beyond.
    const std::string begun = text.substr(0, random() % (text.size() + 1));
    std::int64_t looked_at = 0;
    const auto cut = io::member_text(std::string_view(begun), "schema", &looked_at);
    if (looked_at > 2 * std::ssize(begun) || (cut && cut->data() + cut->size() > begun.data() + begun.size()))
      FAIL_CHECK("beyond the end of " << begun);
    if (io::without_spaces(begun).size() > begun.size()) FAIL_CHECK("more than " << begun);
  }
  CHECK(found > 300);
  CHECK(missing > 300);
  CHECK(others > 300);
}

TEST_CASE("the schema of a call is cut out of its body, whatever is around it", "[infer][serve]") {
  const auto schema = [](const std::string& body) { return inf::parse_call(body, false).json_schema; };
  const std::string inner = R"({"type":"object","properties":{"schema":{"type":"null"},"a":{"const":"} ] \" : \\"}}})";
  const std::string decoy =
      R"({"schema":{"type":"object"},"json_schema":{"schema":{}},"response_format":{"json_schema":1}})";
  CHECK(schema("\xEF\xBB\xBF \n{\"prompt\": \"x\", \"other\": " + decoy +
               R"(, "response_f\u006frmat" : { "schema": null, "type": "json_schema", "\u006ason_schema":)" +
               "\t{ \"description\": \"\\\"schema\\\": {\", \"sch\\u0065ma\" : \r\n " + inner +
               " , \"name\": " + decoy + " } } , \"schema\": 7}\n") == inner);
  // Without the text members are in the order of the parsed value; of a name that comes twice, parsers keep the last.
  const std::string twice =
      R"({"prompt": "x", "response_format": 1, "response_format": {"type": "json_schema", "json_schema":
      {"schema": {"type": "string"}}, "json_schema": {"schema": [{}], "schema": {"type": "null", "title": ""}}}})";
  CHECK(inf::parse_completion(json::parse(twice)).json_schema == R"({"title":"","type":"null"})");
  CHECK(inf::parse_completion(json::parse(twice), twice).json_schema == R"({"type":"null","title":""})");
  CHECK_THROWS_WITH(schema(twice), Contains("comes twice"));

  // Spaces outside strings are not counted, and what is around the schema is not either.
  const auto long_schema = [&](std::size_t bytes) {
    const std::string begin = R"({"type":"string","title":")", end = R"("})";
    return begin + std::string(bytes - begin.size() - end.size(), 'x') + end;
  };
  const auto body = [&](const std::string& of) {
    return R"({"prompt": ")" + std::string(100'000, 'p') +
           R"(", "response_format": {"type": "json_schema", "json_schema": {"schema": )" + std::string(100'000, ' ') +
           of + "}}}";
  };
  CHECK(schema(body(long_schema(inf::most_schema_bytes))) == long_schema(inf::most_schema_bytes));
  try {
    schema(body(long_schema(inf::most_schema_bytes + 1)));
    FAIL("accepted");
  } catch (const inf::api_error& e) {
    CHECK(e.status() == 400);
    CHECK(e.param() == "response_format.json_schema.schema");
    CHECK_THAT(e.what(), Contains("at most 65536 bytes") && Contains("got 65537"));
  }
  CHECK_THROWS_WITH(inf::parse_completion(json::parse(body(long_schema(inf::most_schema_bytes + 1)))),
                    Contains("at most 65536 bytes"));
}

TEST_CASE("a body that is no JSON, or has a name twice, is a bad call", "[infer][serve]") {
  for (const std::string body : {"", "{", "{\"prompt\": \"a\", \"prompt\": \"b\"}", "\xff", "{\"prompt\": \"\xff\"}"}) {
    CAPTURE(body);
    try {
      inf::parse_call(body, false);
      FAIL("accepted");
    } catch (const inf::api_error& e) {
      CHECK(e.status() == 400);
      CHECK(e.code() == "invalid_json");
    }
  }
  CHECK_THROWS_AS(inf::parse_call(std::string(100000, '['), true), inf::api_error);
}

TEST_CASE("errors of the engine have statuses of HTTP", "[infer][serve]") {
  const inf::api_error context = inf::to_api_error(inf::context_error(70, 64), "messages");
  CHECK(context.status() == 400);
  const json body = context.body()["error"];
  CHECK(body["type"] == "exceed_context_size_error");
  CHECK(body["n_prompt_tokens"] == 70);
  CHECK(body["n_ctx"] == 64);
  CHECK(body["param"] == "messages");
  CHECK(inf::to_api_error(inf::request_error("top_k", "x")).body()["error"]["param"] == "top_k");
  CHECK(inf::to_api_error(inf::queue_full_error("heddle: x")).status() == 429);
  CHECK(inf::to_api_error(inf::grammar_busy_error("heddle: x")).status() == 429);
  CHECK(inf::to_api_error(inf::unavailable_error("heddle: x")).status() == 503);
  CHECK(inf::to_api_error(std::runtime_error("x")).status() == 500);
  CHECK(inf::to_api_error(inf::invalid_param("a", "b")).param() == "a");
}

namespace {
inf::completion_call by_regex(std::string pattern) {
  inf::completion_call c;
  c.regex = std::move(pattern);
  return c;
}
inf::completion_call by_schema(std::string schema) {
  inf::completion_call c;
  c.json_schema = std::move(schema);
  return c;
}
}  // namespace

TEST_CASE("a schema that is no JSON is the library's own error, also without a body around it", "[infer][serve]") {
  const inf::answer_masks masks(golden("llama3"));
  const auto refused = [&](const std::string& schema, const char* why) {
    CAPTURE(schema.substr(0, 100));
    CHECK_THROWS_AS(masks.mask(by_schema(schema), {3}), inf::grammar_error);
    CHECK_THROWS_WITH(masks.mask(by_schema(schema), {3}), Contains("heddle: a JSON schema") && Contains(why));
  };
  refused("", "is no JSON");
  refused("{", "is no JSON");
  refused(R"({"type": "null"} x)", "is no JSON");
  refused("{\"type\": \"\xff\"}", "is no JSON");
  refused(std::string(5000, '[') + std::string(5000, ']'), "32 levels");
  refused(R"({"type": "null", "type": "string"})", "comes twice");
  refused(R"({"enum": [")" + std::string(inf::most_schema_bytes, 'x') + R"("]})", "at most 65536 bytes");
  refused("[]", "should be an object");
  CHECK(masks.mask(by_schema(R"({"type": "null"})"), {3}));
  CHECK_FALSE(masks.mask({}, {3}));
}

TEST_CASE("schemas and expressions of answers that run are compiled once and bounded by bytes", "[infer][serve]") {
  const auto size = [](const std::string& pattern) {
    const inf::answer_masks alone(golden("llama3"));
    alone.mask(by_regex(pattern), {3});
    return alone.table_bytes();
  };
  const std::size_t one = size("[ab]{1000}");
  CHECK(one > 2 * 1001 * 4);
  const inf::answer_masks masks(golden("llama3"), {.table_bytes = 2 * one + one / 2});
  std::vector<inf::logits_mask> running{masks.mask(by_regex("[ab]{1000}"), {3}),
                                        masks.mask(by_regex("[cd]{1000}"), {3})};
  CHECK(masks.compiled() == 2);
  CHECK(masks.table_bytes() == 2 * one);
  CHECK_THROWS_AS(masks.mask(by_regex("[ef]{1000}"), {3}), inf::grammar_busy_error);
  CHECK_THROWS_WITH(masks.mask(by_regex("[ef]{1000}"), {3}),
                    Contains("of answers that run or wait take " + std::to_string(2 * one) + " bytes") &&
                        Contains("at most " + std::to_string(2 * one + one / 2)));
  CHECK_THROWS_WITH(masks.mask(by_regex("[ab]{400}[ef]{400}[ab]{400}[ef]{400}[ab]{400}[ef]{400}"), {3}),
                    Contains("too large: it takes"));
  const std::int64_t before = masks.compiled();
  for (int i = 0; i < 3; ++i) running.push_back(masks.mask(by_regex("[ab]{1000}"), {3}));
  CHECK(masks.mask(by_regex("x"), {3}));  // small ones still fit
  CHECK(masks.compiled() == before + 1);
  for (int i = 0; i < 100; ++i) {  // further ones go, those that run stay
    running[1] = nullptr;
    running[1] = masks.mask(by_regex("[a-z]{" + std::to_string(900 + i) + "}"), {3});
    CHECK(masks.table_bytes() <= 2 * one + one / 2);
  }
  CHECK(masks.compiled() == before + 101);
  running.push_back(masks.mask(by_regex("[ab]{1000}"), {3}));
  CHECK(masks.compiled() == before + 101);
  running.clear();
  running.push_back(masks.mask(by_regex("[ef]{1000}"), {3}));
  CHECK(masks.mask(by_regex("[gh]{1000}"), {3}));
  CHECK(masks.table_bytes() <= 2 * one + one / 2);

  // Of those that no answer uses, the last ones are kept.
  const inf::answer_masks few(golden("llama3"), {.most_kept = 2});
  for (const char* pattern : {"a", "b", "a", "c", "a", "c"}) few.mask(by_regex(pattern), {3});
  CHECK(few.compiled() == 3);
  few.mask(by_regex("b"), {3});
  CHECK(few.compiled() == 4);
  few.mask(by_regex("c"), {3});
  CHECK(few.compiled() == 4);
  few.mask(by_regex("c"), {4});  // other ends are other masks
  CHECK(few.compiled() == 5);
  CHECK_THROWS_WITH(inf::answer_masks(golden("llama3"), {.most_compiling = 0}), Contains("most_compiling"));
}

TEST_CASE("calls at the same time compile a schema once, and no more at once than may", "[infer][serve]") {
  const auto length = [](int most) {
    return by_schema(R"({"type": "string", "maxLength": )" + std::to_string(most) + "}");
  };
  const auto at_once = [](int n, auto&& work) {
    std::vector<std::thread> threads;
    for (int i = 0; i < n; ++i) threads.emplace_back(work, i);
    for (std::thread& t : threads) t.join();
  };
  const auto patient = std::chrono::hours(1);
  const inf::answer_masks masks(golden("llama3"), {.most_compiling = 1, .compile_wait = patient});
  std::atomic<int> given{0}, refused{0};
  at_once(8, [&](int) { given += masks.mask(length(200), {3}) ? 1 : 0; });
  CHECK(given == 8);
  CHECK(masks.compiled() == 1);
  at_once(8, [&](int i) { given += masks.mask(length(10 + i / 2), {3}) ? 1 : 0; });
  CHECK(given == 16);
  CHECK(masks.compiled() == 5);
  at_once(8, [&](int i) {
    try {
      masks.mask(by_regex(i % 2 == 0 ? "a{1001}" : "(?=a)"), {3});
    } catch (const inf::grammar_error&) {
      ++refused;
    }
  });
  CHECK(refused == 8);
  // One that has no time to wait is told so while another one compiles, and only then.
  const inf::answer_masks hasty(golden("llama3"), {.most_compiling = 1, .compile_wait = std::chrono::milliseconds(0)});
  std::atomic<bool> told{false};
  std::atomic<int> wrong{0};
  at_once(2, [&](int which) {
    for (int i = 0; !told; ++i) try {
        hasty.mask(length((which == 0 ? 200 : 600) + i % 300), {3});
      } catch (const inf::grammar_busy_error& e) {
        if (!Contains("being compiled, at most 1 may at once").match(e.what())) ++wrong;
        told = true;
      }
  });
  CHECK(told);
  CHECK(wrong == 0);
  CHECK(hasty.mask(length(199), {3}));
}

TEST_CASE("requests of a call: prompts times choices, seeds in a row, biases of logits", "[infer][serve]") {
  const inf::completion_call c = completion(
      {{"n", 2}, {"seed", 9}, {"max_tokens", 3}, {"logit_bias", {{"1", 2.5}, {"99", 1}}}, {"stop_token_ids", {4}}});
  const auto r = inf::to_requests(c, {{1, 2}, {3}}, 50);
  REQUIRE(r.size() == 4);
  CHECK(r[1].prompt == std::vector<std::int32_t>{1, 2});
  CHECK(r[2].prompt == std::vector<std::int32_t>{3});
  CHECK(r[0].sampling.seed == 9U);
  CHECK(r[1].sampling.seed == 10U);
  CHECK(r[2].sampling.seed == 9U);
  CHECK(r[0].max_tokens == 3);
  CHECK(r[0].stop_tokens == std::vector<std::int32_t>{4});
  std::vector<double> logits{1, 1, 1};
  r[0].mask({}, logits);
  CHECK(logits == std::vector<double>{1, 3.5, 1});
  CHECK(inf::to_requests(chat(), {{1}}, 50)[0].max_tokens == 50);
}

TEST_CASE("the text of an answer does not depend on how its parts come, and its tokens' bytes are the text",
          "[infer][serve]") {
  const io::tokenizer t = golden("llama3");
  const std::uint32_t seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int32_t> ids =
        t.encode("The loom wo\u00e9ve \U0001f600 " + std::to_string(random()) + " warp", {.add_special_tokens = false});
    for (int i = below(4); i > 0; --i) ids.insert(ids.begin() + below(static_cast<int>(ids.size())), 900 + below(5));
    const std::string whole = t.decode(ids, {.skip_special_tokens = true});
    std::vector<std::string> stops;
    for (int i = below(3); i > 0; --i) {
      const auto at = static_cast<std::size_t>(below(static_cast<int>(whole.size())));
      const std::string some = whole.substr(at, static_cast<std::size_t>(1 + below(5)));
      if (io::detail::valid_prefix(some) == some.size()) stops.push_back(some);  // calls hold nothing else
    }
    io::stop_strings definition(stops);
    std::string expected = definition.push(whole);
    const bool stopped = definition.found();
    if (!stopped) expected += definition.finish();

    inf::answer_text text(t, stops);
    std::string joined, bytes;
    inf::finish_reason finish = inf::finish_reason::none;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool last = i + 1 == ids.size();
      const inf::answer_part p =
          text.push(token(ids[i], -0.5, last ? inf::finish_reason::length : inf::finish_reason::none));
      joined += p.text;
      for (const inf::token_text& k : p.tokens) bytes += k.token.bytes;
      CHECK(io::detail::valid_prefix(joined) == joined.size());
      if (p.finish != inf::finish_reason::none) {
        CHECK(finish == inf::finish_reason::none);
        finish = p.finish;
      }
    }
    CHECK(joined == expected);
    CHECK(bytes == expected);
    CHECK(finish == (stopped ? inf::finish_reason::stop : inf::finish_reason::length));
    CHECK(text.ended());
    CHECK(text.stopped_by_text() == stopped);
    CHECK(text.push(token(1)).text.empty());
  }
}

TEST_CASE("an answer ends with its event: end tokens are no text, errors keep their message", "[infer][serve]") {
  const io::tokenizer t = golden("llama3");
  inf::answer_text text(t);
  const std::int32_t a = *t.find("a");
  CHECK(text.push(token(a, 1e-9)).tokens.front().token.log_probability == 0);
  inf::answer_part last = text.push(token(t.special("<|eot_id|>"), -1, inf::finish_reason::stop));
  CHECK(last.text.empty());
  CHECK(last.tokens.empty());
  CHECK(last.finish == inf::finish_reason::stop);
  CHECK(text.tokens() == 2);

  inf::answer_text cut(t);
  CHECK(cut.push(token(*t.find("\xf0"))).text.empty());
  CHECK(cut.push(end(inf::finish_reason::length)).text == "\ufffd");

  inf::answer_text unknown(t);  // a model may have more logits than the tokenizer has tokens
  CHECK(unknown.push(token(5000)).text.empty());
  inf::event e = end(inf::finish_reason::error);
  e.message = "heddle: no";
  CHECK(unknown.push(e).message == "heddle: no");
  inf::answer_text infinite(t);
  inf::event i = token(a, -std::numeric_limits<double>::infinity());
  i.likeliest = {{a, -0.5}, {5000, -1}};
  const inf::answer_part p = infinite.push(i);
  CHECK(p.tokens.at(0).token == inf::text_probability{"a", -9999});
  CHECK(p.tokens.at(0).likeliest == std::vector<inf::text_probability>{{"a", -0.5}, {"", -1}});
}

TEST_CASE("no line separator of Unicode is in a line of an answer", "[infer][serve]") {
  const std::string text = "a\xE2\x80\xA8\xC2\x85\xE2\x80\xA9\xC2\x86\xE2\x80\xA7";
  CHECK(inf::json_text(text) == "\"a\\u2028\\u0085\\u2029\xC2\x86\xE2\x80\xA7\"");
  CHECK(json::parse(inf::json_text(text)) == text);
}

TEST_CASE("responses and chunks have the members that clients read", "[infer][serve]") {
  const inf::response_writer w(true, "id", "m", 5, true, true);
  const std::vector<inf::token_text> tokens{{{"\xc3", -1}, {{"a", -0.5}}}, {{"\xa9", -2}, {}}};
  const json whole = w.whole({{"\u00e9", tokens, inf::finish_reason::stop}, {"b", {}, inf::finish_reason::length}},
                             {.prompt = 3, .answer = 4, .cached = 2});
  CHECK(json::parse(inf::json_text(whole)) == json::parse(R"({"id": "id", "object": "chat.completion", "created": 5,
    "model": "m", "choices": [
      {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "é", "refusal": null},
       "logprobs": {"refusal": null, "content": [
         {"token": "�", "logprob": -1.0, "bytes": [195],
          "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}]},
         {"token": "�", "logprob": -2.0, "bytes": [169], "top_logprobs": []}]}},
      {"index": 1, "finish_reason": "length", "message": {"role": "assistant", "content": "b", "refusal": null},
       "logprobs": {"refusal": null, "content": []}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
              "prompt_tokens_details": {"cached_tokens": 2}}})"));
  const auto choice = [](const json& chunk) { return chunk.at("choices").at(0); };
  const json role = w.role_chunk(1);
  CHECK(role["object"] == "chat.completion.chunk");
  CHECK(role["usage"].is_null());
  CHECK(choice(role)["index"] == 1);
  CHECK(choice(role)["delta"] == json::parse(R"({"role": "assistant", "content": null})"));
  const json text = w.text_chunk(0, {.text = "a"}, 0);
  CHECK(choice(text)["delta"] == json{{"content", "a"}});
  CHECK(choice(text)["finish_reason"].is_null());
  const json finish = w.finish_chunk(0, inf::finish_reason::length);
  CHECK(choice(finish)["delta"] == json::object());
  CHECK(choice(finish)["finish_reason"] == "length");
  const json usage = w.usage_chunk({.prompt = 1, .answer = 2});
  CHECK(usage["choices"] == json::array());
  CHECK(usage["usage"]["total_tokens"] == 3);
  CHECK(inf::response_writer::server_sent(json{{"a", 1}}) == "data: {\"a\":1}\n\n");

  const inf::response_writer c(false, "id", "m", 5, true, false);
  const json completion = c.whole({{"\u00e9", tokens, inf::finish_reason::stop}}, {});
  CHECK(completion["object"] == "text_completion");
  CHECK(choice(completion)["text"] == "\u00e9");
  const json p = choice(completion)["logprobs"];
  CHECK(p["tokens"] == json::array({"bytes:\\xc3", "bytes:\\xa9"}));
  for (std::size_t i = 0; i < 2; ++i)  // a token is found beside the likeliest ones
    CHECK(p["top_logprobs"][i][p["tokens"][i].get<std::string>()] == p["token_logprobs"][i]);
  CHECK(p["token_logprobs"] == json::array({-1.0, -2.0}));
  CHECK(p["text_offset"] == json::array({0, 1}));
  CHECK(p["bytes"] == json::array({json::array({195}), json::array({169})}));
  CHECK(p["top_logprobs"] == json::array({json{{"bytes:\\xc3", -1.0}, {"a", -0.5}}, json{{"bytes:\\xa9", -2.0}}}));
  CHECK_FALSE(c.text_chunk(0, {.text = "a"}, 0).contains("usage"));
  CHECK(choice(c.text_chunk(0, {.text = "a", .tokens = tokens}, 7))["logprobs"]["text_offset"] == json::array({7, 8}));
  CHECK(choice(c.finish_chunk(0, inf::finish_reason::stop))["text"] == "");
}

TEST_CASE("a stop string has at most 256 characters, however many bytes", "[infer][serve]") {
  const auto stops = [](const std::string& one, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += one;
    return inf::parse_call(json{{"prompt", "x"}, {"stop", text}}.dump(), false).stop;
  };
  CHECK(stops("a", 256).size() == 1);
  CHECK(stops("\xF0\x9F\x98\x80", 256).front().size() == 1024);
  CHECK_THROWS_WITH(stops("a", 257), Contains("at most 256 characters, got 257"));
  CHECK_THROWS_AS(stops("\xC3\xA9", 257), inf::api_error);
}
TEST_CASE("the OpenAPI description bounds prompts times choices, and tokens of biases", "[infer][serve]") {
  for (const std::int64_t words : {1, 2, 9, 10, 11, 99, 100, 101, 905, 1000, 2048, 3001}) {
    const std::regex pattern(inf::detail::numbers_up_to(words - 1));
    for (std::int64_t id = 0; id < 4000; ++id)
      if (std::regex_match(std::to_string(id), pattern) != (id < words)) FAIL_CHECK(id << " of " << words);
    for (const char* wrong : {"", "-1", "a", "1.0", "10000", " 1"}) CHECK_FALSE(std::regex_match(wrong, pattern));
  }
  // One `not` of few alternatives: generators of calls work with it, and give up on a condition for each number of choices.
  const json limits = inf::detail::prompts_of_choices();
  REQUIRE(limits.size() == 1);
  const json& beyond = limits["not"]["anyOf"];
  CHECK(beyond.size() == 20);
  for (std::int64_t n = 1; n <= 128; ++n) {
    std::int64_t most = 128;
    for (const json& one : beyond) {
      CHECK(one["required"] == json::array({"n", "prompt"}));
      if (n >= one["properties"]["n"]["minimum"].get<std::int64_t>())
        most = (std::min)(most, one["properties"]["prompt"]["minItems"].get<std::int64_t>() - 1);
    }
    CHECK(most == 128 / n);
  }
}
TEST_CASE("the OpenAPI description names what is served, and its references exist", "[infer][serve]") {
  const json d = inf::openapi_description("m", 10, 20, true);
  CHECK(d["openapi"] == "3.1.0");
  CHECK(d["paths"].size() == 8);
  for (const char* call : {"completion_call", "chat_call"}) {  // all that a call may have is described
    const json& properties = d["components"]["schemas"][call]["properties"];
    for (const char* name :
         {"stream_options", "response_format", "stop_token_ids", "ignore_eos", "logit_bias", "seed", "min_p"})
      CHECK(properties.contains(name));
    const json& regex = properties["response_format"]["anyOf"][0]["anyOf"][2]["properties"]["regex"];
    CHECK(regex["format"] == "regex");
    CHECK(regex["maxLength"] == inf::regex::most_bytes);
  }
  CHECK(d["components"]["schemas"]["completion_call"]["properties"]["model"]["anyOf"][0]["enum"] == json::array({"m"}));
  CHECK(d["components"]["schemas"]["completion_call"]["required"] == json::array({"prompt"}));
  const std::string text = d.dump();
  for (std::size_t at = text.find("#/components"); at != std::string::npos; at = text.find("#/components", at + 1)) {
    const std::string pointer = text.substr(at + 1, text.find('"', at) - at - 1);
    CAPTURE(pointer);
    CHECK(d.contains(json::json_pointer(pointer)));
  }
  // Its examples are calls, and its link leads to an operation.
  for (const bool chat : {false, true}) {
    const char* path = chat ? "/v1/chat/completions" : "/v1/completions";
    const json& example = d["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"];
    CHECK(inf::parse_call(example.dump(), chat).max_tokens == 8);
  }
  CHECK(d["paths"]["/v1/models"]["get"]["responses"]["200"]["links"]["model"]["operationId"] ==
        d["paths"]["/v1/models/{model}"]["get"]["operationId"]);
  CHECK_FALSE(inf::openapi_description("m", 10, 20, false)["paths"].contains("/v1/chat/completions"));
}
#endif
