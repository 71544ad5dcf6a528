// heddle/infer/serve/openai/openapi.hpp: the OpenAPI description of the inference server.
#pragma once

#include <heddle/io/json/strict.hpp>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace heddle::inline v0::infer {

namespace detail {

using nlohmann::json;

// A schema that also takes null, which counts as absent.
inline json or_null(json schema) {
  return {{"anyOf", {std::move(schema), {{"type", "null"}}}}};
}
inline json integer_schema(std::int64_t low, std::int64_t high) {
  return {{"type", "integer"}, {"minimum", low}, {"maximum", high}};
}
inline json number_schema(double low, double high) {
  return {{"type", "number"}, {"minimum", low}, {"maximum", high}};
}
inline json reference(const std::string& name) {
  return {{"$ref", "#/components/schemas/" + name}};
}
inline json token_array(std::int64_t vocabulary, std::int64_t most) {
  return {{"type", "array"},
          {"items", integer_schema(0, (std::max)(vocabulary - 1, std::int64_t{0}))},
          {"minItems", 1},
          {"maxItems", (std::max)(most, std::int64_t{1})}};
}

// A pattern of the decimal numbers from 0 to `most`.
inline std::string numbers_up_to(std::int64_t most) {
  const std::string digits = std::to_string((std::max)(most, std::int64_t{0}));
  const auto any = [](std::size_t n) { return n == 0 ? "" : "[0-9]{" + std::to_string(n) + "}"; };
  std::string out = digits.size() > 1 ? "^([0-9]" : "^(";
  for (std::size_t n = 1; n + 1 < digits.size(); ++n) out += "|[1-9]" + any(n);
  for (std::size_t i = 0; i < digits.size(); ++i) {  // as long as `most`, and smaller in digit i first
    const char least = i == 0 && digits.size() > 1 ? '1' : '0';
    if (digits[i] <= least) continue;
    out += (out.back() == '(' ? "" : "|") + digits.substr(0, i) + "[" + least + "-" + static_cast<char>(digits[i] - 1) +
           "]" + any(digits.size() - i - 1);
  }
  return out + (out.back() == '(' ? "" : "|") + digits + ")$";
}
// Prompts times choices are bounded: for `n` of at least k, 128 / k prompts. One `not` of all that is beyond: generators of calls give up
// where each k is a condition of its own.
inline json prompts_of_choices() {
  json beyond = json::array();
  for (std::int64_t k = 2, before = 128; k <= 128; ++k) {
    const std::int64_t most = 128 / k;
    if (most == before) continue;
    before = most;
    const json lists{
        {"type", "array"}, {"minItems", most + 1}, {"items", {{"type", json::array({"string", "array"})}}}};
    beyond.push_back({{"required", json::array({"n", "prompt"})},
                      {"properties", {{"n", {{"type", "integer"}, {"minimum", k}}}, {"prompt", lists}}}});
  }
  return {{"not", {{"anyOf", std::move(beyond)}}}};
}

// What an answer is constrained to: by a schema or an expression of the part that is supported.
inline json format_schema() {
  const auto of_type = [](const char* type, const char* member, json schema) {
    return json{{"type", "object"},
                {"required", json::array({"type", member})},
                {"additionalProperties", false},
                {"properties", {{"type", {{"type", "string"}, {"enum", json::array({type})}}}, {member, schema}}}};
  };
  const json plain{{"type", "string"}, {"enum", json::array({"text", "json_object"})}};
  return {{"anyOf",
           {{{"type", "object"},
             {"required", json::array({"type"})},
             {"additionalProperties", false},
             {"properties", {{"type", plain}}}},
            of_type("json_schema", "json_schema",
                    {{"type", "object"},
                     {"required", json::array({"schema"})},
                     {"properties", {{"schema", {{"type", "object"}}}}}}),
            of_type("regex", "regex", {{"type", "string"}, {"format", "regex"}, {"maxLength", 16384}})}}};
}
// A constrained answer ends where it is complete.
inline json constrained_calls() {
  const json types{{"enum", json::array({"json_object", "json_schema", "regex"})}};
  const json format{{"type", "object"}, {"required", json::array({"type"})}, {"properties", {{"type", types}}}};
  const json none{{"anyOf", {{{"type", "null"}}, {{"type", "array"}, {"maxItems", 0}}}}};
  const json ends{{"stop", none}, {"stop_token_ids", none}, {"ignore_eos", {{"enum", json::array({false, nullptr})}}}};
  return {{"if", {{"required", json::array({"response_format"})}, {"properties", {{"response_format", format}}}}},
          {"then", {{"properties", ends}}}};
}

// Options of a stream are for calls that ask for one.
inline json streamed_calls() {
  return {
      {"if",
       {{"required", json::array({"stream_options"})}, {"properties", {{"stream_options", {{"type", "object"}}}}}}},
      {"then", {{"required", json::array({"stream"})}, {"properties", {{"stream", {{"enum", json::array({true})}}}}}}}};
}

inline json call_properties(const std::string& model, std::int64_t vocabulary) {
  constexpr std::int64_t most = (std::numeric_limits<std::int32_t>::max)();
  const json stop{{"type", "string"}, {"minLength", 1}, {"maxLength", 256}};
  return {{"model", or_null({{"type", "string"}, {"enum", json::array({model})}})},
          {"n", or_null(integer_schema(1, 128))},
          {"max_tokens", or_null(integer_schema(1, most))},
          {"temperature", or_null(number_schema(0, 2))},
          {"top_p", or_null({{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", 1}})},
          {"top_k", or_null(integer_schema(-1, most))},
          {"min_p", or_null(number_schema(0, 1))},
          {"repetition_penalty", or_null(number_schema(1e-3, 1e3))},
          {"frequency_penalty", or_null(number_schema(-2, 2))},
          {"presence_penalty", or_null(number_schema(-2, 2))},
          {"seed", or_null(integer_schema((std::numeric_limits<std::int64_t>::min)(),
                                          (std::numeric_limits<std::int64_t>::max)()))},
          {"stop", or_null({{"anyOf", {stop, {{"type", "array"}, {"items", stop}, {"maxItems", 4}}}}})},
          {"stop_token_ids", or_null({{"type", "array"},
                                      {"items", integer_schema(0, (std::max)(vocabulary - 1, std::int64_t{0}))},
                                      {"maxItems", 256}})},
          {"ignore_eos", or_null({{"type", "boolean"}})},
          {"stream", or_null({{"type", "boolean"}})},
          {"stream_options",
           or_null({{"type", "object"}, {"properties", {{"include_usage", or_null({{"type", "boolean"}})}}}})},
          {"response_format", or_null(format_schema())},
          {"logit_bias", or_null({{"type", "object"},
                                  {"maxProperties", 1024},
                                  {"propertyNames", {{"pattern", numbers_up_to(vocabulary - 1)}}},
                                  {"additionalProperties", number_schema(-100, 100)}})}};
}

inline json completion_schema(const std::string& model, std::int64_t vocabulary, std::int64_t context) {
  json properties = call_properties(model, vocabulary);
  const json tokens = token_array(vocabulary, context - 1);
  const json text{{"type", "string"}};
  properties["prompt"] = {{"anyOf",
                           {text,
                            {{"type", "array"}, {"items", text}, {"minItems", 1}, {"maxItems", 128}},
                            tokens,
                            {{"type", "array"}, {"items", tokens}, {"minItems", 1}, {"maxItems", 128}}}}};
  properties["logprobs"] = or_null(integer_schema(0, 20));
  properties["add_special_tokens"] = or_null({{"type", "boolean"}});
  return {{"type", "object"},
          {"required", json::array({"prompt"})},
          {"properties", std::move(properties)},
          {"allOf", json::array({prompts_of_choices(), constrained_calls(), streamed_calls()})}};
}

inline json chat_schema(const std::string& model, std::int64_t vocabulary) {
  json properties = call_properties(model, vocabulary);
  const json part{{"type", "object"},
                  {"required", json::array({"type", "text"})},
                  {"properties",
                   {{"type", {{"type", "string"}, {"enum", json::array({"text"})}}}, {"text", {{"type", "string"}}}}}};
  const json content{{"anyOf", {{{"type", "string"}}, {{"type", "array"}, {"items", part}}}}};
  const json roles{{"type", "string"}, {"enum", json::array({"system", "developer", "user", "assistant"})}};
  const json message{{"type", "object"},
                     {"required", json::array({"role", "content"})},
                     {"properties", {{"role", roles}, {"content", content}}}};
  properties["messages"] = {{"type", "array"}, {"minItems", 1}, {"items", message}};
  properties["max_completion_tokens"] = properties["max_tokens"];
  properties["logprobs"] = or_null({{"type", "boolean"}});
  properties["top_logprobs"] = or_null(integer_schema(0, 20));
  const json some{{"type", "integer"}, {"minimum", 1}}, yes{{"enum", json::array({true})}};
  return {{"type", "object"},
          {"required", json::array({"messages"})},
          {"properties", std::move(properties)},
          {"if", {{"required", json::array({"top_logprobs"})}, {"properties", {{"top_logprobs", some}}}}},
          {"then", {{"required", json::array({"logprobs"})}, {"properties", {{"logprobs", yes}}}}},
          {"allOf", json::array({constrained_calls(), streamed_calls()})}};
}

inline json answer_schema(const char* object, json choice) {
  const json tokens = integer_schema(0, (std::numeric_limits<std::int64_t>::max)());
  choice["required"] = json::array({"index", "finish_reason"});
  choice["type"] = "object";
  choice["properties"]["index"] = tokens;
  choice["properties"]["finish_reason"] = {{"type", "string"}, {"enum", json::array({"stop", "length"})}};
  return {{"type", "object"},
          {"required", json::array({"id", "object", "created", "model", "choices", "usage"})},
          {"properties",
           {{"id", {{"type", "string"}}},
            {"object", {{"type", "string"}, {"enum", json::array({object})}}},
            {"created", {{"type", "integer"}}},
            {"model", {{"type", "string"}}},
            {"choices", {{"type", "array"}, {"minItems", 1}, {"items", std::move(choice)}}},
            {"usage",
             {{"type", "object"},
              {"required", json::array({"prompt_tokens", "completion_tokens", "total_tokens"})},
              {"properties", {{"prompt_tokens", tokens}, {"completion_tokens", tokens}, {"total_tokens", tokens}}}}}}}};
}

inline json response_of(const std::string& description, const std::string& type, json schema) {
  return {{"description", description}, {"content", {{type, {{"schema", std::move(schema)}}}}}};
}
inline void add_errors(json& responses, std::initializer_list<std::pair<const char*, const char*>> errors) {
  for (const auto& [status, what] : errors)
    responses[status] = response_of(what, "application/json", reference("error"));
}
inline json get_operation(const std::string& summary, json answer) {
  json responses{{"200", std::move(answer)}};
  return {{"get", {{"summary", summary}, {"responses", std::move(responses)}}}};
}

inline json call_operation(const std::string& summary, const std::string& call, const std::string& answer,
                           json example) {
  const json event{
      {"type", "object"}, {"required", json::array({"data"})}, {"properties", {{"data", {{"type", "string"}}}}}};
  json responses{
      {"200",
       {{"description", "The answer; with \"stream\": true, events that end with data: [DONE]"},
        {"content",
         {{"application/json", {{"schema", reference(answer)}}}, {"text/event-stream", {{"schema", event}}}}}}}};
  add_errors(
      responses,
      {{"400",
        "The call cannot be answered: a member is wrong, a schema or expression of response_format is not supported, "
        "or the prompt and its answer have more tokens than the context (type exceed_context_size_error)"},
       {"401", "A key is needed"},
       {"404", "There is no such model"},
       {"408", "The body did not come in time"},
       {"411", "The body has no length"},
       {"413", "The body is too large"},
       {"415", "The body is no application/json"},
       {"429", "Too many requests wait, or constrained answers take too much; Retry-After says when to try again"},
       {"500", "The engine failed"},
       {"503", "The server is loading or ending"}});
  return {{"post",
           {{"summary", summary},
            {"security", {json::object(), {{"key", json::array()}}}},
            {"requestBody",
             {{"required", true},
              {"content", {{"application/json", {{"schema", reference(call)}, {"example", std::move(example)}}}}}}},
            {"responses", std::move(responses)}}}};
}

}  // namespace detail

/// The description of the server's interface, as OpenAPI 3.1. `vocabulary`, `context`: of the engine, which bound token prompts. Texts may
/// have too many tokens, or none, where the description, which counts none, allows them: such calls have status 400.
inline nlohmann::json openapi_description(const std::string& model, std::int64_t vocabulary, std::int64_t context,
                                          bool chat) {
  using nlohmann::json;
  const json any_object{{"type", "object"}};
  json paths;
  paths["/v1/completions"] = detail::call_operation("Continue prompts", "completion_call", "completion",
                                                    {{"prompt", "A heddle is"}, {"max_tokens", 8}, {"seed", 1}});
  if (chat)
    paths["/v1/chat/completions"] = detail::call_operation(
        "Continue a conversation", "chat_call", "chat_completion",
        {{"messages", json::array({{{"role", "user"}, {"content", "What is a heddle?"}}})}, {"max_tokens", 8}});
  paths["/v1/models"] =
      detail::get_operation("The model", detail::response_of("A list of one", "application/json", any_object));
  paths["/v1/models"]["get"]["responses"]["200"]["links"] = {
      {"model", {{"operationId", "model"}, {"parameters", {{"model", "$response.body#/data/0/id"}}}}}};
  json& model_path = paths["/v1/models/{model}"];
  model_path =
      detail::get_operation("The model by its name", detail::response_of("The model", "application/json", any_object));
  model_path["get"]["operationId"] = "model";
  model_path["get"]["parameters"] = json::array(
      {{{"name", "model"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}, {"minLength", 1}}}}});
  detail::add_errors(model_path["get"]["responses"], {{"404", "There is no such model"}});
  paths["/health"] = detail::get_operation("Whether calls are answered",
                                           detail::response_of("They are", "application/json", any_object));
  detail::add_errors(paths["/health"]["get"]["responses"], {{"503", "The server is loading or ending"}});
  for (const auto& [path, type, what] : {std::tuple{"/metrics", "text/plain", "Metrics for Prometheus"},
                                         std::tuple{"/openapi.json", "application/json", "This description"},
                                         std::tuple{"/", "text/html", "A page to chat with the model"}}) {
    const bool text = std::string_view(type) != "application/json";
    paths[path] =
        detail::get_operation(what, detail::response_of(what, type, text ? json{{"type", "string"}} : any_object));
  }
  for (const char* path : {"/metrics", "/openapi.json"}) {
    paths[path]["get"]["security"] = {json::object(), {{"key", json::array()}}};
    detail::add_errors(paths[path]["get"]["responses"], {{"401", "A key is needed"}});
  }
  const json text{{"type", "string"}};
  const json error{
      {"type", "object"},
      {"required", json::array({"error"})},
      {"properties",
       {{"error",
         {{"type", "object"},
          {"required", json::array({"message", "type", "param", "code"})},
          {"properties",
           {{"message", text}, {"type", text}, {"param", detail::or_null(text)}, {"code", detail::or_null(text)}}}}}}}};
  const json message{
      {"type", "object"},
      {"required", json::array({"role", "content"})},
      {"properties", {{"role", {{"type", "string"}, {"enum", json::array({"assistant"})}}}, {"content", text}}}};
  const json schemas{
      {"completion_call", detail::completion_schema(model, vocabulary, context)},
      {"chat_call", detail::chat_schema(model, vocabulary)},
      {"completion", detail::answer_schema("text_completion", {{"properties", {{"text", text}}}})},
      {"chat_completion", detail::answer_schema("chat.completion", {{"properties", {{"message", message}}}})},
      {"error", error}};
  return {
      {"openapi", "3.1.0"},
      {"info", {{"title", "heddle"}, {"version", "0"}, {"description", "Inference of " + model}}},
      {"paths", std::move(paths)},
      {"components", {{"schemas", schemas}, {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}}};
}

}  // namespace heddle::inline v0::infer
