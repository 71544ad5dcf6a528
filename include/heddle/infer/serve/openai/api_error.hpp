// heddle/infer/serve/openai/api_error.hpp: errors of OpenAI's interface: status, JSON.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/infer/byte_dfa.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/serve/request_queue.hpp>
#include <heddle/io/json/strict.hpp>

#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace heddle::inline v0::infer {

/// A call that cannot be answered. `status`: of HTTP.
class api_error : public error {
 public:
  /// `param`: the member of the call that is wrong, if it is one. `code`: a word for programs, if there is one.
  api_error(int status, std::string type, const std::string& message, std::optional<std::string> param = {},
            std::optional<std::string> code = {})
      : error("heddle: " + message),
        status_(status),
        type_(std::move(type)),
        param_(std::move(param)),
        code_(std::move(code)) {}
  int status() const noexcept { return status_; }
  const std::string& type() const noexcept { return type_; }
  const std::optional<std::string>& param() const noexcept { return param_; }
  const std::optional<std::string>& code() const noexcept { return code_; }
  /// Adds a member to the error's body.
  api_error with(const std::string& name, nlohmann::json value) && {
    more_[name] = std::move(value);
    return std::move(*this);
  }
  /// `{"error": {"message", "type", "param", "code", ...}}`.
  nlohmann::json body() const {
    const auto or_null = [](const std::optional<std::string>& s) { return s ? nlohmann::json(*s) : nlohmann::json(); };
    nlohmann::json e = more_;
    e["message"] = std::string(without_prefix(what()));
    e["type"] = type_;
    e["param"] = or_null(param_);
    e["code"] = or_null(code_);
    return {{"error", std::move(e)}};
  }

 private:
  int status_;
  std::string type_;
  std::optional<std::string> param_;
  std::optional<std::string> code_;
  nlohmann::json more_ = nlohmann::json::object();
};

/// A member of a call has the wrong type or is out of its range: status 400.
inline api_error invalid_param(const std::string& param, const std::string& message,
                               std::optional<std::string> code = {}) {
  return {400, "invalid_request_error", "'" + param + "' " + message, param, std::move(code)};
}

/// The error of HTTP for an exception of ours. `prompt`: what the call names its prompt. Errors: none.
inline api_error to_api_error(const std::exception& e, const std::string& prompt = "prompt") {
  const std::string message(without_prefix(e.what()));
  if (const auto* a = dynamic_cast<const api_error*>(&e)) return *a;
  if (const auto* c = dynamic_cast<const context_error*>(&e))
    return api_error(400, "exceed_context_size_error", message, prompt, "context_length_exceeded")
        .with("n_prompt_tokens", c->prompt_tokens())
        .with("n_ctx", c->context());
  if (const auto* r = dynamic_cast<const request_error*>(&e))
    return {400, "invalid_request_error", message, r->field() == "prompt" ? prompt : r->field()};
  if (dynamic_cast<const grammar_busy_error*>(&e) != nullptr)
    return {429, "rate_limit_error", message, "response_format", "grammars_busy"};
  if (dynamic_cast<const queue_full_error*>(&e) != nullptr)
    return {429, "rate_limit_error", message, std::nullopt, "queue_full"};
  if (dynamic_cast<const unavailable_error*>(&e) != nullptr)
    return {503, "service_unavailable_error", message, std::nullopt, "unavailable"};
  return {500, "server_error", message, std::nullopt, "internal_error"};
}

/// The text of a JSON value on one line; bytes that are no UTF-8 are replaced. Line separators of Unicode are escapes: clients in Python split events at them.
inline std::string json_text(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (const auto& [bytes, escape] : {std::pair<std::string_view, std::string_view>{"\xC2\x85", "\\u0085"},
                                      {"\xE2\x80\xA8", "\\u2028"},
                                      {"\xE2\x80\xA9", "\\u2029"}})
    for (std::size_t at = 0; (at = text.find(bytes, at)) != std::string::npos; at += escape.size())
      text.replace(at, bytes.size(), escape);
  return text;
}

}  // namespace heddle::inline v0::infer
