// heddle/io/chat/samples.hpp: conversations as training samples of the answers.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/chat/template.hpp>
#include <heddle/io/json/lines.hpp>
#include <heddle/io/token_targets.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// The tokens of a conversation, and of each whether the assistant wrote it.
struct learned_tokens {
  std::vector<token_id> ids{};
  std::vector<bool> learned{};
};

namespace detail {

// Where the tokens of a text begin in it. A tokenizer may put a space before a text, and an added token may take spaces along.
inline std::vector<std::size_t> token_places(const tokenizer& t, std::span<const token_id> ids, std::string_view text) {
  std::vector<std::size_t> places;
  std::size_t at = 0;
  for (const token_id id : ids) {
    std::string_view bytes = t.token_bytes(id);
    const auto found = [&] {
      for (std::size_t i = at; i <= text.size(); ++i) {
        if (text.substr(i).starts_with(bytes)) return at = i, true;
        if (i == text.size() || std::string_view(" \n\r\t").find(text[i]) == std::string_view::npos) break;
      }
      return false;
    };
    if (!found()) {
      if (bytes.starts_with(' ')) bytes.remove_prefix(1);
      if (!found())
        throw config_error(
            "heddle: the tokenizer changes the text, so that its tokens have no place in it, from byte " +
            std::to_string(at) + " on: '" + std::string(bytes.substr(0, 60)) +
            "'; a conversation should be normalized as the tokenizer does it (NFC)");
    }
    places.push_back(at);
    at += bytes.size();
  }
  return places;
}

inline std::vector<token_id> chat_ids(const tokenizer& t, const std::string& text) {
  return t.encode(text, {.add_special_tokens = false});
}

}  // namespace detail

/// A conversation as training samples: one, or one of each of the assistant's turns. `conversation` is what the template is given, with `messages`. `now`: as of `chat_template::render`.
///
/// Where the template has statements `generation`, what they make is learned: the tokens that have bytes of it, as transformers'
/// `apply_chat_template(return_assistant_tokens_mask=True)` has them.
/// Else, of each assistant's turn, what the text up to and with it has behind the text before it, which ends with the beginning of an answer: from
/// the first token in which the two differ, as the data of prompts and completions of trl. If a template writes a turn in another
/// way as soon as more follows, as those that leave out earlier thoughts do, each turn is a sample with what is before it.
/// Special tokens that messages spell are those tokens, as in both packages. Errors: `template_error` as of the template; `text_error` as of
/// `tokenizer::encode`; `config_error` where no token can be given a place in the text.
/// Source: `transformers/utils/chat_template_utils.py` of 5.24, `trl/trainer/sft_trainer.py` of 1.16.
inline std::vector<learned_tokens> learned_samples(const tokenizer& t, const chat_template& chat,
                                                   nlohmann::ordered_json conversation,
                                                   std::time_t now = std::time(nullptr)) {
  conversation["add_generation_prompt"] = false;
  if (chat.marks_generated()) {
    const generated_text whole = chat.render_generated(conversation, now);
    learned_tokens one{.ids = detail::chat_ids(t, whole.text)};
    const std::vector<std::size_t> places = detail::token_places(t, one.ids, whole.text);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::size_t begin = places[i], end = begin + t.token_bytes(one.ids[i]).size();
      one.learned.push_back(
          std::ranges::any_of(whole.generated, [&](const auto& g) { return begin < g.second && end > g.first; }));
    }
    return {std::move(one)};
  }
  const nlohmann::ordered_json messages = conversation["messages"];
  const auto rendered = [&](std::size_t count, bool prompt) {
    conversation["messages"] = nlohmann::ordered_json(
        nlohmann::ordered_json::array_t(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count)));
    conversation["add_generation_prompt"] = prompt;
    return detail::chat_ids(t, chat.render(conversation, now));
  };
  learned_tokens whole{.ids = rendered(messages.size(), false)};
  whole.learned.resize(whole.ids.size());
  std::vector<learned_tokens> turns;
  bool apart = false;
  for (std::size_t k = 0; k < messages.size(); ++k) {
    if (messages[k]["role"] != "assistant") continue;
    const std::vector<token_id> before = rendered(k, true);
    learned_tokens& turn = turns.emplace_back(learned_tokens{.ids = rendered(k + 1, false)});
    const auto begin = std::ranges::mismatch(turn.ids, before).in1 - turn.ids.begin();
    turn.learned.resize(turn.ids.size());
    std::fill(turn.learned.begin() + begin, turn.learned.end(), true);
    apart =
        apart || turn.ids.size() > whole.ids.size() || !std::equal(turn.ids.begin(), turn.ids.end(), whole.ids.begin());
    if (!apart) std::fill(whole.learned.begin() + begin, whole.learned.begin() + std::ssize(turn.ids), true);
  }
  if (apart) return turns;
  return {std::move(whole)};
}

/// Samples of one length, and what became of the conversations.
struct chat_samples {
  token_targets rows{};  ///< `context` tokens and targets each, the last ones nothing where a sample is shorter
  std::int64_t conversations = 0;
  std::int64_t samples = 0;
  std::int64_t cut = 0;      ///< samples that are longer: their last tokens are left out
  std::int64_t empty = 0;    ///< samples that have nothing of the assistant's within the context: they are left out
  std::int64_t learned = 0;  ///< tokens
};

/// The conversations of a file, a line each: {"messages": [{"role": ..., "content": ...}, ...]} and what else the template takes: `tools`,
/// `documents`, and the members of `chat_template_kwargs`. `tokens`: `bos_token` and the like, as of `template_tokens`.
/// Errors: as of `read_json_lines`; `config_error` that names the line for what `learned_samples` refuses and for one without messages, each an
/// object with a role, and where nothing of the assistant's is learned.
inline chat_samples read_chat_samples(const std::filesystem::path& file, const tokenizer& t, const chat_template& chat,
                                      const nlohmann::ordered_json& tokens, std::int64_t context) {
  chat_samples out;
  const auto add = [&](const learned_tokens& of) {
    token_targets one = targets_of(of.ids, of.learned);
    const auto length = static_cast<std::size_t>(context);
    if (one.tokens.size() > length) ++out.cut;
    one.tokens.resize(length);
    one.targets.resize(length, token_targets::ignored);
    const auto learned = std::ranges::count_if(one.targets, [](std::int32_t id) { return id >= 0; });
    if (learned == 0) return static_cast<void>(++out.empty);
    ++out.samples;
    out.learned += learned;
    out.rows.tokens.insert(out.rows.tokens.end(), one.tokens.begin(), one.tokens.end());
    out.rows.targets.insert(out.rows.targets.end(), one.targets.begin(), one.targets.end());
  };
  read_json_lines(file, [&](const nlohmann::json& said, const std::string& line, const std::string& where) {
    const nlohmann::json messages = said.value("messages", nlohmann::json());
    if (!messages.is_array() || messages.empty() || !std::ranges::all_of(messages, [](const nlohmann::json& m) {
          return m.is_object() && m.value("role", nlohmann::json()).is_string();
        }))
      throw config_error("heddle: " + where +
                         " should have 'messages', a list of objects with a 'role' and a 'content'");
    nlohmann::ordered_json given = nlohmann::ordered_json::parse(line);  // in the order of the file
    nlohmann::ordered_json conversation{{"tools", nullptr}, {"documents", nullptr}};
    if (const auto more = given.find("chat_template_kwargs"); more != given.end() && more->is_object())
      conversation.update(*more);
    for (const char* name : {"messages", "tools", "documents"})
      if (given.contains(name)) conversation[name] = given[name];
    conversation.update(tokens);
    ++out.conversations;
    try {
      for (const learned_tokens& one : learned_samples(t, chat, conversation)) add(one);
    } catch (const error& e) {
      throw config_error("heddle: " + where + ": " + std::string(without_prefix(e.what())));
    }
  });
  if (out.samples == 0)
    throw config_error("heddle: '" + file.string() + "' has " + std::to_string(out.conversations) +
                       " conversations, and none has a turn of the assistant's within " + std::to_string(context) +
                       " tokens");
  return out;
}

}  // namespace heddle::inline v0::io
