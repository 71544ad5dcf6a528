// heddle/infer/serve/answer/sections.hpp: an answer as content, thoughts and calls of tools.
#pragma once

#include <heddle/io/chat/chat.hpp>
#include <heddle/io/json/strict.hpp>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// A call of a tool in an answer.
struct tool_call {
  std::string id{};  ///< the model's, or empty
  std::string name{};
  std::string arguments{};  ///< JSON, an object
  friend bool operator==(const tool_call&, const tool_call&) = default;
};

/// How a family writes calls of tools.
enum class tool_call_format {
  none,    ///< not, or not known
  hermes,  ///< Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>
  llama3,  ///< Llama 3: {"name": ..., "parameters": {...}}, several with ';' between them, <|python_tag|> before them or not
  mistral,  ///< Mistral: [TOOL_CALLS] [{"name": ..., "arguments": {...}, "id": ...}], or [TOOL_CALLS]name[ARGS]{...}
};

/// The format that a chat template writes calls of earlier turns in.
inline tool_call_format tool_calls_of(std::string_view source) {
  const auto has = [&](std::string_view what) { return source.find(what) != std::string_view::npos; };
  if (has("[TOOL_CALLS]")) return tool_call_format::mistral;
  if (has("<tool_call>") && !has("<arg_key>") && !has("<function=")) return tool_call_format::hermes;
  return has("<|python_tag|>") || (has("ipython") && has("\"parameters\": ")) ? tool_call_format::llama3
                                                                              : tool_call_format::none;
}

/// What is certain of an answer: parts joined are the whole.
struct answer_section {
  std::string content{}, reasoning{};
  std::vector<tool_call> calls{};
};

/// Cuts the text of an answer. Marks that come in pieces are held back; what looks like a call and is none stays content.
/// Spaces around thoughts, and those between and before calls, belong to neither.
class answer_sections {
 public:
  /// `reasoning`: what is between <think> and </think> are thoughts; `thinks`: the answer begins with them.
  answer_sections(tool_call_format calls, bool reasoning, bool thinks = false)
      : format_(calls), reasoning_(reasoning), at_(reasoning && thinks ? place::thoughts : place::begin) {}

  /// What a text adds; `last`: it ends the answer.
  answer_section push(std::string_view text, bool last) {
    answer_section out;
    held_ += text;
    while (step(out, last)) {
    }
    return out;
  }

  /// The marks that a tokenizer may have as special tokens, which must stay in the text.
  static std::vector<std::string_view> marks(tool_call_format calls, bool reasoning) {
    std::vector<std::string_view> out;
    if (reasoning) out = {"<think>", "</think>"};
    if (calls == tool_call_format::mistral) out.insert(out.end(), {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"});
    if (calls == tool_call_format::llama3) out.push_back("<|python_tag|>");
    if (calls == tool_call_format::hermes) out.insert(out.end(), {"<tool_call>", "</tool_call>"});
    return out;
  }

 private:
  enum class place { begin, thoughts, content, call };

  bool step(answer_section& out, bool last) {
    switch (at_) {
      case place::begin:
        return begin(last);
      case place::thoughts:
        return thoughts(out, last);
      case place::content:
        return content(out, last);
      case place::call:
        return call(out, last);
    }
    return false;
  }
  static std::string_view after_spaces(std::string_view s) {
    return s.substr((std::min)(s.find_first_not_of(" \n\r\t"), s.size()));
  }
  // Whether a text may yet become one that begins with `mark`.
  static bool may_begin(std::string_view text, std::string_view mark) {
    return text.size() < mark.size() && mark.starts_with(text);
  }
  bool begin(bool last) {
    const std::string_view rest = after_spaces(held_);
    if (rest.empty() && !last) return false;
    if (reasoning_ && may_begin(rest, "<think>") && !rest.empty() && !last) return false;
    if (reasoning_ && rest.starts_with("<think>")) {
      held_ = rest.substr(7);
      at_ = place::thoughts;
      return true;
    }
    if (format_ == tool_call_format::llama3) {
      constexpr std::string_view tag = "<|python_tag|>";
      if (!rest.empty() && may_begin(rest, tag) && !last) return false;
      if (rest.starts_with(tag) || rest.starts_with('{')) {
        at_ = place::call;
        return true;
      }
    }
    at_ = place::content;
    return true;
  }
  // Where text must be held back: spaces at its end, and what may begin one of the marks.
  static std::size_t certain(std::string_view text, std::initializer_list<std::string_view> marks) {
    std::size_t keep = text.size();
    for (std::size_t i = text.size() - (std::min)(text.size(), std::size_t{16}); i < text.size(); ++i)
      for (const std::string_view m : marks)
        if (!m.empty() && may_begin(text.substr(i), m)) keep = (std::min)(keep, i);
    const std::size_t end = text.substr(0, keep).find_last_not_of(" \n\r\t");
    return end == std::string_view::npos ? 0 : end + 1;
  }
  bool thoughts(answer_section& out, bool last) {
    constexpr std::string_view end = "</think>";
    if (!thought_) held_ = std::string(after_spaces(held_));
    const std::size_t at = held_.find(end);
    const std::size_t sure = at != std::string::npos ? certain(std::string_view(held_).substr(0, at), {})
                             : last                  ? held_.size()
                                                     : certain(held_, {end});
    thought_ = thought_ || sure > 0;
    out.reasoning += held_.substr(0, sure);
    held_.erase(0, at != std::string::npos ? at + end.size() : sure);
    if (at == std::string::npos) return false;
    at_ = place::content;
    after_thoughts_ = true;
    reasoning_ = false;
    return true;
  }
  bool content(answer_section& out, bool last) {
    if (after_thoughts_) {
      held_ = std::string(after_spaces(held_));
      if (held_.empty() && !last) return false;
      after_thoughts_ = held_.empty();
      if (!held_.empty() && format_ == tool_call_format::llama3) {
        at_ = place::begin;
        return true;
      }
    }
    const std::string_view mark = format_ == tool_call_format::hermes    ? "<tool_call>"
                                  : format_ == tool_call_format::mistral ? "[TOOL_CALLS]"
                                                                         : "";
    if (mark.empty()) {
      out.content += std::exchange(held_, {});
      return false;
    }
    const std::size_t at = held_.find(mark);
    const std::size_t sure = at != std::string::npos ? certain(std::string_view(held_).substr(0, at), {})
                             : last                  ? held_.size()
                                                     : certain(held_, {mark});
    if (at != std::string::npos || !last || after_spaces(held_).size() > 0 || !called_)
      out.content += held_.substr(0, sure);
    spaces_ = at != std::string::npos ? held_.substr(sure, at - sure) : "";
    held_.erase(0, at != std::string::npos ? at : sure);
    if (at == std::string::npos) return false;
    at_ = place::call;
    return true;
  }
  // Calls from their mark on: up to the mark of the end with Hermes, else up to the end of the answer.
  bool call(answer_section& out, bool last) {
    std::string_view text = held_;
    std::size_t used = held_.size();
    if (format_ == tool_call_format::hermes) {
      constexpr std::string_view open = "<tool_call>", close = "</tool_call>";
      const std::size_t end = held_.find(close);
      if (end == std::string::npos && !last) return false;
      used = end == std::string::npos ? held_.size() : end + close.size();
      text = text.substr(open.size(), (std::min)(end, held_.size()) - open.size());
    } else if (!last) {
      return false;
    }
    std::vector<tool_call> calls;
    if (read(text, calls)) {
      called_ = true;
      out.calls.insert(out.calls.end(), std::make_move_iterator(calls.begin()), std::make_move_iterator(calls.end()));
    } else {
      out.content += spaces_ + held_.substr(0, used);
    }
    held_.erase(0, used);
    at_ = place::content;
    if (format_ == tool_call_format::llama3) format_ = tool_call_format::none;
    return !held_.empty();
  }

  // JSON with the order of its members; what is discarded is none.
  static nlohmann::ordered_json json_in(std::string_view text) {
    // Bounded levels: the parser calls itself for none, but what is made of it does.
    std::size_t level = 0, most = 0;
    for (const char c : text) {
      if (c == '{' || c == '[') most = (std::max)(most, ++level);
      if ((c == '}' || c == ']') && level > 0) --level;
    }
    return most > 100 ? nlohmann::ordered_json(nlohmann::ordered_json::value_t::discarded)
                      : nlohmann::ordered_json::parse(text, nullptr, false);
  }
  static bool add(const nlohmann::ordered_json& j, std::vector<tool_call>& to) {
    if (!j.is_object()) return false;
    const auto name = j.find("name");
    auto arguments = j.find("arguments");
    if (arguments == j.end()) arguments = j.find("parameters");
    if (name == j.end() || !name->is_string() || name->get_ref<const std::string&>().empty()) return false;
    tool_call c{.name = name->get<std::string>(), .arguments = "{}"};
    if (arguments != j.end() && arguments->is_string() && json_in(arguments->get_ref<const std::string&>()).is_object())
      c.arguments = arguments->get<std::string>();
    else if (arguments != j.end() && arguments->is_object())
      c.arguments = arguments->dump();
    else if (arguments != j.end() && !arguments->is_null())
      return false;
    if (const auto id = j.find("id"); id != j.end() && id->is_string()) c.id = id->get<std::string>();
    to.push_back(std::move(c));
    return true;
  }
  bool read(std::string_view text, std::vector<tool_call>& to) const {
    if (format_ == tool_call_format::hermes) return add(json_in(text), to);
    if (format_ == tool_call_format::mistral) return read_mistral(text, to);
    text = after_spaces(text);
    constexpr std::string_view tag = "<|python_tag|>";
    if (text.starts_with(tag)) text.remove_prefix(tag.size());
    // Objects one behind the other, with ';' or spaces between them.
    while (!(text = after_spaces(text)).empty()) {
      if (!to.empty() && text.starts_with(';')) text = after_spaces(text.substr(1));
      const std::size_t end = object_end(text);
      if (end == 0 || !add(json_in(text.substr(0, end)), to)) return false;
      text.remove_prefix(end);
    }
    return !to.empty();
  }
  // The bytes of the object or array that a text begins with, by its brackets outside of strings; 0 if it does not end.
  static std::size_t object_end(std::string_view text) {
    std::size_t level = 0;
    bool string = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (string) {
        if (text[i] == '\\')
          ++i;
        else if (text[i] == '"')
          string = false;
        continue;
      }
      if (text[i] == '"') string = true;
      if (text[i] == '{' || text[i] == '[') ++level;
      if ((text[i] == '}' || text[i] == ']') && (level == 0 || --level == 0)) return level == 0 ? i + 1 : 0;
    }
    return 0;
  }
  static bool read_mistral(std::string_view text, std::vector<tool_call>& to) {
    constexpr std::string_view open = "[TOOL_CALLS]", arguments = "[ARGS]", number = "[CALL_ID]";
    while (!(text = after_spaces(text)).empty()) {
      if (text.starts_with(open)) text = after_spaces(text.substr(open.size()));
      if (text.starts_with('[')) {
        const std::size_t end = object_end(text);
        const nlohmann::ordered_json all = json_in(text.substr(0, end));
        if (end == 0 || !all.is_array() || all.empty()) return false;
        for (const auto& one : all)
          if (!add(one, to)) return false;
        text.remove_prefix(end);
        continue;
      }
      const std::size_t name_end = text.find_first_of("[{"), begin = text.find('{');
      const std::size_t end = begin == std::string_view::npos ? 0 : object_end(text.substr(begin));
      if (name_end == 0 || end == 0) return false;
      tool_call c{.name = std::string(io::detail::stripped(text.substr(0, name_end))),
                  .arguments = std::string(text.substr(begin, end))};
      std::string_view between = text.substr(name_end, begin - name_end);
      if (between.starts_with(number)) {
        const std::size_t stop = (std::min)(between.find(arguments), between.size());
        c.id = std::string(io::detail::stripped(between.substr(number.size(), stop - number.size())));
        between.remove_prefix(stop);
      }
      if ((!between.empty() && !between.starts_with(arguments)) || c.name.empty() || !json_in(c.arguments).is_object())
        return false;
      to.push_back(std::move(c));
      text.remove_prefix(begin + end);
    }
    return !to.empty();
  }

  tool_call_format format_;
  bool reasoning_;
  place at_;
  std::string held_{}, spaces_{};
  bool thought_ = false, after_thoughts_ = false, called_ = false;
};

}  // namespace heddle::inline v0::infer
