// heddle/infer/serve/openai/tool_messages.hpp: members of messages on tool calls.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/serve/openai/api_error.hpp>
#include <heddle/io/json/strict.hpp>

#include <cstddef>
#include <string>

namespace heddle::inline v0::infer::detail {

// What no server here does: calls of functions as they were before tools.
inline void refuse_old_calls(const std::string& name, const nlohmann::json& message) {
  const auto at = message.find("function_call");
  if (at != message.end() && !at->is_null() && *at != "")
    throw invalid_param(name + ".function_call", "is not supported by this server; use 'tool_calls'",
                        "unsupported_parameter");
  if (message["role"] == "function")
    throw invalid_param(name + ".role", "should not be function: results of tools have the role tool",
                        "unsupported_parameter");
}

// A member of a message that only a folder's own template renders.
inline std::string member_of_templates(const nlohmann::json& message) {
  for (const char* member : {"tool_calls", "tool_call_id", "reasoning_content", "reasoning"}) {
    const auto at = message.find(member);
    if (at != message.end() && !at->is_null() && !(at->is_array() && at->empty()) && *at != "") return member;
  }
  return message["role"] == "tool" ? "role" : "";
}

// Calls of tools of an earlier turn, as templates take them: arguments are values, which clients send as text.
inline void read_tool_calls(const std::string& name, nlohmann::ordered_json& calls) {
  if (!calls.is_array()) throw invalid_param(name, "should be an array of calls", "invalid_type");
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string one = name + "[" + std::to_string(i) + "].function";
    auto& call = calls[i];
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object() ||
        !call["function"].contains("name") || !call["function"]["name"].is_string())
      throw invalid_param(one, "should be an object with 'name' and 'arguments'", "invalid_type");
    auto& arguments = call["function"]["arguments"];
    if (arguments.is_string()) {
      const auto text = arguments.get<std::string>();
      try {
        static_cast<void>(io::parse_json(text, "the arguments"));
      } catch (const io_error&) {
        throw invalid_param(one + ".arguments", "should be the text of an object");
      }
      arguments = nlohmann::ordered_json::parse(text);
    }
    if (!arguments.is_object()) throw invalid_param(one + ".arguments", "should be the text of an object");
  }
}

}  // namespace heddle::inline v0::infer::detail
