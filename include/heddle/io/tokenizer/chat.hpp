// heddle/io/tokenizer/chat.hpp: conversations as the text and the tokens that Llama-3 and Qwen models were trained on.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <cstddef>
#include <cstdint>
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

/// A part of a rendered conversation: a special token of the template's, or text.
struct chat_part {
  std::string text;
  bool mark = false;  ///< the template put this special token here; never what a message spells

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

/// The template of Llama-3 instruct models (8B and 70B of April 2024): contents are stripped of white space around them.
/// Llama-3.1 and later also write dates and tools, which this does not.
/// Source: chat_template of meta-llama/Meta-Llama-3-8B-Instruct, tokenizer_config.json.
struct llama3_chat {
  /// A conversation in parts. `generation_prompt` begins the turn that the model is to write.
  std::vector<chat_part> operator()(std::span<const chat_message> messages, bool generation_prompt) const {
    std::vector<chat_part> out;
    const auto header = [&](std::string_view role) {
      detail::add_mark(out, "<|start_header_id|>");
      detail::add_text(out, role);
      detail::add_mark(out, "<|end_header_id|>");
      detail::add_text(out, "\n\n");
    };
    for (const chat_message& m : messages) {
      if (out.empty()) detail::add_mark(out, "<|begin_of_text|>");
      header(m.role);
      detail::add_text(out, detail::stripped(m.content));
      detail::add_mark(out, "<|eot_id|>");
    }
    if (generation_prompt) header("assistant");
    return out;
  }
};

/// ChatML, the template of Qwen's chat models, without tools.
/// Source: chat_template of Qwen/Qwen2-7B-Instruct and Qwen/Qwen2.5-7B-Instruct, tokenizer_config.json.
struct chatml_chat {
  /// What a conversation begins with whose first message is none of the system's; nothing where this is empty.
  std::string default_system;

  /// A conversation in parts. `generation_prompt` begins the turn that the model is to write.
  std::vector<chat_part> operator()(std::span<const chat_message> messages, bool generation_prompt) const {
    std::vector<chat_part> out;
    const auto turn = [&](std::string_view role, std::string_view content) {
      detail::add_mark(out, "<|im_start|>");
      detail::add_text(out, role);
      detail::add_text(out, "\n");
      detail::add_text(out, content);
      detail::add_mark(out, "<|im_end|>");
      detail::add_text(out, "\n");
    };
    if (!default_system.empty() && !messages.empty() && messages.front().role != "system")
      turn("system", default_system);
    for (const chat_message& m : messages) turn(m.role, m.content);
    if (generation_prompt) {
      detail::add_mark(out, "<|im_start|>");
      detail::add_text(out, "assistant\n");
    }
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

/// A rendered conversation as tokens. Text between two marks is encoded as one. Without special tokens in messages both kinds
/// of `content` so give what the package makes of the whole text, if the marks have none of `lstrip`, `rstrip`, `single_word`
/// and `normalized`, as those of Llama-3 and Qwen: as text, marks take nothing along and are found by themselves. Tokens that
/// are added to the vocabulary but not special are found in messages in either case.
/// Errors: `config_error` if the tokenizer lacks a mark of the template's; `text_error` as of `tokenizer::encode`.
inline std::vector<token_id> encode_chat(const tokenizer& t, std::span<const chat_part> parts,
                                         chat_content content = chat_content::as_text,
                                         invalid_utf8 invalid = invalid_utf8::refuse) {
  for (const chat_part& p : parts)
    if (p.mark) static_cast<void>(t.special(p.text));
  if (content == chat_content::with_tokens)
    return t.encode(to_text(parts), {.add_special_tokens = false, .special_tokens_as_text = false, .invalid = invalid});
  std::vector<token_id> out;
  for (const chat_part& p : parts) {
    if (p.mark) {
      out.push_back(t.special(p.text));
      continue;
    }
    const std::vector<token_id> ids =
        t.encode(p.text, {.add_special_tokens = false, .special_tokens_as_text = true, .invalid = invalid});
    out.insert(out.end(), ids.begin(), ids.end());
  }
  return out;
}

}  // namespace heddle::inline v0::io
