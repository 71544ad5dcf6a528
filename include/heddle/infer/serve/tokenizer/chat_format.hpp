// heddle/infer/serve/tokenizer/chat_format.hpp: chooses the chat template of a tokenizer by its special tokens.
#pragma once

#include <heddle/io/tokenizer/chat.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

namespace heddle::inline v0::infer {

/// A chat template.
using chat_format = std::variant<io::llama3_chat, io::chatml_chat>;

namespace detail {
inline bool has_special_tokens(const io::tokenizer& t, std::initializer_list<std::string_view> marks) {
  const auto is_there = [&](std::string_view mark) {
    return std::ranges::any_of(t.added_tokens(),
                               [&](const io::added_token& a) { return a.special && a.content == mark; });
  };
  return std::ranges::all_of(marks, is_there);
}
}  // namespace detail

/// The template whose marks are special tokens of `t`: that of Llama-3, or ChatML without words of the system's; none otherwise.
inline std::optional<chat_format> choose_chat_format(const io::tokenizer& t) {
  if (detail::has_special_tokens(t, {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}))
    return io::llama3_chat{};
  if (detail::has_special_tokens(t, {"<|im_start|>", "<|im_end|>"})) return io::chatml_chat{};
  return std::nullopt;
}

/// Tokens of a conversation and of the beginning of the turn that the model is to write. Special tokens that messages spell are text.
/// Errors: as of `io::encode_chat`.
inline std::vector<std::int32_t> conversation_tokens(const io::tokenizer& t, const chat_format& format,
                                                     std::span<const io::chat_message> messages) {
  return std::visit([&](const auto& f) { return io::encode_chat(t, f(messages, true)); }, format);
}

/// The tokens that end a turn in any of the templates, or a text: those of them that are special tokens of `t`. For `engine_options::end_tokens`.
inline std::vector<std::int32_t> usual_end_tokens(const io::tokenizer& t) {
  std::vector<std::int32_t> out;
  for (const io::added_token& a : t.added_tokens())
    for (const std::string_view mark : {"<|eot_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "</s>"})
      if (a.special && a.content == mark) out.push_back(a.id);
  return out;
}

}  // namespace heddle::inline v0::infer
