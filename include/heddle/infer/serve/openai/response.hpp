// heddle/infer/serve/openai/response.hpp: the response objects and chunks of OpenAI's interface.
#pragma once

#include <heddle/infer/event.hpp>
#include <heddle/infer/serve/answer/text.hpp>
#include <heddle/infer/serve/openai/api_error.hpp>
#include <heddle/io/json/strict.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Tokens that a call used. `prompt`: each prompt once; `cached`: tokens of it that were found in the cache.
struct call_usage {
  std::int64_t prompt = 0, answer = 0, cached = 0;
  friend bool operator==(const call_usage&, const call_usage&) = default;
};

/// The whole answer to one choice.
struct finished_choice {
  std::string text{};
  std::vector<token_text> tokens{};
  finish_reason finish = finish_reason::none;
  std::string reasoning{};
  std::vector<tool_call> calls{};
};

/// Writes the answers to one call. All have its id, time and model. Units: `created` in seconds since 1970.
class response_writer {
 public:
  /// `log_probabilities`: whether the call asks for them.
  response_writer(bool chat, std::string id, std::string model, std::int64_t created, bool log_probabilities,
                  bool include_usage)
      : chat_(chat),
        id_(std::move(id)),
        model_(std::move(model)),
        created_(created),
        log_probabilities_(log_probabilities),
        include_usage_(include_usage) {}

  /// The answer to a call that is not streamed.
  nlohmann::json whole(const std::vector<finished_choice>& choices, const call_usage& usage) const {
    nlohmann::json out = frame(chat_ ? "chat.completion" : "text_completion");
    out["choices"] = nlohmann::json::array();
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const finished_choice& c = choices[i];
      nlohmann::json choice{{"index", i}, {"finish_reason", reason(c.finish, !c.calls.empty())}};
      if (chat_) {
        choice["message"] = {{"role", "assistant"}, {"content", c.text}, {"refusal", nullptr}};
        if (!c.reasoning.empty()) choice["message"]["reasoning_content"] = c.reasoning;
        if (!c.calls.empty()) {
          choice["message"]["tool_calls"] = call_objects(c.calls, std::nullopt);
          if (c.text.empty()) choice["message"]["content"] = nullptr;
        }
      } else
        choice["text"] = c.text;
      choice["logprobs"] = log_probabilities_ ? log_probabilities(c.tokens, 0) : nlohmann::json();
      out["choices"].push_back(std::move(choice));
    }
    out["usage"] = usage_object(usage);
    return out;
  }
  /// The first chunk of a choice of a conversation: the role, no content.
  nlohmann::json role_chunk(std::size_t choice) const {
    return chunk({{"index", choice},
                  {"delta", {{"role", "assistant"}, {"content", nullptr}}},
                  {"logprobs", nullptr},
                  {"finish_reason", nullptr}});
  }
  /// A chunk with text. `offset`: bytes of text before it; `calls`: calls of tools before it.
  nlohmann::json text_chunk(std::size_t choice, const answer_part& part, std::size_t offset,
                            std::size_t calls = 0) const {
    nlohmann::json c{{"index", choice}, {"finish_reason", nullptr}};
    if (chat_) {
      c["delta"] = nlohmann::json::object();
      if (!part.text.empty() || (part.reasoning.empty() && part.calls.empty())) c["delta"]["content"] = part.text;
      if (!part.reasoning.empty()) c["delta"]["reasoning_content"] = part.reasoning;
      if (!part.calls.empty()) c["delta"]["tool_calls"] = call_objects(part.calls, calls);
    } else
      c["text"] = part.text;
    c["logprobs"] = log_probabilities_ ? log_probabilities(part.tokens, offset) : nlohmann::json();
    return chunk(std::move(c));
  }
  /// The last chunk of a choice: the reason, no content.
  nlohmann::json finish_chunk(std::size_t choice, finish_reason r, bool called = false) const {
    nlohmann::json c{{"index", choice}, {"logprobs", nullptr}, {"finish_reason", reason(r, called)}};
    if (chat_)
      c["delta"] = nlohmann::json::object();
    else
      c["text"] = "";
    return chunk(std::move(c));
  }
  /// The chunk behind those of all choices, where the call asks for it: the usage, no choice.
  nlohmann::json usage_chunk(const call_usage& usage) const {
    nlohmann::json out = frame(chat_ ? "chat.completion.chunk" : "text_completion");
    out["choices"] = nlohmann::json::array();
    out["usage"] = usage_object(usage);
    return out;
  }

  static nlohmann::json usage_object(const call_usage& u) {
    return {{"prompt_tokens", u.prompt},
            {"completion_tokens", u.answer},
            {"total_tokens", u.prompt + u.answer},
            {"prompt_tokens_details", {{"cached_tokens", u.cached}}}};
  }
  /// An event of a stream.
  static std::string server_sent(const nlohmann::json& value) { return "data: " + json_text(value) + "\n\n"; }
  /// The last event of a stream.
  static constexpr std::string_view done = "data: [DONE]\n\n";

 private:
  nlohmann::json frame(const char* object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
  }
  nlohmann::json chunk(nlohmann::json choice) const {
    nlohmann::json out = frame(chat_ ? "chat.completion.chunk" : "text_completion");
    out["choices"] = nlohmann::json::array();
    out["choices"].push_back(std::move(choice));
    if (include_usage_) out["usage"] = nullptr;
    return out;
  }
  // Calls of tools; in a stream with their index.
  static nlohmann::json call_objects(const std::vector<tool_call>& calls, std::optional<std::size_t> first) {
    nlohmann::json out = nlohmann::json::array();
    for (const tool_call& c : calls) {
      nlohmann::json one{
          {"id", c.id}, {"type", "function"}, {"function", {{"name", c.name}, {"arguments", c.arguments}}}};
      if (first) one["index"] = (*first)++;
      out.push_back(std::move(one));
    }
    return out;
  }
  static nlohmann::json reason(finish_reason r, bool called) {
    if (called && r == finish_reason::stop) return "tool_calls";
    return r == finish_reason::none ? nlohmann::json() : nlohmann::json(to_string(r));
  }
  nlohmann::json log_probabilities(const std::vector<token_text>& tokens, std::size_t offset) const {
    return chat_ ? chat_log_probabilities(tokens) : completion_log_probabilities(tokens, offset);
  }
  static nlohmann::json described(const text_probability& p) {
    nlohmann::json bytes = nlohmann::json::array();
    for (const char c : p.bytes) bytes.push_back(static_cast<unsigned char>(c));
    return {{"token", p.bytes}, {"logprob", p.log_probability}, {"bytes", std::move(bytes)}};
  }
  static nlohmann::json chat_log_probabilities(const std::vector<token_text>& tokens) {
    nlohmann::json content = nlohmann::json::array();
    for (const token_text& t : tokens) {
      nlohmann::json one = described(t.token);
      one["top_logprobs"] = nlohmann::json::array();
      for (const text_probability& p : t.likeliest) one["top_logprobs"].push_back(described(p));
      content.push_back(std::move(one));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }
  static nlohmann::json completion_log_probabilities(const std::vector<token_text>& tokens, std::size_t offset) {
    nlohmann::json names = nlohmann::json::array(), values = names, tops = names, offsets = names, bytes = names;
    for (const token_text& t : tokens) {
      nlohmann::json one = described(t.token);
      names.push_back(printable(t.token.bytes));
      values.push_back(t.token.log_probability);
      bytes.push_back(std::move(one["bytes"]));
      offsets.push_back(offset);
      offset += t.token.bytes.size();
      nlohmann::json top = nlohmann::json::object();
      for (const text_probability& p : t.likeliest) top[printable(p.bytes)] = p.log_probability;
      top[printable(t.token.bytes)] = t.token.log_probability;
      tops.push_back(std::move(top));
    }
    return {{"tokens", std::move(names)},
            {"token_logprobs", std::move(values)},
            {"top_logprobs", std::move(tops)},
            {"text_offset", std::move(offsets)},
            {"bytes", std::move(bytes)}};
  }
  // Bytes as the name of a member, and as a token beside it: those that form no UTF-8 are spelled, so that names differ.
  static std::string printable(const std::string& bytes) {
    if (io::detail::valid_prefix(bytes) == bytes.size()) return bytes;
    constexpr std::string_view digits = "0123456789abcdef";
    std::string out = "bytes:";
    for (const char c : bytes) {
      const auto b = static_cast<unsigned char>(c);
      out += "\\x";
      out += digits[b >> 4];
      out += digits[b & 15];
    }
    return out;
  }

  bool chat_;
  std::string id_;
  std::string model_;
  std::int64_t created_;
  bool log_probabilities_;
  bool include_usage_;
};

}  // namespace heddle::inline v0::infer
