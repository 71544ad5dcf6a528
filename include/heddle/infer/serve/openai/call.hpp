// heddle/infer/serve/openai/call.hpp: the calls of OpenAI's interface, read from JSON.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/serve/openai/api_error.hpp>
#include <heddle/infer/serve/openai/foreign_members.hpp>
#include <heddle/infer/serve/openai/tool_messages.hpp>
#include <heddle/io/chat/chat.hpp>
#include <heddle/io/json/member_text.hpp>
#include <heddle/io/json/strict.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace heddle::inline v0::infer {

/// Choices of a call, all prompts together.
inline constexpr std::int64_t most_choices = 128;
/// Members of `logit_bias`, tokens of `stop_token_ids`, and characters of a string of `stop`: each choice looks at them for each token.
inline constexpr std::size_t most_biases = 1024, most_stop_tokens = 256, most_stop_characters = 256;
/// Bytes of a JSON schema, but for the spaces outside its strings: what keeps the order of its members takes time by the square of an object's size to read.
inline constexpr std::size_t most_schema_bytes = 65536;

/// A prompt as text, or as tokens.
using call_prompt = std::variant<std::string, std::vector<std::int32_t>>;

/// A call of /v1/completions or /v1/chat/completions. Each prompt, or the conversation, is continued `n` times.
struct completion_call {
  bool chat = false;
  std::string model{};                       ///< empty: whatever is served
  std::vector<call_prompt> prompts{};        ///< of /v1/completions, at least one
  std::vector<io::chat_message> messages{};  ///< of /v1/chat/completions, at least one
  nlohmann::ordered_json
      conversation{};  ///< what a chat template is given of the call: `messages`, `tools`, `documents` and more
  std::string needs_template{};  ///< the member that only a folder's own template renders; empty: there is none
  bool calls_tools = false;      ///< whether calls of tools are looked for in the answer
  std::int64_t n = 1;
  std::optional<std::int64_t> max_tokens{};  ///< none: as many as the context has room for
  sampling_options sampling{};
  std::vector<std::string> stop{};
  std::vector<std::int32_t> stop_tokens{};
  bool ignore_end_tokens = false;
  std::int64_t min_tokens = 0;                      ///< of a choice, before a token may end it
  bool add_special_tokens = true;                   ///< what the tokenizer puts around prompts of text
  std::map<std::int32_t, double> logit_bias{};      ///< added to logits of tokens
  std::vector<std::int32_t> allowed_tokens{};       ///< in order: answers have no others; empty: all
  std::optional<std::int64_t> log_probabilities{};  ///< likeliest tokens beside that of each token
  bool json_object = false;                         ///< the answer is to be a JSON object
  std::optional<std::string>
      json_schema{};  ///< the answer is to be valid by it (`compile_schema`); members in the order of the call
  std::optional<std::string> regex{};  ///< the answer is to match it (`compile_regex`)
  std::string constraint{};            ///< the member of the call that asks for one of these three; empty: none does
  bool stream = false;
  bool include_usage = false;
  friend bool operator==(const completion_call&, const completion_call&) = default;
};

namespace detail {

// Reads members of a call. A member that is null counts as one that is not there.
class call_reader {
 public:
  explicit call_reader(const nlohmann::json& body) : body_(body) {
    if (!body.is_object())
      throw api_error(400, "invalid_request_error",
                      "the body should be a JSON object, got " + std::string(body.type_name()));
  }
  const nlohmann::json* find(const std::string& name) const {
    const auto at = body_.find(name);
    return at == body_.end() || at->is_null() ? nullptr : &*at;
  }
  [[noreturn]] static void wrong(const std::string& name, const std::string& expected, const nlohmann::json& got) {
    std::string text = got.is_primitive() && !got.is_string() ? json_text(got) : std::string(got.type_name());
    throw invalid_param(name, "should be " + expected + ", got " + text, "invalid_type");
  }
  std::optional<bool> boolean(const std::string& name) const {
    const nlohmann::json* v = find(name);
    if (v == nullptr) return std::nullopt;
    if (!v->is_boolean()) wrong(name, "true or false", *v);
    return v->get<bool>();
  }
  static std::int64_t integer_of(const std::string& name, const nlohmann::json& v, std::int64_t low,
                                 std::int64_t high) {
    const std::string expected = "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
    // To JSON Schema 5.0 is whole, too; beyond 2^53 such numbers may be rounded.
    const bool whole =
        v.is_number_float() && std::abs(v.get<double>()) < 0x1p53 && std::trunc(v.get<double>()) == v.get<double>();
    const bool fits =
        v.is_number_unsigned()
            ? v.get<std::uint64_t>() <= static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)())
            : v.is_number_integer() || whole;
    if (!fits || v.get<std::int64_t>() < low || v.get<std::int64_t>() > high) wrong(name, expected, v);
    return v.get<std::int64_t>();
  }
  std::optional<std::int64_t> integer(const std::string& name, std::int64_t low, std::int64_t high) const {
    const nlohmann::json* v = find(name);
    return v == nullptr ? std::nullopt : std::optional(integer_of(name, *v, low, high));
  }
  static double number_of(const std::string& name, const nlohmann::json& v, double low, double high,
                          const std::string& range) {
    if (!v.is_number()) wrong(name, "a number " + range, v);
    const auto x = v.get<double>();
    if (!(x >= low && x <= high)) wrong(name, "a number " + range, v);
    return x;
  }
  void number(const std::string& name, double low, double high, const std::string& range, double& to) const {
    if (const nlohmann::json* v = find(name)) to = number_of(name, *v, low, high, range);
  }
  const nlohmann::json& body() const noexcept { return body_; }

 private:
  const nlohmann::json& body_;
};

inline std::vector<std::string> read_stop(const call_reader& in) {
  constexpr std::string_view expected = "a string or at most 4 strings, none of them empty";
  const nlohmann::json* v = in.find("stop");
  std::vector<std::string> out;
  if (v == nullptr) return out;
  const auto add = [&](const nlohmann::json& s) {
    if (!s.is_string() || s.get_ref<const std::string&>().empty()) call_reader::wrong("stop", std::string(expected), s);
    out.push_back(s.get<std::string>());
    const auto characters = std::ranges::count_if(out.back(), [](char c) { return (c & '\xC0') != '\x80'; });
    if (static_cast<std::size_t>(characters) > most_stop_characters)
      throw invalid_param("stop", "should have strings of at most " + std::to_string(most_stop_characters) +
                                      " characters, got " + std::to_string(characters));
  };
  if (!v->is_array()) {
    add(*v);
    return out;
  }
  if (v->size() > 4)
    throw invalid_param("stop", "should be " + std::string(expected) + ", got " + std::to_string(v->size()));
  for (const nlohmann::json& s : *v) add(s);
  return out;
}

inline std::vector<std::int32_t> read_tokens(const std::string& name, const nlohmann::json& v) {
  std::vector<std::int32_t> out;
  for (const nlohmann::json& t : v)
    out.push_back(
        static_cast<std::int32_t>(call_reader::integer_of(name, t, 0, (std::numeric_limits<std::int32_t>::max)())));
  return out;
}

inline std::vector<call_prompt> read_prompts(const call_reader& in) {
  const nlohmann::json* v = in.find("prompt");
  if (v == nullptr) throw invalid_param("prompt", "is missing", "missing_required_parameter");
  constexpr std::string_view expected = "a string, an array of strings, an array of tokens or an array of such arrays";
  if (v->is_string()) return {v->get<std::string>()};
  if (!v->is_array()) call_reader::wrong("prompt", std::string(expected), *v);
  if (v->empty()) throw invalid_param("prompt", "should not be empty");
  if (v->front().is_number()) return {read_tokens("prompt", *v)};
  std::vector<call_prompt> out;
  for (const nlohmann::json& p : *v) {
    if (p.is_string() && v->front().is_string())
      out.emplace_back(p.get<std::string>());
    else if (p.is_array() && v->front().is_array())
      out.emplace_back(read_tokens("prompt", p));
    else
      call_reader::wrong("prompt", std::string(expected), p);
  }
  return out;
}

// Text of a message: a string, or parts of type "text".
inline std::string read_content(const std::string& name, const nlohmann::json& message, const std::string& role) {
  const auto at = message.find("content");
  if (at == message.end() || at->is_null()) {
    if (role == "assistant") return {};
    throw invalid_param(name + ".content", "is missing", "missing_required_parameter");
  }
  if (at->is_string()) return at->get<std::string>();
  if (!at->is_array()) call_reader::wrong(name + ".content", "a string or an array of parts", *at);
  std::string out;
  for (const nlohmann::json& part : *at) {
    const auto text = part.is_object() ? part.find("text") : part.end();
    if (!part.is_object() || part.value("type", nlohmann::json()) != "text" || text == part.end() || !text->is_string())
      throw invalid_param(name + ".content", "should have parts {\"type\": \"text\", \"text\": ...} only");
    out += text->get<std::string>();
  }
  return out;
}

inline std::vector<io::chat_message> read_messages(const call_reader& in, completion_call& c) {
  const nlohmann::json* v = in.find("messages");
  if (v == nullptr) throw invalid_param("messages", "is missing", "missing_required_parameter");
  if (!v->is_array()) call_reader::wrong("messages", "an array of messages", *v);
  if (v->empty()) throw invalid_param("messages", "should have at least one message");
  std::vector<io::chat_message> out;
  for (std::size_t i = 0; i < v->size(); ++i) {
    const nlohmann::json& m = (*v)[i];
    const std::string name = "messages[" + std::to_string(i) + "]";
    if (!m.is_object()) call_reader::wrong(name, "an object", m);
    const auto role = m.find("role");
    if (role == m.end()) throw invalid_param(name + ".role", "is missing", "missing_required_parameter");
    refuse_old_calls(name, m);
    if (*role != "system" && *role != "developer" && *role != "user" && *role != "assistant" && *role != "tool")
      throw invalid_param(name + ".role", "should be system, developer, user, assistant or tool");
    if (const std::string member = member_of_templates(m); !member.empty() && c.needs_template.empty())
      c.needs_template = name + "." + member;
    std::string content = read_content(name, m, *role);
    out.push_back({*role == "developer" ? "system" : role->get<std::string>(), std::move(content)});
  }
  return out;
}

// A member of the call with the order of its own members, which the body's text has.
inline nlohmann::ordered_json ordered_member(const call_reader& in, std::string_view text, const char* name) {
  const nlohmann::json* v = in.find(name);
  if (v == nullptr) return {};
  const std::optional<std::string_view> cut = text.empty() ? std::nullopt : io::member_text(text, name);
  return nlohmann::ordered_json::parse(cut ? std::string(*cut) : v->dump());
}

// What a chat template is given of a call.
inline void read_conversation(const call_reader& in, std::string_view text, completion_call& c) {
  nlohmann::ordered_json messages = ordered_member(in, text, "messages");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    auto& m = messages[i];
    m["role"] = c.messages[i].role;
    m["content"] = c.messages[i].content;
    for (const char* member : {"tool_calls", "function_call", "refusal", "audio"})
      if (m.contains(member) && (m[member].is_null() || m[member].empty())) m.erase(member);
    if (m.contains("tool_calls")) read_tool_calls("messages[" + std::to_string(i) + "].tool_calls", m["tool_calls"]);
  }
  const auto needs = [&](const char* name) {
    if (c.needs_template.empty()) c.needs_template = name;
  };
  const auto absent = [&](const char* name) {  // values that change nothing
    const nlohmann::json* v = in.find(name);
    return v == nullptr || *v == false || *v == "" || *v == "none" || (v->is_structured() && v->empty());
  };
  nlohmann::ordered_json tools, documents;
  if (!absent("tools")) {
    tools = ordered_member(in, text, "tools");
    if (!tools.is_array()) call_reader::wrong("tools", "an array of tools", *in.find("tools"));
    for (const auto& t : tools) {
      const auto function = t.is_object() ? t.find("function") : t.end();
      if (!t.is_object() || function == t.end() || !function->is_object() || !function->contains("name") ||
          !(*function)["name"].is_string())
        throw invalid_param("tools", "should have objects {\"type\": \"function\", \"function\": {\"name\": ...}}",
                            "invalid_type");
    }
    needs("tools");
  }
  if (const nlohmann::json* choice = in.find("tool_choice")) {
    if (*choice == "none")
      tools = nullptr;
    else if (*choice != "auto" && *choice != false && *choice != "" && !(choice->is_structured() && choice->empty()))
      throw invalid_param("tool_choice", "can only be \"auto\" or \"none\"", "unsupported_parameter");
  }
  if (!absent("documents")) {
    documents = ordered_member(in, text, "documents");
    if (!documents.is_array() || !std::ranges::all_of(documents, [](const auto& d) { return d.is_object(); }))
      call_reader::wrong("documents", "an array of objects", *in.find("documents"));
    needs("documents");
  }
  c.calls_tools = tools.is_array();
  c.conversation = {{"messages", std::move(messages)},
                    {"tools", std::move(tools)},
                    {"documents", std::move(documents)},
                    {"add_generation_prompt", true}};
  if (!absent("chat_template_kwargs")) {
    const nlohmann::json& more = *in.find("chat_template_kwargs");
    if (!more.is_object()) call_reader::wrong("chat_template_kwargs", "an object", more);
    for (const auto& [name, value] : more.items()) {
      if (name != "enable_thinking" && name != "thinking" && name != "reasoning_effort")
        throw invalid_param("chat_template_kwargs", "can only have enable_thinking, thinking and reasoning_effort",
                            "unsupported_parameter");
      c.conversation[name] = nlohmann::ordered_json::parse(value.dump());
    }
    needs("chat_template_kwargs");
  }
}

inline std::map<std::int32_t, double> read_logit_bias(const call_reader& in) {
  std::map<std::int32_t, double> out;
  const nlohmann::json* v = in.find("logit_bias");
  if (v == nullptr) return out;
  if (!v->is_object()) call_reader::wrong("logit_bias", "an object of tokens and numbers from -100 to 100", *v);
  if (v->size() > most_biases)
    throw invalid_param("logit_bias", "should have at most " + std::to_string(most_biases) + " tokens, got " +
                                          std::to_string(v->size()));
  for (const auto& [token, bias] : v->items()) {
    const bool digits =
        !token.empty() && token.size() <= 9 && token.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) throw invalid_param("logit_bias", "should have ids of tokens as names");
    out[std::stoi(token)] = call_reader::number_of("logit_bias", bias, -100, 100, "from -100 to 100");
  }
  return out;
}

inline void read_sampling(const call_reader& in, sampling_options& s) {
  in.number("temperature", 0, 2, "from 0 to 2", s.temperature);
  in.number("top_p", std::numeric_limits<double>::denorm_min(), 1, "above 0 and at most 1", s.top_p);
  in.number("min_p", 0, 1, "from 0 to 1", s.min_p);
  in.number("repetition_penalty", 1e-3, 1e3, "from 0.001 to 1000", s.repetition_penalty);
  in.number("frequency_penalty", -2, 2, "from -2 to 2", s.frequency_penalty);
  in.number("presence_penalty", -2, 2, "from -2 to 2", s.presence_penalty);
  // -1 stands for all tokens, as 0 does.
  if (const auto k = in.integer("top_k", -1, (std::numeric_limits<std::int32_t>::max)()))
    s.top_k = (std::max)(*k, std::int64_t{0});
  if (const auto seed =
          in.integer("seed", (std::numeric_limits<std::int64_t>::min)(), (std::numeric_limits<std::int64_t>::max)()))
    s.seed = static_cast<std::uint64_t>(*seed);
}

inline void read_stream(const call_reader& in, completion_call& c) {
  c.stream = in.boolean("stream").value_or(false);
  const nlohmann::json* v = in.find("stream_options");
  if (v == nullptr) return;
  if (!v->is_object()) call_reader::wrong("stream_options", "an object", *v);
  if (!c.stream) throw invalid_param("stream_options", "is only for calls with 'stream': true");
  const auto usage = v->find("include_usage");
  if (usage == v->end() || usage->is_null()) return;
  if (!usage->is_boolean()) call_reader::wrong("stream_options.include_usage", "true or false", *usage);
  c.include_usage = usage->get<bool>();
}

inline completion_call read_common(const call_reader& in, const sampling_options& defaults) {
  constexpr std::int64_t most = (std::numeric_limits<std::int32_t>::max)();
  completion_call c;
  if (const nlohmann::json* v = in.find("model")) {
    if (!v->is_string()) call_reader::wrong("model", "a string", *v);
    c.model = v->get<std::string>();
  }
  c.n = in.integer("n", 1, most_choices).value_or(1);
  c.max_tokens = in.integer("max_tokens", 1, most);
  c.sampling = defaults;
  read_sampling(in, c.sampling);
  c.stop = read_stop(in);
  if (const nlohmann::json* v = in.find("stop_token_ids")) {
    if (!v->is_array()) call_reader::wrong("stop_token_ids", "an array of tokens", *v);
    if (v->size() > most_stop_tokens)
      throw invalid_param("stop_token_ids", "should have at most " + std::to_string(most_stop_tokens) +
                                                " tokens, got " + std::to_string(v->size()));
    c.stop_tokens = read_tokens("stop_token_ids", *v);
  }
  c.ignore_end_tokens = in.boolean("ignore_eos").value_or(false);
  c.min_tokens = in.integer("min_tokens", 0, most).value_or(0);
  if (c.min_tokens > 0 && !c.stop.empty())
    throw invalid_param("min_tokens", "has no place beside 'stop': strings end answers of any length");
  if (const nlohmann::json* v = in.find("allowed_token_ids")) {
    if (!v->is_array() || v->empty()) call_reader::wrong("allowed_token_ids", "an array of at least one token", *v);
    c.allowed_tokens = read_tokens("allowed_token_ids", *v);
    std::ranges::sort(c.allowed_tokens);
  }
  c.logit_bias = read_logit_bias(in);
  read_stream(in, c);
  return c;
}

// Reads what constrains the answer. One member of a call may do so.
class constraint_reader {
 public:
  // `body`: the text of the call, for the order of members of a schema, which is that of the answer's.
  constraint_reader(std::string_view body, completion_call& c) : body_(body), c_(&c) {}

  void json_object(const std::string& name) const {
    claim(name);
    c_->json_object = true;
  }
  // A schema, or its text, which is the value of the last name, in the object that is the value of the one before.
  void schema(std::initializer_list<const char*> path, const nlohmann::json& v) const {
    std::string name;
    for (const char* part : path) name += (name.empty() ? "" : ".") + std::string(part);
    claim(*path.begin() == std::string_view("response_format") ? "response_format" : name);
    std::optional<std::string_view> cut = body_;
    std::string text;
    if (v.is_string()) {
      const auto& given = v.get_ref<const std::string&>();
      if (!parsed(name, given).is_object()) call_reader::wrong(name, "the text of an object", v);
      text = io::without_spaces(given);
    } else {
      if (!v.is_object()) call_reader::wrong(name, "an object", v);
      for (const char* part : path)
        if (cut) cut = io::member_text(*cut, part);
      text = cut ? io::without_spaces(*cut) : v.dump();
    }
    if (text.size() > most_schema_bytes)
      throw invalid_param(name,
                          "should have at most " + std::to_string(most_schema_bytes) +
                              " bytes without the spaces outside strings, got " + std::to_string(text.size()),
                          "invalid_grammar");
    c_->json_schema = std::move(text);
  }
  void regex(const std::string& name, const nlohmann::json& v) const {
    claim(name == "response_format.regex" ? "response_format" : name);
    if (!v.is_string()) throw invalid_param(name, "should be a regular expression");
    c_->regex = v.get<std::string>();
  }
  // One of some texts, as an expression of alternatives.
  void choice(const std::string& name, const nlohmann::json& v) const {
    claim(name);
    if (!v.is_array() || v.empty()) call_reader::wrong(name, "an array of at least one string", v);
    std::string out;
    for (const nlohmann::json& one : v) {
      if (!one.is_string()) call_reader::wrong(name, "an array of strings", one);
      if (&one != &v.front()) out += '|';
      for (const char c : one.get_ref<const std::string&>()) {
        if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) out += '\\';
        out += c;
      }
    }
    c_->regex = std::move(out);
  }

 private:
  void claim(const std::string& name) const {
    if (!c_->constraint.empty()) throw invalid_param(name, "has no place beside '" + c_->constraint + "'");
    c_->constraint = name;
  }
  static nlohmann::json parsed(const std::string& name, const std::string& text) {
    try {
      return io::parse_json(text, "the schema");
    } catch (const io_error& e) {
      throw invalid_param(name, "is refused: " + std::string(without_prefix(e.what())), "invalid_grammar");
    }
  }
  std::string_view body_;
  completion_call* c_;
};

// Members of an object that are not among those it may have would be passed over.
inline void only_members(const std::string& name, const nlohmann::json& object,
                         std::initializer_list<std::string_view> known) {
  for (const auto& [member, value] : object.items())
    if (!value.is_null() && std::ranges::count(known, std::string_view(member)) == 0)
      throw invalid_param(name + "." + shown_name(member), "is not supported by this server", "unsupported_parameter");
}

inline void read_response_format(const call_reader& in, const constraint_reader& to) {
  const nlohmann::json* v = in.find("response_format");
  if (v == nullptr) return;
  if (!v->is_object()) call_reader::wrong("response_format", "an object", *v);
  const auto type = v->find("type");
  const std::string name = type != v->end() && type->is_string() ? type->get<std::string>() : "";
  const auto member = [&](const char* of) {
    const auto at = v->find(of);
    return at == v->end() || at->is_null() ? nullptr : &*at;
  };
  if (name == "text") {
    only_members("response_format", *v, {"type"});
  } else if (name == "json_object") {  // llama.cpp's has a schema
    only_members("response_format", *v, {"type", "schema"});
    if (const nlohmann::json* schema = member("schema"))
      to.schema({"response_format", "schema"}, *schema);
    else
      to.json_object("response_format");
  } else if (name == "json_schema") {
    only_members("response_format", *v, {"type", "json_schema"});
    const nlohmann::json* about = member("json_schema");
    if (about == nullptr || !about->is_object() || !about->contains("schema"))
      throw invalid_param("response_format.json_schema", "should be an object with 'schema'");
    if (!(*about)["schema"].is_object())
      call_reader::wrong("response_format.json_schema.schema", "an object", (*about)["schema"]);
    to.schema({"response_format", "json_schema", "schema"}, (*about)["schema"]);
  } else if (name == "regex") {
    only_members("response_format", *v, {"type", "regex"});
    const nlohmann::json* pattern = member("regex");
    if (pattern == nullptr) throw invalid_param("response_format.regex", "should be a regular expression");
    to.regex("response_format.regex", *pattern);
  } else {
    throw invalid_param("response_format",
                        "can only be of type \"text\", \"json_object\", \"json_schema\" or \"regex\"",
                        "unsupported_parameter");
  }
}

// What constrains the answer, as OpenAI, vLLM, llama.cpp and SGLang spell it.
inline void read_constraints(const call_reader& in, std::string_view body, completion_call& c) {
  const constraint_reader to(body, c);
  read_response_format(in, to);
  for (const char* name : {"guided_json", "json_schema"})
    if (const nlohmann::json* v = in.find(name)) to.schema({name}, *v);
  for (const char* name : {"guided_regex", "regex"})
    if (const nlohmann::json* v = in.find(name)) to.regex(name, *v);
  if (const nlohmann::json* v = in.find("guided_choice")) to.choice("guided_choice", *v);
  if (in.boolean("guided_json_object").value_or(false)) to.json_object("guided_json_object");
  if (const nlohmann::json* v = in.find("structured_outputs")) {
    const std::string name = "structured_outputs";
    if (!v->is_object()) call_reader::wrong(name, "an object", *v);
    // Answers have a space at most behind commas and colons, and no members but those that are listed, whatever the others say.
    only_members(name, *v,
                 {"json", "regex", "choice", "json_object", "disable_fallback", "disable_any_whitespace",
                  "disable_additional_properties"});
    const call_reader of(*v);
    if (const nlohmann::json* schema = of.find("json")) to.schema({"structured_outputs", "json"}, *schema);
    if (const nlohmann::json* pattern = of.find("regex")) to.regex(name + ".regex", *pattern);
    if (const nlohmann::json* texts = of.find("choice")) to.choice(name + ".choice", *texts);
    if (of.boolean("json_object").value_or(false)) to.json_object(name + ".json_object");
  }
  const auto beside = [&](const char* name, bool is) {
    if (is && !c.constraint.empty())
      throw invalid_param(c.constraint, "has no place beside '" + std::string(name) +
                                            "': a constrained answer ends where it is complete, and only there");
  };
  beside("ignore_eos", c.ignore_end_tokens);
  beside("stop", !c.stop.empty());
  beside("stop_token_ids", !c.stop_tokens.empty());
  beside("min_tokens", c.min_tokens > 0);
  beside("allowed_token_ids", !c.allowed_tokens.empty());
  if (c.max_tokens && c.min_tokens > *c.max_tokens)
    throw invalid_param("min_tokens", "should be at most the most tokens of an answer, " +
                                          std::to_string(*c.max_tokens) + ", got " + std::to_string(c.min_tokens));
}

}  // namespace detail

/// The call of a body of /v1/completions. Members that are not known are ignored, except those that restrict answers elsewhere, which are refused; null counts as absent.
/// Extensions: `top_k`, `min_p`, `repetition_penalty`, `stop_token_ids`, `ignore_eos`, `min_tokens`, `allowed_token_ids`, `add_special_tokens`, and vLLM's, SGLang's and llama.cpp's names of what `response_format` has. `text`: of which the body was read, for the order of members of a schema. `defaults`: of what the call does not say about sampling. Errors: `api_error` (400) that names the member.
inline completion_call parse_completion(const nlohmann::json& body, std::string_view text = {},
                                        const sampling_options& defaults = {}) {
  const detail::call_reader in(body);
  completion_call c = detail::read_common(in, defaults);
  c.prompts = detail::read_prompts(in);
  if (static_cast<std::int64_t>(c.prompts.size()) > most_choices / c.n)
    throw invalid_param("prompt", "and 'n' should make at most " + std::to_string(most_choices) + " choices, got " +
                                      std::to_string(c.prompts.size()) + " prompts and n = " + std::to_string(c.n));
  if (!c.max_tokens) c.max_tokens = 16;
  c.log_probabilities = in.integer("logprobs", 0, 20);
  c.add_special_tokens = in.boolean("add_special_tokens").value_or(true);
  detail::refuse_foreign_members(body, false);
  detail::read_constraints(in, text, c);
  if (const auto best = in.integer("best_of", 1, 128); best && *best != c.n)
    throw invalid_param("best_of", "must be equal to 'n' on this server", "unsupported_parameter");
  return c;
}

/// The call of a body of /v1/chat/completions, as `parse_completion`.
inline completion_call parse_chat(const nlohmann::json& body, std::string_view text = {},
                                  const sampling_options& defaults = {}) {
  const detail::call_reader in(body);
  completion_call c = detail::read_common(in, defaults);
  c.chat = true;
  c.messages = detail::read_messages(in, c);
  detail::read_conversation(in, text, c);
  if (const auto most = in.integer("max_completion_tokens", 1, (std::numeric_limits<std::int32_t>::max)()))
    c.max_tokens = most;
  const bool wanted = in.boolean("logprobs").value_or(false);
  const auto top = in.integer("top_logprobs", 0, 20);
  if (top && *top > 0 && !wanted) throw invalid_param("top_logprobs", "is only for calls with 'logprobs': true");
  if (wanted) c.log_probabilities = top.value_or(0);
  detail::refuse_foreign_members(body, true);
  detail::read_constraints(in, text, c);
  return c;
}

/// The call of a body as text. Errors: as those above, and 400 for what is no JSON, a name that comes twice in one object,
/// or more than 32 levels.
inline completion_call parse_call(std::string_view body, bool chat, const sampling_options& defaults = {}) {
  nlohmann::json value;
  try {
    value = io::parse_json(body, "the body");
  } catch (const io_error& e) {
    throw api_error(400, "invalid_request_error", std::string(without_prefix(e.what())), std::nullopt, "invalid_json");
  }
  return chat ? parse_chat(value, body, defaults) : parse_completion(value, body, defaults);
}

/// The mask of a call's choices: its biases, the tokens it allows, no end before `min_tokens`, and `grammar` behind them; empty where there are none of these.
/// `end_tokens`: of the engine.
inline logits_mask call_mask(const completion_call& c, const logits_mask& grammar = {},
                             const std::vector<std::int32_t>& end_tokens = {}) {
  if (c.logit_bias.empty() && c.allowed_tokens.empty() && c.min_tokens == 0) return grammar;
  std::vector<std::int32_t> ends = end_tokens;
  ends.insert(ends.end(), c.stop_tokens.begin(), c.stop_tokens.end());
  return [bias = c.logit_bias, allowed = c.allowed_tokens, least = c.min_tokens, ends = std::move(ends), grammar](
             std::span<const std::int32_t> answer, std::span<double> logits) {
    constexpr double never = -std::numeric_limits<double>::infinity();
    const auto at = [&](std::int32_t token) { return static_cast<std::size_t>(token); };
    for (const auto& [token, b] : bias)
      if (at(token) < logits.size()) logits[at(token)] += b;
    std::size_t next = 0;
    for (const std::int32_t token : allowed) {
      for (; next < (std::min)(at(token), logits.size()); ++next) logits[next] = never;
      next = at(token) + 1;
    }
    for (; !allowed.empty() && next < logits.size(); ++next) logits[next] = never;
    if (std::ssize(answer) < least)
      for (const std::int32_t token : ends)
        if (at(token) < logits.size()) logits[at(token)] = never;
    if (grammar) grammar(answer, logits);
  };
}

/// The requests of a call: for each prompt, tokens of `prompts`, `n` of them, one behind the other. With a seed s those of one prompt have the seeds s, s + 1, ...
/// `context`: of the engine. `mask`: of `call_mask`.
inline std::vector<request> to_requests(const completion_call& c, const std::vector<std::vector<std::int32_t>>& prompts,
                                        std::int64_t context, const logits_mask& mask) {
  std::vector<request> out;
  for (const std::vector<std::int32_t>& tokens : prompts)
    for (std::int64_t i = 0; i < c.n; ++i) {
      request r{.prompt = tokens,
                .max_tokens = c.max_tokens.value_or((std::max)(context, std::int64_t{1})),
                .sampling = c.sampling,
                .log_probabilities = c.log_probabilities,
                .stop_tokens = c.stop_tokens,
                .ignore_end_tokens = c.ignore_end_tokens,
                .mask = mask};
      if (r.sampling.seed) *r.sampling.seed += static_cast<std::uint64_t>(i);
      out.push_back(std::move(r));
    }
  return out;
}
/// With the call's own mask, for an engine without end tokens.
inline std::vector<request> to_requests(const completion_call& c, const std::vector<std::vector<std::int32_t>>& prompts,
                                        std::int64_t context) {
  return to_requests(c, prompts, context, call_mask(c));
}

}  // namespace heddle::inline v0::infer
