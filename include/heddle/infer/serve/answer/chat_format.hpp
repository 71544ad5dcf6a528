// heddle/infer/serve/answer/chat_format.hpp: chat templates and tokens of conversations.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/infer/serve/answer/sections.hpp>
#include <heddle/io/chat/chat.hpp>
#include <heddle/io/chat/folder.hpp>
#include <heddle/io/chat/template.hpp>
#include <heddle/io/checksum.hpp>
#include <heddle/io/tokenizer/load.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace heddle::inline v0::infer {

/// A chat template.
using chat_format = std::variant<io::llama3_chat, io::llama3_1_chat, io::chatml_chat, io::qwen3_chat,
                                 io::deepseek_v2_chat, io::deepseek_r1_chat>;

/// A folder's own chat template, and what it is given of the tokenizer's files.
struct rendered_template {
  io::chat_template source;
  nlohmann::ordered_json tokens = nlohmann::ordered_json::object();  ///< `bos_token`, `eos_token` and the like
  tool_call_format calls = tool_call_format::none;
  bool reasoning = false;  ///< whether it marks thoughts by <think> and </think>
};

/// The chat template of what is served, or why there is none.
struct chat_choice {
  std::optional<chat_format> format{};
  std::string about = "the server was given no chat template";  ///< where it comes from, or why calls are refused
  std::optional<rendered_template> rendered{};  ///< the folder's own: of calls that `format` does not render

  bool renders() const noexcept { return format || rendered; }
};

namespace detail {

struct named_chat_format {
  std::string_view name;
  chat_format format;
};
inline std::vector<named_chat_format> named_chat_formats() {
  return {{"llama3", io::llama3_chat{}},
          {"llama3.1", io::llama3_1_chat{}},
          {"llama3.2", io::llama3_1_chat{.date = ""}},
          {"chatml", io::chatml_chat{}},
          {"qwen2", io::qwen2_chat()},
          {"qwen2.5", io::qwen2_5_chat()},
          {"qwen3", io::qwen3_chat{}},
          {"deepseek-v2", io::deepseek_v2_chat{}},
          {"deepseek-r1", io::deepseek_r1_chat{}},
          {"deepseek-r1-plain", io::deepseek_r1_chat{.thinks = false}},
          {"deepseek-r1-distill", io::deepseek_r1_chat{.every_system = false}},
          {"deepseek-r1-distill-plain", io::deepseek_r1_chat{.every_system = false, .thinks = false}}};
}

// Sources by their checksum, as tests/golden/tokenizer/chat_golden.py prints them.
struct known_chat_template {
  std::uint64_t checksum;
  std::string_view name;
};
inline constexpr known_chat_template known_chat_templates[] = {{0xdcdc8f0c69cd885eu, "llama3"},
                                                               {0x0a1c337d0cdaed22u, "llama3"},
                                                               {0xfaadb0599d3f8825u, "llama3"},
                                                               {0x4c2b07973da5dfedu, "llama3"},
                                                               {0xc0e2a829a7f6e18au, "llama3.1"},
                                                               {0xe980fb39e0834855u, "llama3.2"},
                                                               {0x408946d744ba89eeu, "chatml"},
                                                               {0x3f951c547f06568fu, "chatml"},
                                                               {0xb885985d8b9a5a01u, "chatml"},
                                                               {0xd1244203fb4553c4u, "chatml"},
                                                               {0x438e1930d4ab6761u, "chatml"},
                                                               {0x749561678d2443b2u, "qwen2"},
                                                               {0x0204c96ac6f58bb0u, "qwen2"},
                                                               {0x489ac7fa3c7d69f5u, "qwen2.5"},
                                                               {0xa2f2632e64077a8eu, "qwen3"},
                                                               {0x3a7a05b91997dcccu, "deepseek-v2"},
                                                               {0x1f98b966130e1521u, "deepseek-v2"},
                                                               {0x50248faf11320483u, "deepseek-r1"},
                                                               {0x2e5db106ef725f94u, "deepseek-r1-plain"},
                                                               {0x786f55549d3ebf99u, "deepseek-r1-distill"},
                                                               {0xa268b956840d13b3u, "deepseek-r1-distill-plain"}};

// What jinja makes of the ends of lines: one kind, and none behind the text.
inline std::string with_plain_lines(std::string_view source) {
  std::string out;
  for (std::size_t i = 0; i < source.size(); ++i)
    if (source[i] != '\r')
      out += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n')
      out += '\n';
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

// The words of the system's that a source writes by itself, as it spells them: what differs between templates of one shape.
inline std::string words_of_system(std::string_view source) {
  constexpr std::string_view begin = "<|im_start|>system", end = "<|im_end|>";
  for (std::size_t at = source.find(begin); at != std::string_view::npos; at = source.find(begin, at)) {
    at += begin.size();
    const std::string_view rest = source.substr(at), line = rest.starts_with('\n') ? "\n" : "\\n";
    if (!rest.starts_with(line)) continue;
    const std::string_view words = rest.substr(line.size(), rest.find_first_of("'\"") - line.size());
    if (const std::size_t length = words.rfind(end); length != std::string_view::npos && length > 0)
      return std::string(words.substr(0, length));
  }
  return {};
}
inline void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}
// A text between quotes of jinja; none for escapes other than of lines and of backslashes.
inline std::optional<std::string> unescaped(std::string_view spelled) {
  std::string out;
  for (std::size_t i = 0; i < spelled.size(); ++i) {
    const bool escape = spelled[i] == '\\';
    if (escape && (++i == spelled.size() || (spelled[i] != 'n' && spelled[i] != '\\'))) return std::nullopt;
    out += escape && spelled[i] == 'n' ? '\n' : spelled[i];
  }
  return out;
}

}  // namespace detail

/// The names of `named_chat_format`, with commas between them.
inline std::string chat_format_names() {
  std::string out;
  for (const auto& f : detail::named_chat_formats()) out += (out.empty() ? "" : ", ") + std::string(f.name);
  return out;
}

/// The chat template of a name. Errors: `config_error` that lists the names.
inline chat_format named_chat_format(std::string_view name) {
  for (const auto& f : detail::named_chat_formats())
    if (f.name == name) return f.format;
  throw config_error("heddle: there is no chat template '" + std::string(name) + "'; there are " + chat_format_names());
}

/// The template that a jinja source means, if it is one of those that are known; its own words of the system's in place of Qwen's, if it has others.
/// The whole source counts, but for the kind of its ends of lines and one behind it.
inline std::optional<chat_format> known_chat_format(std::string_view source) {
  std::string text = detail::with_plain_lines(source);
  const std::string spelled = detail::words_of_system(text);
  if (!spelled.empty()) detail::replace_all(text, spelled, "\x01");
  const std::uint64_t sum = io::checksum(std::as_bytes(std::span(text)));
  for (const auto& known : detail::known_chat_templates) {
    if (known.checksum != sum) continue;
    chat_format format = named_chat_format(known.name);
    if (spelled.empty()) return format;
    const std::optional<std::string> words = detail::unescaped(spelled);
    if (!words || !std::holds_alternative<io::chatml_chat>(format)) return std::nullopt;
    std::get<io::chatml_chat>(format).default_system = *words;
    return format;
  }
  return std::nullopt;
}

/// Tokens of a conversation and of the beginning of the turn that the model is to write. Special tokens that messages spell are text.
/// Errors: as of `io::encode_chat`.
inline std::vector<std::int32_t> conversation_tokens(const io::tokenizer& t, const chat_format& format,
                                                     std::span<const io::chat_message> messages) {
  return std::visit([&](const auto& f) { return io::encode_chat(t, f(messages, true)); }, format);
}

namespace detail {
// What is no character of a conversation, and keeps the spelling of a special token in a message from being one.
inline std::string unused_mark(const nlohmann::ordered_json& data) {
  const std::string all = data.dump();
  for (char last = '\x90'; last <= '\xaf'; ++last) {  // U+FDD0 to U+FDEF
    const std::string mark{'\xef', '\xb7', last};
    if (all.find(mark) == std::string::npos) return mark;
  }
  throw text_error("heddle: a conversation has all of the characters U+FDD0 to U+FDEF, which are none");
}
inline bool break_marks(nlohmann::ordered_json& value, const std::vector<std::string>& special,
                        const std::string& mark) {
  bool broken = false;
  if (value.is_string()) {
    auto& text = value.get_ref<std::string&>();
    for (const std::string& s : special)
      for (std::size_t at = 0; (at = text.find(s, at)) != std::string::npos; at += s.size() + mark.size()) {
        text.insert(at + io::detail::sequence_length(s[0]), mark);
        broken = true;
      }
  } else if (value.is_structured()) {
    for (auto& one : value) broken = break_marks(one, special, mark) || broken;
  }
  return broken;
}
}  // namespace detail

/// A conversation as the text of a folder's template, and as its tokens.
struct rendered_conversation {
  std::vector<std::int32_t> tokens{};
  bool thinks = false;  ///< the answer begins with thoughts: the text ends with <think>
};
/// `conversation`: of a call. Special tokens that it spells are text. Errors: `io::template_error` as of the template; `text_error` as of `tokenizer::encode`.
inline rendered_conversation render_conversation(const io::tokenizer& t, const rendered_template& r,
                                                 nlohmann::ordered_json conversation) {
  std::vector<std::string> special;
  for (const io::added_token& a : t.added_tokens())
    if (a.special && a.content.size() > 1) special.push_back(a.content);
  std::ranges::sort(special, [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  const std::string mark = detail::unused_mark(conversation);
  const bool broken = detail::break_marks(conversation, special, mark);
  for (const auto& [name, value] : r.tokens.items()) conversation[name] = value;
  const std::string text = r.source.render(conversation);
  rendered_conversation out{.thinks = std::string_view(io::detail::stripped(text)).ends_with("<think>")};
  if (!broken) {
    out.tokens = t.encode(text, {.add_special_tokens = false});
    return out;
  }
  std::vector<io::chat_part> parts;
  std::string held;
  const auto flush = [&] {
    detail::replace_all(held, mark, "");
    io::detail::add_text(parts, std::exchange(held, {}));
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = std::string_view(text).substr(i);
    const auto at = std::ranges::find_if(special, [&](const std::string& s) { return rest.starts_with(s); });
    if (at == special.end()) {
      held += text[i++];
    } else {
      flush();
      io::detail::add_mark(parts, *at);
      i += at->size();
    }
  }
  flush();
  out.tokens = io::encode_chat(t, parts);
  return out;
}

/// The chat template that conversations are rendered by: the one of `name`, or, without a name, the folder's where its source is known and
/// the folder's tokens of beginning and end are those of the template; beside it, or where the source is none
/// that is known, the source itself. Else none, and why. Never one that the folder does not have.
/// Errors: `config_error` for a name that there is not, and for one whose marks the tokenizer lacks; `io_error` as of `read_chat_template`.
inline chat_choice choose_chat_format(const std::filesystem::path& folder, const io::tokenizer& t,
                                      const std::string& name = {}) {
  const auto needs_marks = [&](const chat_format& format) {
    static_cast<void>(conversation_tokens(t, format, std::vector<io::chat_message>{{"user", ""}, {"assistant", ""}}));
  };
  if (!name.empty()) {
    const chat_format format = named_chat_format(name);
    needs_marks(format);
    return {format, "'" + name + "', as named"};
  }
  const std::string advice = "; one can be named: " + chat_format_names();
  const std::optional<io::chat_template_source> source = io::read_chat_template(folder);
  if (!source) return {std::nullopt, "'" + folder.string() + "' has no chat template" + advice};
  const std::string where = "the chat template in '" + source->file + "'";
  std::optional<chat_format> format = known_chat_format(source->text);
  if (source->text.empty()) return {std::nullopt, where + " has none with the name 'default'" + advice};
  const nlohmann::ordered_json tokens =
      io::template_tokens(folder);  // what the source takes from the tokenizer's files
  std::optional<rendered_template> rendered;
  try {
    rendered = rendered_template{.source = io::chat_template(source->text)};
  } catch (const io::template_error& e) {
    if (!format) return {std::nullopt, where + ": " + std::string(without_prefix(e.what())) + advice};
  }
  if (rendered) {
    rendered->tokens = tokens;
    rendered->calls = tool_calls_of(source->text);
    rendered->reasoning = source->text.find("</think>") != std::string::npos;
  }
  if (!format) return {std::nullopt, where, std::move(rendered)};
  const std::vector<io::chat_part> parts = std::visit(
      [](const auto& f) { return f(std::vector<io::chat_message>{{"user", "a"}, {"assistant", "b"}}, false); },
      *format);
  const auto same = [&](const char* token, const std::string& expected) {
    return tokens.value(token, std::string()) == expected;
  };
  if (const std::string& first = parts.front().text;
      source->text.find("bos_token") != std::string::npos && !same("bos_token", first))
    return {std::nullopt, where + " begins with '" + first + "', and the tokenizer's files have '" +
                              tokens.value("bos_token", std::string()) + "' as bos_token" + advice};
  if (const std::string& last = parts.back().text;
      source->text.find("eos_token") != std::string::npos && !same("eos_token", last))
    return {std::nullopt, where + " ends answers with '" + last + "', and the tokenizer's files have '" +
                              tokens.value("eos_token", std::string()) + "' as eos_token" + advice};
  try {
    needs_marks(*format);
  } catch (const config_error& e) {
    return {std::nullopt, where + ": " + std::string(without_prefix(e.what()))};
  }
  return {std::move(format), where, std::move(rendered)};
}

/// The tokens that end a turn in any of the templates, or a text: those of them that are special tokens of `t`. For models whose files name none.
inline std::vector<std::int32_t> usual_end_tokens(const io::tokenizer& t) {
  std::vector<std::int32_t> out;
  for (const io::added_token& a : t.added_tokens())
    for (const std::string_view mark : {"<|eot_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "</s>"})
      if (a.special && a.content == mark) out.push_back(a.id);
  return out;
}

}  // namespace heddle::inline v0::infer
