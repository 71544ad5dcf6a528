// heddle/io/chat/chat.hpp: conversations in the formats of Llama-3, Qwen and DeepSeek.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// One turn of a conversation. Roles are what the model knows: "system", "user", "assistant", ...
struct chat_message {
  std::string role;
  std::string content;

  friend bool operator==(const chat_message&, const chat_message&) = default;
};

/// A part of a rendered conversation: an added token of the template's, or text.
struct chat_part {
  std::string text;
  bool mark = false;  ///< the template put this token here; never what a message spells

  friend bool operator==(const chat_part&, const chat_part&) = default;
};

/// What `encode_chat` makes of special tokens that messages spell.
enum class chat_content {
  as_text,      ///< text like any other: no message can end its turn or begin another
  with_tokens,  ///< those tokens, as transformers' `apply_chat_template` does
};

namespace detail {

// Adds text to a conversation: one part as long as no mark comes between.
inline void add_text(std::vector<chat_part>& to, std::string_view text) {
  if (text.empty()) return;
  if (to.empty() || to.back().mark) to.push_back({});
  to.back().text += text;
}
inline void add_mark(std::vector<chat_part>& to, std::string_view mark) {
  to.push_back({std::string(mark), true});
}

// What Python's str.strip() leaves, which templates call: white space of Unicode, and the separators U+001C to U+001F.
inline std::string_view stripped(std::string_view text) {
  const auto space = [](std::uint32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); };
  // Bytes that are no UTF-8 end it: they are no white space.
  while (!text.empty()) {
    const utf8_sequence s = first_sequence(text);
    if (!s.whole || !space(code_point_at(text, 0))) break;
    text.remove_prefix(static_cast<std::size_t>(s.length));
  }
  while (!text.empty()) {
    std::size_t at = text.size() - 1;
    while (at > 0 && text.size() - at < 4 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
    const utf8_sequence s = first_sequence(text.substr(at));
    if (!s.whole || at + static_cast<std::size_t>(s.length) != text.size() || !space(code_point_at(text, at))) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

}  // namespace detail

namespace detail {

// A turn of Llama-3's, from its header to its mark of the end.
inline void add_llama_header(std::vector<chat_part>& to, std::string_view role) {
  add_mark(to, "<|start_header_id|>");
  add_text(to, role);
  add_mark(to, "<|end_header_id|>");
  add_text(to, "\n\n");
}
inline void add_llama_turn(std::vector<chat_part>& to, std::string_view role, std::string_view content) {
  add_llama_header(to, role);
  add_text(to, stripped(content));
  add_mark(to, "<|eot_id|>");
}

// A turn of ChatML, and the beginning of the one that the model is to write.
inline void add_chatml_turn(std::vector<chat_part>& to, std::string_view role, std::string_view content) {
  add_mark(to, "<|im_start|>");
  add_text(to, role);
  add_text(to, "\n");
  add_text(to, content);
  add_mark(to, "<|im_end|>");
  add_text(to, "\n");
}
inline void add_chatml_prompt(std::vector<chat_part>& to) {
  add_mark(to, "<|im_start|>");
  add_text(to, "assistant\n");
}

// The day as templates write it, "05 Mar 2025", in the zone of this machine.
inline std::string today() {
  constexpr std::array months{"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  ::localtime_r(&now, &day);
  return (day.tm_mday < 10 ? "0" : "") + std::to_string(day.tm_mday) + " " +
         months[static_cast<std::size_t>(day.tm_mon)] + " " + std::to_string(day.tm_year + 1900);
}

// What Python's lstrip("\n") and rstrip("\n") leave.
inline std::string_view without_first_lines(std::string_view text) {
  return text.substr((std::min)(text.find_first_not_of('\n'), text.size()));
}
inline std::string_view without_last_lines(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}
// What follows the last `mark` of a text; all of it without one.
inline std::string_view behind_last(std::string_view text, std::string_view mark) {
  const std::size_t at = text.rfind(mark);
  return at == std::string_view::npos ? text : text.substr(at + mark.size());
}

}  // namespace detail

/// The template of Llama-3 instruct models (8B and 70B of April 2024): contents are stripped of white space around them.
/// Source: chat_template of meta-llama/Meta-Llama-3-8B-Instruct, tokenizer_config.json.
struct llama3_chat {
  /// A conversation in parts. `generation_prompt` begins the turn that the model is to write.
  std::vector<chat_part> operator()(std::span<const chat_message> messages, bool generation_prompt) const {
    std::vector<chat_part> out;
    for (const chat_message& m : messages) {
      if (out.empty()) detail::add_mark(out, "<|begin_of_text|>");
      detail::add_llama_turn(out, m.role, m.content);
    }
    if (generation_prompt) detail::add_llama_header(out, "assistant");
    return out;
  }
};

/// The template of Llama-3.1 and Llama-3.2 instruct models, without tools: the system's turn begins with two dates.
/// Source: chat_template of meta-llama/Llama-3.1-8B-Instruct and meta-llama/Llama-3.2-1B-Instruct, tokenizer_config.json.
struct llama3_1_chat {
  std::string date = "26 Jul 2024";  ///< that of Llama-3.1; empty: the day on which it is rendered, as Llama-3.2 has it

  /// A conversation in parts. `generation_prompt` begins the turn that the model is to write.
  std::vector<chat_part> operator()(std::span<const chat_message> messages, bool generation_prompt) const {
    std::vector<chat_part> out;
    const bool has_system = !messages.empty() && messages.front().role == "system";
    detail::add_mark(out, "<|begin_of_text|>");
    detail::add_llama_header(out, "system");
    detail::add_text(out, "Cutting Knowledge Date: December 2023\nToday Date: ");
    detail::add_text(out, date.empty() ? detail::today() : date);
    detail::add_text(out, "\n\n");
    if (has_system) detail::add_text(out, detail::stripped(messages.front().content));
    detail::add_mark(out, "<|eot_id|>");
    for (const chat_message& m : messages.subspan(has_system ? 1 : 0)) detail::add_llama_turn(out, m.role, m.content);
    if (generation_prompt) detail::add_llama_header(out, "assistant");
    return out;
  }
};

/// ChatML, the template of Qwen's chat models, without tools.
/// Source: chat_template of Qwen/Qwen2-7B-Instruct and Qwen/Qwen2.5-7B-Instruct, tokenizer_config.json.
struct chatml_chat {
  /// What a conversation begins with whose first message is none of the system's; nothing where this is empty.
  std::string default_system;

  friend bool operator==(const chatml_chat&, const chatml_chat&) = default;

  /// A conversation in parts. `generation_prompt` begins the turn that the model is to write.
  std::vector<chat_part> operator()(std::span<const chat_message> messages, bool generation_prompt) const {
    std::vector<chat_part> out;
    if (!default_system.empty() && !messages.empty() && messages.front().role != "system")
      detail::add_chatml_turn(out, "system", default_system);
    for (const chat_message& m : messages) detail::add_chatml_turn(out, m.role, m.content);
    if (generation_prompt) detail::add_chatml_prompt(out);
    return out;
  }
};

/// The template of Qwen-3 models that think, without tools: ChatML, where thoughts are left out of answers before the user's last message.
/// Source: chat_template of Qwen/Qwen3-8B, tokenizer_config.json.
struct qwen3_chat {
  /// A conversation in parts. `generation_prompt` begins the turn that the model is to write.
  std::vector<chat_part> operator()(std::span<const chat_message> messages, bool generation_prompt) const {
    std::vector<chat_part> out;
    const auto asks = [](const chat_message& m) {
      return m.role == "user" && !(m.content.starts_with("<tool_response>") && m.content.ends_with("</tool_response>"));
    };
    std::size_t asked = messages.size();  // one behind the user's last message
    while (asked > 0 && !asks(messages[asked - 1])) --asked;
    if (asked == 0) asked = messages.size();
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const chat_message& m = messages[i];
      std::string_view content = m.content, thoughts;
      if (const std::size_t end = content.find("</think>"); m.role == "assistant" && end != std::string_view::npos) {
        thoughts = detail::without_last_lines(content.substr(0, end));
        thoughts = detail::without_first_lines(detail::behind_last(thoughts, "<think>"));
        content = detail::without_first_lines(detail::behind_last(content, "</think>"));
      }
      if (m.role != "assistant" || i < asked || (i + 1 < messages.size() && thoughts.empty()))
        detail::add_chatml_turn(out, m.role, content);
      else
        detail::add_chatml_turn(out, m.role,
                                "<think>\n" + std::string(detail::without_last_lines(thoughts)) + "\n</think>\n\n" +
                                    std::string(detail::without_first_lines(content)));
    }
    if (generation_prompt) detail::add_chatml_prompt(out);
    return out;
  }
};

/// The template of DeepSeek-V2's chat models.
/// Source: chat_template of deepseek-ai/DeepSeek-V2-Lite-Chat, tokenizer_config.json.
struct deepseek_v2_chat {
  /// A conversation in parts. `generation_prompt` begins the turn that the model is to write.
  std::vector<chat_part> operator()(std::span<const chat_message> messages, bool generation_prompt) const {
    std::vector<chat_part> out;
    detail::add_mark(out, "<\uff5cbegin\u2581of\u2581sentence\uff5c>");
    for (const chat_message& m : messages) {
      if (m.role == "user") detail::add_text(out, "User: ");
      if (m.role == "assistant") detail::add_text(out, "Assistant: ");
      detail::add_text(out, m.content);
      if (m.role == "assistant")
        detail::add_mark(out, "<\uff5cend\u2581of\u2581sentence\uff5c>");
      else
        detail::add_text(out, "\n\n");
    }
    if (generation_prompt) detail::add_text(out, "Assistant:");
    return out;
  }
};

/// The template of DeepSeek-V3, of R1 and of what was distilled from R1, without tools: thoughts are left out of answers.
/// Source: chat_template of deepseek-ai/DeepSeek-R1 and deepseek-ai/DeepSeek-R1-Distill-Qwen-7B, tokenizer_config.json.
struct deepseek_r1_chat {
  bool every_system =
      true;            ///< all words of the system's, as R1 has them; else the last message's, as what was distilled
  bool thinks = true;  ///< the turn that the model is to write begins with `<think>` and a line's end

  /// A conversation in parts. `generation_prompt` begins the turn that the model is to write.
  std::vector<chat_part> operator()(std::span<const chat_message> messages, bool generation_prompt) const {
    std::vector<chat_part> out;
    std::string system;
    bool several = false;
    for (const chat_message& m : messages) {
      if (m.role != "system") continue;
      system = every_system ? system + (several ? "\n\n" : "") + m.content : m.content;
      several = true;
    }
    detail::add_mark(out, "<\uff5cbegin\u2581of\u2581sentence\uff5c>");
    detail::add_text(out, system);
    for (const chat_message& m : messages) {
      if (m.role == "system") continue;
      const bool answers = m.role == "assistant";
      detail::add_mark(out, answers ? "<\uff5cAssistant\uff5c>" : "<\uff5cUser\uff5c>");
      detail::add_text(out, answers ? detail::behind_last(m.content, "</think>") : std::string_view(m.content));
      if (answers) detail::add_mark(out, "<\uff5cend\u2581of\u2581sentence\uff5c>");
    }
    if (generation_prompt) detail::add_mark(out, "<\uff5cAssistant\uff5c>");
    if (generation_prompt && thinks) detail::add_text(out, "<think>\n");
    return out;
  }
};

/// The template of Qwen-2 instruct models: ChatML with their words of the system's.
inline chatml_chat qwen2_chat() {
  return {"You are a helpful assistant."};
}
/// The template of Qwen-2.5 instruct models: ChatML with their words of the system's.
inline chatml_chat qwen2_5_chat() {
  return {"You are Qwen, created by Alibaba Cloud. You are a helpful assistant."};
}

/// A rendered conversation as text: what transformers' `apply_chat_template(..., tokenize=False)` returns.
inline std::string to_text(std::span<const chat_part> parts) {
  std::string out;
  for (const chat_part& p : parts) out += p.text;
  return out;
}

namespace detail {
// The token of a mark: an added one, which need not be special (DeepSeek's of turns are not).
inline token_id mark_token(const tokenizer& t, std::string_view mark) {
  for (const added_token& a : t.added_tokens())
    if (a.content == mark) return a.id;
  return t.special(mark);  // throws
}
}  // namespace detail

/// A rendered conversation as tokens. Text between two marks is encoded as one. Without special tokens in messages both kinds
/// of `content` so give what the package makes of the whole text, if the marks have none of `lstrip`, `rstrip`, `single_word`
/// and `normalized`, as those of Llama-3 and Qwen: as text, marks take nothing along and are found by themselves. Tokens that
/// are added to the vocabulary but not special are found in messages in either case.
/// Errors: `config_error` if the tokenizer lacks a mark of the template's; `text_error` as of `tokenizer::encode`.
inline std::vector<token_id> encode_chat(const tokenizer& t, std::span<const chat_part> parts,
                                         chat_content content = chat_content::as_text,
                                         invalid_utf8 invalid = invalid_utf8::refuse) {
  for (const chat_part& p : parts)
    if (p.mark) static_cast<void>(detail::mark_token(t, p.text));
  if (content == chat_content::with_tokens)
    return t.encode(to_text(parts), {.add_special_tokens = false, .special_tokens_as_text = false, .invalid = invalid});
  std::vector<token_id> out;
  for (const chat_part& p : parts) {
    if (p.mark) {
      out.push_back(detail::mark_token(t, p.text));
      continue;
    }
    const std::vector<token_id> ids =
        t.encode(p.text, {.add_special_tokens = false, .special_tokens_as_text = true, .invalid = invalid});
    out.insert(out.end(), ids.begin(), ids.end());
  }
  return out;
}

}  // namespace heddle::inline v0::io
